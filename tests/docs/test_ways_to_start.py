"""The ways to start the project agree: Makefile, README, workflow, Codespaces and Docker.

So do the versions of TensorFlow that are allowed, documented and tested.
"""
import fnmatch
import json
import re
import shlex
import shutil
import subprocess
import sys

import pytest
import spawn


def text(name):
    return (spawn.ROOT / name).read_text(encoding='utf-8').replace('\\\n', ' ')


def demo(name):
    """The commands of a file that run a script on --data_dir=.demo, as lists of words."""
    lines = re.findall(r'python (cifar10_\w+\.py.*--data_dir=\.demo.*)', text(name))
    return [shlex.split(line) for line in lines]


def test_the_demo_is_the_same_everywhere():
    train, evaluate = demo('Makefile')
    assert train[0] == 'cifar10_train.py' and evaluate[0] == 'cifar10_eval.py'
    assert demo('README.md') == demo('.github/workflows/ci.yml') == [train, evaluate]


def test_the_development_container_installs_a_file_that_exists():
    container = json.loads(text('.devcontainer/devcontainer.json'))
    assert container['image'].startswith('mcr.microsoft.com/devcontainers/python:3.')
    pip, install, option, name = container['postCreateCommand'].split()
    assert (pip, install, option) == ('pip', 'install', '-r') and (spawn.ROOT / name).is_file()
    assert container['forwardPorts'] == [6006]


def test_the_documented_versions_are_allowed_and_tested():
    allowed, = set(re.findall(r'^tensorflow(?:-cpu)?>=2\.(\d+),<2\.(\d+)$', text(
        'requirements/tensorflow.txt') + text('requirements-cpu.txt'), re.MULTILINE))
    oldest, newest = int(allowed[0]), int(allowed[1]) - 1
    table = re.findall(r'^\| 2\.(\d+)\.\d+ \|', text('CONTRIBUTING.md'), re.MULTILINE)
    older = re.findall(r"tensorflow: '2\.(\d+)'", text('.github/workflows/ci.yml'))
    assert [int(minor) for minor in table] == [*map(int, older), newest]
    assert int(older[0]) == oldest


def copied(folder):
    """Makes a folder with what `COPY . .` copies from a clone into the image."""
    refused, *allowed = [line for line in text('.dockerignore').splitlines()
                         if not line.startswith('**')]
    assert refused == '*'
    tracked = subprocess.run(['git', '-c', 'safe.directory=*', 'ls-files', '--cached', '--others',
                              '--exclude-standard'], cwd=spawn.ROOT, text=True,
                             stdout=subprocess.PIPE).stdout.splitlines()
    if not tracked:
        pytest.skip('requires a clone of the repository')
    for name in tracked:
        top = name.partition('/')[0]
        if any(fnmatch.fnmatch(top, pattern.removeprefix('!')) for pattern in allowed):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(spawn.ROOT / name, target)
    return folder


@pytest.mark.slow
def test_the_commands_for_docker_run_in_the_images_files(tmp_path):
    """Only these files, with a folder in place of the volume."""
    code = copied(tmp_path / 'code')
    steps = dict(re.findall(r'^([A-Z]+) (.*)', text('Dockerfile'), re.MULTILINE))
    assert steps['ENTRYPOINT'] == '["python"]' and steps['USER'] != 'root'
    _, requirements = steps['ARG'].split('=')
    for name in (requirements, 'requirements-gpu.txt'):
        lists = re.findall(r'^-r (\S+)', (code / name).read_text(), re.MULTILINE)
        assert lists and all((code / each).is_file() for each in lists)
    commands = re.findall(r'^docker run --rm --init -v (.*)', text('docs/usage.md'), re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        volume, image, *words = shlex.split(command)
        assert (volume, image) == ('cifar10:/runs', 'cifar10')
        words = [word.replace('/runs', str(tmp_path)) for word in words]
        if '--run_once' not in words:
            words += ['--dataset=synthetic', '--max_steps=1', '--batch_size=8']
        done = subprocess.run([sys.executable, *words], cwd=code, capture_output=True, text=True,
                              env=spawn.environment(), timeout=spawn.PATIENCE)
        assert done.returncode == 0, done.stderr
    assert 'precision @ 1 = ' in done.stdout
