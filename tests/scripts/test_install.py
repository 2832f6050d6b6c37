"""The project as an installed package: what a wheel contains, and that it works anywhere."""
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile

import pytest
import spawn

pytestmark = pytest.mark.slow


def run(*words, **options):
    done = subprocess.run(list(map(str, words)), text=True, capture_output=True, check=False,
                          timeout=spawn.PATIENCE, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
    """Path of a wheel, built from a copy: setuptools leaves files beside the source."""
    folder = tmp_path_factory.mktemp('wheel')
    shutil.copytree(spawn.ROOT, folder / 'source', ignore=shutil.ignore_patterns(
        '.*', '__pycache__', 'build', '*.egg-info'))
    run(sys.executable, '-m', 'pip', 'wheel', '-q', '--no-deps', '--no-build-isolation',
        '-w', folder, folder / 'source')
    path, = folder.glob('*.whl')
    return path


def test_a_wheel_has_the_modules_and_nothing_else(wheel):
    modules = {path.relative_to(spawn.ROOT).as_posix() for path in (
        *spawn.ROOT.glob('cifar10*.py'), *spawn.ROOT.glob('cifar10_lib/**/*.py'))}
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata, = (archive.read(name).decode() for name in names if name.endswith('/METADATA'))
    assert {name for name in names if '.dist-info/' not in name} == modules
    required = set(re.findall(r'^Requires-Dist: ([\w-]+)(?:.*extra == .(\w+))?', metadata,
                              re.MULTILINE))
    assert required > {('tensorflow', ''), ('numpy', ''), ('tensorflow', 'gpu'), ('pytest', 'dev')}


def test_an_installed_package_trains_from_any_folder(wheel, tmp_path):
    """In an environment of its own, which borrows TensorFlow and the rest from the tests'."""
    run(sys.executable, '-m', 'venv', tmp_path / 'env')
    python = tmp_path / 'env' / 'bin' / 'python'
    site = run(python, '-c', 'import sysconfig; print(sysconfig.get_path("purelib"))').strip()
    pathlib.Path(site, 'borrowed.pth').write_text(sysconfig.get_path('purelib') + '\n')
    run(python, '-m', 'pip', 'install', '-q', '--no-deps', wheel)
    out = run(python, '-m', 'cifar10_train', '--dataset=synthetic', '--max_steps=1',
              f'--data_dir={tmp_path}/data', f'--train_dir={tmp_path}/run', cwd=tmp_path)
    assert f'Saved step 1 in {tmp_path}/run.' in out
    imported = 'import cifar10; print(cifar10.__file__)'
    assert run(python, '-c', imported, cwd=tmp_path).strip() == f'{site}/cifar10.py'
    run(python, '-m', 'pip', 'uninstall', '-q', '-y', 'cifar10-tutorial')
    assert not list(pathlib.Path(site).glob('cifar10*'))
