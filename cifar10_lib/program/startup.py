"""Starts a script: parses its flags and reports user errors in one line."""
import functools
import os
import sys
import traceback
from collections.abc import Callable, Collection
from typing import NoReturn

import tensorflow.compat.v1 as tf
from absl import app, flags

from cifar10_lib.program import console, errors

FLAGS = flags.FLAGS

# Reported in one line; any other exception is a bug in this program and keeps its traceback.
_OF_THE_MACHINE = (tf.errors.ResourceExhaustedError, tf.errors.InternalError)
_OF_THE_USER = (app.UsageError, errors.DataError, FloatingPointError, OSError,
                tf.errors.NotFoundError, tf.errors.PermissionDeniedError, tf.errors.DataLossError,
                # A disk or a network share that fails.
                tf.errors.UnknownError, tf.errors.AbortedError, tf.errors.UnavailableError,
                tf.errors.DeadlineExceededError)


def run(main: Callable[..., int | None], positional: str | None = None,
        unused: Collection[str] = ()) -> NoReturn:
    """Parses the command line, with the flags of all imported modules, runs `main` and exits.

    Exit codes: 0 success; 1 user error, explained in one line on standard error; 130 interrupted
    by Ctrl-C; 141 standard output closed, in a script whose purpose is its output.

    Args:
        main: function without arguments or, with `positional`, of the list of positional arguments.
            Its result is the exit code; None means 0.
        positional: those arguments in the usage: 'IMAGE...' for at least one, 'FOLDER DATA_DIR' for
            exactly two, None for flags only. Flags may be mixed with them.
        unused: names of flags without effect in this script: --help omits them, using them warns.
    """
    for module, defined in FLAGS.flags_by_module_dict().items():
        for flag in defined:
            if module.startswith('cifar10') and flag.name not in unused:
                FLAGS.register_key_flag_for_module(sys.argv[0], flag)  # For --help.

    def run_main(argv):
        try:
            if positional:
                return main(argv[1:])
            return main()
        except KeyboardInterrupt:
            console.end()
            errors.say('interrupted')
            return 130
        except (*_OF_THE_USER, *_OF_THE_MACHINE) as error:
            console.end()
            # The traceback of a Python function in the graph is part of its message.
            if '\nTraceback ' in str(error) or os.environ.get('CIFAR10_TRACEBACK'):
                traceback.print_exc()  # absl would show that of an `app.UsageError` as usage.
                return 1
            errors.say(errors.one_line(error) + _remedy(error))
            return 1

    app.run(run_main, flags_parser=functools.partial(_parse, positional or '', unused))


def _remedy(error):
    """What a line about an error ends with, if the error is not one of the user's mistakes."""
    if isinstance(error, _OF_THE_MACHINE):
        return (': use a smaller --batch_size or --device=cpu, or set TF_CPP_MIN_LOG_LEVEL=0 to '
                'see more')
    if isinstance(error, tf.errors.OpError):
        return ' (CIFAR10_TRACEBACK=1 shows where)'
    return ''


def _parse(positional, unused, argv):
    """Returns the script's name and its positional arguments; see `run`."""
    if {'--help', '-help', '-h', '-?', '--helpshort'}.intersection(argv[1:]):
        _show_help()
    FLAGS.set_gnu_getopt(bool(positional))
    try:
        words = FLAGS(argv)
        _check_words(words, positional)
        _check_values()
    except (flags.Error, ValueError) as error:  # ValueError: a value for --noNAME.
        errors.say(f'{errors.one_line(error)} (see --help)')
        sys.exit(1)
    ignored = [f'--{name}' for name in unused if FLAGS[name].present]
    if ignored:  # No error, because people give several scripts the same flags.
        errors.say(f'no effect in this script: {", ".join(ignored)}')
    return words


def _show_help():
    console.fail_if_stdout_closes()
    text = f'{sys.modules["__main__"].__doc__ or ""}\nflags:\n{FLAGS.main_module_help()}'
    for line in text.split('\n'):
        console.line(line)
    sys.exit(0)


def _check_words(words, positional):
    """Raises `flags.Error` unless there are as many positional arguments as in the usage."""
    expected = len(positional.split())
    is_right = len(words) - 1 == expected
    if positional.endswith('...'):
        is_right = len(words) - 1 >= expected
    if not is_right:
        raise flags.Error(f'got {" ".join(words[1:]) or "no arguments"}; expected '
                          f'{positional or "--name=value"}')


def _check_values():
    """Raises `flags.ValidationError` for NaN and '', as from an unset shell variable."""
    for name in FLAGS:
        flag = FLAGS[name]
        is_empty = flag.present and flag.value in ('', [])
        is_nan = flag.value != flag.value
        if is_empty or is_nan:
            raise flags.ValidationError(f'flag --{flag.name}={flag.value or ""} has no value')
