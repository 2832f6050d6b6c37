import errno
import os
import stat
import time

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
    RuntimeError('events; No space left on device\n\tFailed'),
    tf.errors.ResourceExhaustedError(None, None, 'x.tempstate1; Disk quota exceeded')])
def test_a_full_disk_is_reported_with_its_folder(error):
    with pytest.raises(OSError, match='^(No space left on device|Disk quota exceeded) in /a/b. '):
        with files.explain_full_disk('/a/b'):
            raise error


@pytest.mark.parametrize('error', [OSError(errno.EACCES, 'no'), RuntimeError('x'), KeyError('x')])
def test_other_errors_are_not_changed(error):
    with pytest.raises(type(error)) as raised:
        with files.explain_full_disk('/a/b'):
            raise error
    assert raised.value is error


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=f'^{tmp_path}/none is not a folder: create it'):
        with files.new_file(str(tmp_path / 'none' / 'one')):
            pass


def test_other_users_cannot_hold_a_lock(tmp_path):
    """Read access is enough for flock."""
    with files.locked(str(tmp_path / 'lock')):
        pass
    assert stat.S_IMODE(os.stat(tmp_path / 'lock').st_mode) == 0o600


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


def test_a_folder_that_appears_during_the_block_stays(tmp_path):
    with pytest.raises(OSError):
        with files.new_folder(tmp_path / 'one', '--there'):
            (tmp_path / 'one').mkdir()
            (tmp_path / 'one' / 'theirs').touch()
    assert os.listdir(tmp_path) == ['one']
    assert os.listdir(tmp_path / 'one') == ['theirs']


def test_folders_are_ours_alone_whatever_the_umask(tmp_path):
    """A second start must accept the folders that the first one created."""
    earlier = os.umask(0)
    try:
        os.umask(0o077)
        files.own_folder(tmp_path / 'strict')
        os.umask(0)
        for _ in range(2):
            files.own_folder(tmp_path / 'a' / 'b')
            with files.new_folder(tmp_path / 'c' / f'd{_}', '--there'):
                pass
            with files.new_file(tmp_path / 'file'):
                pass
            os.close(files.open_own(tmp_path / 'lock'))
    finally:
        os.umask(earlier)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob('*')}
    assert modes == {'a': 0o755, 'b': 0o755, 'c': 0o755, 'd0': 0o755, 'd1': 0o755, 'file': 0o644,
                     'lock': 0o644, 'strict': 0o700}


@pytest.mark.parametrize('path', ['file', 'file/a/b'])
def test_a_file_in_place_of_a_folder(tmp_path, path):
    (tmp_path / 'file').touch()
    with pytest.raises(FileExistsError, match='file is not a folder: choose another path'):
        files.own_folder(tmp_path / path)


def test_planted_links_are_replaced_not_followed(tmp_path):
    (tmp_path / 'victim').write_text('mine')
    for name in ('run.json', 'run.json.part', f'run.json.{os.getpid()}.part'):
        (tmp_path / name).symlink_to('victim')
    with files.new_file(tmp_path / 'run.json') as stream:
        stream.write(b'{}')
    assert (tmp_path / 'victim').read_text() == 'mine'
    assert not (tmp_path / 'run.json').is_symlink()
    assert (tmp_path / 'run.json').read_text() == '{}'


@pytest.mark.parametrize('make', [os.mkdir, lambda path: os.symlink('victim', path)])
def test_a_lock_must_be_a_file(tmp_path, make):
    (tmp_path / 'victim').write_text('mine')
    make(tmp_path / 'lock')
    with pytest.raises(OSError, match='lock'):
        files.open_own(tmp_path / 'lock')
    assert (tmp_path / 'victim').read_text() == 'mine'


@pytest.mark.skipif(os.geteuid() != 0, reason='only root can give files away')
def test_another_users_lock_is_refused(tmp_path):
    (tmp_path / 'lock').touch()
    os.chown(tmp_path / 'lock', 65534, -1)
    with pytest.raises(PermissionError, match='lock belongs to user 65534, not you: remove it'):
        files.open_own(tmp_path / 'lock')


def test_a_lock_shows_its_holder_or_waits_for_it(tmp_path):
    path = tmp_path / 'lock'
    program = ('import signal, sys; from cifar10_lib.program import files\n'
               'with files.locked(sys.argv[1], waiting="Waiting."):\n'
               '    print("locked", flush=True); signal.pause()')
    with spawn.start(['-c', program, path], cwd=spawn.ROOT) as holder:
        assert holder.stdout.readline() == 'locked\n'
        with pytest.raises(files.Locked, match=f'^{holder.pid}$'), files.locked(path):
            pytest.fail('the block must not run')
        with spawn.start(['-c', program, path], cwd=spawn.ROOT) as second:
            assert second.stdout.readline() == 'Waiting.\n'
            holder.kill()
            assert second.stdout.readline() == 'locked\n'
            assert path.read_text() == f'{second.pid}\n'
            second.kill()


def test_leftovers_are_removed_after_a_day(tmp_path):
    """Not younger ones, which a running process may need, and not files of other names."""
    yesterday = time.time() - 25 * 3600
    for name, age in (('file.0123456789abcdef.part', yesterday), ('file.1.part', yesterday),
                      ('other.0123456789abcdef.part', yesterday), ('file.part', yesterday),
                      ('file.0123456789abcde0.part', time.time() - 3600)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (age, age))
    (tmp_path / 'folder.0123456789abcdef.part' / 'below').mkdir(parents=True)
    os.utime(tmp_path / 'folder.0123456789abcdef.part', (yesterday, yesterday))
    with files.new_file(tmp_path / 'file'), files.new_folder(tmp_path / 'folder', 'x'):
        pass
    assert set(os.listdir(tmp_path)) == {
        'file', 'folder', 'file.1.part', 'other.0123456789abcdef.part', 'file.part',
        'file.0123456789abcde0.part'}


def test_concurrent_writers_do_not_disturb_each_other(tmp_path):
    with files.new_file(tmp_path / 'file') as one, files.new_file(tmp_path / 'file') as other:
        one.write(b'one')
        other.write(b'other')
    assert (tmp_path / 'file').read_bytes() == b'one'
    assert os.listdir(tmp_path) == ['file']


def test_links_among_the_leftovers_are_not_followed(tmp_path):
    (tmp_path / 'precious').mkdir()
    (tmp_path / 'precious' / 'file').touch()
    (tmp_path / 'file.0123456789abcdef.part').symlink_to('precious')
    os.utime(tmp_path / 'file.0123456789abcdef.part', (0, 0), follow_symlinks=False)
    with files.new_file(tmp_path / 'file'):
        pass
    assert os.listdir(tmp_path / 'precious') == ['file']


def test_a_mount_point_cannot_be_replaced():
    with pytest.raises(app.UsageError, match='/proc is a mount point, .* below it as --there'):
        with files.new_folder('/proc', '--there'):
            pytest.fail('the block must not run')
