"""Refuses folders in which other users of the machine could tamper with our files.

The rules follow Kupsch and Miller, "How to Open a File and Not Get Hacked" (2008): every folder on
the path counts, including those on the path of a link. We trust root, ourselves and, in a
container, the owner of the volume. Where others can write, they can replace our files, or plant
links under names that TensorFlow will write to. A sticky bit, as on /tmp, still allows planting
names before we use them.
"""
import grp
import os
import pwd
import re
import stat

from absl import flags

flags.DEFINE_boolean('allow_shared_folders', False, 'Write even to folders in which other users of '
                     'the machine could tamper with the files.')

# The inode of /proc/self/ns/pid outside containers: PROC_PID_INIT_INO, <linux/proc_ns.h>.
_HOST_PID_NAMESPACE = 0xEFFFFFFC
_MAX_LINKS = 40  # Linux's limit.


def check(folder):
    """Refuses a folder that others can write to; call it before TensorFlow writes there.

    TensorFlow's file names can be guessed, and it follows links. The folder may be missing.

    Raises:
        PermissionError: see `check_place`; or others can create files in the folder, or it contains
            another user's link.
    """
    check_place(folder)
    real = os.path.realpath(folder)
    if _allowed() or not os.path.isdir(real):
        return
    if _writers(real) and real != _volume(real):
        raise _refusal(f'{_writers(real)} can create files in {real}', 'choose a folder below it')
    for entry in os.scandir(real):
        if entry.is_symlink() and entry.stat(follow_symlinks=False).st_uid not in _trusted(real):
            raise _refusal(f'{entry.path} is a link created by another user', 'remove it')


def check_place(folder):
    """Refuses a folder in which others could remove or replace what we create.

    Sufficient for names that cannot be guessed, as `files` uses. The folder may be missing.

    Raises:
        PermissionError: others can write to the folder or a parent that has no sticky bit; an
            untrusted user owns the folder, or a parent inside a shared folder; or a link on the
            path is inside a shared folder. The message suggests what to do.
    """
    if _allowed():
        return
    for parent, path in _steps(folder):
        writers = _writers(parent)
        if writers:  # They could have planted the entry, or could still replace it.
            _check_writers(parent)
            if os.path.islink(path):
                raise _refusal(f'{path} is a link in a folder writable by {writers}, so another '
                               'user may have created it', 'choose the folder it points to')
            _check_owner(path)
    real = os.path.realpath(folder)
    if os.path.isdir(real):
        _check_owner(real)
        _check_writers(real)


def check_file(path, number):
    """Raises `PermissionError` if the file with this descriptor is not regular or not ours."""
    found = os.fstat(number)
    if not stat.S_ISREG(found.st_mode):
        raise PermissionError(f'{path} is not a regular file: remove it')
    if found.st_uid not in _trusted(os.path.realpath(path)) and not _allowed():
        raise _refusal(f'{path} belongs to user {found.st_uid}, not you', 'remove it')


def _allowed():
    return flags.FLAGS['allow_shared_folders'].value  # Works before flags are parsed.


def _refusal(reason, remedy):
    return PermissionError(f'{reason}: {remedy}, or pass --allow_shared_folders')


def _steps(path):
    """Yields (folder without links, path of an entry in it) for each name on a path, and follows
    links."""
    here, links = '/', 0
    path = os.fspath(path) if os.path.isabs(path) else os.path.join(os.getcwd(), path)
    names = path.split('/')[::-1]
    while names:
        name = names.pop()
        if name == '..':
            here = os.path.dirname(here)
        elif name not in ('', '.'):
            there = os.path.join(here, name)
            yield here, there
            if os.path.islink(there) and links < _MAX_LINKS:
                links += 1
                target = os.readlink(there)
                here = '/' if os.path.isabs(target) else here
                names += target.split('/')[::-1]
            else:
                here = there


def _check_owner(path):
    """Refuses a file or folder that an untrusted user owns."""
    found = _lstat(path)
    if found and found.st_uid not in _trusted(path):
        raise _refusal(f'{path} belongs to user {found.st_uid}, not you',
                       'choose another folder, change its owner')


def _check_writers(path):
    """Refuses a folder in which others can replace what we create."""
    writers = _writers(path)
    if writers and not _lstat(path).st_mode & stat.S_ISVTX and path != _volume(path):
        raise _refusal(f'{path} is writable by {writers}',
                       f'choose another folder, run "chmod go-w {path}"')


def _writers(path):
    """Describes who, besides trusted users, can write to a folder; '' for nobody."""
    found = _lstat(path)
    if not found or not stat.S_ISDIR(found.st_mode):
        return ''
    if found.st_mode & stat.S_IWOTH:
        return 'everybody'
    if found.st_mode & stat.S_IWGRP and _has_list(path):
        return 'users in its access control list'
    if found.st_mode & stat.S_IWGRP and not _is_private(found.st_gid, _trusted(path)):
        return f'group {found.st_gid}'
    return ''


def _has_list(path):
    """Whether the path has an access control list, whose mask is the mode's group bits."""
    try:
        return bool(os.getxattr(path, 'system.posix_acl_access'))
    except OSError:  # Not found, or not supported by the file system.
        return False


def _is_private(group, trusted):
    """Whether a group contains only trusted users.

    Debian, Fedora and others give each user a group of the same name, and umask 002. Any other
    group counts as public even if it lists no members: a directory service need not list them. A
    group ID without a name, such as Kubernetes' `fsGroup`, has no other members.
    """
    if group == 0:  # Root's group; on Red Hat it includes system accounts that cannot log in.
        return True
    try:
        found = grp.getgrgid(group)
    except KeyError:
        return True
    users = {_user_name(user) for user in trusted}
    members = {user.pw_name for user in pwd.getpwall() if user.pw_gid == group}
    return found.gr_name in users and users.issuperset(members.union(found.gr_mem))


def _user_name(number):
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # Common in containers.
        return None


def _trusted(path):
    """Returns the IDs of the users who may own `path`."""
    volume = _volume(path)
    return {0, os.geteuid(), os.stat(volume).st_uid if volume else 0}


def _volume(path):
    """Returns the mount point of the container volume that holds `path`, or None.

    Whoever started the container provided its volumes, so their owner and mode are trusted: a bind
    mount has those of the host's folder, Kubernetes' `emptyDir` is root's with mode 0777.
    """
    try:
        if os.stat('/proc/self/ns/pid').st_ino == _HOST_PID_NAMESPACE:
            return None
        with open('/proc/self/mountinfo', errors='surrogateescape') as stream:
            points = {re.sub(r'\\(\d{3})', lambda code: chr(int(code.group(1), 8)), line.split()[4])
                      for line in stream}
    except OSError:
        return None
    while path not in points and path != '/':
        path = os.path.dirname(path)
    return path if path != '/' else None


def _lstat(path):
    try:
        return os.lstat(path)
    except (OSError, ValueError):  # Missing, inaccessible, or not a valid path.
        return None
