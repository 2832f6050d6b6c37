"""The scripts run without what only Linux and macOS have; see helpers/without_posix.py."""
import ast
import re
import sys

import image_files
import pytest
import spawn
import without_posix

as_on_windows = pytest.mark.skipif(sys.platform == 'darwin', reason='imitates Windows on Linux')


def run(folder, script, *arguments, interrupt=''):
    """Runs a script with `folder` as the folder for temporary files, where there is no /tmp."""
    return spawn.run(
        [spawn.HELPERS / 'without_posix.py', interrupt, spawn.ROOT / script, *arguments],
        capture_output=True, cwd=folder, env={**spawn.environment(), 'TMPDIR': str(folder)})


@pytest.mark.slow
def test_every_script_of_one_process(tmp_path):
    """From images to a prediction, with Ctrl-C in between, and with the default folders."""
    image_files.write_sorted(tmp_path / 'images')
    (tmp_path / 'set').mkdir()
    data = ['--dataset=set', '--batch_size=2']
    train = [*data, '--save_checkpoint_steps=5', '--validate_every=1', '--log_frequency=5']
    start = tmp_path / 'cifar10_train' / 'model.ckpt-5.index'

    def expect(text, *words, code=0, **options):
        done = run(tmp_path, *words, **options)
        assert (done.returncode, text in done.stdout) == (code, True), done.stdout + done.stderr
        return done

    done = expect('--train_dir', 'cifar10_train.py', '--help')
    assert '/tmp/cifar10_train' not in done.stdout  # Otherwise, the next lines would write there.
    expect('set holds 10 training and 2 test images of 2 classes',
           'cifar10_convert.py', 'images', 'set')
    done = expect('Saved step', 'cifar10_train.py', *train, interrupt=start, code=130)
    assert done.stderr.endswith('cifar10_train.py: interrupted\n')
    step = int(re.search(r'Saved step (\d+) in ', done.stdout).group(1))
    done = expect(f'model.ckpt-{step}.\n', 'cifar10_train.py', *train, f'--max_steps={step + 2}')
    assert f'Saved step {step + 2} in {tmp_path}' in done.stdout
    expect('Resuming from', 'cifar10_multi_gpu_train.py', *data, f'--max_steps={step + 3}')
    expect('Resuming from', 'cifar10_distributed_train.py', *data, f'--max_steps={step + 4}')
    expect('precision @ 1 = ', 'cifar10_eval.py', *data, '--run_once')
    assert list((tmp_path / 'cifar10_eval').glob('events.out.tfevents.*'))
    expect('probability', 'cifar10_predict.py', 'images/a')
    (tmp_path / 'model').mkdir()
    expect('as a SavedModel', 'cifar10_export.py', '--export_dir=model')
    expect('probability', 'cifar10_predict.py', 'images/b', '--saved_model=model')
    for picture in ('curves', 'confusion'):
        expect(f'Wrote {picture}.png', 'cifar10_plot.py', *data, f'--picture={picture}')
    expect(f'Saved step 1 in {tmp_path}', 'cifar10_train.py', *train, '--max_steps=1', '--restart')


@as_on_windows
def test_several_workers_are_refused_in_one_line(tmp_path):
    done = run(tmp_path, 'cifar10_distributed_train.py', '--num_workers=2')
    # TensorFlow's own lines, from the import in `without_posix`, may come first.
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        1, 'cifar10_distributed_train.py: several workers require Linux or macOS: start one')


@as_on_windows
def test_the_imitation_refuses_what_windows_refuses(tmp_path):
    """Otherwise, the tests above would pass whatever the scripts do. Windows itself does, too."""
    program = tmp_path / 'program.py'
    (tmp_path / 'one').mkdir()
    (tmp_path / 'two').mkdir()
    (tmp_path / 'file').write_bytes(bytes(5000))
    program.write_text('''
import os, signal, sys
import numpy as np
def refused(function, *words):
    try:
        function(*words)
    except (OSError, ImportError, AttributeError) as error:
        print(type(error).__name__)
refused(os.replace, 'one', 'two')
refused(os.rename, 'one', 'file')
stream = open('file', 'rb')
refused(os.fsync, stream.fileno())
refused(os.remove, 'file')
stream.close()
mapped = np.memmap('file', np.uint8, 'r')
refused(os.remove, 'file')
del mapped
os.remove('file')
refused(__import__, 'fcntl')
refused(getattr, os, 'fork')
refused(getattr, signal, 'SIGHUP')
refused(open, '/proc/cpuinfo')
''')
    done = spawn.run([spawn.HELPERS / 'without_posix.py', '', program], capture_output=True,
                     cwd=tmp_path)
    assert done.stdout.split() == [
        'PermissionError', 'FileExistsError', 'OSError', 'PermissionError', 'PermissionError',
        'ModuleNotFoundError', 'AttributeError', 'AttributeError',
        'FileNotFoundError'], done.stderr


# What one process uses of Linux and macOS: each behind a check, or where an `OSError` is expected.
USED = {
    'program/console.py': {'SIGHUP'},
    'program/devices.py': {
        'sched_getaffinity', '/proc/cpuinfo', '/sys/fs/cgroup/cpu.max',
        '/sys/fs/cgroup/cpu/cpu.cfs_period_us', '/sys/fs/cgroup/cpu/cpu.cfs_quota_us'},
    'program/files.py': {'geteuid'},
    'program/quiet.py': {'set_blocking'},
    'training/worker.py': {'SIGHUP', 'SIGUSR1'}}


@pytest.mark.skipif(sys.platform != 'linux', reason='Linux has all of the names')
def test_nothing_else_of_linux_is_used_outside_of_workers():
    names = {*without_posix.MODULES, *without_posix.OF_OS, *without_posix.OF_SIGNAL}
    found = {}
    for path in [*spawn.ROOT.glob('cifar10*.py'), *spawn.ROOT.glob('cifar10_lib/**/*.py')]:
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
            if path.parent.name != 'workers' and (used := _of_linux(node, names)):
                shown = path.relative_to(spawn.ROOT).as_posix().removeprefix('cifar10_lib/')
                found.setdefault(shown, set()).update(used)
    assert found == USED


def _of_linux(node, names):
    """The modules, functions, signals and files of Linux that a node of a syntax tree names."""
    if isinstance(node, ast.Import):
        found = {each.name for each in node.names}
    elif isinstance(node, ast.ImportFrom):
        found = {node.module}
    elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in ('os', 'signal'):
        found = {node.attr}
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        found = {node.value}
        if re.match('/(proc|sys|dev)/', node.value):
            return found
    else:
        return set()
    return found & names
