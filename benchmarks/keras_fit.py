"""Trains the tutorial's network with `model.fit`, and prints the result as a line of JSON.

    python -m benchmarks.keras_fit --data_dir=/tmp/cifar10_data --steps=200

Network and `tf.data` input are those of docs/migration/stage_4_keras.py; the moving averages of
the weights are the optimizer's. Nothing else is set: Keras 3 compiles the step with XLA unless
--jit_compile is false. It needs a process without the start-up of this project, which disables
eager execution.
"""
import json
import os

import keras

from benchmarks import children
from benchmarks import timing
from cifar10_lib.datasets import table
from docs.migration import stage_4_keras


def fit(paths, steps, batch_size, jit_compile='auto'):
    """Trains a new model; returns the `timing.Clock` and the mean loss.

    Args:
        paths: list of record files.
        steps: number of steps.
        batch_size: images per step.
        jit_compile: as for `Model.compile`.
    """
    model = stage_4_keras.network()
    schedule = keras.optimizers.schedules.ExponentialDecay(  # The tutorial's: every 350 epochs.
        0.1, int(50000 / batch_size * 350), 0.1, staircase=True)
    model.compile(keras.optimizers.SGD(schedule, use_ema=True, ema_momentum=0.9999),
                  keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                  jit_compile=jit_compile)
    clock = timing.Clock()
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: clock.step_ended())
    history = model.fit(stage_4_keras.batches(paths, training=True, batch_size=batch_size),
                        steps_per_epoch=steps, verbose=0, callbacks=[note])
    return clock, history.history['loss'][-1]


def main():
    parser = children.parser('benchmarks.keras_fit', __doc__)
    parser.add_argument('--steps', type=int, default=200, help='number of steps')
    parser.add_argument('--jit_compile', choices=['auto', 'false'], default='auto',
                        help="Keras's choice, which is XLA, or no XLA")
    options = parser.parse_args()
    folder = os.path.join(options.data_dir, table.CIFAR10.folder)
    clock, loss = fit(table.CIFAR10.paths(folder, eval_data=False), options.steps,
                      options.batch_size, 'auto' if options.jit_compile == 'auto' else False)
    print(json.dumps({**clock.result(options.batch_size), 'loss': loss}))


if __name__ == '__main__':
    main()
