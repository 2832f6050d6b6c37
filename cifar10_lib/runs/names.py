"""Names of the files that a run writes into its folder, and of variables in its checkpoints."""
import re
from collections.abc import Collection

from cifar10_lib.program import files

RUN = 'run.json'  # Network, data set and settings of the run.
METRICS = 'metrics.csv'
PARAMETERS = 'params.h5'
BEST = 'best'  # Folder of the checkpoint with the lowest validation error.
BEST_ERROR = 'error.json'  # In that folder: its step and errors.
LOCK = '.lock'
LOCK_HOLDER = '.lock.pid'  # The ID of the process that holds the lock.
CHECKPOINT = 'model.ckpt'  # TensorFlow appends '-' and the step.

AVERAGE = '/ExponentialMovingAverage'  # Ends the name of a variable's moving average.
LOSS_AVERAGE = '/avg'  # Ends the name of a loss's moving average.
STATISTICS = ('moving_mean', 'moving_variance')  # End the names of a batch norm's statistics.

_CHECKPOINT = r'model\.ckpt-(\d+)\.(?:index|meta|data-\d{5}-of-\d{5})'  # TensorFlow's three kinds.
CHECKPOINT_FILE = re.compile(_CHECKPOINT)
# TensorFlow writes this file last; it is the only one in TensorFlow's older format, V1.
CHECKPOINT_INDEX = re.compile(r'model\.ckpt-(\d+)(?:\.index)?$')

_IN_BEST = '|'.join([*map(re.escape, (RUN, PARAMETERS, BEST_ERROR, 'checkpoint')), _CHECKPOINT])
_IN_FOLDER = '|'.join([*map(re.escape, (RUN, METRICS, PARAMETERS, 'checkpoint', 'graph.pbtxt')),
                       _CHECKPOINT, r'events\.out\.tfevents\..*', r'timeline-\d+\.json'])
# Suffixes of unfinished files: ours and TensorFlow's.
_UNFINISHED = rf'(?P<unfinished>{files.PARTIAL}|\.tmp[0-9a-f]{{32}}|\.tempstate\d+)'

# All files that `--restart` may remove, unfinished ones included, in the folder and in `best/`.
OWN, OWN_IN_BEST = (
    re.compile(f'(?:{names}){_UNFINISHED}?') for names in (_IN_FOLDER, _IN_BEST))


def is_state(variable: str, trained: Collection[str]) -> bool:
    """Whether a variable, by its name, belongs to the training and not to the network.

    As `global_step`, `conv1/weights/Momentum` and `cross_entropy/avg`. `trained` has the names of
    the trainable variables.
    """
    if variable in trained:
        return False
    layer = variable.rpartition('/')[0]
    return layer == '' or layer in trained or variable.endswith(LOSS_AVERAGE)
