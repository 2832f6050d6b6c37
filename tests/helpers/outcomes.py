"""What a run printed, and how good its model is."""
import re

from cifar10_lib.evaluation import accuracy
from cifar10_lib.runs import checkpoints

# The tutorial's console line; the groups are the images and the seconds.
LINE = re.compile(r'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: step \d+, loss = \d+\.\d\d '
                  r'\((\d+\.\d) examples/sec; (\d+\.\d{3}) sec/batch\)')


def precision(train_dir, **options):
    """Precision @ 1 of a run's latest checkpoint; `options` are those of `Accuracy`."""
    return accuracy.Accuracy(**options).run(checkpoints.latest(train_dir)).precision
