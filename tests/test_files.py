import contextlib
import errno
import os
import signal
import stat
import sys
import threading
import time
import traceback

import pytest
import spawn
import tensorflow.compat.v1 as tf
from absl import app

from cifar10_lib.program import files


def test_a_folder_appears_when_the_block_ends(tmp_path):
    path = tmp_path / 'new' / 'one'
    with files.new_folder(path, '--there') as partial:
        open(os.path.join(partial, 'file'), 'w').close()
        assert not path.exists()
    assert os.listdir(path) == ['file']
    assert os.listdir(path.parent) == ['one']


@pytest.mark.parametrize('error', [ValueError, KeyboardInterrupt])
def test_a_failed_block_leaves_nothing(tmp_path, error):
    with pytest.raises(error):
        with files.new_folder(tmp_path / 'one', '--there') as partial:
            open(os.path.join(partial, 'file'), 'w').close()
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
    """Read access is enough for flock. Files of earlier versions get the new mode, too."""
    (tmp_path / 'old').touch(0o666)
    for name in ('old', 'new'):
        with files.locked(str(tmp_path / name)):
            pass
        assert stat.S_IMODE(os.stat(tmp_path / name).st_mode) == 0o600


def test_a_file_is_complete_or_missing(tmp_path):
    with pytest.raises(ValueError), files.new_file(str(tmp_path / 'one')) as stream:
        stream.write(b'half')
        raise ValueError
    assert os.listdir(tmp_path) == []
    with files.new_file(str(tmp_path / 'one')) as stream:
        stream.write(b'whole')
        assert not (tmp_path / 'one').exists()
    assert os.listdir(tmp_path) == ['one']


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
                     'lock': 0o644}


@pytest.mark.parametrize('path', ['file', 'file/a/b'])
def test_a_file_in_place_of_a_folder(tmp_path, path):
    (tmp_path / 'file').touch()
    with pytest.raises((FileExistsError, NotADirectoryError),
                       match=f'{path} or one of its parents is not a folder: choose another'):
        files.own_folder(tmp_path / path)


def test_a_stricter_umask_applies(tmp_path):
    earlier = os.umask(0o077)
    try:
        files.own_folder(tmp_path / 'a')
        with files.new_file(tmp_path / 'a' / 'file'):
            pass
    finally:
        os.umask(earlier)
    assert [path.stat().st_mode & 0o777 for path in tmp_path.rglob('*')] == [0o700, 0o600]


def test_planted_links_are_replaced_not_followed(tmp_path):
    (tmp_path / 'victim').write_text('mine')
    for name in ('run.json', 'run.json.part', f'run.json.{os.getpid()}.part'):
        (tmp_path / name).symlink_to('victim')
    with files.new_file(tmp_path / 'run.json') as stream:
        stream.write(b'{}')
    assert (tmp_path / 'victim').read_text() == 'mine'
    assert not (tmp_path / 'run.json').is_symlink()
    assert (tmp_path / 'run.json').read_text() == '{}'


@pytest.mark.parametrize('make', [os.mkfifo, os.mkdir, lambda path: os.symlink('victim', path)])
def test_a_lock_must_be_a_regular_file(tmp_path, make):
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


def test_a_lock_shows_its_holder_or_waits_for_it(tmp_path, capsys):
    def hold(write_end):
        with files.locked(tmp_path / 'lock'):
            os.write(write_end, f'{os.getpid()}'.encode())
            time.sleep(spawn.PATIENCE)

    with forked(hold) as pipe:
        holder = os.read(pipe, 20).decode()
        with pytest.raises(files.Locked, match=f'^{holder}$'), files.locked(tmp_path / 'lock'):
            pytest.fail('the block must not run')
        printed = []

        def kill_after_a_line():
            while not printed:
                printed.extend(capsys.readouterr().out.splitlines())
            time.sleep(0.2)
            printed.append('killed')
            os.kill(int(holder), signal.SIGKILL)
        threading.Thread(target=kill_after_a_line).start()
        with files.locked(tmp_path / 'lock', waiting='Waiting.'):
            assert printed == ['Waiting.', 'killed']
            assert (tmp_path / 'lock').read_text() == f'{os.getpid()}\n'


@contextlib.contextmanager
def forked(work):
    """Runs a function with a pipe in a forked process, which starts fast; yields the other end."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work(write_end)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(write_end)
    try:
        yield read_end
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read_end)


def writer(make, *arguments):
    """Starts a process that stays inside the block of `new_file` or `new_folder`."""
    def work(write_end):
        with make(*arguments) as made:
            if make is files.new_folder:
                open(os.path.join(made, 'half'), 'w').close()
            else:
                made.write(b'half')
                made.flush()
            os.write(write_end, b'.')
            time.sleep(spawn.PATIENCE)

    return forked(work)


def leftovers(folder):
    return [entry.name for entry in folder.iterdir() if entry.name.endswith('.part')]


def test_leftovers_of_killed_writers_are_removed_but_not_those_of_live_ones(tmp_path):
    """Process IDs do not count: in containers, all writers may have the same one."""
    for name in ('file.part', 'file.1.part', 'other.0123456789abcdef.part'):
        (tmp_path / name).touch()  # Perhaps the user's.
    users = set(leftovers(tmp_path))
    writers = ((files.new_file, tmp_path / 'file'), (files.new_folder, tmp_path / 'folder', 'x'))
    with contextlib.ExitStack() as live:
        for arguments in writers:
            os.read(live.enter_context(writer(*arguments)), 1)
        of_live = set(leftovers(tmp_path)) - users
        for arguments in writers:
            with writer(*arguments) as pipe:
                os.read(pipe, 1)
        assert len(leftovers(tmp_path)) == 3 + 2 + 2
        with files.new_file(tmp_path / 'file'), files.new_folder(tmp_path / 'folder', 'x'):
            assert len(leftovers(tmp_path)) == 3 + 2 + 2
        assert set(leftovers(tmp_path)) == users | of_live
    os.rmdir(tmp_path / 'folder')
    with files.new_file(tmp_path / 'file'), files.new_folder(tmp_path / 'folder', 'x'):
        pass
    assert set(leftovers(tmp_path)) == users


@pytest.mark.parametrize('make, arguments', [(files.new_file, []), (files.new_folder, ['--there'])])
def test_what_a_writer_leaves_that_is_killed_at_any_point_is_removed(tmp_path, make, arguments):
    """Kills one writer at its first system call that Python audits, the next at its second, ..."""
    def work(write_end):
        def kill_at_the_last(event, values):
            if event.startswith(('open', 'os.', 'fcntl.')) and next(harmless, None) is None:
                signal.raise_signal(signal.SIGKILL)
        sys.addaudithook(kill_at_the_last)
        with make(tmp_path / 'one', *arguments):
            pass
        os.write(write_end, b'.')

    left = set()
    for count in range(1000):
        harmless = iter(range(count))
        with forked(work) as pipe:
            survived = os.read(pipe, 1)
        left.update(leftovers(tmp_path))
        with make(tmp_path / 'one', *arguments):
            pass
        assert os.listdir(tmp_path) == ['one']
        if survived:
            break
    assert survived and left


def test_concurrent_writers_do_not_remove_each_others_files(tmp_path):
    """Between creating and locking a file, another process may take it for a leftover."""
    def work(write_end):
        for _ in range(100):
            with files.new_file(tmp_path / 'file') as stream:
                stream.write(b'whole')
            with files.new_folder(tmp_path / 'folder', 'x'):  # Each replaces another's empty one.
                pass
        os.write(write_end, b'.')

    with contextlib.ExitStack() as stack:
        pipes = [stack.enter_context(forked(work)) for _ in range(4)]
        assert [os.read(pipe, 1) for pipe in pipes] == [b'.'] * 4
    assert leftovers(tmp_path) == []
    assert (tmp_path / 'file').read_text() == 'whole'


def test_planted_leftovers_are_left_alone(tmp_path):
    (tmp_path / 'precious').mkdir()
    (tmp_path / 'file.0123456789abcdef.part').symlink_to('precious')
    os.mkfifo(tmp_path / 'file.0123456789abcde0.part')
    if os.geteuid() == 0:
        (tmp_path / 'file.0123456789abcde1.part').mkdir()
        os.chown(tmp_path / 'file.0123456789abcde1.part', 65534, -1)
    before = set(os.listdir(tmp_path))
    with files.new_file(tmp_path / 'file'):
        pass
    assert set(os.listdir(tmp_path)) == before | {'file'}


def test_a_mount_point_cannot_be_replaced():
    with pytest.raises(app.UsageError, match='/proc is a mount point, .* below it as --there'):
        with files.new_folder('/proc', '--there'):
            pytest.fail('the block must not run')
