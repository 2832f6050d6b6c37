"""GPUs for TensorFlow that compute nothing: see `stand_in_gpu.c`.

What a test sees is what TensorFlow does with a GPU except for the results of its kernels, which are
zeros: devices, placement, copies, and the errors of the driver and its libraries.

As a script, runs a command with them:

    STAND_IN_GPUS=2 python tests/helpers/stand_in_gpu.py \\
        python cifar10_multi_gpu_train.py --num_gpus=2
"""
import atexit
import functools
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pytest
import spawn

_LIBRARIES = ('libcuda.so.1', 'libcudart.so.12', 'libcublas.so.12', 'libcublasLt.so.12',
              'libcufft.so.11', 'libcusolver.so.11', 'libcusparse.so.12', 'libcudnn.so.9',
              'libnccl.so.2', 'libnvidia-ml.so.1')


def environment(**settings):
    """Returns the environment of a process that has stand-ins for GPUs.

    `gpus=2` sets STAND_IN_GPUS, and so on: see `stand_in_gpu.c`.
    """
    inherited = {name: value for name, value in spawn.environment().items()
                 if not name.startswith(('CUDA_', 'NVIDIA_'))}
    # Memory from the driver, which is zero. TensorFlow's own pool holds older values.
    return {'TF_GPU_ALLOCATOR': 'cuda_malloc_async', **inherited,
            'LD_LIBRARY_PATH': _folder(),
            **{f'STAND_IN_{name.upper()}': str(value) for name, value in settings.items()}}


def run(name, *arguments, **settings):
    """Runs a script with stand-ins for GPUs: as `spawn.run_script`."""
    return spawn.run_script(name, *arguments, env=environment(**settings))


@functools.cache
def _folder():
    """A folder with the libraries, made once per process."""
    compiler = shutil.which('cc')
    if not compiler:
        pytest.skip('needs a C compiler: apt-get install gcc libc6-dev')
    folder = pathlib.Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    first = folder / _LIBRARIES[0]
    subprocess.run([compiler, '-O1', '-shared', '-fPIC', '-o', first,
                    pathlib.Path(__file__).with_suffix('.c')], check=True)
    for name in _LIBRARIES[1:]:
        (folder / name).symlink_to(first)
    return str(folder)


if __name__ == '__main__':
    sys.exit(subprocess.call(sys.argv[1:], env=environment()))
