"""The processors and GPUs of a session."""
import math
import os
import platform
import shutil
from collections.abc import Callable

import tensorflow.compat.v1 as tf
from absl import app


def choose(device: str) -> None:
    """Chooses the devices of this process by the value of --device: 'auto', 'cpu' or 'gpu'.

    Raises `app.UsageError` for 'gpu' if TensorFlow does not see a GPU.
    """
    if device == 'cpu' and visible_gpus():
        tf.config.set_visible_devices([], 'GPU')
    if device == 'gpu' and not visible_gpus():
        raise app.UsageError(
            '--device=gpu, but TensorFlow sees no GPU: set TF_CPP_MIN_LOG_LEVEL=0 to see why, run '
            'pip install -r requirements-gpu.txt, or use --device=auto')


def visible_gpus() -> int:
    """Returns the number of GPUs that this process may use."""
    return len(tf.config.get_visible_devices('GPU'))


def variables_on(where: str) -> Callable[[tf.Operation], str]:
    """A function for `tf.device` that moves variables to the first GPU, if `where` is 'gpu'.

    With 'cpu', variables stay where the network puts them, which is on the CPU if it does not say.
    Like `tf.train.replica_device_setter`, the function leaves other operations where they are.
    Reads and updates follow their variable. Scalars, such as the step and the averages of the
    losses, stay where they are, too: the CPU computes with them.
    """
    def device(op):
        if op.type != 'VarHandleOp' or not op.get_attr('shape').dim:
            return op.device
        if where == 'gpu':
            return '/gpu:0'
        return op.device or '/cpu:0'

    return device


def session_config(log_device_placement: bool = False) -> tf.ConfigProto:
    """Configures a session on the devices that `choose` allows.

    Towers request GPUs whatever the machine has; soft placement moves them. GPU memory is allocated
    on demand, so that an evaluation can share a GPU with a trainer. There are as many threads as
    cores, or as the container's CPU quota allows. On a CPU, TensorFlow optimises each graph once
    instead of twice: the second pass takes 0.1 to 0.3 s and changes nothing in our networks.
    """
    config = tf.ConfigProto(allow_soft_placement=True, log_device_placement=log_device_placement)
    config.gpu_options.allow_growth = True
    threads = cores_by_quota()
    if threads:
        config.intra_op_parallelism_threads = config.inter_op_parallelism_threads = threads
    if not visible_gpus():
        config.device_count['GPU'] = 0
        rewrites = config.graph_options.rewrite_options
        rewrites.meta_optimizer_iterations = rewrites.ONE
    return config


def visible_cores() -> int:
    """Returns the number of cores in the process's affinity mask, as TensorFlow counts them."""
    if hasattr(os, 'sched_getaffinity'):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # Other systems have no affinity mask.


def cores_by_quota() -> int | None:
    """Returns this container's CPU quota in cores, rounded up, or None if it does not limit us.

    `docker run --cpus=2` and Kubernetes limits leave all cores visible. TensorFlow starts a thread
    for each; together they exhaust the quota early in each period and then all stall.
    """
    # Microseconds per period; "max" and -1 mean unlimited: `man 7 cgroups`.
    words = (_read('/sys/fs/cgroup/cpu.max') or _read('/sys/fs/cgroup/cpu/cpu.cfs_quota_us')
             + _read('/sys/fs/cgroup/cpu/cpu.cfs_period_us')).split()
    if len(words) != 2 or not words[0].isdecimal():
        return None
    cores = math.ceil(int(words[0]) / int(words[1]))
    return cores if cores < visible_cores() else None


def multiplies_bfloat16() -> bool:
    """Whether the cores multiply bfloat16; if not, oneDNN converts to float32. False if unknown."""
    # AMX and AVX512 are Intel's and AMD's, `bf16` is Arm's.
    return not {'amx_bf16', 'avx512_bf16', 'bf16'}.isdisjoint(_read('/proc/cpuinfo').split())


def _read(path):
    try:
        with open(path) as stream:
            return stream.read()
    except OSError:
        return ''


def line(towers: int = 1, dtype: tf.DType = tf.float32, device: str = 'auto') -> str:
    """Returns a line for a trainer to print: its devices, and which type is slow or fast on them.

    `towers` is their number, one per GPU; `dtype` the type in which layers compute; `device` the
    value of --device.
    """
    text = 'Training'
    if towers > 1:
        text = f'Training {towers} towers'
    gpus = tf.config.get_visible_devices('GPU')
    if gpus:
        return f'{text} on {_gpu_names(gpus, towers)}.'
    text += ' on the CPU.'
    is_missed = device != 'cpu' and not tf.config.list_physical_devices('GPU')
    if is_missed and shutil.which('nvidia-smi'):
        text += ' TensorFlow does not see the GPU: TF_CPP_MIN_LOG_LEVEL=0 shows why.'
    if dtype == tf.float16:
        text += ' --use_fp16 is many times slower than float32 on a CPU.'
    elif dtype == tf.bfloat16 and not multiplies_bfloat16():
        text += (' --use_bf16 is slower than float32 on a CPU without amx_bf16 or avx512_bf16 in '
                 '/proc/cpuinfo.')
    elif dtype == tf.float32 and platform.machine() == 'x86_64' and multiplies_bfloat16():
        text += ' --use_bf16 is faster on this processor.'
    return text


def _gpu_names(gpus, towers):
    """The names of the GPUs that so many towers use, and the versions of CUDA."""
    names = []
    for index, gpu in enumerate(gpus[:towers]):
        details = tf.config.experimental.get_device_details(gpu)
        names.append(f'GPU {index}: {details.get("device_name", "unknown model")}')
    build = tf.sysconfig.get_build_info()
    cuda = '.'.join(build.get('cuda_version', '?').split('.')[:2])
    text = f'{", ".join(names)} (CUDA {cuda}, cuDNN {build.get("cudnn_version", "?")})'
    if towers > len(gpus):  # Soft placement moves the others to the first GPU.
        text += f'; found only {len(gpus)}, so towers share GPU 0'
    return text
