"""The machine's GPUs, driver and libraries."""
import ctypes
import os
import platform

import tensorflow.compat.v1 as tf

from benchmarks import children
from benchmarks.gpu import child
from cifar10_lib.program import devices

_FIELDS = ('index', 'name', 'driver_version', 'memory.total', 'compute_cap', 'power.limit')


def describe():
    """Device, driver, CUDA, cuDNN and TensorFlow."""
    build = tf.sysconfig.get_build_info()
    architectures = ' '.join(build.get('cuda_compute_capabilities', []))
    rows = [('processor', children.heading()), ('devices', devices.line()),
            ('Python', platform.python_version()),
            ('TensorFlow was built for', f'CUDA {build.get("cuda_version")}, cuDNN '
             f'{build.get("cudnn_version")}, {architectures}')]
    rows += [(f'GPU {line.split(",")[0]}', line) for line in child.nvidia_smi(_FIELDS)]
    _use_libraries()
    rows += [(name, version) for name, version in _versions()]
    return {'rows': [{'what': what, 'value': value} for what, value in rows],
            'checks': [{'what': 'TensorFlow sees a GPU', 'value': len(devices.gpu_names()),
                        'limit': '1 or more', 'passed': bool(devices.gpu_names())}]
            if child.nvidia_smi(['name']) else [], 'notes': []}


def _use_libraries():
    """Loads cuDNN and cuBLAS: TensorFlow opens them when they are first used."""
    with tf.Graph().as_default():
        image, kernel = tf.random_normal([1, 8, 8, 3]), tf.random_normal([3, 3, 3, 4])
        net = tf.reshape(tf.nn.conv2d(image, kernel, strides=1, padding='SAME'), [-1, 4])
        with tf.Session(config=devices.session_config()) as session:
            session.run(tf.matmul(net, net, transpose_a=True))


def _versions():
    """Yields (library, version) for the libraries that this process has loaded."""
    with open('/proc/self/maps') as stream:
        paths = {line.split()[-1] for line in stream if '/lib' in line}
    for path in sorted(paths):
        name = os.path.basename(path).split('.so')[0]
        if name in _READERS:
            try:
                yield name, f'{_READERS[name](ctypes.CDLL(path))}, {path}'
            except (OSError, AttributeError) as error:
                yield name, f'{error}, {path}'


def _by_argument(function):
    """Reads a version that a function writes to its argument, such as 12050 for 12.5."""
    def read(library):
        value = ctypes.c_int()
        getattr(library, function)(ctypes.byref(value))
        return value.value
    return read


def _cublas(library):
    found = []
    for part in range(3):  # libraryPropertyType: major, minor, patch.
        value = ctypes.c_int()
        library.cublasGetProperty(part, ctypes.byref(value))
        found.append(str(value.value))
    return '.'.join(found)


def _cudnn(library):
    library.cudnnGetVersion.restype = ctypes.c_size_t
    return library.cudnnGetVersion()


_READERS = {'libcuda': _by_argument('cuDriverGetVersion'),
            'libcudart': _by_argument('cudaRuntimeGetVersion'),
            'libnccl': _by_argument('ncclGetVersion'), 'libcublas': _cublas, 'libcudnn': _cudnn}
