import contextlib
import ctypes
import os
import pwd
import shutil
import subprocess
import sys
import tempfile

import pytest
import spawn
from absl.testing import flagsaver

from cifar10_lib.program import ownership

ALICE, BOB, TEAM = 41001, 41002, 41003  # IDs of users, and of a group, without names.
DAEMON = pwd.getpwnam('daemon')  # Has a group of its own.

as_root = pytest.mark.skipif(os.geteuid() != 0, reason='only root can give folders away')


@pytest.fixture
def place():
    """An empty folder that other users can reach, unlike `tmp_path`."""
    folder = os.path.realpath(tempfile.mkdtemp())
    os.chmod(folder, 0o755)
    yield folder
    shutil.rmtree(folder)


def fill(place, entries):
    """Creates folders, {path: (user, group, mode)}, and links, {path: (user, target)}."""
    for path, entry in entries.items():
        path = os.path.join(place, path)
        if isinstance(entry[1], str):
            os.symlink(entry[1].replace('PLACE', place), path)
            os.chown(path, entry[0], -1, follow_symlinks=False)
        else:
            os.mkdir(path)
            os.chown(path, *entry[:2])
            os.chmod(path, entry[2])


def verdict(check, path, user=0):
    """Runs a check in a process of another user; returns its refusal, or ''."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        message = 'the check did not finish'
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            check(path)
            message = ''
        except PermissionError as error:
            message = str(error)
        finally:
            os.write(write_end, message.encode())
            os._exit(0)
    os.close(write_end)
    with open(read_end) as stream:
        message = stream.read()
    os.waitpid(pid, 0)
    return message


def row(situation, entries, path, user=0, refusal=''):
    return pytest.param(entries, path, user, refusal, id=situation)


# The table of docs/reliability.md. Paths are relative to a folder of root with mode 0755.
ACCEPTED = [
    row('our folder', {'run': (ALICE, ALICE, 0o755)}, 'run', ALICE),
    row('a missing folder', {'home': (ALICE, ALICE, 0o755)}, 'home/not/there', ALICE),
    row("our group's folder", {'run': (DAEMON.pw_uid, DAEMON.pw_gid, 0o775)}, 'run',
        DAEMON.pw_uid),
    row("root's group's folder", {'run': (0, 0, 0o775)}, 'run'),
    row("a folder of a group without a name, as Kubernetes' fsGroup", {
        'run': (0, TEAM, 0o2775)}, 'run', ALICE),
    row('our folder in a sticky one', {
        'tmp': (0, 0, 0o1777), 'tmp/run': (ALICE, ALICE, 0o755)}, 'tmp/run', ALICE),
    row('a missing folder in a sticky one', {'tmp': (0, 0, 0o1777)}, 'tmp/run', ALICE),
    row('a link in our folder', {
        'run': (ALICE, ALICE, 0o755), 'home': (ALICE, ALICE, 0o755),
        'home/link': (ALICE, '../run')}, 'home/link', ALICE),
    row('our link in our folder', {
        'run': (ALICE, ALICE, 0o755), 'run/link': (ALICE, 'PLACE')}, 'run', ALICE)]
REFUSED = [
    row('everybody can write', {'run': (ALICE, ALICE, 0o777)}, 'run', ALICE,
        'run is writable by everybody: .*chmod go-w '),
    row('everybody can write above', {'share': (ALICE, ALICE, 0o777)}, 'share/run', ALICE,
        'share is writable by everybody'),
    row('a group can write', {'run': (ALICE, DAEMON.pw_gid, 0o775)}, 'run', ALICE,
        f'run is writable by group {DAEMON.pw_gid}'),
    row('a group can write above', {
        'lab': (0, DAEMON.pw_gid, 0o2775), 'lab/run': (ALICE, DAEMON.pw_gid, 0o755)}, 'lab/run',
        ALICE, f'lab is writable by group {DAEMON.pw_gid}'),
    row("another user's folder", {'run': (BOB, BOB, 0o755)}, 'run', 0,
        f'run belongs to user {BOB}, not you'),
    row("another user's folder in a sticky one", {
        'tmp': (0, 0, 0o1777), 'tmp/run': (BOB, BOB, 0o1777)}, 'tmp/run', ALICE,
        f'run belongs to user {BOB}'),
    row("below another user's folder in a sticky one", {
        'tmp': (0, 0, 0o1777), 'tmp/theirs': (BOB, BOB, 0o755),
        'tmp/theirs/run': (ALICE, ALICE, 0o755)}, 'tmp/theirs/run', ALICE,
        f'theirs belongs to user {BOB}'),
    row('a link in a sticky folder', {
        'run': (ALICE, ALICE, 0o755), 'tmp': (0, 0, 0o1777), 'tmp/link': (BOB, '../run')},
        'tmp/link', ALICE, f'link belongs to user {BOB}'),
    row('below a link in a sticky folder', {
        'run': (ALICE, ALICE, 0o755), 'tmp': (0, 0, 0o1777), 'tmp/link': (BOB, '../run')},
        'tmp/link/below', ALICE, f'link belongs to user {BOB}'),
    row("below another user's folder", {'home': (BOB, BOB, 0o755)}, 'home/run', 0,
        f'home belongs to user {BOB}'),
    row('our link that leads to where everybody can write', {
        'share': (0, 0, 0o777), 'share/run': (ALICE, ALICE, 0o755),
        'home': (ALICE, ALICE, 0o755), 'home/link': (ALICE, 'PLACE/share/run')}, 'home/link',
        ALICE, 'share is writable by everybody')]


@as_root
@pytest.mark.parametrize('entries, path, user, refusal', ACCEPTED)
def test_accepted(place, entries, path, user, refusal):
    fill(place, entries)
    assert verdict(ownership.check, f'{place}/{path}', user) == refusal
    assert verdict(ownership.check_place, f'{place}/{path}', user) == refusal


@as_root
@pytest.mark.parametrize('entries, path, user, refusal', REFUSED)
def test_refused_unless_the_flag_allows_it(place, entries, path, user, refusal):
    fill(place, entries)
    for check in (ownership.check, ownership.check_place):
        with pytest.raises(PermissionError, match=f'{refusal}.* pass --allow_shared_folders'):
            raise PermissionError(verdict(check, f'{place}/{path}', user))
        with flagsaver.flagsaver(allow_shared_folders=True):
            assert verdict(check, f'{place}/{path}', user) == ''


@as_root
def test_refused_where_tensorflow_chooses_the_names(place):
    fill(place, {'tmp': (0, 0, 0o1777)})
    assert verdict(ownership.check_place, f'{place}/tmp', ALICE) == ''
    assert 'everybody can create files in' in verdict(ownership.check, f'{place}/tmp', ALICE)
    with flagsaver.flagsaver(allow_shared_folders=True):
        assert verdict(ownership.check, f'{place}/tmp', ALICE) == ''


def test_relative_paths_also_without_root(tmp_path, monkeypatch):
    (tmp_path / 'share').mkdir()
    monkeypatch.chdir(tmp_path)
    ownership.check('share')
    ownership.check('new')
    (tmp_path / 'share').chmod(0o777)
    for path in ('share', './share/run', 'share/../share'):
        with pytest.raises(PermissionError, match=f'{tmp_path}/share is writable by everybody'):
            ownership.check(path)


def test_a_program_may_define_the_flag_itself(tmp_path):
    tmp_path.chmod(0o777)
    program = ('from cifar10_lib.program import ownership; from absl import flags; import sys; '
               'flags.DEFINE_boolean("allow_shared_folders", True, "Of the program."); '
               'ownership.check(sys.argv[1])')
    done = spawn.run(['-c', program, tmp_path], cwd=spawn.ROOT, capture_output=True)
    assert (done.returncode, done.stderr) == (0, '')


def can_unshare(*options):
    return subprocess.run(['unshare', *options, 'true'], capture_output=True).returncode == 0


def in_namespaces(options, commands, path, user):
    """Runs `check` as a user in new namespaces, after some commands; returns its refusal."""
    code = ('import os, sys; from cifar10_lib.program import ownership\n'
            'os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))\n'
            'ownership.check(sys.argv[1])')
    script = ' && '.join([*commands, 'exec "$@"'])
    done = subprocess.run(
        ['unshare', *options, 'sh', '-c', script, 'sh', sys.executable, '-c', code, path,
         str(user)], cwd=spawn.ROOT, text=True, capture_output=True, check=False)
    with contextlib.suppress(IndexError):
        return done.stderr.splitlines()[-1]
    return ''


CONTAINER = ('--mount', '--pid', '--fork', '--mount-proc')
EMPTY_DIR = 'mount -t tmpfs -o mode=0777 tmpfs volume'
HOST_FOLDER = f'mount -t tmpfs -o uid={BOB},mode=0755 tmpfs volume'
OF_BOB = [HOST_FOLDER, f'install -d -o {BOB} volume/run']


@as_root
@pytest.mark.parametrize('entries, commands, path, user, inside, outside', [
    pytest.param({}, [EMPTY_DIR], 'volume', ALICE, '', 'volume is writable by everybody',
                 id="Kubernetes' emptyDir"),
    pytest.param({}, [EMPTY_DIR], 'volume/run', ALICE, '', 'volume is writable by everybody',
                 id='below an emptyDir'),
    pytest.param({}, OF_BOB, 'volume', 0, '', f'volume belongs to user {BOB}',
                 id="a bind mount of a user's folder, for root"),
    pytest.param({}, OF_BOB, 'volume/run', 0, '', f'volume belongs to user {BOB}',
                 id='a folder in such a bind mount'),
    pytest.param({'link': (0, 'PLACE/volume')}, OF_BOB, 'link/run', 0, '',
                 f'volume belongs to user {BOB}', id='through a link into such a bind mount'),
    pytest.param({}, [*OF_BOB, 'chown 41004 volume/run'], 'volume/run', 0,
                 'run belongs to user 41004', f'volume belongs to user {BOB}',
                 id="a third user's folder in a bind mount"),
    pytest.param({}, [EMPTY_DIR, 'mkdir volume/run', f'chown {BOB} volume/run'], 'volume/run',
                 ALICE, f'run belongs to user {BOB}', 'volume is writable by everybody',
                 id="another user's folder in an emptyDir"),
    pytest.param({}, [EMPTY_DIR, 'mkdir -m 777 volume/run'], 'volume/run', 0,
                 'run is writable by everybody', 'volume is writable by everybody',
                 id='a folder for everybody in a volume'),
    pytest.param({'image': (0, 0, 0o777)}, [], 'image', ALICE, 'image is writable by everybody',
                 'image is writable by everybody', id='a folder for everybody in an image')])
def test_volumes_of_containers(place, entries, commands, path, user, inside, outside):
    """A container is a PID namespace; outside a container, the same mounts are not trusted."""
    if not can_unshare(*CONTAINER):
        pytest.skip('cannot create namespaces')
    fill(place, {'volume': (0, 0, 0o755), **entries})
    commands = [f'cd {place}', *commands, f'cd {spawn.ROOT}']
    refusal = in_namespaces(CONTAINER, commands, f'{place}/{path}', user)
    assert inside in refusal if inside else refusal == ''
    if os.stat('/proc/self/ns/pid').st_ino != 0xEFFFFFFC:  # PROC_PID_INIT_INO
        return  # The test runs in a container.
    assert outside in in_namespaces(('--mount',), commands, f'{place}/{path}', user)


@as_root
def test_a_user_namespace_in_which_root_is_nobody(place):
    """As Apptainer's: folders of the host's root seem to belong to user 65534."""
    def check(path):
        libc = ctypes.CDLL(None)
        libc.prctl(4, 1)  # PR_SET_DUMPABLE: may write to uid_map, although it was root before.
        if libc.unshare(0x10000000):  # CLONE_NEWUSER
            raise PermissionError('cannot create namespaces')
        with open('/proc/self/uid_map', 'w') as stream:
            stream.write(f'{ALICE} {ALICE} 1')
        ownership.check(path)

    fill(place, {'run': (ALICE, ALICE, 0o755), 'share': (ALICE, ALICE, 0o777)})
    refusal = verdict(check, f'{place}/run', ALICE)
    if 'namespaces' in refusal:
        pytest.skip(refusal)
    assert refusal == ''
    assert 'share is writable by everybody' in verdict(check, f'{place}/share', ALICE)
