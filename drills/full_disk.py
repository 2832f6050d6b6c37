"""Lets the disk become full in the middle of writing, and looks at what is left.

    python -m drills.full_disk

The disk is a small tmpfs, which root alone can mount. Wanted of training: one line that names the
folder, exit code 1, the latest checkpoint whole, and the same command goes on as soon as there is
room. Of a download and of an extraction: the same line, and the next attempt makes the folder
whole. Of all else that writes: the line, and nothing half there.
"""
import contextlib
import functools
import glob
import os
import subprocess
import sys

from program import errors
from program import startup  # noqa: F401, first: it imports TensorFlow quietly.

from datasets import download
from drills import archives
from drills import downloads
from drills import small_data
from drills import trial
from runs import checkpoints

_MB = 1 << 20
_NO_SPACE = 'No space left on device'
_RUN = ('--data_dir=OUT/data', '--checkpoint_dir=OUT/train')


def main():
    return trial.run('Full disk', cases(), trial.parser('full_disk', __doc__).parse_args())


def cases():
    """(name, function of a folder) for each thing that is written while the disk is full."""
    for name, flags, free in (
            ('the first checkpoint', ['--max_steps=60'], 2 * _MB),
            ('a checkpoint', ['--max_steps=90', '--save_checkpoint_steps=20'], 4 * _MB),
            ('the last checkpoint', ['--max_steps=60'], 4 * _MB),
            ('events', ['--max_steps=210'], 1 << 14),
            ('metrics.csv', ['--max_steps=210'], 0),
            ('params.h5', ['--max_steps=60'], 12 * _MB),
            ('a validation', ['--max_steps=200', '--validate_every=1'], _MB),
            ('a profile', ['--max_steps=200', '--profile=60'], 0)):
        yield name, functools.partial(_train, flags, free)
    yield 'a run on several workers', functools.partial(
        _train, ['--max_steps=60', '--num_workers=2'], 4 * _MB,
        script='cifar10_distributed_train.py')
    yield 'a download', functools.partial(_download, len(archives.ARCHIVE) // 2)
    yield 'an extraction', functools.partial(_download, len(archives.ARCHIVE) + (1 << 16))
    yield 'drawn images', functools.partial(
        _write, 'cifar10_train.py', '--dataset=synthetic', '--data_dir=DISK/data', '--max_steps=1',
        '--train_dir=OUT/again')
    yield 'an evaluation', functools.partial(
        _write, 'cifar10_eval.py', *_RUN, '--run_once', '--eval_dir=DISK/eval')
    yield 'an export', functools.partial(
        _write, 'cifar10_export.py', *_RUN, '--export_dir=DISK/model')
    yield 'a data set of images', functools.partial(
        _write, 'cifar10_convert.py', 'OUT/images', 'DISK/set')
    yield 'a picture', functools.partial(
        _write, 'cifar10_plot.py', '--picture=samples', _RUN[0], '--output=DISK/samples.png')


@contextlib.contextmanager
def _disk(folder, size):
    """A file system of so many bytes in a folder."""
    os.makedirs(folder)
    subprocess.run(['mount', '-t', 'tmpfs', '-o', f'size={size}', 'tmpfs', folder], check=True)
    try:
        yield
    finally:
        subprocess.run(['umount', '-l', folder], check=True)


def _fill(folder, free):
    """Writes a file that leaves so many bytes."""
    path = os.path.join(folder, 'filler')
    with open(path, 'wb', buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(bytes(_MB))
    os.truncate(path, max(0, os.path.getsize(path) - free))
    return path


def _train(flags, free, folder, script='cifar10_train.py'):
    small_data.write(f'{folder}/data')
    disk = f'{folder}/disk'
    with _disk(disk, 200 * _MB):
        train_dir = f'{disk}/train'
        command = [sys.executable, script, *small_data.train_flags(folder),
                   f'--train_dir={train_dir}', *flags]
        with open(f'{folder}/log', 'w') as log:
            process = subprocess.Popen(
                command, cwd=trial.ROOT, stdout=log, stderr=subprocess.PIPE, text=True)
            with trial.killed_at_the_end(process):
                trial.await_text(log.name, 'step 30, ', process)
                filler = _fill(disk, free)
                error = process.communicate(timeout=60)[1]
        saved = checkpoints.latest(train_dir, report=False)
        trial.wanted_one_line(subprocess.CompletedProcess([], process.returncode, '', error),
                              train_dir, 'make room')
        os.remove(filler)
        again = subprocess.run(command, cwd=trial.ROOT, capture_output=True, text=True, check=False)
        if again.returncode or f'Resuming from {saved}' not in again.stdout:
            raise trial.Fault(f'wanted to resume from {saved}, came\n{again.stdout}{again.stderr}')
        if not os.path.exists(f'{train_dir}/params.h5') or glob.glob(f'{train_dir}/*tempstate*'):
            raise trial.Fault(f'the next start left {os.listdir(train_dir)}')
    return 'told in one line, then resumed'


def _download(size, folder):
    """A download into a data folder that takes so many bytes."""
    disk = f'{folder}/disk'
    with _disk(disk, size), downloads.in_a_hurry(), downloads.Server().running() as server:
        row = archives.row(server.url)
        try:
            download.maybe_download_and_extract(row, disk)
        except errors.DataError as error:
            if '\n' in str(error) or disk not in str(error) or _NO_SPACE not in str(error):
                raise trial.Fault(f'it said {error}') from error
        else:
            raise trial.Fault('there was room')
        if os.path.lexists(f'{disk}/small'):
            raise trial.Fault('it failed, and there is a folder')
        subprocess.run(['mount', '-o', f'remount,size={_MB}', disk], check=True)
        download.maybe_download_and_extract(row, disk)
    return 'told in one line, then made whole'


def _write(script, *arguments):
    """Runs a script that writes to a full disk; then to one with room."""
    *arguments, folder = arguments
    disk, out = f'{folder}/disk', f'{folder}/out'
    small_data.write(f'{folder}/data')
    os.mkdir(out)
    if '--data_dir=OUT/data' in arguments:
        os.rename(f'{folder}/data', f'{out}/data')
        trained = small_data.train(out, '--max_steps=1')
        if trained.returncode:
            raise trial.Fault(trained.stderr)
    small_data.write_images(f'{out}/images')
    arguments = [word.replace('DISK', disk).replace('OUT', out) for word in arguments]
    with _disk(disk, 100 * _MB):
        filler = _fill(disk, 1 << 13)
        before = trial.contents(disk)
        full = trial.script(script, *arguments)
        trial.wanted_one_line(full, disk, 'space')  # NumPy's words are its own.
        left = set(trial.contents(disk)) - set(before)
        if any(path.endswith('.part') or os.path.isfile(path) for path in left - {f'{disk}/eval'}
               if 'tfevents' not in path and not path.endswith('.lock')):
            raise trial.Fault(f'it left {left}')
        os.remove(filler)
        again = trial.script(script, *arguments)
        if again.returncode:
            raise trial.Fault(f'with room it said {again.stderr[-2000:]}')
    return 'told in one line, then written'


if __name__ == '__main__':
    sys.exit(main())
