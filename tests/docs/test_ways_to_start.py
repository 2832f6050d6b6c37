"""The commands for Docker in docs/usage.md run on the files that the image contains."""
import fnmatch
import re
import shlex
import shutil
import subprocess
import sys

import pytest
import record_files
import spawn


def copied(folder):
    """Makes a folder with what `COPY . .` copies from a clone into the image."""
    lines = (spawn.ROOT / '.dockerignore').read_text().splitlines()
    allowed = [line.removeprefix('!') for line in lines if line.startswith('!')]
    tracked = subprocess.run(['git', '-c', 'safe.directory=*', 'ls-files', '--cached', '--others',
                              '--exclude-standard'], cwd=spawn.ROOT, text=True,
                             stdout=subprocess.PIPE).stdout.splitlines()
    if not tracked:
        pytest.skip('requires a clone of the repository')
    for name in tracked:
        top = name.partition('/')[0]
        if (spawn.ROOT / name).exists() and any(
                fnmatch.fnmatch(top, pattern) for pattern in allowed):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(spawn.ROOT / name, target)
    return folder


@pytest.mark.slow
def test_the_commands_for_docker_run_in_the_images_files(tmp_path):
    """Only these files, with a folder in place of the volume."""
    code = copied(tmp_path / 'code')
    record_files.write_noise(tmp_path / 'data', count=40)
    page = (spawn.ROOT / 'docs' / 'usage.md').read_text()
    commands = re.findall(r'^docker run --rm --init -v (.*)', page, re.MULTILINE)
    for command in commands:
        volume, image, *words = shlex.split(command)
        assert (volume, image) == ('cifar10:/runs', 'cifar10')
        words = [word.replace('/runs', str(tmp_path)) for word in words]
        if '--run_once' not in words:
            words += ['--max_steps=1', '--batch_size=8']
        done = subprocess.run([sys.executable, *words], cwd=code, capture_output=True, text=True,
                              env=spawn.environment(), timeout=spawn.PATIENCE)
        assert done.returncode == 0, done.stderr
    assert 'precision @ 1 = ' in done.stdout
