import errno
import os
import tempfile

import pytest
import spawn
import tensorflow.compat.v1 as tf
from absl import app

from cifar10_lib.program import files


def test_a_file_or_folder_is_complete_or_missing(tmp_path):
    with files.new_folder(tmp_path / 'new' / 'one', '--there') as partial:
        with files.new_file(os.path.join(partial, 'file')) as stream:
            stream.write(b'whole')
            assert not os.path.exists(os.path.join(partial, 'file'))
        assert not (tmp_path / 'new' / 'one').exists()
    assert os.listdir(tmp_path / 'new') == ['one']
    assert os.listdir(tmp_path / 'new' / 'one') == ['file']
    assert (tmp_path / 'new' / 'one' / 'file').read_bytes() == b'whole'


@pytest.mark.parametrize('error', [ValueError, KeyboardInterrupt])
def test_a_failed_block_leaves_nothing(tmp_path, error):
    with pytest.raises(error):
        with files.new_folder(tmp_path / 'one', '--there') as partial:
            with files.new_file(os.path.join(partial, 'file')) as stream:
                stream.write(b'half')
                raise error
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize('error', [
    OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), OSError('h5: No space left on device, half'),
    RuntimeError('events; No space left on device\n\tFailed'), IndexError('a; File too large'),
    tf.errors.ResourceExhaustedError(None, None, 'x.tempstate1; Disk quota exceeded'),
    OSError('[WinError 112] There is not enough space on the disk')])
def test_a_full_disk_is_reported_with_its_folder(error):
    words = ('^(No space left on device|Disk quota exceeded|File too large|There is not enough '
             'space on the disk) in /a/b. ')
    with pytest.raises(OSError, match=words), files.explain_full_disk('/a/b'):
        raise error


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=f'^{tmp_path}/none is not a folder: create it'):
        with files.new_file(str(tmp_path / 'none' / 'one')):
            pass


def test_an_empty_folder_is_replaced_also_through_a_link(tmp_path):
    (tmp_path / 'one').mkdir()
    (tmp_path / 'link').symlink_to(tmp_path / 'one')
    with files.new_folder(tmp_path / 'link', '--there') as partial:
        open(os.path.join(partial, 'file'), 'w').close()
    assert os.listdir(tmp_path / 'one') == ['file']


@pytest.mark.parametrize('kind', ['file', 'folder', 'broken link'])
def test_an_existing_file_or_folder_stays(tmp_path, kind):
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
            pytest.fail('the block must not run')
    assert sorted(os.walk(tmp_path)) == before


@pytest.mark.skipif(os.geteuid() != 0, reason='only root can give folders away')
@pytest.mark.parametrize('owner, user, refusal', [
    (1000, 1001, 'belongs to user 1000, not you: choose another folder'),
    (1000, 1000, ''), (0, 1001, ''), (1000, 0, '')])
def test_another_users_folder_is_refused(owner, user, refusal):
    """Not root's, as in a container's volume, and not by root, who owns nothing in a bind mount."""
    program = ('import encodings.ascii, os, sys; from cifar10_lib.program import startup\n'
               'from cifar10_lib.runs import run_folder; os.setuid(int(sys.argv[2]))\n'
               'startup.run(lambda words: run_folder.locked(words[0]).__enter__(), '
               'positional="FOLDER USER")')
    with tempfile.TemporaryDirectory(dir='/tmp') as place:  # Others can reach it, unlike tmp_path.
        os.chmod(place, 0o755)
        folder = os.path.join(place, 'run')
        os.mkdir(folder)
        os.chmod(folder, 0o777)
        os.chown(folder, owner, -1)
        done = spawn.run(['-c', program, folder, str(user)], cwd=spawn.ROOT, capture_output=True)
    assert (done.returncode, done.stderr) == (
        (1, f'-c: {folder} {refusal}\n') if refusal else (0, ''))
