"""Two machines under one mpirun: network namespaces with host names of their own."""
import json
import os
import signal

import mpi
import pytest

pytestmark = [pytest.mark.slow, mpi.with_networks]


@pytest.fixture
def machines(tmp_path):
    with mpi.machines(tmp_path) as found:
        yield found


def words(folder, **options):
    return mpi.SMALL_TRAINER, folder, json.dumps(options)


def test_they_find_each_other_train_and_keep_strangers_out(machines, tmp_path):
    """Worker 0's ports accept connections through the device between the workers, and no other."""
    with machines.running(*words(tmp_path, steps=10**6, pause=0.1)) as job:
        job.await_text('step 3')
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


def test_a_device_that_is_missing_on_one_of_them_ends_both(machines, tmp_path):
    with machines.running(*words(tmp_path, interface='eth7')) as job:
        _, errors = job.ended(1)
    assert any(f'--interface=eth7 is not a device with an IPv4 address of {machines.names[0]}, '
               f'which has lo, {mpi.DEVICE}, {mpi.OTHER_DEVICE}' in line for line in errors)


@pytest.mark.parametrize('fault', ['killed', 'frozen', 'cut off'])
def test_a_lost_machine_ends_the_other(machines, tmp_path, fault):
    options = {'steps': 10**6, 'pause': 0.1, 'step_timeout': 10, 'interface': mpi.DEVICE}
    # Open MPI 5.0.11 forgets the exit code if it loses its daemon on the other machine.
    codes = {'killed': [137], 'frozen': [75], 'cut off': [75, 0]}
    with machines.running(*words(tmp_path, **options)) as job:
        job.await_text('step 5')
        if fault == 'killed':
            job.send_signal(1, signal.SIGKILL)
        elif fault == 'frozen':
            job.send_signal(1, signal.SIGSTOP)
        else:
            machines.cut_off()
        _, errors = job.ended(*codes[fault])
    if fault != 'killed':
        assert 'another worker was lost' in errors[0]
