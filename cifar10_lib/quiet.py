"""Imports TensorFlow without the lines that its C++ libraries print while they load.

Import this module before TensorFlow. In a program that has imported TensorFlow already, and to
those who set TF_CPP_MIN_LOG_LEVEL, it makes no difference.
"""
import contextlib
import os
import platform
import sys

from cifar10_lib import errors

# TensorFlow reads these variables once, while it loads.
_SETTINGS = {'TF_CPP_MIN_LOG_LEVEL': '3'}
if platform.machine() in ('x86_64', 'AMD64'):
    # Processors with AVX2 only would not use oneDNN: a step takes 1.6 times as long there.
    _SETTINGS['TF_ENABLE_ONEDNN_OPTS'] = '1'


@contextlib.contextmanager
def _settings():
    """Sets those of the variables that are not set, and removes them again."""
    missing = [name for name in _SETTINGS if name not in os.environ]
    os.environ.update({name: _SETTINGS[name] for name in missing})
    try:
        yield
    finally:
        for name in missing:
            del os.environ[name]


@contextlib.contextmanager
def _without_lines():
    """Libraries do not write to descriptor 2: some of TensorFlow's do at any level."""
    try:
        screen = os.dup(2)
    except OSError:  # It is closed.
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(screen, 2)
        os.close(screen)


class StartError(ImportError):
    """TensorFlow cannot be imported. The message is one line."""


def _show_one_line(kind, error, traceback):
    """A script that cannot start ends with one line. Any other error keeps its traceback."""
    if issubclass(kind, StartError) and not os.environ.get('CIFAR10_TRACEBACK'):
        errors.note(str(error))
    else:
        sys.__excepthook__(kind, error, traceback)


if 'tensorflow' not in sys.modules:
    with contextlib.ExitStack() as stack:
        if 'TF_CPP_MIN_LOG_LEVEL' not in os.environ:
            stack.enter_context(_without_lines())
        stack.enter_context(_settings())
        try:
            import tensorflow.compat.v1 as tf
            tf.disable_v2_behavior()  # Prints lines, too. cifar10_input.py calls it in any case.
        except Exception as error:  # Its parts raise errors of many classes, protobuf its own.
            sys.excepthook = _show_one_line
            raise StartError(
                f'TensorFlow cannot be imported: {errors.one_line(error):.200}. Install '
                'requirements.txt or, if it is installed, check TMPDIR, KERAS_BACKEND, MPLBACKEND, '
                '~/.keras/keras.json and PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION') from error
