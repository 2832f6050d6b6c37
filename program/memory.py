"""A limit on the memory that reading a file may take."""
import contextlib
import os
import resource

_USED = '/proc/self/statm'  # Its first number: pages of address space in use.


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
    if os.path.exists(_USED):
        with open(_USED) as stream:
            size += int(stream.read().split()[0]) * resource.getpagesize()
        soft = min(value for value in (size, *before) if value != resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
