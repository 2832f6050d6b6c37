"""Damages record files before training starts, and while it runs.

Expected: damage is found before the first step, in one line that names the file, and no folder is
made. If a file is replaced during training, training ends with such a line, unless all
complete records of the new file are intact.
"""
import functools
import os
import random
import signal

import pytest
import record_files

from cifar10_lib.datasets import table
import running

_RECORD = table.CIFAR10.record_bytes
_BYTES = 200 * _RECORD


def _with_label(label, data, at):
    start = at // _RECORD * _RECORD
    return data[:start] + bytes([label]) + data[start + 1:]


# Functions of a file's bytes and a random position.
_CHANGES = [
    *3 * [('cut', lambda data, at: data[:at])],
    ('empty', lambda data, at: b''),
    ('one extra byte', lambda data, at: data + b'\0'),
    ('an extra record less a byte', lambda data, at: data + bytes(_RECORD - 1)),
    *50 * [('a byte missing', lambda data, at: data[:at] + data[at + 1:])],
    ('label 10', functools.partial(_with_label, 10)),
    ('label 255', functools.partial(_with_label, 255)),
    ('zeros except for a label',
     lambda data, at: bytes(_BYTES - _RECORD) + b'\x0b' + bytes(_RECORD - 1))]

# Functions of a file's bytes (None removes it), and whether all complete records are intact.
_CHANGES_WHILE_TRAINING = {
    'a byte missing': (lambda data: data[:5000] + data[5001:], False),
    'a label out of range': (lambda data: _with_label(99, data, 30 * _RECORD), False),
    'cut': (lambda data: data[:_BYTES // 2 + 7], True),
    'removed': (lambda data: None, False),
    'other images': (lambda data: data[_RECORD:] + data[:_RECORD], True)}

drill = pytest.mark.drill('Records', short=8)


@pytest.mark.slow
@drill
@pytest.mark.parametrize('index', range(len(_CHANGES)), ids=[
    f'{index}, {name}' for index, (name, _) in enumerate(_CHANGES)])
def test_damage_before_training(request, tmp_path, tally, index):
    draw = random.Random(f'{request.config.getoption("seed")} {index}')
    path = os.path.join(record_files.write_noise(tmp_path / 'data'),
                        draw.choice(list(table.CIFAR10.files)))
    at = draw.randrange(1, _BYTES - 1)
    _replace(path, lambda data: _CHANGES[index][1](data, at))
    tally(_refused(tmp_path, path))


@pytest.mark.slow
@drill
@pytest.mark.parametrize('kind', ['missing', 'a folder', 'unreadable', 'unreadable folder'])
def test_a_file_that_cannot_be_read(tmp_path, tally, kind):
    data = record_files.write_noise(tmp_path / 'data')
    path = f'{data}/data_batch_3.bin'
    if kind in ('missing', 'a folder'):
        os.remove(path)
    if kind == 'a folder':
        os.mkdir(path)
    if kind.startswith('unreadable'):
        os.chmod(data if kind == 'unreadable folder' else path, 0)
    try:
        tally(_refused(tmp_path, data if kind == 'unreadable folder' else path,
                       prefix=running.UNPRIVILEGED))
    finally:
        os.chmod(data, 0o755)


@pytest.mark.slow
@drill
@pytest.mark.parametrize('kind', _CHANGES_WHILE_TRAINING)
def test_damage_while_training(tmp_path, tally, kind):
    change, is_whole = _CHANGES_WHILE_TRAINING[kind]
    path = os.path.join(record_files.write_noise(tmp_path / 'data'), 'data_batch_3.bin')
    with running.running('cifar10_train.py', *running.train_flags(tmp_path)) as trainer:
        trainer.await_text('step 50, ')
        _replace(path, change)
        if is_whole:
            trainer.await_text('step 250, ')
            trainer.process.send_signal(signal.SIGINT)
        done = trainer.result()
    if is_whole:
        assert done.returncode == 130, done.stderr[-2000:]
        tally('continued')
    else:
        running.expect_one_line(done, path)
        tally('ended in one line')


def _replace(path, change):
    with open(path, 'rb') as stream:
        data = change(stream.read())
    if data is None:
        os.remove(path)
        return
    with open(path + '.new', 'wb') as stream:
        stream.write(data)
    os.replace(path + '.new', path)


def _refused(folder, path, **options):
    done = running.train(folder, '--max_steps=3', **options)
    running.expect_one_line(done, path)
    assert ', loss =' not in done.stdout, 'it started training'
    assert not os.path.lexists(f'{folder}/train'), 'it made a folder'
    return 'refused in one line'
