"""Imports TensorFlow without the lines that its C++ libraries print while they load.

Import this module before TensorFlow. In a program that has imported TensorFlow already, and to
those who set TF_CPP_MIN_LOG_LEVEL, it makes no difference.
"""
import contextlib
import gc
import os
import platform
import sys

from cifar10_lib import errors

# TensorFlow reads these variables once, while it loads.
_SETTINGS = {'TF_CPP_MIN_LOG_LEVEL': '3'}
if platform.machine() in ('x86_64', 'AMD64'):
    # Processors with AVX2 only would not use oneDNN: a step takes 1.6 times as long there.
    _SETTINGS['TF_ENABLE_ONEDNN_OPTS'] = '1'


class StartError(ImportError):
    """TensorFlow cannot be imported. The message is one line."""


def _show_one_line(kind, error, traceback):
    """A script that cannot start ends with one line. Any other error keeps its traceback."""
    is_expected = issubclass(kind, (StartError, KeyboardInterrupt))
    if is_expected and not os.environ.get('CIFAR10_TRACEBACK'):
        errors.note(str(error) or 'interrupted')
    else:
        sys.__excepthook__(kind, error, traceback)


if 'tensorflow' not in sys.modules:
    with contextlib.ExitStack() as stack:
        if 'TF_CPP_MIN_LOG_LEVEL' not in os.environ:
            # Some libraries write to descriptor 2 at any level.
            with contextlib.suppress(OSError):
                screen = os.dup(2)  # Raises an error if it is closed.
                stack.callback(os.close, screen)
                stack.callback(os.dup2, screen, 2)
                with open(os.devnull, 'w') as nowhere:
                    os.dup2(nowhere.fileno(), 2)
        for name, value in _SETTINGS.items():
            if name not in os.environ:
                os.environ[name] = value
                stack.callback(os.environ.pop, name)
        if gc.isenabled():  # It would search the new modules again and again, for 0.3 s.
            gc.disable()
            stack.callback(gc.enable)
        try:
            import tensorflow.compat.v1 as tf
            tf.disable_v2_behavior()  # Prints lines, too. cifar10_input.py calls it in any case.
        except KeyboardInterrupt:
            sys.excepthook = _show_one_line
            raise
        except Exception as error:  # Its parts raise errors of many classes, protobuf its own.
            sys.excepthook = _show_one_line
            raise StartError(
                f'TensorFlow cannot be imported: {errors.one_line(error):.200}. Install '
                'requirements.txt or, if it is installed, check TMPDIR, KERAS_BACKEND, MPLBACKEND, '
                '~/.keras/keras.json and PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION') from error
