"""Workers in networks of their own: what they send, and two machines under one mpirun."""
import os
import re
import signal

import mpi
import pytest

pytestmark = [pytest.mark.slow, mpi.with_networks]


def test_a_step_sends_each_gradient_once(half_bright, tmp_path):
    """Of two workers, each sends a half for the sum and a half of the result: all of the 4 x
    1,068,298 bytes, and little more, such as the figures and the kernel's headers."""
    def sent(steps):
        with mpi.running(
                2, *mpi.words(f'--max_steps={steps}', '--validate_every=0', '-l', '0.001',
                              f'--train_dir={tmp_path}/{steps}'),
                prefix=('unshare', '--net', 'sh', '-c',
                        'ip link set lo up && "$@" && grep lo: /proc/net/dev', 'sh')) as job:
            out, _ = job.ended(0)
        return int(re.search(r'^ *lo: *(\d+)', out, re.MULTILINE)[1])

    per_step = (sent(30) - sent(10)) / 20
    assert per_step == pytest.approx(2 * 4 * 1068298, rel=0.02)


@pytest.fixture
def machines(half_bright, tmp_path):
    with mpi.machines(tmp_path) as found:
        yield found


def test_they_find_each_other_train_and_keep_strangers_out(machines):
    """Worker 0's ports accept connections through the device between the workers, and no other."""
    with machines.running(*mpi.endless()) as job:
        job.await_text('step 3,')
        ports = job.listens_at(0)
        reachable = {address: {port for port in ports if machines.connects(1, address, port)}
                     for address in ('10.99.0.1', '10.98.0.1')}
        # MPI's own port checks who connects; TensorFlow's executes what it is sent.
        server, = reachable['10.99.0.1'] - reachable['10.98.0.1']
        assert machines.connects(0, '10.99.0.1', server)  # A worker on the same machine.
        assert not machines.connects(0, '127.0.0.1', server)
        os.kill(job.process.pid, signal.SIGUSR1)
        out, errors = job.ended(128 + signal.SIGUSR1)
    assert 'Saved step' in out
    assert all('stopping after this step' in line for line in errors)


def test_a_device_that_no_machine_has(machines):
    with machines.running(*mpi.endless('--interface=eth7')) as job:
        _, errors = job.ended(1)
    assert any(f'--interface=eth7 is not a device with an IPv4 address of {machines.names[0]}, '
               f'which has lo, {mpi.DEVICE}, {mpi.OTHER_DEVICE}' in line for line in errors)


def test_a_machine_that_is_cut_off_ends_the_other(machines):
    with machines.running(*mpi.endless('--step_timeout=10', f'--interface={mpi.DEVICE}')) as job:
        job.await_text('step 5,')
        machines.cut_off()
        # Open MPI 5.0.11 forgets the exit code if it loses its daemon on the other machine.
        _, errors = job.ended(75, 0)
    assert 'another worker was lost' in errors[0]
