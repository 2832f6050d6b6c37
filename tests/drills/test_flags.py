"""Gives every flag of every script values that make no sense.

    python -m drills.flags

Wanted: one line, exit code 1, nothing written, all of it within ten seconds. Values that mean
something are left out: any word is a name for a new folder.

TensorFlow is imported once; each try is a process forked from the one that did.
"""
import functools
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback

from program import startup  # noqa: F401, first: it imports TensorFlow quietly.

from drills import small_data
from drills import trial

_SECONDS = 10
_VALUES = {'nonsense': 'x?y', 'empty': '', 'negative': '-1', 'huge': '1' + 30 * '0',
           'a fraction': '1.5', 'not a number': 'nan', 'infinite': 'inf',
           'a path of nothing': '/proc/nothing/here'}

# Values that mean something, by flag.
_NAMES = set(_VALUES) - {'empty', 'a path of nothing'}
_MEANINGFUL = {
    'train_dir': _NAMES, 'eval_dir': _NAMES, 'export_dir': _NAMES,
    'data_dir': set(_VALUES) - {'empty'},  # Where to download to; some scripts read no data.
    'runs': set(_VALUES) - {'empty'},  # Of two pictures only.
    **{name: {'a fraction'} for name in (
        'learning_rate', 'warmup_epochs', 'bucket_mb', 'start_timeout', 'step_timeout')}}

# Flags that a script needs besides the one that is tried. DIR is a folder with `data`, of the real
# layout, `train`, a run on it, and `sorted`, images of classes; NEW is an empty one.
_DATA = ['--data_dir=DIR/data', '--batch_size=8']
_TRAIN = [*_DATA, '--train_dir=NEW/train', '--max_steps=1']
_COMMANDS = {
    'cifar10_train.py': _TRAIN,
    'cifar10_multi_gpu_train.py': _TRAIN,
    'cifar10_distributed_train.py': [*_TRAIN, '--num_workers=2'],
    'cifar10_eval.py': [*_DATA, '--checkpoint_dir=DIR/train', '--eval_dir=NEW/eval', '--run_once'],
    'cifar10_predict.py': ['DIR/sorted/a', '--checkpoint_dir=DIR/train'],
    'cifar10_export.py': ['--checkpoint_dir=DIR/train', '--export_dir=NEW/model'],
    'cifar10_convert.py': ['DIR/sorted', 'NEW/set'],
    'cifar10_plot.py': ['--picture=samples', *_DATA, '--output=NEW/samples.png']}


def main():
    options = trial.parser('flags', __doc__).parse_args()
    with tempfile.TemporaryDirectory(prefix='drill-flags-') as there:
        return trial.run('Flags', cases(there), options)


def cases(there):
    """(name, function of a folder) for each flag and value; `there` is filled with what scripts
    need."""
    small_data.write(f'{there}/data')
    trained = small_data.train(there, '--max_steps=1')
    if trained.returncode:
        raise trial.Fault(trained.stderr)
    small_data.write_images(f'{there}/sorted')
    for script, others in _COMMANDS.items():
        for flag in _flags(script):
            for name in sorted(set(_VALUES) - _MEANINGFUL.get(flag, set())):
                yield f'{script} --{flag}={_VALUES[name]}', functools.partial(
                    _try, script, others, flag, _VALUES[name], there)


def _flags(script):
    """Names of the flags that `--help` lists."""
    text = trial.script(script, '--help').stdout
    found = re.findall(r'^  (?:-\w,)?--(?:\[no\])?(\w+):', text, re.MULTILINE)
    if 'batch_size' not in found and script != 'cifar10_convert.py':
        raise trial.Fault(f'{script} --help lists {found}')
    return found


def _try(script, others, flag, value, there, folder):
    arguments = [word.replace('NEW', folder).replace('DIR', there) for word in others
                 if not word.startswith(f'--{flag}=')]
    with tempfile.TemporaryFile('w+') as log:
        code = _in_a_fork(script, [*arguments, f'--{flag}={value}'], folder, log)
        log.seek(0)
        trial.wanted_one_line(subprocess.CompletedProcess(arguments, code, '', log.read()))
    if os.listdir(folder):
        raise trial.Fault(f'{os.listdir(folder)} were made')
    return 'refused in one line'


def _in_a_fork(script, arguments, folder, log):
    """Runs a script in a fork of this process.

    Args:
        script: name of the file.
        arguments: list of what follows it on the command line.
        folder: where it runs.
        log: file for its standard error.

    Returns:
        The exit code, or in words that it has not ended in time.
    """
    pid = os.fork()
    if not pid:
        os._exit(_run(script, arguments, folder, log))
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return f'no end in {_SECONDS} seconds'


def _run(script, arguments, folder, log):
    """What the fork does; returns the exit code, of an exception that of Python itself."""
    os.setsid()  # What it starts ends with it.
    os.chdir(folder)
    with open(os.devnull, 'r+') as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(nothing.fileno(), 1)
    os.dup2(log.fileno(), 2)
    sys.stdout, sys.stderr = os.fdopen(1, 'w'), os.fdopen(2, 'w')
    sys.argv = [os.path.join(trial.ROOT, script), *arguments]
    sys.orig_argv = [sys.executable, *sys.argv]  # With which workers are started.
    sys.path[0] = trial.ROOT
    code = 0
    try:
        runpy.run_path(sys.argv[0], run_name='__main__')
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    return code


if __name__ == '__main__':
    sys.exit(main())
