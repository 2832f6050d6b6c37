"""Damages record files before training, and while it runs.

    python -m drills.records

Wanted: damage is found before the first step, in one line that names the file, and no folder is
made; files that are replaced later end training with such a line, or are whole, which is said.
"""
import functools
import os
import random
import signal
import subprocess
import sys
import time

from datasets import table
from drills import small_data
from drills import trial

_MISSING_BYTES = 50
_RECORD = small_data.RECORD_BYTES
_BYTES = small_data.RECORDS * _RECORD


def main():
    options = trial.parser('records', __doc__).parse_args()
    return trial.run('Records', cases(options.seed), options)


def cases(seed=1):
    """(name, function of a folder) for each damage."""
    draw = random.Random(seed)
    changes = [('cut', lambda data, at: data[:at])] * 3
    changes += [('empty', lambda data, at: b'')]
    changes += [('one byte more', lambda data, at: data + b'\0'),
                ('a record more but for a byte', lambda data, at: data + bytes(_RECORD - 1))]
    changes += [('a byte missing', lambda data, at: data[:at] + data[at + 1:])] * _MISSING_BYTES
    changes += [('label 10', functools.partial(_with_label, 10)),
                ('label 255', functools.partial(_with_label, 255)),
                ('zeros but for a label', lambda data, at: bytes(_BYTES - _RECORD) + b'\x0b'
                 + bytes(_RECORD - 1))]
    for name, change in changes:
        file, at = draw.choice(list(table.CIFAR10.files)), draw.randrange(1, _BYTES - 1)
        yield f'{name}, {file} at {at}', functools.partial(_before, file, change, at)
    for name in ('missing', 'a folder', 'unreadable', 'unreadable folder'):
        yield name, functools.partial(_not_there, name)
    for name, change, is_whole in (
            ('a byte missing', lambda data: data[:5000] + data[5001:], False),
            ('a label out of range', lambda data: _with_label(99, data, 30 * _RECORD), False),
            ('cut', lambda data: data[:_BYTES // 2 + 7], False),
            ('removed', lambda data: None, False),
            ('other images', lambda data: data[_RECORD:] + data[:_RECORD], True)):
        yield f'{name} while training', functools.partial(_while_training, change, is_whole)


def _with_label(label, data, at):
    start = at // _RECORD * _RECORD
    return data[:start] + bytes([label]) + data[start + 1:]


def _change(path, change):
    with open(path, 'rb') as stream:
        data = change(stream.read())
    if data is None:
        os.remove(path)
        return
    with open(path + '.new', 'wb') as stream:
        stream.write(data)
    os.replace(path + '.new', path)


def _before(file, change, at, folder):
    path = os.path.join(small_data.write(f'{folder}/data'), file)
    _change(path, lambda data: change(data, at))
    return _refused(folder, path)


def _refused(folder, path, **options):
    done = small_data.train(folder, '--max_steps=3', **options)
    trial.wanted_one_line(done, path)
    if ', loss =' in done.stdout or os.path.lexists(f'{folder}/train'):
        raise trial.Fault(f'it began to train: {done.stdout}')
    return 'refused in one line'


def _not_there(name, folder):
    data = small_data.write(f'{folder}/data')
    path = f'{data}/data_batch_3.bin'
    if name in ('missing', 'a folder'):
        os.remove(path)
    if name == 'a folder':
        os.mkdir(path)
    if name.startswith('unreadable'):
        os.chmod(data if name == 'unreadable folder' else path, 0)
    try:
        return _refused(folder, data if name == 'unreadable folder' else path,
                        command=trial.UNPRIVILEGED)
    finally:
        os.chmod(data, 0o755)


def _while_training(change, is_whole, folder):
    path = f'{small_data.write(f"{folder}/data")}/data_batch_3.bin'
    with open(f'{folder}/log', 'w') as log:
        process = subprocess.Popen(
            [sys.executable, 'cifar10_train.py', *small_data.train_flags(folder)],
            cwd=trial.ROOT, stdout=log, stderr=subprocess.PIPE, text=True,
            preexec_fn=trial.signals_as_in_a_terminal)
        with trial.killed_at_the_end(process):
            trial.await_text(log.name, 'step 50, ', process)
            _change(path, change)
            if is_whole:
                trial.await_text(log.name, 'changed; all of them are valid', process)
                time.sleep(1)
                process.send_signal(signal.SIGINT)
            error = process.communicate(timeout=60)[1]
    if is_whole:
        if process.returncode != 130:
            raise trial.Fault(f'code {process.returncode}: {error[-2000:]}')
        return 'told that it is whole'
    trial.wanted_one_line(subprocess.CompletedProcess([], process.returncode, '', error), path)
    return 'ended in one line'


if __name__ == '__main__':
    sys.exit(main())
