"""The start and the end of a script: flags, one-line errors, exit codes, devices."""
import math
import os
import pathlib
import sys
import traceback

from cifar10_lib import errors, quiet  # noqa: F401, it imports TensorFlow quietly.

import tensorflow.compat.v1 as tf
from absl import flags

FLAGS = flags.FLAGS

# What `run` reports in one line. Any other exception is a bug of ours and keeps its traceback.
_EXPECTED = (errors.UserError, OSError, FloatingPointError, tf.errors.OpError,
             tf.train.NanLossDuringTrainingError)


def run(main, positional=''):
    """Parses the command line, calls `main` and ends the process.

    Exit codes: 0 success; 1 user error, explained in one line on standard error (and in a traceback
    if CIFAR10_TRACEBACK is set); 130 after Ctrl-C, 128 + the number of another signal.

    Args:
        main: function that returns the exit code, or None for 0. With `positional`, it gets the
            list of positional arguments.
        positional: their usage, such as 'IMAGE...' for at least one, 'SOURCE DATA_DIR' for two.
    """
    if 'TF_CPP_MIN_LOG_LEVEL' not in os.environ:
        tf.logging.set_verbosity(tf.logging.FATAL)  # TensorFlow also raises the errors it logs.
    # An evaluation can share a GPU with a trainer.
    os.environ.setdefault('TF_FORCE_GPU_ALLOW_GROWTH', 'true')
    cores = _cores_by_quota()
    if cores:  # A thread per visible core would exhaust the quota early in each period.
        os.environ.setdefault('TF_NUM_INTRAOP_THREADS', cores)
        os.environ.setdefault('TF_NUM_INTEROP_THREADS', cores)
    if sys.stdout:  # A name of a file may not be text of its encoding.
        sys.stdout.reconfigure(errors='backslashreplace')
    try:
        words = _parse(positional)
        code = main(words) if positional else main()
        print(end='', flush=True)  # Also if there is no standard output.
    except KeyboardInterrupt:
        errors.note('interrupted')
        code = 130
    except BrokenPipeError:  # As in `... | head`. Python would report it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except _EXPECTED as error:
        if os.environ.get('CIFAR10_TRACEBACK'):
            traceback.print_exc()
        else:
            errors.note(errors.one_line(error))
        code = 1
    sys.exit(code)


def _parse(positional):
    """Parses the flags, and returns the positional arguments; see `run`."""
    if {'--help', '-help', '-h', '--helpshort'}.intersection(sys.argv[1:]):
        print(sys.modules['__main__'].__doc__)
        for module in FLAGS.flags_by_module_dict():
            if module.startswith('cifar10') or module == sys.argv[0]:
                print(FLAGS.module_help(module), flush=True)
        sys.exit(0)
    FLAGS.set_gnu_getopt(bool(positional))
    try:
        words = FLAGS(sys.argv)[1:]
        expected = len(positional.split())
        if len(words) < expected or (len(words) > expected and not positional.endswith('...')):
            raise flags.Error(f'got {" ".join(words) or "no arguments"}; expected '
                              f'{positional or "--name=value"}')
        _check_values()
    except (flags.Error, ValueError) as error:  # ValueError: a value for --noNAME.
        errors.note(f'{errors.one_line(error)} (see --help)')
        sys.exit(1)
    return words


def _check_values():
    """Refuses empty values, as of an unset shell variable, NaN and infinity, and URLs; expands ~ in
    paths."""
    for name in FLAGS:
        flag = FLAGS[name]
        is_number = isinstance(flag.value, float)
        if flag.present and (flag.value in ('', []) or is_number and not math.isfinite(flag.value)):
            raise flags.Error(f'flag --{name}={flag.value} has no usable value')
        if name.endswith('_dir') and '://' in (flag.value or ''):
            raise flags.Error(f'flag --{name}={flag.value} is a URL; expected a folder')
        if isinstance(flag.value, str):
            flag.value = os.path.expanduser(flag.value)


def show_devices(dtype=tf.float32, towers=1):
    """Prints on which devices `towers` towers train, and warns if they are slow with this type."""
    gpus = len(tf.config.get_visible_devices('GPU'))
    where = 'the CPU'
    if gpus:
        where = f'{min(towers, gpus)} of {gpus} GPUs'
    what = f'{towers} towers on ' if towers > 1 else 'on '
    print(f'Training {what}{where}.', flush=True)
    if not gpus and dtype == tf.float16:
        print('Warning: on a CPU, --use_fp16 takes 20 times as long as float32.', flush=True)


def _cores_by_quota():
    """The CPU quota of a container in cores, rounded up, as text: `man 7 cgroups`; '' without one.

    `docker run --cpus=2` and Kubernetes' limits leave all cores visible.
    """
    try:  # Microseconds per period, or 'max'.
        quota, period = pathlib.Path('/sys/fs/cgroup/cpu.max').read_text().split()
        return str(min(-(-int(quota) // int(period)), os.cpu_count()))
    except (OSError, ValueError):
        return ''
