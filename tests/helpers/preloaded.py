"""What `forks` imports before it forks: TensorFlow, as quietly as the scripts do."""
import pathlib
import sys

_ROOT = pathlib.Path(__file__).resolve().parents[2]

# Where Python searches when it starts: without the folders that pytest and the server have added.
PATH = [folder for folder in sys.path
        if folder and pathlib.Path(folder) not in (_ROOT, *_ROOT.glob('tests/*'))]

sys.path.insert(0, str(_ROOT))  # Python looks here only.

from cifar10_lib.program import quiet  # noqa: E402

quiet.import_tensorflow()
