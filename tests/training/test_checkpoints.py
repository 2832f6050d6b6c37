import os
import shutil
import tempfile
import threading
import time

import h5py
import numpy as np
import plain
import pytest
import spawn
import tensorflow.compat.v1 as tf
from absl import app

from cifar10_lib.runs import checkpoints


@pytest.mark.parametrize('dtype', [np.int64, np.int32, np.float32])
def test_step_of_any_type(tmp_path, dtype):
    path = plain.save(tmp_path / 'a', {'global_step': dtype(1234)})
    assert checkpoints.step(path) == 1234


@pytest.mark.parametrize('value, found', [
    (np.float32(np.nan), 'nan'), (np.float32(3.5), '3.5'), (np.int64(-3), '-3'),
    (np.float32(2 ** 63), '9.22337.*18'), (np.zeros([2], np.int64), r'\[0 0\]'), (None, 'missing')])
def test_an_invalid_step(tmp_path, value, found):
    path = plain.save(tmp_path / 'a', {'x': 0} if value is None else {'global_step': value})
    message = (f'{path} is not a checkpoint of a training run: its global_step is {found}; '
               'expected a whole number')
    with pytest.raises(app.UsageError, match=message):
        checkpoints.step(path)
    if found in ('-3', '3.5'):  # As a training session loads it.
        step = tf.get_variable('step', [], tf.int64, initializer=tf.zeros_initializer())
        with pytest.raises(app.UsageError, match=message):
            checkpoints.values_for(path, {'global_step': step}, '')


def test_checkpoints_of_tensorflows_first_format(tmp_path):
    """One file each; also without the file `checkpoint`."""
    with tf.Session() as session:
        session.run(tf.get_variable('w', [2]).initializer)
        saver = tf.train.Saver(write_version=tf.train.SaverDef.V1)
        for step in (5, 10):
            saver.save(session, str(tmp_path / 'model.ckpt'), global_step=step)
    (tmp_path / 'checkpoint').unlink()
    path = f'{tmp_path}/model.ckpt-10'
    assert checkpoints.candidates(tmp_path) == [path, f'{tmp_path}/model.ckpt-5']
    assert checkpoints.latest(tmp_path) == next(checkpoints.watch(tmp_path, 1)) == path
    assert checkpoints.step(path) == 10


def test_load_converts_and_ignores_the_rest(tmp_path):
    path = plain.save(tmp_path / 'a', {
        'w': np.ones([2, 3], np.float16), 'step': np.float32(7), 'x': np.zeros(3)})
    w = tf.get_variable('w', [2, 3])
    step = tf.get_variable('step', [], tf.int64, initializer=tf.zeros_initializer())
    with tf.Session() as session:
        variables = {'w': w, 'step': step}
        values = checkpoints.values_for(path, variables, '')
        checkpoints.Loader([w, step]).assign(values, variables, session)
        assert session.run(w).tolist() == [[1, 1, 1], [1, 1, 1]]
        assert session.run(step) == 7


def test_the_error_names_at_most_ten_variables(tmp_path):
    path = plain.save(tmp_path / 'a', {'fine': 0.0})
    variables = {name: tf.get_variable(name, []) for name in 'abcdefghijkl'}
    with pytest.raises(app.UsageError, match='i is missing; j is missing; 2 more. Do this.$'):
        checkpoints.values_for(path, variables, 'Do this.')


def _save_steps(folder, *steps):
    """Saves checkpoints as a run does, with the file `checkpoint`; returns their paths."""
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.Variable(0, dtype=tf.int64, name='global_step')
        weights = tf.Variable(tf.random.uniform([1000]), name='w')
        saver = tf.train.Saver([step, weights])
        session.run(weights.initializer)
        paths = []
        for value in steps:
            step.load(value, session)
            paths.append(saver.save(session, str(folder / 'model.ckpt'), global_step=value))
        return paths


def test_a_copied_run_uses_its_own_checkpoints(tmp_path):
    """The file `checkpoint` has absolute paths, where there may be another run now."""
    first, second = tmp_path / 'first', tmp_path / 'second'
    first.mkdir()
    _save_steps(first, 5, 7)
    assert f'"{first}/model.ckpt-7"' in (first / 'checkpoint').read_text()
    shutil.copytree(first, second)
    assert checkpoints.latest(str(second)) == f'{second}/model.ckpt-7'
    assert checkpoints.candidates(str(second)) == [
        f'{second}/model.ckpt-7', f'{second}/model.ckpt-5']


@pytest.mark.skipif(os.geteuid() != 0, reason='only root can become another user')
def test_a_folder_that_may_not_be_read_is_not_empty():
    program = ('import encodings.ascii, os, sys; from cifar10_lib.program import startup\n'
               'from cifar10_lib.runs import checkpoints; os.setuid(1001)\n'
               'startup.run(lambda words: checkpoints.newest(words[0]), positional="FOLDER")')
    with tempfile.TemporaryDirectory(dir='/tmp') as folder:  # With mode 700.
        done = spawn.run(['-c', program, folder], cwd=spawn.ROOT, capture_output=True)
    assert (done.returncode, done.stderr) == (1, f"-c: Permission denied: '{folder}'\n")


def _overwrite(path, change):
    data = bytearray(path.read_bytes())
    path.write_bytes(change(data))


# Damage to a folder with checkpoints 5 and 7: dictionary from name to function of the folder.
_DAMAGES = {
    'data truncated': lambda folder: _overwrite(
        folder / 'model.ckpt-7.data-00000-of-00001', lambda data: data[:-100]),
    'data zeroed': lambda folder: _overwrite(
        folder / 'model.ckpt-7.data-00000-of-00001', lambda data: bytes(len(data))),
    'data missing': lambda folder: (folder / 'model.ckpt-7.data-00000-of-00001').unlink(),
    'index truncated': lambda folder: _overwrite(
        folder / 'model.ckpt-7.index', lambda data: data[:20]),
    'index of exabytes': lambda folder: _overwrite(
        folder / 'model.ckpt-7.index', lambda data: data[:-48] + _FOOTER + data[-8:]),
    'index missing': lambda folder: (folder / 'model.ckpt-7.index').unlink()}

# An index file is a LevelDB table. Its last 48 bytes are the offsets and sizes of two blocks, as
# numbers with seven bits per byte, the lowest first; padding to 40 bytes; and a mark of 8 bytes.
# Here the block that lists all others claims 2^60 bytes.
_FOOTER = bytes([0, 0, 0, *8 * [0x80], 0x10]).ljust(40, b'\0')


@pytest.mark.parametrize('damage', _DAMAGES)
def test_a_damaged_checkpoint_is_skipped(tmp_path, capfd, damage):
    fifth, seventh = _save_steps(tmp_path, 5, 7)
    assert checkpoints.latest(str(tmp_path)) == seventh
    _DAMAGES[damage](tmp_path)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert checkpoints.latest(str(tmp_path)) == fifth
    line, = (line for line in capfd.readouterr().err.splitlines()
             if f': {seventh} is damaged (' in line)
    assert line.endswith('): using model.ckpt-5')
    assert sorted(path.name for path in tmp_path.iterdir()) == left


@pytest.mark.parametrize('state, step', [
    (b'', 7), (bytes(50), 7), (b'\xff\xfe nonsense', 7), (None, 7),
    (b'model_checkpoint_path: "model.ckpt-9"\n', 7),
    (b'model_checkpoint_path: "model.ckpt-5"\n', 5)])  # As edited to return to an earlier step.
def test_a_useless_or_edited_state_file(tmp_path, state, step):
    _save_steps(tmp_path, 5, 7)
    (tmp_path / 'checkpoint').unlink()
    if state is not None:
        (tmp_path / 'checkpoint').write_bytes(state)
    assert checkpoints.latest(str(tmp_path)) == f'{tmp_path}/model.ckpt-{step}'


def test_watch_yields_each_intact_checkpoint_once(tmp_path):
    """The second is damaged and skipped; the third comes from a run that removed the first."""
    fifth, = _save_steps(tmp_path, 5)
    coming = checkpoints.watch(str(tmp_path), 0.1)
    assert next(coming) == fifth
    _save_steps(tmp_path, 6)
    _overwrite(tmp_path / 'model.ckpt-6.index', lambda data: data[:20])
    saving = threading.Timer(1.5, lambda: _save_steps(tmp_path, 7))
    saving.start()
    assert next(coming) == str(tmp_path / 'model.ckpt-7')
    saving.join()


def test_watch_waits_if_all_are_removed_and_yields_a_new_checkpoint_of_the_same_step(tmp_path):
    """As after --restart. The file `checkpoint` names a removed one, which is not damage."""
    fifth, = _save_steps(tmp_path, 5)
    coming = checkpoints.watch(str(tmp_path), 2)
    assert next(coming) == fifth
    for path in tmp_path.glob('model.ckpt-*'):
        path.unlink()
    saved = 0.0

    def save_again():
        nonlocal saved
        saved = time.monotonic()
        _save_steps(tmp_path, 5)

    saving = threading.Timer(2.5, save_again)
    saving.start()
    assert next(coming) == fifth
    saving.join()  # It also writes the file `checkpoint`.
    _save_steps(tmp_path, 7)
    assert next(coming) == str(tmp_path / 'model.ckpt-7')
    assert time.monotonic() > saved + 1.5  # At least two seconds lie between two checkpoints.


def test_params_h5(tmp_path):
    """After one step of Adam, with averages, the statistics of a batch norm and frozen weights.

    Adam's first step equals its rate, 0.5; the average is halfway between 1 and 0.5. Adam's state
    and the averages of losses are left out.
    """
    step = tf.train.get_or_create_global_step()
    weights = tf.get_variable('layer/weights', initializer=[[1.0, 2.0], [3.0, 4.0]])
    for name in ('layer/bn/moving_mean', 'layer/bn/moving_variance', 'input/scale', 'loss/avg'):
        tf.get_variable(name, initializer=[5.0, 6.0], trainable=False)
    step_op = tf.train.AdamOptimizer(0.5).minimize(tf.reduce_sum(weights), step)
    with tf.control_dependencies([step_op]):
        train_op = tf.train.ExponentialMovingAverage(0.5).apply([weights])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train_op)
        values = session.run({variable.op.name: variable for variable in tf.global_variables()})
    path, names = tmp_path / 'params.h5', []
    checkpoints.write_parameters(path, values, {'layer/weights'})
    assert [entry.name for entry in tmp_path.iterdir()] == ['params.h5']
    with h5py.File(path) as stream:
        stream.visititems(lambda name, node: names.append(name) if hasattr(node, 'shape') else None)
        assert sorted(names) == [
            'averages/layer/weights', 'statistics/layer/bn/moving_mean',
            'statistics/layer/bn/moving_variance', 'weights/input/scale', 'weights/layer/weights']
        np.testing.assert_allclose(stream['weights/layer/weights'], [[0.5, 1.5], [2.5, 3.5]],
                                   rtol=1e-6)
        np.testing.assert_allclose(stream['averages/layer/weights'], [[0.75, 1.75], [2.75, 3.75]],
                                   rtol=1e-6)
        assert stream['statistics/layer/bn/moving_mean'][:].tolist() == [5, 6]
        assert stream['weights/layer/weights'].dtype == np.float32
        assert dict(stream.attrs) == {'global_step': 1}
