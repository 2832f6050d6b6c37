"""Files and folders that are complete or missing, and full disks."""
import errno
import os

from cifar10_lib import files

import pytest
import tensorflow.compat.v1 as tf


def test_a_file_or_folder_is_complete_or_missing(tmp_path):
    with files.new_folder(str(tmp_path / 'new' / 'one'), '--there') as partial:
        with files.new_file(os.path.join(partial, 'file')) as stream:
            stream.write(b'whole')
            assert not os.path.exists(os.path.join(partial, 'file'))
        assert not (tmp_path / 'new' / 'one').exists()
    assert os.listdir(tmp_path / 'new') == ['one']
    assert os.listdir(tmp_path / 'new' / 'one') == ['file']
    assert (tmp_path / 'new' / 'one' / 'file').read_bytes() == b'whole'


@pytest.mark.parametrize('error', [ValueError, KeyboardInterrupt])
def test_a_failed_block_leaves_what_was_there(tmp_path, error):
    (tmp_path / 'old').write_bytes(b'old')
    with pytest.raises(error):
        with files.new_folder(str(tmp_path / 'one'), '--there') as partial:
            with files.new_file(os.path.join(partial, 'file')), \
                    files.new_file(str(tmp_path / 'old')) as stream:
                stream.write(b'half')
                raise error
    assert os.listdir(tmp_path) == ['old']
    assert (tmp_path / 'old').read_bytes() == b'old'


@pytest.mark.parametrize('error', [
    OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), OSError('h5: No space left on device, half'),
    RuntimeError('events; No space left on device\n\tFailed'), IndexError('a; File too large'),
    tf.errors.ResourceExhaustedError(None, None, 'x.tempstate1; Disk quota exceeded')])
def test_a_full_disk_is_reported_with_its_folder(error):
    words = ('^(No space left on device|Disk quota exceeded|File too large) in /a/b. Files saved '
             'earlier are complete: make room, then run ')
    with pytest.raises(OSError, match=words), files.explain_full_disk('/a/b'):
        raise error


def test_an_empty_folder_is_replaced_also_through_a_link(tmp_path):
    (tmp_path / 'one').mkdir()
    (tmp_path / 'link').symlink_to(tmp_path / 'one')
    with files.new_folder(str(tmp_path / 'link'), '--there') as partial:
        open(os.path.join(partial, 'file'), 'w').close()
    assert os.listdir(tmp_path / 'one') == ['file']
    assert sorted(os.listdir(tmp_path)) == ['link', 'one']
