"""Whether a folder is one that other users of the machine cannot turn against us.

/tmp and its like are everybody's. Somebody may have made the folder that we are about to write in,
and keep the right to change what is there; or a link in its place that leads to where we did not
want to write.
"""
import os
import stat


def check(path):
    """Refuses to write in a folder that others could change, or put there as a trap.

    Reading needs no such check.

    Args:
        path: of a folder, which need not exist.

    Raises:
        PermissionError: the folder, or one that it lies in, can be written by everybody without the
            sticky bit; a user other than root and ourselves owns it, or owns one that it lies in
            and that lies in a folder that everybody can write in; or it is, or lies behind, a link
            in such a folder. Tells what to do.
    """
    path = os.path.abspath(path)
    _check_owner(path)
    while True:
        parent = os.path.dirname(path)
        if os.path.lexists(path) and _is_shared(parent):
            if os.path.islink(path):
                raise PermissionError(
                    f'{path} is a link in a folder that everybody can write in: somebody may have '
                    'put it there. Name the folder it leads to')
            _check_owner(path)  # Who could put links into it, or exchange what we make there.
        if os.path.isdir(path) and _is_shared(path) and not os.stat(path).st_mode & stat.S_ISVTX:
            raise PermissionError(f'{path} can be changed by everybody: name another folder, or '
                                  f'chmod o-w {path}')
        if parent == path:
            return
        path = parent


def _check_owner(path):
    """Raises PermissionError where a folder is neither root's nor ours."""
    if os.path.isdir(path) and os.stat(path).st_uid not in (0, os.geteuid()):
        raise PermissionError(f'{path} belongs to user {os.stat(path).st_uid}, not to you: name '
                              'another folder, or have it given to you')


def _is_shared(path):
    """Whether everybody can write in a folder."""
    return bool(os.stat(path).st_mode & stat.S_IWOTH)
