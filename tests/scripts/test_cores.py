import subprocess
import sys

import pytest
import spawn

from cifar10_lib.program import cores


def _with_mounts(mounts, program, module='cores'):
    """Prints an expression in a mount namespace with other files, {path: file or folder}."""
    unshare = ['unshare', '--mount', 'sh', '-ec']
    commands = [f'mount --bind {source} {target}' for target, source in mounts.items()]
    if subprocess.run([*unshare, ';'.join(commands)], capture_output=True).returncode:
        pytest.skip('cannot create namespaces')
    commands.append(f'exec {sys.executable} -c "$0"')
    code = f'from cifar10_lib.program import {module}; print({program})'
    return subprocess.run([*unshare, ';'.join(commands), code], cwd=spawn.ROOT, text=True,
                          stdout=subprocess.PIPE, check=True).stdout.strip()


@pytest.mark.parametrize('files, expected', [
    ({'cpu.max': '100000 100000'}, '1'), ({'cpu.max': '50000 100000'}, '1'),
    ({'cpu.max': '900000 100000'}, 'None'), ({'cpu.max': 'max 100000'}, 'None'), ({}, 'None'),
    ({'cpu/cpu.cfs_quota_us': '100000', 'cpu/cpu.cfs_period_us': '100000'}, '1'),
    ({'cpu/cpu.cfs_quota_us': '-1', 'cpu/cpu.cfs_period_us': '100000'}, 'None')])
def test_the_quota_of_a_container(tmp_path, files, expected):
    """Both versions of control groups, for a process that sees two cores."""
    (tmp_path / 'cpu').mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text + '\n')
    assert cores.visible() > 1
    assert _with_mounts({'/sys/fs/cgroup': tmp_path}, 'cores.by_quota()') == expected


@pytest.mark.parametrize('words, expected', [
    ('flags\t\t: fpu avx512f avx512_bf16 amx_tile\nbugs: spectre', True),
    ('flags\t\t: fpu amx_bf16', True), ('Features\t: fp asimd bf16', True),
    ('flags\t\t: fpu avx512f avx512_bf161', False), ('', False)])
def test_instructions_for_bfloat16(tmp_path, words, expected):
    (tmp_path / 'cpuinfo').write_text(words)
    shown = _with_mounts({'/proc/cpuinfo': tmp_path / 'cpuinfo'}, 'cores.multiply_bfloat16()')
    assert shown == str(expected)


@pytest.mark.slow
def test_a_session_has_as_many_threads_as_its_quota(tmp_path):
    (tmp_path / 'cpu.max').write_text('100000 100000')
    shown = _with_mounts(
        {'/sys/fs/cgroup': tmp_path},
        'devices.FLAGS(["x"]) and devices.session_config().intra_op_parallelism_threads', 'devices')
    assert shown == '1'
