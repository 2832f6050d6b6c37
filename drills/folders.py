"""Folders that others use, too, or that are not what they should be.

    python -m drills.folders

Two trainers in one folder; an evaluation whose checkpoints are removed while it reads; files from
the future; something else in the place of a folder; folders without permission, as a user who is
not root; folders that others can write in, and links there.
"""
import functools
import glob
import grp
import os
import signal
import subprocess
import sys
import time

from drills import small_data
from drills import trial

_YEAR = 365 * 86400


def main():
    return trial.run('Folders', cases(), trial.parser('folders', __doc__).parse_args())


def cases():
    for script, flags in (('cifar10_train.py', ()), ('cifar10_multi_gpu_train.py', ()),
                          ('cifar10_distributed_train.py', ('--num_workers=2',)),
                          ('cifar10_train.py', ('--restart',))):
        yield f'a second trainer, {script} {" ".join(flags)}', functools.partial(
            _second_trainer, script, flags)
    yield 'checkpoints removed under an evaluation', _removed_under_an_evaluation
    yield 'times in the future', functools.partial(_other_times, _YEAR)
    yield 'times of 1970', functools.partial(_other_times, -time.time() + 1)
    for kind in ('a file', 'a pipe', 'a link to nothing'):
        yield f'{kind} for train_dir', functools.partial(_in_the_place, 'train', kind)
        yield f'{kind} for data_dir', functools.partial(_in_the_place, 'data', kind)
    for kind in ('no permission', 'no permission above', 'read only'):
        yield f'{kind} for train_dir', functools.partial(_without_permission, kind)
    for kind in ('a link in a shared folder', 'a folder that everybody can write in',
                 *(['a folder that a group can write in'] if os.geteuid() == 0 else [])):
        yield f'{kind} for train_dir', functools.partial(_shared, kind)


def _start(script, *flags, log):
    with open(log, 'w') as stream:
        return subprocess.Popen(
            [sys.executable, script, *flags], cwd=trial.ROOT, stdout=stream, stderr=stream,
            preexec_fn=trial.signals_as_in_a_terminal)


def _second_trainer(script, flags, folder):
    small_data.write(f'{folder}/data')
    first = _start('cifar10_train.py', *small_data.train_flags(folder), log=f'{folder}/log')
    with trial.killed_at_the_end(first):
        trial.await_text(f'{folder}/log', 'step 10, ', first)
        files = set(os.listdir(f'{folder}/train'))
        second = trial.script(script, *small_data.train_flags(folder), *flags)
        trial.wanted_one_line(second, f'{folder}/train', f'process {first.pid}')
        if files - set(os.listdir(f'{folder}/train')) or first.poll() is not None:
            raise trial.Fault('the first trainer was disturbed')
        first.send_signal(signal.SIGTERM)
        if first.wait(timeout=30) != 143:
            raise trial.Fault(f'the first trainer ended with code {first.returncode}')
    return 'refused in one line with the first one\'s number'


def _removed_under_an_evaluation(folder):
    small_data.write(f'{folder}/data')
    train = _start('cifar10_train.py', *small_data.train_flags(folder),
                   '--save_checkpoint_steps=10', log=f'{folder}/log')
    evaluate = _start(
        'cifar10_eval.py', f'--data_dir={folder}/data', f'--checkpoint_dir={folder}/train',
        f'--eval_dir={folder}/eval', '--eval_interval_secs=1', log=f'{folder}/eval.log')
    with trial.killed_at_the_end(train), trial.killed_at_the_end(evaluate):
        trial.await_text(f'{folder}/eval.log', 'precision @ 1', evaluate)
        until = time.monotonic() + 20
        while time.monotonic() < until:
            for path in (glob.glob(f'{folder}/train/*.index')
                         + glob.glob(f'{folder}/train/*-of-00001')):
                try:
                    os.remove(path)
                except FileNotFoundError:  # The trainer keeps five.
                    continue
            time.sleep(0.05)
        for process, log in ((evaluate, 'eval.log'), (train, 'log')):
            if process.poll() is not None:
                with open(f'{folder}/{log}') as stream:
                    raise trial.Fault(f'it ended: {stream.read()[-2000:]}')
        with open(f'{folder}/eval.log') as stream:
            before = stream.read().count('precision @ 1')
        time.sleep(5)
        with open(f'{folder}/eval.log') as stream:
            text = stream.read()
        if text.count('precision @ 1') <= before or 'Traceback' in text:
            raise trial.Fault(f'it did not go on: {text[-2000:]}')
    return 'passed over, and went on'


def _other_times(seconds, folder):
    """A run whose files have other times goes on, keeps the last five, and is evaluated."""
    small_data.write(f'{folder}/data')
    for last in (40, 60):
        done = small_data.train(folder, f'--max_steps={last}', '--save_checkpoint_steps=10')
        if done.returncode or (last == 60 and 'model.ckpt-40.' not in done.stdout):
            raise trial.Fault(done.stdout + done.stderr)
        for path in trial.contents(folder):
            os.utime(path, 2 * (time.time() + seconds,))
    steps = sorted(int(path.split('-')[-1].split('.')[0])
                   for path in glob.glob(f'{folder}/train/*.index'))
    if steps != [20, 30, 40, 50, 60]:
        raise trial.Fault(f'the checkpoints are of {steps}')
    done = trial.script('cifar10_eval.py', f'--data_dir={folder}/data', '--run_once',
                        f'--checkpoint_dir={folder}/train', f'--eval_dir={folder}/eval')
    if done.returncode:
        raise trial.Fault(done.stderr)
    return 'went on as always'


def _make(path, kind):
    if kind == 'a file':
        with open(path, 'w') as stream:
            stream.write('mine')
    elif kind == 'a pipe':
        os.mkfifo(path)
    else:
        os.symlink(os.path.join(path, 'nothing'), path)


def _in_the_place(which, kind, folder):
    path = f'{folder}/{which}'
    _make(path, kind)
    if which != 'data':
        small_data.write(f'{folder}/data')
    before = trial.contents(folder)
    done = small_data.train(folder, '--max_steps=1', seconds=30)
    trial.wanted_one_line(done, path)
    if trial.contents(folder) != before:
        raise trial.Fault('something was changed')
    return 'refused in one line'


def _without_permission(kind, folder):
    small_data.write(f'{folder}/data')
    above = f'{folder}/above'
    os.makedirs(f'{above}/train')
    os.chmod(f'{above}/train' if kind != 'no permission above' else above,
             0o555 if kind == 'read only' else 0)
    try:
        done = small_data.train(folder, f'--train_dir={above}/train', '--max_steps=1',
                                command=trial.UNPRIVILEGED)
    finally:
        os.chmod(above, 0o755)
        os.chmod(f'{above}/train', 0o755)
    trial.wanted_one_line(done, f'{above}/train')
    if os.listdir(f'{above}/train'):
        raise trial.Fault('something was written')
    return 'refused in one line'


def _shared(kind, folder):
    small_data.write(f'{folder}/data')
    shared, real = f'{folder}/shared', f'{folder}/real'
    os.mkdir(real)
    os.mkdir(shared)
    if kind.endswith('a group can write in'):
        os.chown(shared, -1, grp.getgrnam('daemon').gr_gid)
    os.chmod(shared, {'a link in a shared folder': 0o1777,
                      'a folder that everybody can write in': 0o777}.get(kind, 0o775))
    if kind.startswith('a link'):
        os.symlink(real, f'{shared}/train')
    else:
        os.mkdir(f'{shared}/train')
    done = small_data.train(folder, f'--train_dir={shared}/train', '--max_steps=1')
    trial.wanted_one_line(done, shared)
    if os.listdir(real) or os.listdir(f'{shared}/train'):
        raise trial.Fault('something was written')
    return 'refused in one line'


if __name__ == '__main__':
    sys.exit(main())
