"""Checkpoints that are found, intact or damaged, moved and of other programs."""
import os
import shutil

from cifar10_lib import checkpoints, errors

import numpy as np
import pytest
import tensorflow.compat.v1 as tf


def save_steps(folder, *steps):
    """Saves checkpoints as a run does, with the file `checkpoint`; returns their paths."""
    os.makedirs(folder, exist_ok=True)
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.Variable(0, dtype=tf.int64, name='global_step')
        weights = tf.Variable(tf.random.uniform([1000]), name='w')
        saver = tf.train.Saver([step, weights])
        session.run(weights.initializer)
        paths = []
        for value in steps:
            step.load(value, session)
            paths.append(saver.save(session, f'{folder}/model.ckpt', global_step=value))
        return paths


def test_the_step():
    """A float in the original multi-GPU script; scripts of 2015 named the variable differently."""
    for path, values in (('a', {'global_step': np.float32(77)}), ('run-3/model.ckpt-77', {})):
        assert checkpoints.step(checkpoints.Found(path, values)) == 77
    with pytest.raises(errors.UserError, match=(
            '^run/a is not a checkpoint of a training run: its global_step is None; expected a ')):
        checkpoints.step(checkpoints.Found('run/a', {}))


def test_checkpoints_of_tensorflows_first_format(tmp_path):
    """One file each; also without the file `checkpoint`."""
    with tf.Session() as session:
        session.run(tf.get_variable('w', [2]).initializer)
        saver = tf.train.Saver(write_version=tf.train.SaverDef.V1)
        for step in (5, 10):
            saver.save(session, str(tmp_path / 'model.ckpt'), global_step=step)
    (tmp_path / 'checkpoint').unlink()
    path = f'{tmp_path}/model.ckpt-10'
    assert checkpoints.candidates(str(tmp_path)) == [path, f'{tmp_path}/model.ckpt-5']
    found = checkpoints.newest(str(tmp_path))
    assert found.path == path and checkpoints.step(found) == 10
    assert found.values['w'].shape == (2,)


@pytest.mark.parametrize('state, step', [
    (None, 7), (b'\xff\xfe nonsense', 7), (b'model_checkpoint_path: "model.ckpt-9"\n', 7),
    # As edited to return to an earlier step.
    (b'model_checkpoint_path: "model.ckpt-5"\nall_model_checkpoint_paths: "model.ckpt-7"\n', 5),
    # As written on another machine: absolute, or of Windows.
    (b'model_checkpoint_path: "/home/k\\303\\244fer/run/model.ckpt-5"\n', 5),
    (b'model_checkpoint_path: "C:\\\\runs\\\\model.ckpt-5"\r\n', 5)])
def test_the_state_file(tmp_path, state, step):
    save_steps(tmp_path, 5, 7)
    (tmp_path / 'checkpoint').unlink()
    if state is not None:
        (tmp_path / 'checkpoint').write_bytes(state)
    assert checkpoints.newest(str(tmp_path)).path == f'{tmp_path}/model.ckpt-{step}'


def test_names_of_folders(tmp_path):
    """TensorFlow's reader takes some for patterns, even of another run."""
    path, = save_steps(tmp_path / 'käfer 猫', 10)
    found = checkpoints.newest(str(tmp_path / 'käfer 猫'))
    assert (found.path, checkpoints.step(found)) == (path, 10)
    for name in ('run[1]', 'a\\b'):
        shutil.copytree(tmp_path / 'käfer 猫', tmp_path / name)
        with pytest.raises(errors.UserError, match='contains one of .* Rename it, or choose '):
            checkpoints.newest(str(tmp_path / name))


_DATA, _INDEX = 'model.ckpt-7.data-00000-of-00001', 'model.ckpt-7.index'


@pytest.mark.parametrize('name, change', [
    (_DATA, lambda data: data[:-100]),
    (_DATA, lambda data: data[:500] + bytes([data[500] ^ 4]) + data[501:]),  # One bit.
    (_DATA, None), (_INDEX, lambda data: b'')])
def test_a_damaged_checkpoint_is_skipped(tmp_path, capfd, name, change):
    """Or one whose file is missing: None."""
    fifth, seventh = save_steps(tmp_path, 5, 7)
    if change:
        (tmp_path / name).write_bytes(change((tmp_path / name).read_bytes()))
    else:
        (tmp_path / name).unlink()
    assert checkpoints.newest(str(tmp_path)).path == fifth
    line, = (line for line in capfd.readouterr().err.splitlines()
             if f': {seventh} is damaged, or was just removed (' in line)
    assert line.endswith('): using model.ckpt-5')
    os.truncate(f'{fifth}.index', 0)
    with pytest.raises(errors.UserError, match=(
            f'no intact checkpoint in {tmp_path}. Restore one, or start over in another folder$')):
        checkpoints.newest(str(tmp_path))
