"""Jobs of several workers under mpirun, and network namespaces that stand in for machines."""
import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import psutil
import pytest
import spawn
from absl import flags

FLAGS = flags.FLAGS
_MPIRUN = shutil.which('mpirun', path=os.pathsep.join(
    [str(pathlib.Path(sys.executable).parent), os.environ.get('PATH', '')]))

with_mpi = pytest.mark.skipif(
    not _MPIRUN, reason='requires mpirun (pip install -r requirements-mpi.txt)')
with_networks = pytest.mark.skipif(
    not (_MPIRUN and shutil.which('ip')) or subprocess.run(
        ['unshare', '--net', '--mount', '--uts', 'true'], capture_output=True,
        check=False).returncode != 0,
    reason='network namespaces require root and iproute2')

_FOLDER = 'CIFAR10_TEST_JOB'  # Variable in the environment of each process of a job.


def endless(*arguments):
    """`words` for a small network that counts its steps, of which it saves every third one."""
    return words('-n', 'steps', '--max_steps=1000000', '--log_frequency=1', '-s', '3',
                 '--validate_every=0', *arguments, change='pass')


def words(*arguments, change='', script=spawn.ROOT / 'classification.py'):
    """Python's arguments for a run on the images of `conftest.half_bright`.

    With the code `change`, which may edit modules, and `row`, the network `small_nets.STEPS`.
    """
    program = [script]
    if change:
        program = spawn.gently('classification.py', change=f'''
import os, signal, sys, time
sys.path.insert(0, {os.path.dirname(__file__)!r})
import small_nets
from cifar10_lib import errors
from classification_lib import recipes, run
row = small_nets.STEPS
is_worker_1 = os.environ.get('OMPI_COMM_WORLD_RANK') == '1'
{change}
recipes.TABLE['steps'] = row
''')
    return [*program, '-n', 'tutorial', '-l', '0.03', '-b', '8', f'--data_dir={FLAGS.data_dir}',
            f'--train_dir={FLAGS.train_dir}', f'--step_timeout={spawn.PATIENCE}', *arguments]


class Job:
    """A running mpirun, and its workers, which write to the files `out` and `error` in a folder."""

    def __init__(self, process, folder):
        self.process, self._folder = process, pathlib.Path(folder)

    def out(self):
        """Standard output so far."""
        return (self._folder / 'out').read_text()

    def error(self):
        """Standard error so far."""
        return (self._folder / 'error').read_text()

    def await_text(self, text):
        """Waits until standard output contains a text."""
        end = time.monotonic() + spawn.PATIENCE
        while text not in self.out():
            assert self.process.poll() is None and time.monotonic() < end, (
                f'no "{text}" in\n{self.out()[-2000:]}{self.error()[-2000:]}')
            time.sleep(0.005)

    def workers(self):
        """The workers that run, by rank: {rank: `psutil.Process`}."""
        found = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                variables = process.environ()
                rank = variables.get('OMPI_COMM_WORLD_RANK')
                if (rank and variables.get(_FOLDER) == str(self._folder)
                        and process.status() != psutil.STATUS_ZOMBIE):
                    found[int(rank)] = process
        return found

    def send_signal(self, to, number):
        """Sends a signal to a worker, or to 'mpirun'."""
        {**self.workers(), 'mpirun': self.process}[to].send_signal(number)

    def listens_at(self, rank):
        """The ports at which a worker listens, also in another network namespace: a set."""
        pid = str(self.workers()[rank].pid)
        listed = subprocess.run(['nsenter', '--net', '-t', pid, 'ss', '-lntpH'], check=True,
                                capture_output=True, text=True).stdout
        return {int(port) for port in re.findall(rf':(\d+) .*pid={pid},', listed)}

    def ended(self, *codes):
        """Waits for the end, with one of these exit codes, and until no worker is left.

        Returns the output, and the lines on standard error that are ours.
        """
        code = self.process.wait(timeout=spawn.PATIENCE)
        assert code in codes, (code, self.out()[-2000:], self.error())
        end = time.monotonic() + 30
        while self.workers():
            assert time.monotonic() < end, f'processes are left: {self.workers()}'
            time.sleep(0.1)
        return self.out(), [line for line in self.error().splitlines() if '.py: ' in line]


@contextlib.contextmanager
def running(size, *arguments, options=('--oversubscribe',), prefix=(), second=()):
    """Starts Python with some arguments under mpirun, and ends it at last; yields a `Job`.

    `options` are those of mpirun, and `prefix` is a command that runs it. With `second`, one more
    worker has these arguments.
    """
    words = [*prefix, _MPIRUN, '--allow-run-as-root', '-x', _FOLDER, '-n', str(size), *options,
             sys.executable, *map(str, arguments)]
    if second:
        words += [':', '-n', '1', sys.executable, *map(str, second)]
    with tempfile.TemporaryDirectory() as folder, open(f'{folder}/out', 'w') as out, \
            open(f'{folder}/error', 'w') as error:
        process = subprocess.Popen(
            words, stdout=out, stderr=error, env=spawn.environment(**{_FOLDER: folder}))
        job = Job(process, folder)
        try:
            yield job
        finally:
            process.kill()
            process.wait()
            for worker in job.workers().values():
                worker.kill()


DEVICE, OTHER_DEVICE = 'link', 'other'  # The network devices that connect the machines.
_NETWORKS = {DEVICE: '10.99.0', OTHER_DEVICE: '10.98.0'}


class Machines:
    """Two machines, each a network namespace with a host name and a file of hosts of its own.

    `names` are their host names and those of the namespaces; their addresses end with .1 and .2.
    """

    def __init__(self, folder):
        self.names = [f'cifar10-{os.getpid()}-{end}' for end in 'ab']
        self._hosts = folder / 'hosts'
        # As Debian does, which resolves a machine's own name to a loopback address.
        self._hosts.write_text('127.0.0.1 localhost\n' + ''.join(
            f'{_NETWORKS[DEVICE]}.{number} {name}\n' for number, name in enumerate(self.names, 1)))
        self._hostfile = folder / 'hostfile'
        self._hostfile.write_text(''.join(f'{name} slots=1\n' for name in self.names))
        self._agent = folder / 'agent.sh'  # In place of ssh.
        self._agent.write_text(
            '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nhost=$1; shift\n'
            f'exec {self._enter("$host")} sh -c "$*"\n')
        self._agent.chmod(0o755)

    def _enter(self, name):
        """A command that runs what follows on a machine, as text."""
        # In `ip netns exec`, /etc/hosts is /etc/netns/NAME/hosts; a file elsewhere can be mounted.
        return (f'ip netns exec {name} unshare --mount --uts sh -c \'hostname "$0" && '
                f'mount --bind {self._hosts} /etc/hosts && exec "$@"\' {name}')

    def running(self, *arguments):
        """Starts one worker on each machine of a hostfile; see `running`."""
        return running(
            2, *arguments, prefix=('sh', '-c', f'exec {self._enter(self.names[0])} "$@"', 'sh'),
            options=('--hostfile', self._hostfile, '--prtemca', 'plm_ssh_agent', self._agent,
                     '--prtemca', 'prte_if_include', DEVICE, '--mca', 'btl_tcp_if_include', DEVICE,
                     '--mca', 'pml', 'ob1', '--mca', 'btl', 'tcp,self'))

    def cut_off(self):
        """Disconnects the machines.

        The workers end by themselves, but mpirun waits for its daemon until TCP gives up: a quarter
        of an hour, unless the system limits it, as here.
        """
        ip('netns exec', self.names[0], 'sysctl --quiet net.ipv4.tcp_retries2=3')
        ip('-n', self.names[1], 'link set down dev', DEVICE)

    def connects(self, machine, address, port):
        """Whether a connection from a machine, 0 or 1, to a port succeeds within 5 seconds."""
        program = f'import socket; socket.create_connection(({address!r}, {port}), 5)'
        return subprocess.run(
            ['ip', 'netns', 'exec', self.names[machine], sys.executable, '-c', program],
            capture_output=True, check=False).returncode == 0


@contextlib.contextmanager
def machines(folder):
    """Yields two `Machines`, which keep their files in a folder."""
    found = Machines(folder)
    with contextlib.ExitStack() as stack:
        for name in found.names:
            ip('netns add', name)
            stack.callback(ip, 'netns del', name)
            # MPI's daemon, if it was cut off.
            stack.callback(os.system, f'ip netns pids {name} | xargs --no-run-if-empty kill -9')
            ip('-n', name, 'link set up dev lo')
        for device, network in _NETWORKS.items():
            ip('link add name', device, 'netns', found.names[0], 'type veth peer name', device,
               'netns', found.names[1])
            for number, name in enumerate(found.names, 1):
                ip('-n', name, f'addr add {network}.{number}/24 dev', device)
                ip('-n', name, 'link set up dev', device)
        yield found


def ip(*words):
    """Runs `ip` with these words, each of which may hold several."""
    subprocess.run(['ip', *' '.join(words).split()], check=True)
