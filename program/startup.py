"""What every script does first: import TensorFlow quietly, parse flags, turn mistakes into one
line.

Import this module before TensorFlow. Set TF_CPP_MIN_LOG_LEVEL (0 to 3) to see all that TensorFlow
says.
"""
import contextlib
import functools
import math
import os
import signal
import sys
import tempfile
import threading

from absl import app
from absl import flags

_QUIET = 'TF_CPP_MIN_LOG_LEVEL' not in os.environ
_LOG_LEVEL = '3'  # On a machine without a GPU, that it has none is logged as an error.


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
    """Keeps what is written to file descriptor 2 off the screen, unless an exception ends the
    block.

    TensorFlow's C++ libraries write there while they are loaded, before any log level counts.
    """
    screen = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(screen, held.read())
            raise
        finally:
            os.dup2(screen, 2)
            os.close(screen)


def _leave_out_event_writers(failure):
    """Shows the exception of a thread, but for that of a `FileWriter`: its next call raises it."""
    if failure.thread is None or failure.thread.name != 'EventLoggerThread':
        threading.__excepthook__(failure)


if _QUIET:
    os.environ['TF_CPP_MIN_LOG_LEVEL'] = _LOG_LEVEL
    with _ended_by_interrupts(), _standard_error_held_back():
        import tensorflow.compat.v1 as tf
    tf.logging.set_verbosity(tf.logging.FATAL)  # What it logs as an error, it raises, too.
    del os.environ['TF_CPP_MIN_LOG_LEVEL']  # It was read once; a child process decides for itself.
else:
    import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
threading.excepthook = _leave_out_event_writers
tf.enable_resource_variables()  # Also for the global step: reads and writes then have an order.

from program import console  # noqa: E402, after the import that is held back.
from program import cores  # noqa: E402
from program import errors  # noqa: E402

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

    Exit codes: 0 done; 1 a mistake, told in one line on standard error; 130 interrupted by Ctrl-C.

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
    app.run(lambda argv: _without_traceback(functools.partial(main, argv[1:]) if words else main),
            flags_parser=functools.partial(_parse, words))


def _parse(words, argv):
    if any(word in ('--help', '-help', '-h', '-?', '--helpshort') for word in argv[1:]):
        app.usage(shorthelp=True, writeto_stdout=True, exitcode=0)
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
    except tf.errors.InvalidArgumentError as error:
        console.end()
        fault = errors.record_fault(error)
        if fault is None:
            raise
        sys.exit(f'{errors.script()}: {fault}')
    except KeyboardInterrupt:
        console.end()
        print(f'{errors.script()}: interrupted', file=sys.stderr)
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
