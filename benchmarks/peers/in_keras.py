"""The tutorial's training in Keras 3 on TensorFlow, with `fit` and a `tf.data` input.

    python -m benchmarks.peers.in_keras --data_dir=/tmp/cifar10_data --max_steps=100

Network and input are those of docs/migration/stage_4_keras.py. As progress bars do, it reports the
mean loss of all steps so far.
"""
import keras

from benchmarks.peers import task
from docs.migration import stage_4_keras


def main():
    options = task.options()
    model = stage_4_keras.network()
    model.compile(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9999),
                  keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    report = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda step, logs: task.report(step, logs['loss']))
    paths = options.folder.glob('data_batch_*.bin')
    model.fit(stage_4_keras.batches(paths, training=True, batch_size=options.batch_size),
              steps_per_epoch=options.max_steps, verbose=0, callbacks=[report])


if __name__ == '__main__':
    main()
