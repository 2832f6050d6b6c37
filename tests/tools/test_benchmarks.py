import importlib.util
import re
import subprocess
import sys

import numpy as np
import pytest
import record_files
import spawn

from benchmarks import __main__ as benchmarks


def test_a_line_of_the_table():
    """Of 1, 2, 3, 4 and 10: the quartiles 2, 3 and 4. Half of the time is twice as good."""
    found = ' '.join(benchmarks.line('step', 'ms', [10, 2, 1, 4, 3], [6]).split())
    assert found == 'step, ms 3.00 (2.00 to 4.00) 6.00 (6.00 to 6.00) 2.00 5'
    assert benchmarks.line('input', 'images/s', [1234.5], [617.25]).split()[-2:] == ['2.00', '1']


@pytest.fixture
def command(tmp_path):
    """A function that runs a benchmark on small files and batches: the completed process."""
    record_files.write_noise(tmp_path)

    def run(module, *options):
        return subprocess.run(
            [sys.executable, '-m', module, f'--data_dir={tmp_path}', '--batch_size=4', *options],
            capture_output=True, text=True, check=False, cwd=spawn.ROOT, env=spawn.environment())
    return run


@pytest.mark.slow
@pytest.mark.parametrize('only, expected', [
    ('input', {'input alone, images/s'}),
    ('step', {'step on a fixed batch, ms', 'step, beside the floor, ms'}),
    ('train', {'training, end to end, images/s', 'start to step 0, s', 'peak memory of it, MB'}),
    ('workers', {'two workers, beside two runs that share nothing, images/s'})])
def test_the_table(command, only, expected):
    """The default rows."""
    done = command('benchmarks', '--turns=1', '--steps=10', '--only', only)
    assert done.returncode == 0, done.stderr + done.stdout
    heading, _, *lines = done.stdout.splitlines()
    assert re.search('TensorFlow .*; tutorial, batch 4; median', heading)
    rows = {re.split('  +', line)[0]: float(line.split()[-2]) for line in lines}
    assert expected <= rows.keys() and all(ratio > 0 for ratio in rows.values())


@pytest.mark.slow
def test_the_agreement_of_another_network(command):
    """The CPU agrees with itself."""
    done = command('benchmarks', '--only', 'agreement', '--turns=1', '--net=resnet23')
    assert done.returncode == 0, done.stderr
    largest, = re.findall(r'logits of up to (.*) differ by at most 0.0e\+00, gradients by 0.0e\+00',
                          done.stdout)
    assert float(largest) > 1e-3  # Of weights that a run starts with, not of zeros.


@pytest.mark.slow
@pytest.mark.parametrize('name, package', benchmarks.PEERS.items())
def test_the_loss_of_a_peer(command, name, package):
    """On noise, the cross entropy stays near ln 10, and the weight decay makes itself smaller.

    Normal values that are cut off at two deviations have a mean square of 0.7737 * 0.04 ** 2, so
    the decay is 0.004 / 2 * (2304 + 192) * 384 * 0.7737 * 0.04 ** 2 = 2.373 at first. Each step
    shrinks the weights by 0.1 * 0.004: after 100, the decay is 2.19, and its mean 2.28.
    """
    if not importlib.util.find_spec(package):
        pytest.skip(f'requires {name}')
    done = command(f'benchmarks.peers.in_{name.lower()}', '--batch_size=32', '--max_steps=100')
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r': step \d+, loss = (.*)', done.stdout)]
    assert len(losses) == 100 and losses[0] == pytest.approx(2.303 + 2.373, abs=0.1)
    assert np.mean(losses[-10:]) < 4.65  # Keras prints the mean of all steps.
