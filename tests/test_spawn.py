"""No process outlives its test, whether the test passes or fails."""
import subprocess
import sys

import spawn

# Tests that leave a process which has a child; the child would outlive its parent. With -S, Python
# starts in a few milliseconds.
_TESTS = '''
import time
import pytest, spawn

WAITING = 'import time; time.sleep(600)'
PARENT = ("import subprocess, sys; child = subprocess.Popen([sys.executable, '-S', '-c', "
          + repr(WAITING) + "]); print(child.pid, flush=True); child.wait()")
left = []

@pytest.fixture(scope='module')
def of_the_module():
    with spawn.start(['-S', '-c', WAITING]) as process:
        yield process
        process.kill()

def leave():
    process = spawn.start(['-S', '-c', PARENT])
    left.extend([process.pid, int(process.stdout.readline())])
    return process

def test_that_fails(of_the_module):
    assert leave() is None

def test_that_passes(of_the_module):
    assert leave().poll() is None

def test_after_them(of_the_module):
    assert of_the_module.poll() is None
    assert len(left) == 4
    for pid in left:
        while spawn.runs(pid):  # A killed process needs a moment to end.
            time.sleep(0.01)
'''


def test_processes_end_with_their_test(tmp_path):
    (tmp_path / 'test_leaks.py').write_text(_TESTS)
    done = subprocess.run(
        [sys.executable, '-m', 'pytest', '-q', '-p', 'spawn', f'--timeout={spawn.PATIENCE}'],
        env={**spawn.environment(), 'PYTHONPATH': str(spawn.ROOT / 'tests')}, cwd=tmp_path,
        capture_output=True, text=True, check=False)
    assert '1 failed, 2 passed' in done.stdout.splitlines()[-1], done.stdout
    assert 'FAILED test_leaks.py::test_that_fails' in done.stdout
