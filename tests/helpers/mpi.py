"""Jobs of several workers under mpirun, and network namespaces that stand in for machines."""
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid

import psutil
import pytest
import spawn
from running import Running

_MPIRUN = shutil.which('mpirun', path=os.pathsep.join(
    [str(pathlib.Path(sys.executable).parent), os.environ.get('PATH', '')]))

with_mpi = pytest.mark.skipif(
    not _MPIRUN, reason='requires mpirun (pip install -r requirements-mpi.txt)')
with_networks = pytest.mark.skipif(
    not (_MPIRUN and shutil.which('ip')) or subprocess.run(
        ['unshare', '--net', '--mount', '--uts', 'true'], capture_output=True,
        check=False).returncode != 0,
    reason='network namespaces require root and iproute2')

SMALL_TRAINER = str(spawn.HELPERS / 'small_trainer.py')
_MARK = 'CIFAR10_TEST_JOB'  # Variable in the environment of each process of a job.


class Job(Running):
    """A running mpirun, and its workers."""

    def workers(self):
        """The workers that run, by rank: {rank: `psutil.Process`}."""
        found = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                variables = process.environ()
                if (variables.get(_MARK) == self.mark and 'OMPI_COMM_WORLD_RANK' in variables
                        and process.status() != psutil.STATUS_ZOMBIE):
                    found[int(variables['OMPI_COMM_WORLD_RANK'])] = process
        return found

    def send_signal(self, rank, number):
        """Sends a signal to one worker."""
        self.workers()[rank].send_signal(number)

    def listens_at(self, rank):
        """The ports at which a worker listens, also in another network namespace: a set."""
        pid = self.workers()[rank].pid
        own = {os.readlink(path) for path in pathlib.Path(f'/proc/{pid}/fd').iterdir()}
        found = set()
        for name in ('tcp', 'tcp6'):
            for line in pathlib.Path(f'/proc/{pid}/net/{name}').read_text().splitlines()[1:]:
                words = line.split()  # `man 5 proc_pid_net`: address, state (0A), inode.
                if words[3] == '0A' and f'socket:[{words[9]}]' in own:
                    found.add(int(words[1].rpartition(':')[2], 16))
        return found

    def ended(self, *codes):
        """Waits for the end, with one of these exit codes, and until no worker is left.

        Returns the output, and the lines on standard error that are ours.
        """
        done = self.result()
        assert done.returncode in codes, (done.returncode, done.stdout[-2000:], done.stderr)
        end = time.monotonic() + 30
        while self.workers():
            assert time.monotonic() < end, f'processes are left: {self.workers()}'
            time.sleep(0.1)
        return done.stdout, [line for line in done.stderr.splitlines() if '.py: ' in line]


@contextlib.contextmanager
def running(size, *arguments, options=('--oversubscribe',), prefix=(), second=()):
    """Starts Python with some arguments under mpirun, and ends it at last; yields a `Job`.

    `options` are those of mpirun, and `prefix` is a command that runs it. With `second`, one more
    worker has these arguments.
    """
    mark = uuid.uuid4().hex
    words = [*prefix, _MPIRUN, '--allow-run-as-root', '-x', _MARK, '-n', str(size), *options,
             sys.executable, *map(str, arguments)]
    if second:
        words += [':', '-n', '1', sys.executable, *map(str, second)]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        process = subprocess.Popen(
            words, stdout=out, stderr=error, env=spawn.environment(**{_MARK: mark}))
        job = Job(process, out, error)
        job.mark = mark
        try:
            yield job
        finally:
            process.kill()
            process.wait()
            for worker in job.workers().values():
                worker.kill()


DEVICE = 'link'  # The network device that connects the machines.
OTHER_DEVICE = 'other'


class Machines:
    """Two machines, each a network namespace with a host name and a file of hosts of its own.

    Attributes:
        names: their host names, which are those of the namespaces.
        addresses: their IPv4 addresses on `DEVICE`; those on `OTHER_DEVICE` are 10.98.0.1 and .2.
    """

    def __init__(self, folder):
        self.names = [f'cifar10-{os.getpid()}-{end}' for end in 'ab']
        self.addresses = ['10.99.0.1', '10.99.0.2']
        self._hosts = folder / 'hosts'
        # As Debian does, which resolves a machine's own name to a loopback address.
        self._hosts.write_text('127.0.0.1 localhost\n' + ''.join(
            f'{address} {name}\n' for address, name in zip(self.addresses, self.names)))
        self._agent = folder / 'agent.sh'  # In place of ssh.
        self._agent.write_text(
            '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nhost=$1; shift\n'
            f'exec {self.enter("$host")} sh -c "$*"\n')
        self._agent.chmod(0o755)

    def enter(self, name):
        """A command that runs what follows on a machine, as text."""
        # In `ip netns exec`, /etc/hosts is /etc/netns/NAME/hosts; a file elsewhere can be mounted.
        return (f'ip netns exec {name} unshare --mount --uts sh -c \'hostname "$0" && '
                f'mount --bind {self._hosts} /etc/hosts && exec "$@"\' {name}')

    def running(self, *arguments, options=()):
        """Starts one worker on each machine; see `running`."""
        return running(
            2, *arguments, prefix=('sh', '-c', f'exec {self.enter(self.names[0])} "$@"', 'sh'),
            options=('--host', ','.join(f'{name}:1' for name in self.names),
                     '--prtemca', 'plm_ssh_agent', self._agent,
                     '--prtemca', 'prte_if_include', DEVICE, '--mca', 'btl_tcp_if_include', DEVICE,
                     '--mca', 'pml', 'ob1', '--mca', 'btl', 'tcp,self', *options))

    def cut_off(self):
        """Disconnects the machines.

        The workers end by themselves, but mpirun waits for an answer of its daemon until TCP gives
        up: a quarter of an hour, unless the system's administrator has limited it, as here.
        """
        subprocess.run(['ip', 'netns', 'exec', self.names[0], 'sh', '-c',
                        'echo 3 > /proc/sys/net/ipv4/tcp_retries2'], check=True)
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
            stack.callback(_kill_all, name)  # MPI's daemon, if it was cut off.
        for device, network in ((DEVICE, '10.99.0'), (OTHER_DEVICE, '10.98.0')):
            ip('link add name', device, 'netns', found.names[0], 'type veth peer name', device,
               'netns', found.names[1])
            for number, name in enumerate(found.names, 1):
                ip('-n', name, f'addr add {network}.{number}/24 dev', device)
                ip('-n', name, 'link set up dev', device)
        for name in found.names:
            ip('-n', name, 'link set up dev lo')
        yield found


def _kill_all(name):
    """Kills the processes in a network namespace."""
    pids = subprocess.run(['ip', 'netns', 'pids', name], capture_output=True, check=True, text=True)
    for pid in pids.stdout.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def ip(*words):
    """Runs `ip` with these words, each of which may hold several."""
    subprocess.run(['ip', *' '.join(words).split()], check=True)
