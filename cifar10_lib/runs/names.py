"""Names of the files that a run writes into its folder, and of variables in its checkpoints."""
import re

from cifar10_lib.program import files

RUN = 'run.json'  # Network, data set and settings of the run.
METRICS = 'metrics.csv'
PARAMETERS = 'params.h5'
BEST = 'best'  # Folder of the best validated checkpoint,
BEST_ERROR = 'error.json'  # and the errors of that checkpoint.
LOCK = '.lock'
CHECKPOINT = 'model.ckpt'  # TensorFlow appends '-' and the step.

AVERAGE = '/ExponentialMovingAverage'  # Ends the name of a variable's moving average.
STATISTICS = ('moving_mean', 'moving_variance')  # End the names of a batch norm's statistics.

_CHECKPOINT = r'model\.ckpt-(\d+)\.(?:index|meta|data-\d{5}-of-\d{5})'  # TensorFlow's three kinds.
CHECKPOINT_FILE = re.compile(_CHECKPOINT)
# TensorFlow writes this file last; it is the only one in TensorFlow's older format, V1.
CHECKPOINT_INDEX = re.compile(r'model\.ckpt-(\d+)(?:\.index)?$')

_IN_BEST = rf'run\.json|params\.h5|error\.json|checkpoint|{_CHECKPOINT}'
_IN_FOLDER = (rf'checkpoint|{_CHECKPOINT}|events\.out\.tfevents\..*|graph\.pbtxt|run\.json|'
              r'metrics\.csv|params\.h5|timeline-\d+\.json')
# Suffixes of unfinished files: ours and TensorFlow's.
_UNFINISHED = rf'(?P<unfinished>{files.PARTIAL}|\.tmp[0-9a-f]{{32}}|\.tempstate\d+)'

# All files that `--restart` may remove, unfinished ones included, in the folder and in `best/`.
OWN, OWN_IN_BEST = (
    re.compile(f'(?:{names}){_UNFINISHED}?') for names in (_IN_FOLDER, _IN_BEST))
