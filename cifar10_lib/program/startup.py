"""Starts a script: imports TensorFlow quietly, parses flags and reports user errors in one line.

Import this module before TensorFlow, whose own messages TF_CPP_MIN_LOG_LEVEL (0 to 3) shows. First
add the script's folder to `sys.path`: Python does not if PYTHONSAFEPATH is set.
"""
import functools
import os
import sys
import threading

# A file would otherwise get the descriptor of a closed standard stream, and all printed text.
for _name in ('stdin', 'stdout', 'stderr'):
    if getattr(sys, _name) is None:
        setattr(sys, _name, open(os.devnull, 'r+'))  # noqa: SIM115, the lowest free descriptor.

# ruff: noqa: E402, the imports below come after the steps above.
from cifar10_lib.program import console, errors


def _report_exception(kind, error, trace):
    """Reports an uncaught exception: an interrupt and a missing package in one line."""
    if isinstance(error, KeyboardInterrupt):
        errors.say('interrupted')  # Python then ends the process by the signal.
    elif isinstance(error, ModuleNotFoundError) and '.' not in (error.name or '.'):
        errors.say(f'the Python package {error.name} is not installed: activate the virtual '
                   'environment that has it, or run: pip install -r requirements.txt')
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _report_exception

from absl import app, flags

_QUIET = 'TF_CPP_MIN_LOG_LEVEL' not in os.environ
_environment = dict(os.environ)
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')  # Level 2 would show a missing GPU.
if os.uname().machine == 'x86_64':
    # By default, TensorFlow uses oneDNN only on processors with instructions for neural networks.
    # On those with AVX2 only, a step is 1.6 times as fast: docs/performance.md.
    os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '1')
# TensorFlow imports absl's test library and, if installed, Matplotlib. They need a writable folder,
# and we need neither of them.
os.environ.setdefault('TEST_TMPDIR', os.curdir)
_has_matplotlib = sys.modules.setdefault('matplotlib', None)

# Whatever the log level, its C++ libraries write to descriptor 2 while they load. Hold that back,
# in a pipe because all folders may be read-only, and show it if the import fails.
_screen, (_held, _pipe) = os.dup(2), os.pipe()
os.set_blocking(_pipe, False)  # If it is full, further text is dropped.
os.dup2(_pipe if _QUIET else _screen, 2)
os.close(_pipe)
try:
    import tensorflow.compat.v1 as tf
except Exception:
    os.dup2(_screen, 2)
    os.write(2, os.read(_held, 1 << 16))
    raise
finally:
    os.dup2(_screen, 2)
    os.close(_screen)
    os.close(_held)
    os.environ.clear()
    os.environ.update(_environment)
    if not _has_matplotlib:
        del sys.modules['matplotlib']
if _QUIET:
    tf.logging.set_verbosity(tf.logging.FATAL)  # TensorFlow also raises the errors that it logs.
# The error of the thread that writes event files is raised again by the next `add_summary`.
threading.excepthook = lambda failed: (
    failed.thread.name == 'EventLoggerThread' or threading.__excepthook__(failed))
tf.disable_v2_behavior()
tf.enable_resource_variables()  # Orders reads and writes, including those of the global step.

FLAGS = flags.FLAGS

# Reported in one line; any other exception is a bug in this program and keeps its traceback.
_OF_THE_MACHINE = (tf.errors.ResourceExhaustedError, tf.errors.InternalError)
_OF_THE_USER = (app.UsageError, errors.DataError, FloatingPointError, OSError,
                tf.errors.NotFoundError, tf.errors.PermissionDeniedError, tf.errors.DataLossError,
                # A disk or a network share that fails.
                tf.errors.UnknownError, tf.errors.AbortedError, tf.errors.UnavailableError,
                tf.errors.DeadlineExceededError)


def run(main, positional=None, unused=()):
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
            return main(argv[1:]) if positional else main()
        except (*_OF_THE_USER, *_OF_THE_MACHINE, KeyboardInterrupt) as error:
            if '\nTraceback ' in str(error):  # Of a Python function in the graph.
                raise
            console.end()
            if isinstance(error, KeyboardInterrupt):
                errors.say('interrupted')
                return 130
            remedy = (': use a smaller --batch_size or --device=cpu, or set TF_CPP_MIN_LOG_LEVEL=0 '
                      'to see more' if isinstance(error, _OF_THE_MACHINE) else '')
            errors.say(errors.one_line(error) + remedy)
            return 1

    app.run(run_main, flags_parser=functools.partial(_parse, positional or '', unused))


def _parse(positional, unused, argv):
    """Returns the script's name and its positional arguments; see `run`."""
    if {'--help', '-help', '-h', '-?', '--helpshort'}.intersection(argv[1:]):
        console.fail_if_stdout_closes()
        text = f'{sys.modules["__main__"].__doc__ or ""}\nflags:\n{FLAGS.main_module_help()}'
        for line in text.split('\n'):
            console.line(line)
        sys.exit(0)
    FLAGS.set_gnu_getopt(bool(positional))
    try:
        words = FLAGS(argv)
        excess = len(words) - 1 - len(positional.split())
        if excess < 0 or excess and not positional.endswith('...'):
            raise flags.Error(f'got {" ".join(words[1:]) or "no arguments"}; expected '
                              f'{positional or "--name=value"}')
        for name in FLAGS:  # absl accepts NaN, and '' as from an unset shell variable.
            value = FLAGS[name].value
            if value != value or FLAGS[name].present and value in ('', []):
                raise flags.ValidationError(f'flag --{FLAGS[name].name}={value or ""} has no value')
    except (flags.Error, ValueError) as error:  # ValueError: a value for --noNAME.
        errors.say(f'{errors.one_line(error)} (see --help)')
        sys.exit(1)
    ignored = [f'--{name}' for name in unused if FLAGS[name].present]
    if ignored:  # Not an error: the same flags are often given to several scripts.
        errors.say(f'no effect in this script: {", ".join(ignored)}')
    return words
