"""What several workers send in a step, counted by the kernel in a network of their own."""
import re

import mpi
import pytest
import spawn

pytestmark = [pytest.mark.slow, mpi.with_networks]


def test_a_step_sends_each_gradient_once(half_bright, tmp_path):
    """Of two workers, each sends a half for the sum and a half of the result: all of the 4 x
    1,068,298 bytes, and little more, such as the figures and the kernel's headers."""
    def sent(steps):
        with mpi.running(
                2, spawn.ROOT / 'classification.py', '--net=tutorial', '--batch_size=8',
                f'--max_steps={steps}', '--validate_every=0', '--learning_rate=0.001',
                f'--data_dir={half_bright.parent}', f'--train_dir={tmp_path}/{steps}',
                prefix=('unshare', '--net', 'sh', '-c',
                        'ip link set lo up && "$@" && grep lo: /proc/net/dev', 'sh')) as job:
            out, _ = job.ended(0)
        return int(re.search(r'^ *lo: *(\d+)', out, re.MULTILINE)[1])

    per_step = (sent(30) - sent(10)) / 20
    assert per_step == pytest.approx(2 * 4 * 1068298, rel=0.02)
