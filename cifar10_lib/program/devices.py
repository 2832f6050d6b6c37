"""The devices of a session: which GPUs TensorFlow sees, and why it may not see one."""
import ctypes
import glob
import os
import platform
import shutil

import tensorflow.compat.v1 as tf
from absl import app, flags

from cifar10_lib.program import cores
from cifar10_lib.program import startup  # noqa: F401, imports TensorFlow quietly.

flags.DEFINE_enum('device', 'auto', ['auto', 'cpu', 'gpu'],
                  'auto uses GPUs if available, cpu uses only the CPU, gpu requires a GPU.',
                  short_name='c')

FLAGS = flags.FLAGS

_INSTALL = 'run pip install -r requirements-gpu.txt'


def session_config(log_device_placement=False):
    """Returns a `tf.ConfigProto` for a session on the devices that `--device` allows.

    Towers request GPUs whatever the machine has; soft placement moves them. GPU memory is allocated
    on demand, so that an evaluation can share a GPU with a trainer. There are as many threads as
    cores, or as the container's CPU quota allows.

    On a CPU, TensorFlow optimises each graph once instead of twice. The second pass changes nothing
    in the graphs of our networks, but takes half of the time, 0.1 to 0.3 s before a first step.
    """
    config = tf.ConfigProto(allow_soft_placement=True, log_device_placement=log_device_placement)
    config.gpu_options.allow_growth = True
    threads = cores.by_quota()
    if threads:
        config.intra_op_parallelism_threads = config.inter_op_parallelism_threads = threads
    if FLAGS.device == 'cpu':
        config.device_count['GPU'] = 0
    if not visible_gpus():
        rewrites = config.graph_options.rewrite_options
        rewrites.meta_optimizer_iterations = rewrites.ONE
    return config


def visible_gpus():
    """Returns the number of GPUs that `--device` allows.

    Raises `app.UsageError` if `--device=gpu` was given, but TensorFlow does not see a GPU.
    """
    if FLAGS.device == 'cpu':
        return 0
    count = len(tf.config.list_physical_devices('GPU'))
    if FLAGS.device == 'gpu' and not count:
        reason = why_unseen() or f'found no NVIDIA GPU: check the driver, {_INSTALL}'
        raise app.UsageError(f'--device=gpu, but TensorFlow sees no GPU: {reason}, or use '
                             '--device=auto')
    return count


def line(towers=1, dtype=tf.float32):
    """Returns a line for a trainer to print: its devices, and which type is slow or fast on them.

    `towers` is their number, one per GPU; `dtype` the type in which layers compute.
    """
    names = gpu_names()
    unseen = None if names or FLAGS.device == 'cpu' else why_unseen()
    speed = '' if names else _speed_on_cpu(dtype)
    return describe(towers, names, unseen) + speed


def _speed_on_cpu(dtype):
    if dtype == tf.float16:
        return ' --use_fp16 is many times slower than float32 on a CPU.'
    if dtype == tf.bfloat16 and not cores.multiply_bfloat16():
        return (' --use_bf16 is slower than float32 on a CPU without amx_bf16 or avx512_bf16 in '
                '/proc/cpuinfo.')
    if dtype == tf.float32 and platform.machine() == 'x86_64' and cores.multiply_bfloat16():
        return ' --use_bf16 is faster on this processor.'
    return ''


def describe(towers, names, unseen=None):
    """Returns what `line` says of GPUs, from their names and a reason of `why_unseen`, or None."""
    text = 'Training' if towers == 1 else f'Training {towers} towers'
    if not names:
        return f'{text} on the CPU' + (
            f'; TensorFlow does not see the GPU: {unseen}.' if unseen else '.')
    build = tf.sysconfig.get_build_info()
    cuda = '.'.join(build.get('cuda_version', '?').split('.')[:2])
    used = ', '.join(f'GPU {index}: {name}' for index, name in enumerate(names[:towers]))
    text += f' on {used} (CUDA {cuda}, cuDNN {build.get("cudnn_version", "?")})'
    if towers > len(names):  # Soft placement moves the others to the first GPU.
        text += f'; found only {len(names)} GPU{"s" * (len(names) > 1)}, so towers share GPU 0'
    return text + '.'


def gpu_names():
    """Returns the names of the GPUs that `--device` allows, in the order of their numbers."""
    return [tf.config.experimental.get_device_details(gpu).get('device_name', 'unknown model')
            for gpu in tf.config.list_physical_devices('GPU')[:visible_gpus()]]


def why_unseen():
    """Returns why TensorFlow sees no GPU, and the remedy; None if the machine has no NVIDIA GPU."""
    nodes = sorted(glob.glob('/dev/nvidia[0-9]*'))
    if not nodes and not shutil.which('nvidia-smi'):
        return None
    hidden = os.environ.get('CUDA_VISIBLE_DEVICES')
    if hidden is not None and (not hidden.strip() or hidden.startswith('-')):
        return f'CUDA_VISIBLE_DEVICES="{hidden}" hides all GPUs: unset it'
    if not tf.test.is_built_with_cuda():
        return f'this TensorFlow was built without CUDA: {_INSTALL}'
    for node in nodes:
        if not os.access(node, os.R_OK | os.W_OK):
            return f'this user may not read and write {node}: join the group that owns it'
    return _driver_error() or (
        f"TensorFlow probably does not find CUDA's libraries: {_INSTALL}; its messages, shown with "
        'TF_CPP_MIN_LOG_LEVEL=0, name those that are missing')


def _driver_error():
    """Loads the driver's libraries, both of which TensorFlow needs, and starts the driver."""
    driver = _load('libcuda.so.1')
    if not driver:
        return ("libcuda.so.1, the driver's library, was not found: install the NVIDIA driver, or "
                'start the container with its GPUs (docker run --gpus all)')
    version, text = ctypes.c_int(), ctypes.c_char_p()
    driver.cuDriverGetVersion(ctypes.byref(version))  # 11040 for CUDA 11.4.
    if version.value < 12000:
        return (f'the NVIDIA driver supports CUDA {version.value // 1000}.'
                f'{version.value % 1000 // 10}; expected 12.0 or later: update it')
    status = driver.cuInit(0)
    if status:
        driver.cuGetErrorString(status, ctypes.byref(text))
        return (f'the NVIDIA driver answers "{(text.value or b"?").decode()}" (CUDA error '
                f'{status}): restart the machine, or reinstall the driver')
    if not _load('libnvidia-ml.so.1'):
        return ('libnvidia-ml.so.1 was not found: install the NVIDIA driver completely, or start '
                'the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility')
    return None


def _load(library):
    """Returns a shared library, or None."""
    try:
        return ctypes.CDLL(library)
    except OSError:
        return None
