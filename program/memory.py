"""A limit on the memory that reading a file may take."""
import contextlib
import resource


def used():
    """Bytes of address space that the process uses; None on systems without /proc."""
    try:
        with open('/proc/self/statm') as stream:
            return int(stream.read().split()[0]) * resource.getpagesize()
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def limit(size):
    """Lets the block take at most this much more memory than the process has already.

    For libraries that allocate whatever a file's header asks for. Where they ask for more, the
    system refuses, and they raise `MemoryError` or an error of their own. The limit is on address
    space and holds for all threads; systems without /proc have none.

    Args:
        size: in bytes.
    """
    before = soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if used() is not None:
        limits = used() + size, soft, hard
        soft = min(value for value in limits if value != resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
