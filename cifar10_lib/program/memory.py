"""Limits the memory that reading a file may use."""
import contextlib
import resource


def used():
    """Returns the size of the process's address space in bytes, or None without /proc."""
    try:
        with open('/proc/self/statm') as stream:
            return int(stream.read().split()[0]) * resource.getpagesize()
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def limit(size):
    """Limits how much the address space may grow inside the block.

    For libraries that allocate whatever a file's header asks for. Beyond the limit of `size` bytes,
    allocation fails with `MemoryError` or an error of the library. The limit applies to all
    threads. Systems without /proc have no limit.
    """
    before = soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limits = {soft, hard} | ({used() + size} if used() is not None else set())
    lowest = min(limits - {resource.RLIM_INFINITY}, default=resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_AS, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
