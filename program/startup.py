"""Starts a script: imports TensorFlow quietly, parses flags and reports user errors in one line.

Import this module before TensorFlow. Set TF_CPP_MIN_LOG_LEVEL (0 to 3) to see TensorFlow's own
messages.

A script adds its folder to `sys.path` before it imports this module, because Python does not if
PYTHONSAFEPATH is set.
"""
import contextlib
import errno
import functools
import importlib.util
import io
import math
import os
import re
import signal
import sys
import tempfile
import threading

from program import console
from program import errors

_ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
_QUIET = 'TF_CPP_MIN_LOG_LEVEL' not in os.environ
_LOG_LEVEL = '3'  # At level 2, TensorFlow reports a missing GPU as an error.

# TensorFlow's C++ libraries print these lines at any log level while they load.
_INFORMATION = re.compile(rb'^(?:I\d{4} |WARNING: All log messages before ).*\n', re.MULTILINE)


def _use_utf8():
    """Restarts the script in Python's UTF-8 mode if the locale has another encoding.

    TensorFlow expects file names in UTF-8. With another encoding, Python would open other files.
    """
    script = getattr(sys.modules['__main__'], '__file__', None) or ''
    if (sys.getfilesystemencoding() == 'utf-8' or 'utf8' in sys._xoptions or not sys.executable
            or os.path.dirname(os.path.realpath(script)) != _ROOT):
        return
    os.environ.setdefault('PYTHONIOENCODING', sys.stdout.encoding)  # Keep the terminal's.
    os.execv(sys.executable, [sys.executable, '-X', 'utf8', *sys.orig_argv[1:]])


def _report_exception(kind, error, trace):
    """Reports an uncaught exception; a missing package gets one line instead of a traceback."""
    package = (getattr(error, 'name', None) or '').partition('.')[0]
    if not isinstance(error, ModuleNotFoundError) or _is_installed(package):
        sys.__excepthook__(kind, error, trace)
        return
    errors.say(f'the Python package {package} is not installed: activate the virtual '
               'environment that has it, or run: pip install -r requirements.txt')


def _is_installed(package):
    return not package or importlib.util.find_spec(package) is not None


@contextlib.contextmanager
def _default(mapping, name, value):
    """Sets a missing item of `os.environ` or `sys.modules` for the duration of the block."""
    if name in mapping:
        yield
        return
    mapping[name] = value
    try:
        yield
    finally:
        del mapping[name]


@contextlib.contextmanager
def _interrupts_end_the_process():
    """Makes Ctrl-C end the process at once: KeyboardInterrupt during the import would show a long
    traceback."""
    earlier = signal.getsignal(signal.SIGINT)
    if (earlier is not signal.default_int_handler
            or threading.current_thread() is not threading.main_thread()):
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, earlier)


def _scratch_file():
    """A file descriptor: in memory where Python and the system support that, else on disk."""
    if hasattr(os, 'memfd_create'):
        return os.memfd_create('stderr')
    with tempfile.TemporaryFile() as stream:
        return os.dup(stream.fileno())


@contextlib.contextmanager
def _quiet_unless_it_fails():
    """Discards what the block writes to file descriptor 2, unless the block fails.

    TensorFlow's C++ libraries write there while they load, whatever the log level. If they do not
    support the processor, they abort. So a second process waits, and prints the text if this
    process dies: a byte from the pipe `verdict` discards the text, the end of the pipe prints it.
    """
    screen = os.dup(2)
    verdict_end, verdict = os.pipe()
    text = holder = None
    with contextlib.suppress(OSError):  # Without a file or a process, the text is not held back.
        text = _scratch_file()
        holder = os.fork()
    if holder == 0:
        os.close(verdict)
        try:
            if not os.read(verdict_end, 1):
                os.write(screen, _INFORMATION.sub(b'', os.pread(text, os.fstat(text).st_size, 0)))
        finally:
            os._exit(0)
    if holder:
        os.dup2(text, 2)
    try:
        yield
        os.write(verdict, b'.')
    finally:
        os.dup2(screen, 2)
        for number in (screen, text, verdict_end, verdict):
            if number is not None:
                os.close(number)
        if holder:
            with contextlib.suppress(ChildProcessError):  # Raised if SIGCHLD is ignored.
                os.waitpid(holder, 0)


def _report_thread_failure(failure):
    """Reports a thread's exception, except of a `FileWriter`, whose next call raises it again."""
    if failure.thread is None or failure.thread.name != 'EventLoggerThread':
        threading.__excepthook__(failure)


console.open_closed()
_use_utf8()
sys.excepthook = _report_exception

from absl import app  # noqa: E402, after the steps above.
from absl import flags  # noqa: E402

with contextlib.ExitStack() as _stack:
    # TensorFlow imports absl's test library and, if installed, Matplotlib. They need a writable
    # folder, and we need neither of them.
    _stack.enter_context(_default(os.environ, 'TEST_TMPDIR', os.curdir))
    _stack.enter_context(_default(sys.modules, 'matplotlib', None))
    if _QUIET:
        _stack.enter_context(_default(os.environ, 'TF_CPP_MIN_LOG_LEVEL', _LOG_LEVEL))
        _stack.enter_context(_interrupts_end_the_process())
        _stack.enter_context(_quiet_unless_it_fails())
    import tensorflow.compat.v1 as tf
if _QUIET:
    tf.logging.set_verbosity(tf.logging.FATAL)  # TensorFlow also raises the errors that it logs.
tf.disable_v2_behavior()
threading.excepthook = _report_thread_failure
tf.enable_resource_variables()  # Orders reads and writes, including those of the global step.

FLAGS = flags.FLAGS

# Errors of the user, the data or the machine are reported in one line. Any other exception is a bug
# in this program and keeps its traceback.
_USER_ERRORS = (app.UsageError, errors.DataError, FloatingPointError, OSError,
                tf.errors.NotFoundError, tf.errors.PermissionDeniedError,
                tf.errors.ResourceExhaustedError, tf.errors.DataLossError)


def run(main, modules=(), positional=None):
    """Parses the command line, runs `main` and exits.

    Exit codes: 0 success; 1 user error, explained in one line on standard error; 130 interrupted
    by Ctrl-C; 141 standard output closed, in a script whose purpose is its output.

    Args:
        main: function without arguments or, with `positional`, of the list of positional arguments.
            Its result is the exit code; None means 0.
        modules: imported modules whose flags the script accepts besides its own.
        positional: the positional arguments, as the usage names them: 'IMAGE...' for at least one,
            'FOLDER DATA_DIR' for exactly two, None for flags only. Flags may be mixed with them.
    """
    os.umask(os.umask(0o022) | 0o022)  # Keeps others from writing to TensorFlow's files.
    for module in modules:
        for flag in FLAGS.get_key_flags_for_module(module):
            FLAGS.register_key_flag_for_module(sys.argv[0], flag)  # For --help.
    try:
        app.run(lambda argv: _without_traceback(lambda: main(argv[1:]) if positional else main()),
                flags_parser=functools.partial(_parse, positional))
    except console.Gone as gone:
        if gone.__cause__.errno == errno.EPIPE:  # As in `... | head`: exit silently.
            sys.exit(128 + signal.SIGPIPE)
        errors.say(f'cannot write to standard output: {gone}')
        sys.exit(1)
    except SystemExit as end:
        if isinstance(end.code, str):
            console.note(end.code)
            sys.exit(1)
        raise


def _parse(positional, argv):
    if any(word in ('--help', '-help', '-h', '-?', '--helpshort') for word in argv[1:]):
        _show_help()
        sys.exit(0)
    FLAGS.set_gnu_getopt(positional is not None)
    try:
        given = FLAGS(argv)[1:]
        _check_values()
    except flags.Error as error:
        message = ' '.join(str(error).split())
        sys.exit(f'{errors.script()}: {message} (see --help)')
    if given and positional is None:
        sys.exit(f'{errors.script()}: "{given[0]}" is not a flag; expected --name=value (see '
                 '--help)')
    if positional is not None and not _fit(given, positional):
        sys.exit(f'{errors.script()}: got {" ".join(given) or "no arguments"}; expected '
                 f'{positional} (see --help)')
    return argv[:1] + given


def _show_help():
    console.require()
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        app.usage(shorthelp=True, writeto_stdout=True)
    for line in text.getvalue().rstrip('\n').split('\n'):
        console.line(line)


def _check_values():
    """Rejects values that absl accepts: empty ones, as from an unset shell variable, and NaN.

    Raises:
        flags.ValidationError: names the flag.
    """
    for name in FLAGS:
        value = FLAGS[name].value
        if FLAGS[name].present and value in ('', []):
            raise flags.ValidationError(f'flag --{FLAGS[name].name}= has no value')
        if isinstance(value, float) and math.isnan(value):
            raise flags.ValidationError(f'flag --{FLAGS[name].name}={value} is not a number')


def _fit(given, positional):
    """Whether the number of positional arguments is right."""
    count = len(positional.split())
    return len(given) >= count if positional.endswith('...') else len(given) == count


def _without_traceback(main):
    try:
        return main()
    except _USER_ERRORS as error:
        console.end()
        sys.exit(f'{errors.script()}: {errors.one_line(error)}')
    except KeyboardInterrupt:
        console.end()
        errors.say('interrupted')
        return 130
