"""The processors and GPUs of a session, and the flag --device that chooses them."""
import math
import os
import platform
import shutil

import tensorflow.compat.v1 as tf
from absl import app, flags

from cifar10_lib.program import startup  # noqa: F401, it imports TensorFlow quietly.

flags.DEFINE_enum('device', 'auto', ['auto', 'cpu', 'gpu'],
                  'auto uses GPUs if available, cpu uses only the CPU, gpu requires a GPU.',
                  short_name='c')

FLAGS = flags.FLAGS


def session_config(log_device_placement=False):
    """Returns a `tf.ConfigProto` for a session on the devices that `--device` allows.

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
        raise app.UsageError(
            '--device=gpu, but TensorFlow sees no GPU: set TF_CPP_MIN_LOG_LEVEL=0 to see why, run '
            'pip install -r requirements-gpu.txt, or use --device=auto')
    return count


def visible_cores():
    """Returns the number of cores in the process's affinity mask, as TensorFlow counts them."""
    if hasattr(os, 'sched_getaffinity'):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # Not on Linux.


def cores_by_quota():
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


def multiplies_bfloat16():
    """Whether the cores multiply bfloat16; if not, oneDNN converts to float32. False if unknown."""
    # AMX and AVX512 are Intel's and AMD's, `bf16` is Arm's.
    return not {'amx_bf16', 'avx512_bf16', 'bf16'}.isdisjoint(_read('/proc/cpuinfo').split())


def _read(path):
    try:
        with open(path) as stream:
            return stream.read()
    except OSError:
        return ''


def line(towers=1, dtype=tf.float32):
    """Returns a line for a trainer to print: its devices, and which type is slow or fast on them.

    `towers` is their number, one per GPU; `dtype` the type in which layers compute.
    """
    text = 'Training' if towers == 1 else f'Training {towers} towers'
    names = [tf.config.experimental.get_device_details(gpu).get('device_name', 'unknown model')
             for gpu in tf.config.list_physical_devices('GPU')[:visible_gpus()]]
    if names:
        build = tf.sysconfig.get_build_info()
        cuda = '.'.join(build.get('cuda_version', '?').split('.')[:2])
        used = ', '.join(f'GPU {index}: {name}' for index, name in enumerate(names[:towers]))
        text += f' on {used} (CUDA {cuda}, cuDNN {build.get("cudnn_version", "?")})'
        if towers > len(names):  # Soft placement moves the others to the first GPU.
            text += f'; found only {len(names)} GPU{"s" * (len(names) > 1)}, so towers share GPU 0'
        return text + '.'
    text += ' on the CPU.'
    if FLAGS.device == 'auto' and shutil.which('nvidia-smi'):
        text += ' TensorFlow does not see the GPU: TF_CPP_MIN_LOG_LEVEL=0 shows why.'
    if dtype == tf.float16:
        text += ' --use_fp16 is many times slower than float32 on a CPU.'
    elif dtype == tf.bfloat16 and not multiplies_bfloat16():
        text += (' --use_bf16 is slower than float32 on a CPU without amx_bf16 or avx512_bf16 in '
                 '/proc/cpuinfo.')
    elif dtype == tf.float32 and platform.machine() == 'x86_64' and multiplies_bfloat16():
        text += ' --use_bf16 is faster on this processor.'
    return text
