"""Trains the tutorial's network with `model.fit` of Keras 3, and prints a line per step.

    python -m benchmarks.keras_fit --data_dir=/tmp/cifar10_data --max_steps=200

Network and `tf.data` input are those of docs/migration/stage_4_keras.py; the moving averages of
the weights are the optimizer's. Nothing else is set: Keras compiles the step with XLA unless
--jit_compile is false. Writes no summaries and no checkpoints. Runs without the start-up of this
project, which disables eager execution.
"""
import argparse
import datetime
import glob

import keras

from docs.migration import stage_4_keras


def main():
    parser = argparse.ArgumentParser(prog='python -m benchmarks.keras_fit')
    parser.add_argument('--data_dir', default='/tmp/cifar10_data', help='folder of the data sets')
    parser.add_argument('--batch_size', type=int, default=128, help='images per step')
    parser.add_argument('--max_steps', type=int, default=200, help='number of steps')
    parser.add_argument('--jit_compile', choices=['auto', 'false'], default='auto',
                        help="Keras's choice, which is XLA, or no XLA")
    parser.add_argument('--log_frequency', help='ignored: every step has a line')
    parser.add_argument('--train_dir', help='ignored: nothing is written')
    options = parser.parse_args()
    schedule = keras.optimizers.schedules.ExponentialDecay(  # The tutorial's: every 350 epochs.
        0.1, int(50000 / options.batch_size * 350), 0.1, staircase=True)
    model = stage_4_keras.network()
    model.compile(keras.optimizers.SGD(schedule, use_ema=True, ema_momentum=0.9999),
                  keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                  jit_compile='auto' if options.jit_compile == 'auto' else False)
    line = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: print(
        f'{datetime.datetime.now()}: step {step}, loss = {logs["loss"]:.2f}'))
    paths = sorted(glob.glob(f'{options.data_dir}/cifar-10-batches-bin/data_batch_*.bin'))
    model.fit(stage_4_keras.batches(paths, training=True, batch_size=options.batch_size),
              steps_per_epoch=options.max_steps, verbose=0, callbacks=[line])


if __name__ == '__main__':
    main()
