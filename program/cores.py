"""The processor cores that this process may use."""
import math
import os


def in_sight():
    """Number of cores that `taskset` or a cpuset leaves, as TensorFlow counts them."""
    if hasattr(os, 'sched_getaffinity'):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # Not on Linux.


def by_quota(membership='/proc/self/cgroup', mounts='/sys/fs/cgroup'):
    """Number of cores that a quota of processor time is worth, parts of one rounded up; at least 1.

    `docker run --cpus=2` or a limit of Kubernetes leaves all cores in sight. TensorFlow starts a
    thread for each, and they use up the quota early in every period and then all stand still.

    Args:
        membership: file that tells the control groups of this process; see `man 7 cgroups`.
        mounts: folder where control groups are mounted.

    Returns:
        None where there is no quota, or none below the cores in sight.
    """
    cores = min((math.ceil(quota) for quota in _quotas(membership, mounts)), default=None)
    return cores if cores and cores < in_sight() else None


def _quotas(membership, mounts):
    """Quotas of a process's control groups and of those that hold them, in cores."""
    for line in _read(membership).splitlines():
        _, controllers, path = line.split(':', 2)
        if not controllers:
            roots, quota = ('', 'unified'), _quota_of_version_2
        elif 'cpu' in controllers.split(','):
            roots, quota = ('cpu', 'cpu,cpuacct'), _quota_of_version_1
        else:
            continue
        # In a container the path is often the machine's, and its own group is mounted as the root.
        parts = [part for part in path.split('/') if part not in ('', '..')]
        for root in roots:
            for depth in range(len(parts) + 1):
                found = quota(os.path.join(mounts, root, *parts[:depth]))
                if found:
                    yield found


def _quota_of_version_2(folder):
    """Microseconds in a period of so many, or 'max'."""
    words = _read(os.path.join(folder, 'cpu.max')).split()
    return int(words[0]) / int(words[1]) if words and words[0] != 'max' else None


def _quota_of_version_1(folder):
    """The same in two files, -1 for none."""
    quota, period = (_read(os.path.join(folder, f'cpu.cfs_{what}_us'))
                     for what in ('quota', 'period'))
    return int(quota) / int(period) if quota and period and int(quota) > 0 else None


def _read(path):
    try:
        with open(path) as stream:
            return stream.read()
    except OSError:
        return ''
