import contextlib
import os
import subprocess
import sys

import pytest
import spawn

from cifar10_lib.program import cores

CPU = '/sys/fs/cgroup/cpu'


def _groups(tmp_path, membership, files):
    """Arguments of `by_quota` for control groups with these files."""
    (tmp_path / 'membership').write_text(membership)
    for name, text in files.items():
        path = tmp_path / 'mounts' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(tmp_path / 'membership'), str(tmp_path / 'mounts')


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch):
    monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: set(range(8)))


@pytest.mark.parametrize('quota, expected', [
    ('200000 100000', 2), ('150000 100000', 2), ('50000 100000', 1), ('1000 100000', 1),
    ('800000 100000', None), ('max 100000', None)])
def test_version_2(tmp_path, quota, expected):
    groups = _groups(tmp_path, '0::/a/b\n', {'a/b/cpu.max': quota + '\n'})
    assert cores.by_quota(*groups) == expected


def test_the_smallest_quota_of_a_group_and_its_ancestors_counts(tmp_path):
    groups = _groups(tmp_path, '0::/a/b\n', {
        'cpu.max': '600000 100000', 'a/cpu.max': '300000 100000', 'a/b/cpu.max': 'max 100000',
        'other/cpu.max': '100000 100000'})
    assert cores.by_quota(*groups) == 3


def test_in_a_container_the_process_group_is_the_root(tmp_path):
    groups = _groups(tmp_path, '4:cpu,cpuacct:/docker/0123\n0::/../..\n',
                     {'cpu/cpu.cfs_quota_us': '250000', 'cpu/cpu.cfs_period_us': '100000'})
    assert cores.by_quota(*groups) == 3


def test_version_1_without_a_quota(tmp_path):
    groups = _groups(tmp_path, '4:cpu:/a\n3:cpuset:/b\n', {
        'cpu/a/cpu.cfs_quota_us': '-1', 'cpu/a/cpu.cfs_period_us': '100000'})
    assert cores.by_quota(*groups) is None


def test_without_control_groups(tmp_path):
    assert cores.by_quota(str(tmp_path / 'none'), str(tmp_path)) is None


@pytest.mark.parametrize('words, expected', [
    ('flags\t\t: fpu avx512f avx512_bf16 amx_tile\nbugs: spectre', True),
    ('flags\t\t: fpu amx_bf16', True), ('Features\t: fp asimd bf16', True),
    ('flags\t\t: fpu avx512f avx512_bf161', False), ('', False)])
def test_instructions_for_bfloat16(tmp_path, words, expected):
    (tmp_path / 'cpuinfo').write_text(words)
    assert cores.multiply_bfloat16(str(tmp_path / 'cpuinfo')) == expected


@contextlib.contextmanager
def _a_group_with_one_core():
    folder = os.path.join(CPU, f'cifar10-test-{os.getpid()}')
    try:
        os.mkdir(folder)
        with open(os.path.join(folder, 'cpu.cfs_quota_us'), 'w') as stream:
            stream.write('100000')
    except OSError as error:
        pytest.skip(f'cannot create a control group of version 1: {error}')
    try:
        yield os.path.join(folder, 'cgroup.procs')
    finally:
        os.rmdir(folder)


@pytest.mark.slow
def test_a_session_in_a_real_group_has_as_many_threads_as_its_quota():
    program = ('from cifar10_lib.program import devices; import os; '
               'os.sched_getaffinity = lambda _: {1, 2}; '
               'devices.FLAGS(["x"]); config = devices.session_config(); '
               'print(config.intra_op_parallelism_threads, config.inter_op_parallelism_threads)')
    with _a_group_with_one_core() as members:
        done = subprocess.run(
            ['sh', '-c', 'echo $$ > "$0" && exec "$1" -c "$2"', members, sys.executable, program],
            cwd=spawn.ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ['1', '1'], done
