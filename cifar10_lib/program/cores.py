"""The processor cores available to this process, and what they are good at."""
import math
import os


def visible():
    """Returns the number of cores in the process's affinity mask, as TensorFlow counts them."""
    if hasattr(os, 'sched_getaffinity'):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # Not on Linux.


def multiply_bfloat16():
    """Whether the cores multiply bfloat16; if not, oneDNN converts to float32. False if unknown."""
    # AMX and AVX512 are Intel's and AMD's, `bf16` is Arm's.
    return not {'amx_bf16', 'avx512_bf16', 'bf16'}.isdisjoint(_read('/proc/cpuinfo').split())


def by_quota():
    """Returns this container's CPU quota in cores, rounded up, or None if it does not limit us.

    `docker run --cpus=2` and Kubernetes limits leave all cores visible. TensorFlow starts a thread
    for each; together they exhaust the quota early in each period and then all stall.
    """
    # Microseconds per period; "max" and -1 mean unlimited: `man 7 cgroups`.
    words = (_read('/sys/fs/cgroup/cpu.max') or _read('/sys/fs/cgroup/cpu/cpu.cfs_quota_us')
             + _read('/sys/fs/cgroup/cpu/cpu.cfs_period_us')).split()
    if len(words) != 2 or not words[0].isdecimal():
        return None
    cores = math.ceil(int(words[0]) / int(words[1]))
    return cores if cores < visible() else None


def _read(path):
    try:
        with open(path) as stream:
            return stream.read()
    except OSError:
        return ''
