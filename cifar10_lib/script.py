"""The start and the end of a script: flags, one-line errors, exit codes, devices."""
import contextlib
import logging
import math
import os
import pathlib
import re
import shlex
import sys
import sysconfig
import traceback

from cifar10_lib import errors, quiet  # noqa: F401, it imports TensorFlow quietly.

import tensorflow.compat.v1 as tf
from absl import flags

FLAGS = flags.FLAGS
_OWN_FOLDER = os.path.dirname(os.path.realpath(__file__))

# What `run` reports in one line. Any other exception is a bug of ours and keeps its traceback.
_EXPECTED = (errors.UserError, flags.Error, OSError, FloatingPointError, tf.errors.OpError,
             tf.train.NanLossDuringTrainingError)


def run(main, positional='', aliases=None, **defaults):
    """Parses the command line, calls `main` and ends the process.

    Exit codes: 0 success; 1 user error, explained in one line on standard error (and in a traceback
    if CIFAR10_TRACEBACK is set); 130 after Ctrl-C, 128 + the number of another signal.

    Args:
        main: function that returns the exit code, or None for 0. With `positional`, it gets the
            list of positional arguments.
        positional: their usage, such as 'IMAGE...' for at least one, 'SOURCE DATA_DIR' for two.
        aliases: other names of flags, {alias: name}.
        defaults: other defaults of flags, by name.
    """
    if 'TF_CPP_MIN_LOG_LEVEL' not in os.environ:
        # TensorFlow warns of deprecations, and raises the errors it logs, too. What a program logs
        # by tf.logging is shown.
        folder = os.path.dirname(sys.modules['tensorflow'].__file__)
        logging.getLogger('tensorflow').addFilter(
            lambda record: record.levelno < logging.WARNING
            or not record.pathname.startswith(folder))
    # An evaluation can share a GPU with a trainer.
    os.environ.setdefault('TF_FORCE_GPU_ALLOW_GROWTH', 'true')
    cores = _cores_by_quota()
    if cores:  # A thread per visible core would exhaust the quota early in each period.
        os.environ.setdefault('TF_NUM_INTRAOP_THREADS', cores)
        os.environ.setdefault('TF_NUM_INTEROP_THREADS', cores)
    _open_standard_streams()
    for name, value in defaults.items():
        FLAGS.set_default(name, value)
    try:
        words = _parse(positional, aliases or {})
        code = main(words) if positional else main()
        print(end='', flush=True)  # An error of the last lines is one of this block.
    except KeyboardInterrupt:
        errors.note('interrupted')
        code = 130
    except BrokenPipeError:  # As in `... | head`. Python would report it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except _EXPECTED as error:
        code = 1
        if os.environ.get('CIFAR10_TRACEBACK'):
            traceback.print_exc()
        else:
            errors.note(_described(error))
    except RuntimeError as error:
        if 'determinism is enabled' not in str(error):  # By TF_DETERMINISTIC_OPS.
            raise
        errors.note(errors.one_line(error))
        code = 1
    sys.exit(code)


def _open_standard_streams():
    """Opens /dev/null for each standard stream that is closed, so that no file of a run gets its
    number."""
    for descriptor, name in enumerate(('stdin', 'stdout', 'stderr')):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # It gets the lowest free number, which is this one.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, 'r+'))  # noqa: SIM115, open until the end.
    if hasattr(sys.stdout, 'reconfigure'):  # A name of a file may not be text of its encoding.
        sys.stdout.reconfigure(errors='backslashreplace')


def _described(error):
    """The message of an expected error on one line; also the place in the user's code that raised
    it or, of a failed operation, where it was added to the graph."""
    reason = errors.one_line(error) or type(error).__name__
    if isinstance(error, (errors.UserError, flags.Error)):
        return reason
    if isinstance(error, tf.errors.OpError):
        where = _failed_operation(error)
        return f'{where}: {reason}. CIFAR10_TRACEBACK=1 shows all' if where else reason
    frames = [each for each in traceback.extract_tb(error.__traceback__)
              if not _is_in_a_library(each)]
    where = place(frames[-1:]).strip()  # What our library raises explains itself.
    return f'{where}: {reason}' if where else reason


def _failed_operation(error):
    """'FILE:LINE (NAME)' of a failed operation, or what is known of it."""
    op, names = error.op, re.findall(r'\[\[(?:\{\{node )?([^]}]+)', error.message)
    if 'user-defined function' in error.message:  # Of `tf.data`: `names` ends with the iterator.
        op, names = None, names[::-1]
    if op is None and names:  # The error of a thread that fills a queue.
        # It has passed through a method of the session, which knows the graph.
        for frame, _ in traceback.walk_tb(error.__traceback__):
            session = frame.f_locals.get('self')
            if isinstance(session, tf.Session):
                for name in reversed(names):  # The first one that is not within a function.
                    with contextlib.suppress(KeyError, ValueError):
                        op = session.graph.get_operation_by_name(name)
    if op is not None:
        return f'{place(op.traceback)}({op.name})'
    return f'({names[0]})' if names else ''


def place(frames):
    """'FILE:LINE ' of the innermost frame outside of libraries, of a list; '' without one."""
    for frame in reversed(list(frames)):
        folder, name = os.path.split(os.path.realpath(frame.filename))
        if folder != _OWN_FOLDER and not _is_in_a_library(frame):
            return f'{name}:{frame.lineno} '
    return ''


def _is_in_a_library(frame):
    """Whether a frame is in a library of Python or of others."""
    paths = sysconfig.get_paths()
    packages = [os.path.realpath(paths[name]) for name in ('purelib', 'platlib')]
    libraries = tuple(f'{os.path.realpath(folder)}{os.sep}' for folder in (
        *packages, paths['stdlib'], os.path.dirname(sys.modules['tensorflow'].__file__)))
    path = os.path.realpath(frame.filename)
    # After `pip install .`, the project is in a folder of packages.
    if os.path.dirname(path) in (*packages, _OWN_FOLDER):
        return False
    return frame.filename.startswith('<frozen ') or path.startswith(libraries)


def _show_help():
    """Prints the script's docstring, and its flags that are the project's."""
    print(sys.modules['__main__'].__doc__ or '')  # `python -OO` removes it.
    for module in FLAGS.flags_by_module_dict():
        if module.startswith('cifar10') or module == sys.argv[0]:
            print(FLAGS.module_help(module), flush=True)


def _parse(positional, aliases):
    """Parses the flags, and returns the positional arguments; see `run`. Exits after --help."""
    if {'--help', '-help', '-h', '--helpshort'}.intersection(sys.argv[1:]):
        _show_help()
        sys.exit(0)
    FLAGS.set_gnu_getopt(bool(positional))
    try:
        words = FLAGS([_canonical(word, aliases) for word in sys.argv])[1:]
        expected = len(positional.split())
        if len(words) < expected or (len(words) > expected and not positional.endswith('...')):
            raise flags.Error(f'got {shlex.join(words) or "no arguments"}; expected '
                              f'{positional or "--name=value"}, quoted if it contains spaces')
        _check_values()
        return words
    except (flags.Error, ValueError) as error:  # ValueError: a value for --noNAME.
        raise errors.UserError(f'{errors.one_line(error)} (see --help)') from error


def _canonical(word, aliases):
    """A word of the command line, in which --max-steps is written as --max_steps, and -b8 as
    --batch_size=8."""
    name = re.match(r'--?([\w-]+)(?==|$)', word)
    if name:
        flag = name[1].replace('-', '_')
        flag = aliases.get(flag, flag)
        if flag in FLAGS:
            return f'--{flag}{word[name.end():]}'
        if re.sub('^no_?', '', flag) in FLAGS:
            return '--no' + re.sub('^no_?', '', flag) + word[name.end():]
    joined = re.fullmatch(r'-(\w)([^=]+)', word)  # With "=", it is a misspelled -max_steps=8.
    if joined:
        flag = aliases.get(joined[1], joined[1])
        if flag in FLAGS:
            return f'--{flag}={joined[2]}'
    return word


def _check_values():
    """Refuses empty values, as of an unset shell variable, NaN and infinity, and URLs; expands ~ in
    paths."""
    for flag in [FLAGS[name] for name in FLAGS]:
        is_number = isinstance(flag.value, float)
        if flag.present and (flag.value in ('', []) or is_number and not math.isfinite(flag.value)):
            raise flags.Error(f'flag --{flag.name}={flag.value} has no usable value')
        if flag.name.endswith('_dir') and isinstance(flag.value, str) and '://' in flag.value:
            raise flags.Error(f'flag --{flag.name}={flag.value} is a URL; expected a folder')
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
