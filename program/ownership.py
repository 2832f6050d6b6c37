"""Refuses folders in which other users of the machine could tamper with what we write.

The rules follow Kupsch and Miller, "How to Open a File and Not Get Hacked" (2008): every folder on
the way to a file counts, the folders on the way of a link, too. We trust root and ourselves, and in
a container whoever owns the volume. In a folder where others can write, they can plant links under
names that TensorFlow will write to, or exchange our files. Where only the sticky bit stops them, as
in /tmp, they can still plant names before we use them.
"""
import grp
import os
import pwd
import re
import stat

from absl import flags

flags.DEFINE_boolean('allow_shared_folders', False, 'Write even where other users of the machine '
                     'could tamper with the files.')

# The inode of /proc/self/ns/pid outside of containers: PROC_PID_INIT_INO, <linux/proc_ns.h>.
_HOST_PID_NAMESPACE = 0xEFFFFFFC
_MAX_LINKS = 40  # As Linux follows.


def check(folder):
    """Refuses a folder that is not ours alone: to be called before TensorFlow writes there.

    Others can guess TensorFlow's file names, and it follows links. Reading needs no check.

    Args:
        folder: path of the folder, which may be missing.

    Raises:
        PermissionError: as `check_place`; or others can make files in the folder, or another user's
            link is in it.
    """
    check_place(folder)
    real = os.path.realpath(folder)
    if _allowed() or not os.path.isdir(real):
        return
    if _writers(real) and not _is_volume(real):
        raise _refusal(f'{_writers(real)} can make files in {real}', 'name a folder below it')
    for entry in os.scandir(real):
        if entry.is_symlink() and entry.stat(follow_symlinks=False).st_uid not in _trusted(real):
            raise _refusal(f'{entry.path} is a link that another user made', 'remove it')


def check_place(folder):
    """Refuses a folder in which others could remove or exchange what we make.

    Enough for files and folders whose temporary names cannot be guessed: those of `files`.

    Args:
        folder: path of the folder, which may be missing.

    Raises:
        PermissionError: others can write in the folder, or in one on the way to it, and no sticky
            bit stops them; a user whom we do not trust owns the folder, or one on the way to it
            that lies in a shared folder; or a link lies in a shared folder. The message says what
            to do.
    """
    if _allowed():
        return
    for parent, path in _steps(folder):
        _check_step(parent, path)
    real = os.path.realpath(folder)
    if os.path.isdir(real):
        _check_owner(real)
        _check_writers(real)


def check_file(path, number):
    """Refuses an open file that another user made, or that is not a regular file.

    Args:
        path: of the file.
        number: its file descriptor.

    Raises:
        PermissionError: it is one of these.
    """
    found = os.fstat(number)
    if not stat.S_ISREG(found.st_mode):
        raise PermissionError(f'{path} is not a regular file: remove it')
    if found.st_uid not in _trusted(os.path.realpath(path)) and not _allowed():
        raise _refusal(f'{path} belongs to user {found.st_uid}, not to you', 'remove it')


def _allowed():
    return flags.FLAGS['allow_shared_folders'].value  # Also where no flags were parsed.


def _refusal(reason, remedy):
    return PermissionError(f'{reason}: {remedy}, or pass --allow_shared_folders')


def _steps(path):
    """Yields (folder, path of a name in it) for all names that lead to a path, links followed.

    The folders are absolute and without links.
    """
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


def _check_step(parent, path):
    """Refuses a step that others could have laid, or could still exchange."""
    writers = _writers(parent)
    if not writers:
        return
    _check_writers(parent)
    if os.path.islink(path):
        raise _refusal(f'{path} is a link in a folder that {writers} can write in, so somebody '
                       'else may have put it there', 'name the folder it leads to')
    _check_owner(path)


def _check_owner(path):
    """Refuses a file or folder whose owner we do not trust."""
    found = _lstat(path)
    if found and found.st_uid not in _trusted(path):
        raise _refusal(f'{path} belongs to user {found.st_uid}, not to you',
                       'name another folder, have it given to you')


def _check_writers(path):
    """Refuses a folder in which others can exchange what we make."""
    writers = _writers(path)
    if writers and not _lstat(path).st_mode & stat.S_ISVTX and not _is_volume(path):
        raise _refusal(f'{path} can be changed by {writers}',
                       f'name another folder, run "chmod go-w {path}"')


def _writers(path):
    """Who can write in a folder besides those we trust, for a message; '' for nobody."""
    found = _lstat(path)
    if not found or not stat.S_ISDIR(found.st_mode):
        return ''
    if found.st_mode & stat.S_IWOTH:
        return 'everybody'
    if found.st_mode & stat.S_IWGRP and _has_list(path):
        return 'its access control list'
    if found.st_mode & stat.S_IWGRP and not _is_private(found.st_gid, _trusted(path)):
        return f'group {found.st_gid}'
    return ''


def _has_list(path):
    """Whether an access control list names users; the mode's bits for the group are its mask."""
    try:
        return bool(os.getxattr(path, 'system.posix_acl_access'))
    except OSError:  # None, or the file system has no lists.
        return False


def _is_private(group, trusted):
    """Whether only users whom we trust are in a group.

    Debian, Fedora and others give each user a group of the same name, and umask 002. Any other
    group is not private, even if no member is listed: a directory service need not list them.
    A number without a name, such as Kubernetes' `fsGroup`, has no other members.
    """
    if group == 0:  # Root's. Red Hat puts system accounts into it that nobody logs in to.
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
    except KeyError:  # As containers often have it.
        return None


def _trusted(path):
    """The numbers of the users who may own what lies at a path."""
    volume = _volume(path)
    owners = {os.stat(volume).st_uid} if volume != '/' else set()
    return {0, os.geteuid()} | owners


def _is_volume(path):
    return path != '/' and _volume(path) == path


def _volume(path):
    """Where the volume that holds a path is mounted, if the process runs in a container; else '/'.

    Whoever started the container gave it its volumes. Their owner and mode come from outside: a
    bind mount has those of the host's folder, Kubernetes' `emptyDir` is root's with mode 0777.
    """
    try:
        if os.stat('/proc/self/ns/pid').st_ino == _HOST_PID_NAMESPACE:
            return '/'
        with open('/proc/self/mountinfo', errors='surrogateescape') as stream:
            points = {re.sub(r'\\(\d{3})', lambda code: chr(int(code.group(1), 8)), line.split()[4])
                      for line in stream}
    except OSError:
        return '/'
    while path not in points and path != '/':
        path = os.path.dirname(path)
    return path


def _lstat(path):
    try:
        return os.lstat(path)
    except (OSError, ValueError):  # Missing, out of reach, or not a path at all.
        return None
