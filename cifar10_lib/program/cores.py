"""The processor cores available to this process, and what they are good at."""
import math
import os


def visible():
    """Returns the number of cores in the process's affinity mask, as TensorFlow counts them."""
    if hasattr(os, 'sched_getaffinity'):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # Not on Linux.


def multiply_bfloat16(path='/proc/cpuinfo'):
    """Whether the cores have instructions for bfloat16; False if `path` does not list them.

    AMX and AVX512 are Intel's and AMD's, `bf16` is Arm's. Without them, oneDNN converts to float32
    and back.
    """
    return not {'amx_bf16', 'avx512_bf16', 'bf16'}.isdisjoint(_read(path).split())


def by_quota(membership='/proc/self/cgroup', mounts='/sys/fs/cgroup'):
    """Returns the CPU quota in cores, rounded up, or None if it does not limit the process.

    `docker run --cpus=2` and Kubernetes limits leave all cores visible. TensorFlow starts a thread
    for each; together they exhaust the quota early in each period and then all stall.

    `membership` lists the control groups of this process; `mounts` holds them: `man 7 cgroups`.
    """
    cores = min((math.ceil(quota) for quota in _quotas(membership, mounts)), default=None)
    return cores if cores and cores < visible() else None


def _quotas(membership, mounts):
    """Yields the quotas, in cores, of the process's control groups and their ancestors."""
    for line in _read(membership).splitlines():
        _, controllers, path = line.split(':', 2)
        if not controllers:  # Version 2: 'QUOTA PERIOD', in microseconds; 'max' means unlimited.
            roots, names = ('', 'unified'), ['cpu.max']
        elif 'cpu' in controllers.split(','):  # Version 1: a file each; -1 means unlimited.
            roots, names = ('cpu', 'cpu,cpuacct'), ['cpu.cfs_quota_us', 'cpu.cfs_period_us']
        else:
            continue
        # In a container, the path is often the host's, and the group itself is mounted as the root.
        parts = [part for part in path.split('/') if part not in ('', '..')]
        for root in roots:
            for depth in range(len(parts) + 1):
                folder = os.path.join(mounts, root, *parts[:depth])
                words = ' '.join(_read(os.path.join(folder, name)) for name in names).split()
                if len(words) == 2 and words[0].isdecimal():
                    yield int(words[0]) / int(words[1])


def _read(path):
    try:
        with open(path) as stream:
            return stream.read()
    except OSError:
        return ''
