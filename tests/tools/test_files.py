"""Files and folders that are complete or missing, and full disks."""
import errno
import os
import subprocess
import time

from cifar10_lib import errors, files

import pytest
import spawn
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


def test_a_line_about_another_full_disk_stays():
    """As that of a download into --data_dir."""
    with pytest.raises(errors.UserError, match='^No space left on device in /data$'):
        with files.explain_full_disk('/run'):
            raise errors.UserError('No space left on device in /data')


def test_an_empty_folder_is_replaced_also_through_a_link(tmp_path):
    (tmp_path / 'one').mkdir()
    (tmp_path / 'link').symlink_to(tmp_path / 'one')
    with files.new_folder(str(tmp_path / 'link'), '--there') as partial:
        open(os.path.join(partial, 'file'), 'w').close()
    assert os.listdir(tmp_path / 'one') == ['file']
    assert sorted(os.listdir(tmp_path)) == ['link', 'one']


@pytest.mark.parametrize('name', ['one', 'one/.mine'])
def test_an_existing_file_or_folder_stays(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    before = sorted(os.walk(tmp_path))
    with pytest.raises(errors.UserError, match='one exists and .*: choose another --there'):
        with files.new_folder(str(tmp_path / 'one'), '--there'):
            pytest.fail('the block must not run')
    assert sorted(os.walk(tmp_path)) == before


def _holder(path):
    """A process that holds the lock of a file until its input ends."""
    return spawn.start([
        '-c', 'import sys; sys.path.insert(0, sys.argv[1])\nfrom cifar10_lib import files\n'
        'with files.locked(sys.argv[2], "Waiting."):\n'
        '    open(sys.argv[2] + ".log", "a").write("x")\n'
        '    print("It is mine.", flush=True)\n    sys.stdin.read()', spawn.ROOT, path],
        stdin=subprocess.PIPE)


@pytest.mark.parametrize('end', ['its block', 'SIGKILL'])
def test_a_lock_ends_with_its_block_and_its_process(tmp_path, end):
    path = str(tmp_path / 'lock')
    first = _holder(path)
    assert first.stdout.readline() == 'It is mine.\n'
    with pytest.raises(errors.UserError), files.locked(path):
        pytest.fail('the block must not run')
    second = _holder(path)
    assert second.stdout.readline() == 'Waiting.\n'
    time.sleep(0.5)
    assert (tmp_path / 'lock.log').read_text() == 'x'
    if end == 'SIGKILL':
        first.kill()
    else:
        first.communicate('')
    assert second.stdout.readline() == 'It is mine.\n'
    second.communicate('')
    with files.locked(path), pytest.raises(errors.UserError), files.locked(path):
        pytest.fail('the block must not run')


def test_a_lock_in_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / 'file').touch()
    with pytest.raises(NotADirectoryError), files.locked(f'{tmp_path}/file/lock', 'Waiting.'):
        pytest.fail('the block must not run')
