"""Runs one part of the GPU report in this process, and prints its result as a line of JSON.

    python -m benchmarks.gpu.part --part=speed --net=resnet23 --precision=fp16

benchmarks.gpu starts these processes. A result has rows (dictionaries), checks (what, value, limit,
passed) and notes (lines); or `skipped`, the reason why the part cannot run here.
"""
from cifar10_lib.program import startup

import contextlib
import json
import os

import tensorflow.compat.v1 as tf
from absl import flags

from benchmarks import measure
from benchmarks.gpu import agreement
from benchmarks.gpu import machine
from benchmarks.gpu import speed
import cifar10
import cifar10_multi_gpu_train
from cifar10_lib.nets import variables
from cifar10_lib.program import devices
from cifar10_lib import recipes

PARTS = {'machine': machine.describe, 'placement': speed.placement, 'agreement': agreement.compare,
         'input': speed.input_alone, 'speed': speed.steps, 'towers': agreement.towers,
         'variables': speed.variables}

flags.DEFINE_enum('part', None, list(PARTS), 'What to run.', required=True)
flags.DEFINE_enum('precision', 'tf32', ['float32', 'tf32', 'fp16', 'bf16'],
                  "tf32 is float32 with TensorFlow's default for products on recent GPUs.")

FLAGS = flags.FLAGS


def _use_precision():
    """Sets the flags of --precision; returns why this version cannot compute in it, or None."""
    tf.config.experimental.enable_tensor_float_32_execution(FLAGS.precision != 'float32')
    if FLAGS.precision in ('fp16', 'bf16'):
        flag = f'use_{FLAGS.precision}'
        if flag not in FLAGS:
            return f'this version has no --{flag}'
        FLAGS[flag].value = True
    return None


def main():
    skipped = _use_precision()
    if not skipped and FLAGS.part != 'machine':
        with open(os.devnull, 'w') as nowhere, contextlib.redirect_stdout(nowhere):
            cifar10.maybe_download_and_extract()
    print(json.dumps({'skipped': skipped} if skipped else PARTS[FLAGS.part]()))


if __name__ == '__main__':
    startup.run(main, [devices, cifar10, recipes, variables, cifar10_multi_gpu_train, measure])
