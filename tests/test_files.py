import errno
import os

import pytest
import tensorflow.compat.v1 as tf
from absl import app

from program import files


def test_it_is_there_when_the_block_is_done(tmp_path):
    path = tmp_path / 'new' / 'one'
    with files.new_folder(path, '--there') as partial:
        open(os.path.join(partial, 'file'), 'w').close()
        assert not path.exists()
    assert os.listdir(path) == ['file']
    assert os.listdir(path.parent) == ['one']


@pytest.mark.parametrize('error', [ValueError, KeyboardInterrupt])
def test_what_fails_leaves_nothing(tmp_path, error):
    with pytest.raises(error):
        with files.new_folder(tmp_path / 'one', '--there') as partial:
            open(os.path.join(partial, 'file'), 'w').close()
            raise error
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize('error', [
    OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), OSError('h5: No space left on device, half'),
    RuntimeError('events; No space left on device\n\tFailed'),
    tf.errors.ResourceExhaustedError(None, None, 'x.tempstate1; Disk quota exceeded')])
def test_a_full_disk_is_told_by_its_folder(error):
    with pytest.raises(OSError, match='^(No space left on device|Disk quota exceeded) in /a/b. '):
        with files.full_disk_told('/a/b'):
            raise error


@pytest.mark.parametrize('error', [OSError(errno.EACCES, 'no'), RuntimeError('x'), KeyError('x')])
def test_other_errors_stay_as_they_are(error):
    with pytest.raises(type(error)) as raised:
        with files.full_disk_told('/a/b'):
            raise error
    assert raised.value is error


def test_a_file_is_there_whole_or_not_at_all(tmp_path):
    with pytest.raises(ValueError), files.new_file(str(tmp_path / 'one')) as partial:
        open(partial, 'w').close()
        raise ValueError
    assert os.listdir(tmp_path) == []
    with files.new_file(str(tmp_path / 'one')) as partial:
        open(partial, 'w').close()
        assert not (tmp_path / 'one').exists()
    assert os.listdir(tmp_path) == ['one']


def test_an_empty_folder_is_taken_also_through_a_link(tmp_path):
    (tmp_path / 'one').mkdir()
    (tmp_path / 'link').symlink_to(tmp_path / 'one')
    with files.new_folder(tmp_path / 'link', '--there') as partial:
        open(os.path.join(partial, 'file'), 'w').close()
    assert os.listdir(tmp_path / 'one') == ['file']


@pytest.mark.parametrize('kind', ['file', 'folder', 'link to nothing that can be made'])
def test_what_is_there_stays(tmp_path, kind):
    path = tmp_path / 'one'
    if kind == 'file':
        path.write_text('mine')
    elif kind == 'folder':
        path.mkdir()
        (path / '.mine').touch()
    else:
        (tmp_path / 'in the way').touch()
        path.symlink_to(tmp_path / 'in the way' / 'one')
    before = sorted(os.walk(tmp_path))
    with pytest.raises((app.UsageError, OSError)):
        with files.new_folder(path, '--there'):
            pytest.fail('must not get here')
    assert sorted(os.walk(tmp_path)) == before


def test_what_comes_in_between_stays(tmp_path):
    with pytest.raises(OSError):
        with files.new_folder(tmp_path / 'one', '--there'):
            (tmp_path / 'one').mkdir()
            (tmp_path / 'one' / 'theirs').touch()
    assert os.listdir(tmp_path) == ['one']
    assert os.listdir(tmp_path / 'one') == ['theirs']
