"""Reports failures to the user: one line that starts with the script's name."""
import os
import re
import sys

from cifar10_lib.program import console

_ERROR_NUMBER = re.compile(r'^\[Errno -?\d+\] ')  # As Python writes it; the words after it suffice.


class DataError(ValueError):
    """A data folder, file or archive is invalid; the message is one line for the user."""


class MissingFile(DataError, FileNotFoundError):
    """A record file is missing. The tutorial raises `ValueError`, which this is, too."""


# What the errors of a GPU, its libraries or a disk say, and what the user can do.
_OF_THE_MACHINE = (
    (r'OOM when allocating.*|failed to allocate memory.*|CUDA_ERROR_OUT_OF_MEMORY.*',
     'use a smaller --batch_size, or end other programs on the device'),
    (r'CUDA_ERROR_DEVICE_UNAVAILABLE.*', 'end the other programs on the GPU (nvidia-smi shows '
     'them), or use --device=cpu'),
    (r'No (DNN|BLAS) .*|(DNN library|cuDNN|CUDNN|cuBLAS|CUBLAS).*',
     "cuDNN or cuBLAS did not start. End other programs if the GPU's memory is full; else remove "
     'other versions of both from LD_LIBRARY_PATH, and run pip install -r requirements-gpu.txt '
     '(TF_CPP_MIN_LOG_LEVEL=0 shows more)'),
    (r'(CUDA_ERROR|CUDA error|NCCL).*', 'see nvidia-smi and the system log, restart the machine if '
     'the GPU does not recover, or use --device=cpu'),
    (r'.*; (Input/output error|Remote I/O error|Stale file handle|Host is down|No route to host|'
     r'Connection timed out|Transport endpoint is not connected)',
     'check the disk or the network share'))


def one_line(error):
    """Returns an exception's message on one line; for a TensorFlow operation, only the reason."""
    message = getattr(error, 'message', None)
    if isinstance(message, str):  # TensorFlow's.
        # '... Node: 'name'\nreason\n...', or a list '  (0) CODE: reason\n...' of several.
        reason = (re.search(r'^  \(0\) [A-Z_]+: (.*)', message, re.MULTILINE)
                  or re.search(r'^Node: .*\n(.*)', message, re.MULTILINE))
        return reason.group(1) if reason else ''.join(message.splitlines()[:1])
    return _ERROR_NUMBER.sub('', ' '.join(str(error).split()))


def of_the_machine(error):
    """Returns a line for an error of a GPU, its libraries or a disk, with a remedy; else None."""
    message = one_line(error)
    for pattern, remedy in _OF_THE_MACHINE:
        reason = re.search(pattern, message)
        if reason:
            return f'{reason[0].rstrip(".")}: {remedy}'
    return None


def say(line):
    """Writes 'SCRIPT: line' to standard error, as `console.note` does."""
    console.note(f'{os.path.basename(sys.argv[0])}: {line}')
