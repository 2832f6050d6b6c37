"""What every script does first: import TensorFlow quietly, parse flags, turn mistakes into one
line.

Import this module before TensorFlow. Set TF_CPP_MIN_LOG_LEVEL (0 to 3) to see all that TensorFlow
says.

A script puts its own folder on `sys.path` before it imports this module: Python does not if
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
import select
import signal
import sys
import threading

from program import console
from program import cores
from program import errors

_ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
_QUIET = 'TF_CPP_MIN_LOG_LEVEL' not in os.environ
_LOG_LEVEL = '3'  # On a machine without a GPU, that it has none is logged as an error.

# What TensorFlow's C++ libraries always write while they are loaded.
_INFORMATION = re.compile(rb'^(?:I\d{4} |WARNING: All log messages before ).*\n', re.MULTILINE)


def _use_utf8():
    """Starts a script again in Python's UTF-8 mode if the locale has another encoding.

    TensorFlow takes the names of files in UTF-8. With another encoding, Python would open others.
    """
    script = getattr(sys.modules['__main__'], '__file__', None) or ''
    if (sys.getfilesystemencoding() == 'utf-8' or 'utf8' in sys._xoptions or not sys.executable
            or os.path.dirname(os.path.realpath(script)) != _ROOT):
        return
    os.environ.setdefault('PYTHONIOENCODING', sys.stdout.encoding)  # The terminal's stays.
    os.execv(sys.executable, [sys.executable, '-X', 'utf8', *sys.orig_argv[1:]])


def _show_missing_package(kind, error, trace):
    """Shows an exception that nothing caught: one line if a package is not installed."""
    package = (getattr(error, 'name', None) or '').partition('.')[0]
    if not isinstance(error, ModuleNotFoundError) or _is_installed(package):
        sys.__excepthook__(kind, error, trace)
        return
    errors.say(f'the Python package {package} is not installed here: activate the virtual '
               'environment that has it, or run: pip install -r requirements.txt')


def _is_installed(package):
    return not package or importlib.util.find_spec(package) is not None


@contextlib.contextmanager
def _set_meanwhile(mapping, name, value):
    """Gives a name a value for the block, in `os.environ` or `sys.modules`, unless it has one."""
    if name in mapping:
        yield
        return
    mapping[name] = value
    try:
        yield
    finally:
        del mapping[name]


@contextlib.contextmanager
def _ended_by_interrupts():
    """Lets Ctrl-C end the process at once, as it ends C programs: an import that raises
    KeyboardInterrupt half-way shows a long traceback."""
    earlier = signal.getsignal(signal.SIGINT)
    can_change = (earlier is signal.default_int_handler
                  and threading.current_thread() is threading.main_thread())
    if can_change:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if can_change:
            signal.signal(signal.SIGINT, earlier)


@contextlib.contextmanager
def _standard_error_held_back():
    """Keeps what is written to file descriptor 2 off the screen, unless the block fails.

    TensorFlow's C++ libraries write there while they are loaded, before any log level counts. Where
    they do not support the processor, they end the process: so another process holds the text, and
    shows it if this one dies.
    """
    screen = os.dup(2)
    text_end, text = os.pipe()
    verdict_end, verdict = os.pipe()
    try:
        holder = os.fork()
    except OSError:  # No room for a process: then nothing is held back.
        holder = None
    if holder == 0:
        os.close(text)
        os.close(verdict)
        _hold(text_end, verdict_end, screen)
    os.close(text_end)
    os.close(verdict_end)
    if holder:
        os.dup2(text, 2)
    os.close(text)
    try:
        yield
        with contextlib.suppress(OSError):
            os.write(verdict, b'.')
    finally:
        os.dup2(screen, 2)
        os.close(screen)
        os.close(verdict)
        if holder:
            with contextlib.suppress(ChildProcessError):  # If SIGCHLD is ignored, it is gone.
                os.waitpid(holder, 0)


def _hold(text, verdict, screen):
    """Reads from the pipe `text`, and ends this process when there is a verdict.

    A byte from the pipe `verdict` drops what was read. Its end shows it on `screen`.
    """
    try:
        held, waiting = b'', [text, verdict]
        while True:
            ready = select.select(waiting, [], [])[0]
            if text not in ready:
                break
            block = os.read(text, 1 << 16)
            held += block
            if not block:
                waiting = [verdict]
        if not os.read(verdict, 1):
            os.write(screen, _INFORMATION.sub(b'', held))
    finally:
        os._exit(0)


def _leave_out_event_writers(failure):
    """Shows the exception of a thread, but for that of a `FileWriter`: its next call raises it."""
    if failure.thread is None or failure.thread.name != 'EventLoggerThread':
        threading.__excepthook__(failure)


console.open_closed()
_use_utf8()
sys.excepthook = _show_missing_package

from absl import app  # noqa: E402, after what has to be first.
from absl import flags  # noqa: E402

with contextlib.ExitStack() as _stack:
    # TensorFlow imports absl's test library, and Matplotlib if it is installed. Each looks for a
    # folder to write in, and fails if there is none. We do not need either of them.
    _stack.enter_context(_set_meanwhile(os.environ, 'TEST_TMPDIR', os.curdir))
    _stack.enter_context(_set_meanwhile(sys.modules, 'matplotlib', None))
    if _QUIET:
        _stack.enter_context(_set_meanwhile(os.environ, 'TF_CPP_MIN_LOG_LEVEL', _LOG_LEVEL))
        _stack.enter_context(_ended_by_interrupts())
        _stack.enter_context(_standard_error_held_back())
    import tensorflow.compat.v1 as tf
if _QUIET:
    tf.logging.set_verbosity(tf.logging.FATAL)  # What it logs as an error, it raises, too.
tf.disable_v2_behavior()
threading.excepthook = _leave_out_event_writers
tf.enable_resource_variables()  # Also for the global step: reads and writes then have an order.

flags.DEFINE_enum('device', 'auto', ['auto', 'cpu', 'gpu'],
                  'Compute on the GPUs if there are any, on the CPU only, or insist on a GPU.')

FLAGS = flags.FLAGS

# What a user, the data or the machine did: one line says it all. Anything else is a fault of ours,
# and shows its traceback.
_MISTAKES = (app.UsageError, errors.DataError, FloatingPointError, OSError,
             tf.errors.NotFoundError, tf.errors.PermissionDeniedError,
             tf.errors.ResourceExhaustedError, tf.errors.DataLossError)


def run(main, modules=(), words=None):
    """Parses the command line, runs `main`, and exits.

    Exit codes: 0 done; 1 a mistake, told in one line on standard error; 130 interrupted by Ctrl-C;
    141 the reader of standard output has ended, in a script that is for its output.

    Args:
        main: function without arguments; or with `words`, of the list of those given. What it
            returns is the exit code, None is 0.
        modules: imported modules whose flags the script takes besides its own.
        words: what the script takes besides flags, before, between or behind them; such as
            'IMAGE...', at least one, or 'FOLDER DATA_DIR', exactly two. None: flags only.
    """
    os.umask(os.umask(0o022) | 0o022)  # Others cannot write TensorFlow's files, either.
    for module in modules:
        for flag in FLAGS.get_key_flags_for_module(module):
            FLAGS.register_key_flag_for_module(sys.argv[0], flag)  # So that --help lists it.
    try:
        app.run(lambda argv: _without_traceback(lambda: main(argv[1:]) if words else main()),
                flags_parser=functools.partial(_parse, words))
    except console.Gone as gone:
        if gone.__cause__.errno == errno.EPIPE:  # As `head` leaves it: other programs are silent.
            sys.exit(128 + signal.SIGPIPE)
        errors.say(f'standard output cannot be written: {gone}')
        sys.exit(1)
    except SystemExit as end:
        if isinstance(end.code, str):
            console.note(end.code)
            sys.exit(1)
        raise


def _parse(words, argv):
    if any(word in ('--help', '-help', '-h', '-?', '--helpshort') for word in argv[1:]):
        _show_help()
        sys.exit(0)
    FLAGS.set_gnu_getopt(words is not None)
    try:
        given = FLAGS(argv)[1:]
        _refuse_nothing()
    except flags.Error as error:
        message = ' '.join(str(error).split())
        sys.exit(f'{errors.script()}: {message} (--help lists the flags)')
    if given and words is None:
        sys.exit(f'{errors.script()}: "{given[0]}" is no flag; flags are written --name=value '
                 '(--help lists them)')
    if words is not None and not _fit(given, words):
        sys.exit(f'{errors.script()}: wanted {words}, not {" ".join(given) or "nothing"} '
                 '(--help tells more)')
    return argv[:1] + given


def _show_help():
    console.require()
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        app.usage(shorthelp=True, writeto_stdout=True)
    for line in text.getvalue().rstrip('\n').split('\n'):
        console.line(line)


def _refuse_nothing():
    """Refuses values that absl's parsers and bounds let through: empty ones, as of a variable that
    a shell does not know, NaN, and bytes that are not UTF-8, which TensorFlow takes in no path.

    Raises:
        flags.ValidationError: names the flag.
    """
    for name in FLAGS:
        value = FLAGS[name].value
        if FLAGS[name].present and value in ('', []):
            raise flags.ValidationError(f'flag --{name}= has no value')
        if isinstance(value, float) and math.isnan(value):
            raise flags.ValidationError(f'flag --{name}={value} is no number')
        try:
            ''.join(map(str, value if isinstance(value, list) else [value])).encode()
        except UnicodeEncodeError as error:
            raise flags.ValidationError(f'flag --{name} is not UTF-8') from error


def _fit(given, words):
    """Whether as many words were given as a script takes."""
    if words.endswith('...'):
        return len(given) >= len(words.split())
    return len(given) == len(words.split())


def _without_traceback(main):
    try:
        return main()
    except _MISTAKES as error:
        console.end()
        sys.exit(f'{errors.script()}: {errors.one_line(error)}')
    except KeyboardInterrupt:
        console.end()
        errors.say('interrupted')
        return 130


def session_config(log_device_placement=False):
    """Settings of a session on the devices that `--device` allows.

    Towers ask for GPUs whatever the machine has: soft placement moves them. A GPU's memory is taken
    as it is needed, so that an evaluation fits beside a trainer. There are as many threads as
    cores, or as a container's quota is worth.

    Args:
        log_device_placement: whether TensorFlow prints the device of every operation.

    Returns:
        A `tf.ConfigProto`.
    """
    config = tf.ConfigProto(allow_soft_placement=True, log_device_placement=log_device_placement)
    config.gpu_options.allow_growth = True
    threads = cores.by_quota()
    if threads:
        config.intra_op_parallelism_threads = config.inter_op_parallelism_threads = threads
    if FLAGS.device == 'cpu':
        config.device_count['GPU'] = 0
    return config


def visible_gpus():
    """How many GPUs `--device` lets the script use.

    Raises:
        app.UsageError: `--device=gpu`, and there is none.
    """
    if FLAGS.device == 'cpu':
        return 0
    count = len(tf.config.list_physical_devices('GPU'))
    if FLAGS.device == 'gpu' and not count:
        raise app.UsageError('--device=gpu, but TensorFlow sees no GPU here: check the driver, '
                             'install tensorflow[and-cuda], or use --device=auto')
    return count
