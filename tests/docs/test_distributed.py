"""The commands of docs/distributed.md: two workers, and the loop that starts them again."""
import contextlib
import os
import pathlib
import re
import shlex
import shutil
import socket
import subprocess
import sys

import pytest
import record_files
import spawn

PAGE = (spawn.ROOT / 'docs' / 'distributed.md').read_text()
BIN = pathlib.Path(sys.executable).parent


def line_of(start):
    """The command of the page that starts with a text, without `python` and what follows."""
    command, = re.findall(rf'^{re.escape(start)}(?:.*\\\n)*.*$', PAGE, re.MULTILINE)
    return shlex.split(command.replace('\\\n', ' ').partition(' python ')[0])


@pytest.fixture
def command(tmp_path):
    """Python's command for two steps on small data."""
    record_files.write_noise(tmp_path / 'data', count=40)
    return [sys.executable, str(spawn.ROOT / 'classification.py'), '--net=tutorial',
            f'--data_dir={tmp_path}/data', f'--train_dir={tmp_path}/run', '--batch_size=4',
            '--max_steps=2', f'--step_timeout={spawn.PATIENCE}']


@pytest.mark.slow
def test_two_workers_under_mpirun(tmp_path, command):
    mpirun = shutil.which('mpirun', path=f'{BIN}{os.pathsep}{os.environ["PATH"]}')
    if mpirun is None:
        pytest.skip('requires mpirun')
    _, *options = line_of('mpirun -n 2 ')
    environment = spawn.environment(
        OMPI_ALLOW_RUN_AS_ROOT='1', OMPI_ALLOW_RUN_AS_ROOT_CONFIRM='1',
        PRTE_ALLOW_RUN_AS_ROOT='1', PRTE_ALLOW_RUN_AS_ROOT_CONFIRM='1')
    done = subprocess.run([mpirun, '--oversubscribe', *options, *command], env=environment,
                          capture_output=True, text=True, timeout=spawn.PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('validation error = ') == 1  # Worker 0 alone prints.
    assert (tmp_path / 'run' / 'model.ckpt-2.index').exists()


@pytest.mark.slow
def test_two_workers_with_tf_config(tmp_path, command):
    """On this machine, instead of the hosts `a` and `b`."""
    setting, = line_of('TF_CONFIG=')
    setting = setting.removeprefix('TF_CONFIG=')
    with contextlib.ExitStack() as stack:  # Two ports that are free.
        for host in ('a', 'b'):
            _, port = stack.enter_context(socket.create_server(('127.0.0.1', 0))).getsockname()
            setting = setting.replace(f'"{host}:2222"', f'"127.0.0.1:{port}"')
    processes = [spawn.start(command[1:], env=spawn.environment(
        TF_CONFIG=setting.replace('"index": 0', f'"index": {index}'))) for index in range(2)]
    (code, out, error), other = spawn.all_ended(processes)
    assert (code, other[0]) == (0, 0), (error, other[2])
    assert 'validation error = ' in out and other[1] == ''
    assert (tmp_path / 'run' / 'model.ckpt-2.index').exists()


@pytest.mark.parametrize('codes, starts', [
    ([0], 1), ([75, 137, 0], 3), ([1], 1), ([75, 130], 2)])
def test_the_loop_starts_again_after_a_loss_only(tmp_path, codes, starts):
    """`mpirun` is a script that ends with one code after the other."""
    loop, = re.findall(r'^until .*?^done$', PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / 'codes').write_text(''.join(f'{code}\n' for code in codes))
    for name, text in (('mpirun', 'code=$(head -n 1 codes); sed -i 1d codes; exit $code'),
                       ('sleep', 'exit 0')):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name}\n{text}\n')
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ['bash', '-c', loop], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60,
        env={**os.environ, 'PATH': f'{tmp_path}{os.pathsep}{os.environ["PATH"]}'})
    assert done.stdout.split().count('mpirun') == starts
