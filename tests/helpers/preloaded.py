"""What `forks` imports before it forks: TensorFlow, as quietly as the scripts do."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))  # Python looks here only.

from cifar10_lib.program import quiet  # noqa: E402

quiet.import_tensorflow()
