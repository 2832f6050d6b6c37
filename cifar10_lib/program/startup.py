"""Starts a script: imports TensorFlow quietly, parses flags and reports user errors in one line.

Import this module before TensorFlow, whose own messages TF_CPP_MIN_LOG_LEVEL (0 to 3) shows. First
add the script's folder to `sys.path`: Python does not if PYTHONSAFEPATH is set.
"""
import contextlib
import ctypes
import errno
import functools
import io
import math
import os
import re
import signal
import sys

from cifar10_lib.program import console, errors, interrupts

_QUIET = 'TF_CPP_MIN_LOG_LEVEL' not in os.environ
_LOG_LEVEL = '3'  # At level 2, TensorFlow reports a missing GPU as an error.


def _report_exception(kind, error, trace):
    """Reports an uncaught exception: an interrupt and a missing package in one line."""
    if isinstance(error, KeyboardInterrupt):
        errors.say('interrupted')  # Python then ends the process by the signal.
    elif isinstance(error, ModuleNotFoundError) and '.' not in (error.name or '.'):
        errors.say(f'the Python package {error.name} is not installed: activate the virtual '
                   'environment that has it, or run: pip install -r requirements.txt')
    else:
        sys.__excepthook__(kind, error, trace)


@contextlib.contextmanager
def _quiet_unless_it_fails():
    """Discards what the block writes to file descriptor 2, unless the block fails.

    TensorFlow's C++ libraries write there while they load, and abort if they do not support the
    processor: the C library's `signal` sets handlers that run even then, unlike Python's.
    """
    screen, (text, pipe) = os.dup(2), os.pipe()
    for number in (text, pipe):
        os.set_blocking(number, False)  # A full pipe drops text; an empty one ends the reading.

    def show():
        os.dup2(screen, 2)
        with contextlib.suppress(BlockingIOError):
            os.write(2, os.read(text, 1 << 16))

    @ctypes.CFUNCTYPE(None, ctypes.c_int)
    def handler(number):
        libc.signal(number, None)  # When this returns, the same signal ends the process.
        show()

    libc = ctypes.CDLL(None)
    libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
    earlier = {number: libc.signal(number, ctypes.cast(handler, ctypes.c_void_p))
               for number in (signal.SIGABRT, signal.SIGILL, signal.SIGSEGV, signal.SIGBUS)}
    os.dup2(pipe, 2)
    try:
        yield
        os.dup2(screen, 2)
    except BaseException:
        show()
        raise
    finally:
        for number, action in earlier.items():
            libc.signal(number, action)
        for number in (screen, text, pipe):
            os.close(number)


console.open_closed()
sys.excepthook = _report_exception
_raises = interrupts.raises()
if _raises:  # Until TensorFlow is imported, Ctrl-C ends the process without a long traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

# ruff: noqa: E402, the imports below come after the steps above.
from absl import app, flags

with contextlib.ExitStack() as _stack:
    # TensorFlow imports absl's test library and, if installed, Matplotlib. They need a writable
    # folder, and we need neither of them.
    _while_importing = [(os.environ, 'TEST_TMPDIR', os.curdir), (sys.modules, 'matplotlib', None),
                        (os.environ, 'TF_CPP_MIN_LOG_LEVEL', _LOG_LEVEL)]
    if os.uname().machine == 'x86_64':
        # By default, TensorFlow uses oneDNN only on processors with instructions for neural
        # networks. On those with AVX2 only, a step is 1.6 times as fast: docs/performance.md.
        _while_importing.append((os.environ, 'TF_ENABLE_ONEDNN_OPTS', '1'))
    for _mapping, _name, _value in _while_importing:
        if _name not in _mapping:
            _mapping[_name] = _value
            _stack.callback(_mapping.pop, _name)
    if _QUIET:
        _stack.enter_context(_quiet_unless_it_fails())
    import tensorflow.compat.v1 as tf
if _raises:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if _QUIET:
    tf.logging.set_verbosity(tf.logging.FATAL)  # TensorFlow also raises the errors that it logs.
tf.disable_v2_behavior()
tf.enable_resource_variables()  # Orders reads and writes, including those of the global step.

FLAGS = flags.FLAGS

# What Python and absl say of a value of the wrong type, and what we say.
_WRONG_TYPES = {r'invalid literal for int\(\) .*': 'expected a whole number',
                'could not convert string to float: .*': 'expected a number',
                r"\('Non-boolean argument to boolean flag', .*\)": 'expected true or false'}

# Errors of the user, the data or the machine are reported in one line. Any other exception is a bug
# in this program and keeps its traceback.
_USER_ERRORS = (app.UsageError, errors.DataError, FloatingPointError, OSError,
                tf.errors.NotFoundError, tf.errors.PermissionDeniedError,
                tf.errors.ResourceExhaustedError, tf.errors.DataLossError)


def run(main, modules=(), positional=None, unused=()):
    """Parses the command line, runs `main` and exits.

    Exit codes: 0 success; 1 user error, explained in one line on standard error; 130 interrupted
    by Ctrl-C; 141 standard output closed, in a script whose purpose is its output.

    Args:
        main: function without arguments or, with `positional`, of the list of positional arguments.
            Its result is the exit code; None means 0.
        modules: imported modules whose flags the script accepts besides its own.
        positional: the positional arguments in the usage: 'IMAGE...' for at least one, 'FOLDER
            DATA_DIR' for exactly two, None for flags only. Flags may be mixed with them.
        unused: names of flags in `modules` that this script does not use. --help omits them; a
            line on standard error warns of those that are given.
    """
    interrupts.remember()
    os.umask(os.umask(0o022) | 0o022)  # Keeps others from writing to TensorFlow's files.
    for module in modules:
        for flag in FLAGS.get_key_flags_for_module(module):
            if flag.name not in unused:
                FLAGS.register_key_flag_for_module(sys.argv[0], flag)  # For --help.
    try:
        app.run(lambda argv: _without_traceback(lambda: main(argv[1:]) if positional else main()),
                flags_parser=functools.partial(_parse, positional, unused=unused))
    except console.Gone as gone:
        if gone.__cause__.errno == errno.EPIPE:  # As in `... | head`: exit silently.
            sys.exit(128 + signal.SIGPIPE)
        errors.say(f'cannot write to standard output: {gone}')
        sys.exit(1)


def _parse(positional, argv, unused=()):
    """Returns the script's name and its positional arguments; see `run`."""
    if {'--help', '-help', '-h', '-?', '--helpshort'}.intersection(argv[1:]):
        _show_help()
        sys.exit(0)
    FLAGS.set_gnu_getopt(positional is not None)
    try:
        words = FLAGS(argv)
        _check_values()
        _check_positional(words[1:], positional)
    except (flags.Error, ValueError) as error:  # ValueError: a value for --noNAME.
        message = errors.one_line(error)
        for wrong, expected in _WRONG_TYPES.items():
            message = re.sub(wrong, expected, message)
        errors.say(f'{message} (see --help)')
        sys.exit(1)
    ignored = [f'--{name}' for name in unused if FLAGS[name].present]
    if ignored:  # Not an error: the same flags are often given to several scripts.
        errors.say(f'no effect in this script: {", ".join(ignored)}')
    return words


def _show_help():
    console.fail_if_stdout_closes()
    with contextlib.redirect_stdout(io.StringIO()) as text:
        app.usage(shorthelp=True, writeto_stdout=True)
    for line in text.getvalue().rstrip('\n').split('\n'):
        console.line(line)


def _check_values():
    """Rejects values that absl accepts: empty ones, as from an unset shell variable, and NaN."""
    for name in FLAGS:
        value = FLAGS[name].value
        if FLAGS[name].present and value in ('', []):
            raise flags.ValidationError(f'flag --{FLAGS[name].name}= has no value')
        if isinstance(value, float) and math.isnan(value):
            raise flags.ValidationError(f'flag --{FLAGS[name].name}={value} is not a number')


def _check_positional(given, expected):
    """Rejects a wrong number of positional arguments."""
    if expected is None:
        if given:
            raise flags.Error(f'"{given[0]}" is not a flag; expected --name=value')
        return
    excess = len(given) - len(expected.split())
    if excess < 0 or excess and not expected.endswith('...'):
        raise flags.Error(f'got {" ".join(given) or "no arguments"}; expected {expected}')


def _without_traceback(main):
    try:
        return main()
    except (tf.errors.OpError, RuntimeError, *_USER_ERRORS) as error:
        message = None
        if isinstance(error, (tf.errors.OpError, RuntimeError)):
            message = errors.of_the_machine(error)
        if not message and isinstance(error, _USER_ERRORS):
            message = errors.one_line(error)
        if not message:
            raise
        console.end()
        errors.say(message)
        return 1
    except KeyboardInterrupt:
        console.end()
        errors.say('interrupted')
        return 130
