"""Stage 4: Keras 3, `fit` and callbacks, on TensorFlow, JAX or PyTorch.

    python docs/migration/stage_4_keras.py --steps=1000  # Trains.
    python docs/migration/stage_4_keras.py --checkpoint=/tmp/cifar10_train/model.ckpt-1000
    KERAS_BACKEND=jax python docs/migration/stage_4_keras.py --steps=1000

Prints the precision @ 1 with averaged and with raw weights, after training or of a checkpoint.
--records is the folder of CIFAR-10, or of a data set made by cifar10_convert.py.
"""
import argparse
import json
import pathlib

import keras
import numpy as np
import tensorflow as tf  # Reads files, whatever trains.
from keras import layers, ops

RECORD_BYTES = 1 + 3 * 32 * 32  # A label, then the red, green and blue plane.
CIFAR10 = {'train_files': ['data_batch_*.bin'], 'test_files': ['test_batch.bin'],
           'classes': range(10)}


def prepare(record, training):
    """A record, string [] -> image, float32 [24, 24, 3], and label, int32 []."""
    values = tf.io.decode_raw(record, tf.uint8)
    image = tf.transpose(tf.reshape(tf.cast(values[1:], tf.float32), [3, 32, 32]), [1, 2, 0])
    if training:
        image = tf.image.random_flip_left_right(tf.image.random_crop(image, [24, 24, 3]))
        image = tf.image.random_contrast(tf.image.random_brightness(image, 63), 0.2, 1.8)
    else:
        image = tf.image.central_crop(image, 24 / 32)
    return tf.image.per_image_standardization(image), tf.cast(values[0], tf.int32)


def batches(paths, training, batch_size=128):
    """A `tf.data.Dataset` of (images, labels): endless and shuffled in training, else in order."""
    records = tf.data.FixedLengthRecordDataset(sorted(map(str, paths)), RECORD_BYTES)
    if training:
        records = records.shuffle(20000).repeat()
    images = records.map(lambda record: prepare(record, training), tf.data.AUTOTUNE)
    return images.batch(batch_size).prefetch(tf.data.AUTOTUNE)


class LocalResponseNormalization(layers.Layer):
    """`tf.nn.lrn(net, 4, bias=1.0, alpha=0.001 / 9, beta=0.75)` in operations of every backend."""

    def call(self, net):
        channels = np.arange(net.shape[-1])
        band = (abs(channels - channels[:, np.newaxis]) <= 4).astype('float32')
        return net * (1.0 + 0.001 / 9 * ops.matmul(ops.square(net), band)) ** -0.75


def network(classes=10):
    """A Keras model: images, float32 [batch, 24, 24, 3] -> logits, float32 [batch, classes]."""
    def start(stddev, bias):
        return {'kernel_initializer': keras.initializers.TruncatedNormal(stddev=stddev),
                'bias_initializer': keras.initializers.Constant(bias)}

    conv = {'filters': 64, 'kernel_size': 5, 'padding': 'same', 'activation': 'relu'}
    local = {'activation': 'relu', 'kernel_regularizer': keras.regularizers.L2(0.004 / 2)}
    return keras.Sequential([
        keras.Input([24, 24, 3]),
        layers.Conv2D(**conv, **start(5e-2, 0.0), name='conv1'),
        layers.MaxPooling2D(3, 2, padding='same'),
        LocalResponseNormalization(name='norm1'),
        layers.Conv2D(**conv, **start(5e-2, 0.1), name='conv2'),
        LocalResponseNormalization(name='norm2'),
        layers.MaxPooling2D(3, 2, padding='same'),
        layers.Flatten(),
        layers.Dense(384, **local, **start(0.04, 0.1), name='local3'),
        layers.Dense(192, **local, **start(0.04, 0.1), name='local4'),
        layers.Dense(classes, **start(1 / 192, 0.0), name='softmax_linear')])


def load(model, checkpoint, averaged=True):
    """Sets the model's weights to those of a TensorFlow 1 checkpoint, by name."""
    reader = tf.train.load_checkpoint(checkpoint)
    suffix = '/ExponentialMovingAverage' if averaged else ''
    for layer in filter(lambda layer: layer.weights, model.layers):
        layer.set_weights([reader.get_tensor(f'{layer.name}/{part}{suffix}')
                           for part in ('weights', 'biases')])


class MovingAverages(keras.callbacks.Callback):
    """Averages of the weights, as `tf.train.ExponentialMovingAverage` with `num_updates` does."""

    def on_train_begin(self, logs=None):
        self.values = self.model.get_weights()

    def on_train_batch_end(self, batch, logs=None):
        step = int(self.model.optimizer.iterations)
        decay = min(0.9999, (1 + step) / (10 + step))
        self.values = [value - (1 - decay) * (value - weight)
                       for value, weight in zip(self.values, self.model.get_weights())]


def train(model, paths, steps, rate=0.1, every=100, batch_size=128):
    """Trains; returns the mean loss of each `every` steps, and the averaged weights."""
    size = sum(path.stat().st_size for path in map(pathlib.Path, paths))
    decay_steps = size * 350 // (RECORD_BYTES * batch_size)
    schedule = keras.optimizers.schedules.ExponentialDecay(rate, decay_steps, 0.1, staircase=True)
    model.compile(keras.optimizers.SGD(schedule),
                  keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    averages = MovingAverages()
    history = model.fit(batches(paths, True, batch_size), steps_per_epoch=every, verbose=2,
                        epochs=steps // every, shuffle=False, callbacks=[averages])
    return history.history['loss'], averages.values


def precision(model, paths):
    """Fraction of the images of the record files whose largest logit is that of the label."""
    right = [model.predict_on_batch(images.numpy()).argmax(1) == labels.numpy()
             for images, labels in batches(paths, training=False)]
    return np.concatenate(right).mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--records', type=pathlib.Path,
                        default='/tmp/cifar10_data/cifar-10-batches-bin')
    parser.add_argument('--steps', type=int, default=1000, help='multiple of 100')
    parser.add_argument('--checkpoint', help='checkpoint to evaluate, without .index')
    options = parser.parse_args()
    own = options.records / 'dataset.json'
    row = json.loads(own.read_text(encoding='utf-8')) if own.exists() else CIFAR10
    training, test = ([path for name in row[split] for path in options.records.glob(name)]
                      for split in ('train_files', 'test_files'))
    if not training or not test:
        raise SystemExit(f'--records is {options.records}; expected a folder with data_batch_*.bin '
                         'and test_batch.bin: run cifar10_train.py first, which downloads them')
    if options.steps < 100 or options.steps % 100:
        raise SystemExit(f'--steps is {options.steps}; expected a positive multiple of 100')
    if options.checkpoint and not pathlib.Path(options.checkpoint + '.index').exists():
        raise SystemExit(f'--checkpoint is {options.checkpoint}; expected a checkpoint such as '
                         '/tmp/cifar10_train/model.ckpt-1000: look into the folder')
    model = network(len(row['classes']))
    if options.checkpoint:
        load(model, options.checkpoint, averaged=False)
        raw = precision(model, test)
        load(model, options.checkpoint)
    else:
        averaged = train(model, training, options.steps)[1]
        raw = precision(model, test)
        model.set_weights(averaged)
    print(f'precision @ 1 = {precision(model, test):.3f}, with raw weights {raw:.3f}')


if __name__ == '__main__':
    main()
