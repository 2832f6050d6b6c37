"""Refuses folders in which other users of the machine could tamper with our files.

The rule is that of OpenSSH's StrictModes: the folder and each folder above it, by the given path
and by the real one, belongs to root or to us, and nobody else can write there. Others could replace
our files, or plant links under names that TensorFlow will write to. Exceptions: folders with the
sticky bit, such as /tmp, in which others cannot replace what is ours; folders of the user's own
group; and, in a container, its volumes, because whoever started the container provided them.
"""
import contextlib
import grp
import os
import pathlib
import pwd
import stat

from absl import flags

flags.DEFINE_boolean('allow_shared_folders', False, 'Write even to folders in which other users of '
                     'the machine could tamper with the files.')
flags.FLAGS['allow_shared_folders'].allow_override = True  # As cifar10.py does, for programs.

# The inodes of these files outside containers: <linux/proc_ns.h>.
_HOST_NAMESPACES = {'/proc/self/ns/user': 0xEFFFFFFD, '/proc/self/ns/pid': 0xEFFFFFFC}


def check(folder):
    """Refuses a folder that others can write to; call it before TensorFlow writes there.

    TensorFlow's file names can be guessed, and it follows links. The folder may be missing. Raises
    `PermissionError` if others can create files in the folder, or if `check_place` does.
    """
    check_place(folder)
    writers = _writers(os.path.realpath(folder))
    if writers and not _allowed():
        raise _refusal(f'{writers} can create files in {folder}', 'choose a folder below it')


def check_place(folder):
    """Refuses a folder in which others could remove or replace what we create.

    Sufficient for names that cannot be guessed, as `files` uses. The folder may be missing. Raises
    `PermissionError` if the path breaks the rule above; the message suggests what to do.
    """
    names = pathlib.Path(os.path.abspath(folder)), pathlib.Path(os.path.realpath(folder))
    places = sorted({pathlib.Path(os.path.realpath(place.parent), place.name)  # Links themselves.
                     for name in names for place in (name, *name.parents)})
    for path in [] if _allowed() else places:
        if not os.path.lexists(path):
            continue
        owner = os.lstat(path).st_uid
        if owner not in _trusted(path):
            raise _refusal(f'{path} belongs to user {owner}, not you',
                           'choose another folder, change its owner')
        if _writers(path) and not os.lstat(path).st_mode & stat.S_ISVTX:
            raise _refusal(f'{path} is writable by {_writers(path)}',
                           f'choose another folder, run "chmod go-w {path}"')


def check_file(path, number):
    """Raises `PermissionError` if the file with this descriptor is not ours."""
    owner = os.fstat(number).st_uid
    if owner not in _trusted(os.path.realpath(path)) and not _allowed():
        raise _refusal(f'{path} belongs to user {owner}, not you', 'remove it')


def _allowed():
    return flags.FLAGS['allow_shared_folders'].value  # Works before flags are parsed.


def _refusal(reason, remedy):
    return PermissionError(f'{reason}: {remedy}, or pass --allow_shared_folders')


def _writers(path):
    """Describes who else can write to a folder; '' for nobody, and for a volume."""
    if not os.path.isdir(path) or os.path.islink(path) or _in_container() and os.path.ismount(path):
        return ''
    found = os.lstat(path)
    if found.st_mode & stat.S_IWOTH:
        return 'everybody'
    if found.st_mode & stat.S_IWGRP and not _is_own_group(found.st_gid):
        return f'group {found.st_gid}'
    return ''


def _is_own_group(group):
    """Whether a group has no members besides this user and root.

    Debian, Fedora and others give each user a group of the same name, and umask 002. A group ID
    without a name, such as Kubernetes' `fsGroup`, has no other members.
    """
    try:
        found = grp.getgrgid(group)
    except KeyError:
        return True
    users = {user.pw_name for user in pwd.getpwall() if user.pw_uid == os.geteuid()}
    with contextlib.suppress(KeyError):  # `getpwall` omits the users of directory services.
        users.add(pwd.getpwuid(os.geteuid()).pw_name)
    return group == 0 or found.gr_name in users and users.issuperset(found.gr_mem)


def _trusted(path):
    """Returns the IDs of the users who may own `path`.

    In a user namespace, root's folders appear to belong to "nobody", as "/" does. In a container,
    a bind mount has the owner and mode of the host's folder, and Kubernetes' `emptyDir` is root's
    with mode 0777.
    """
    volume = pathlib.Path(path) if _in_container() else pathlib.Path('/')
    while not os.path.ismount(volume):
        volume = volume.parent
    return {0, os.geteuid(), os.stat('/').st_uid, os.stat(volume).st_uid}


def _in_container():
    try:
        return any(os.stat(name).st_ino != inode for name, inode in _HOST_NAMESPACES.items())
    except OSError:  # Not on Linux.
        return False
