"""The tutorial's network in TensorFlow 2: tf.data instead of queues, Keras instead of sessions.

    python docs/tf2_equivalent.py --records=/tmp/cifar10_data/cifar-10-batches-bin --steps=1000
    python docs/tf2_equivalent.py --records=... --checkpoint=/tmp/cifar10_train/model.ckpt-1000

Reads the same record files, draws the same distortions and follows the same schedule. Prints the
precision @ 1 on the test images with the raw weights and with their moving averages. With
--checkpoint, evaluates a checkpoint of this project's trainers instead of training.
"""
import argparse
import glob
import os
import sys

import keras
import tensorflow as tf
from keras import layers

RECORD_BYTES = 1 + 3 * 32 * 32  # A label, then the red, green and blue plane.


def decode(record):
    """string [] -> image, float32 [32, 32, 3], and label, int32 []."""
    values = tf.io.decode_raw(record, tf.uint8)
    image = tf.transpose(tf.reshape(values[1:], [3, 32, 32]), [1, 2, 0])
    return tf.cast(image, tf.float32), tf.cast(values[0], tf.int32)


def distort(image, label):
    """A random crop, float32 [24, 24, 3], mirrored or not, of random brightness and contrast."""
    image = tf.image.random_flip_left_right(tf.image.random_crop(image, [24, 24, 3]))
    image = tf.image.random_contrast(tf.image.random_brightness(image, 63), 0.2, 1.8)
    return tf.image.per_image_standardization(image), label


def centre(image, label):
    """The central crop, float32 [24, 24, 3]."""
    return tf.image.per_image_standardization(tf.image.central_crop(image, 24 / 32)), label


def batches(paths, training, batch_size=128):
    """A `tf.data.Dataset` of (images, labels): endless and shuffled in training, else in order."""
    records = tf.data.FixedLengthRecordDataset(sorted(paths), RECORD_BYTES)
    if training:
        records = records.shuffle(20000).repeat()
    images = records.map(decode).map(distort if training else centre, tf.data.AUTOTUNE)
    return images.batch(batch_size).prefetch(tf.data.AUTOTUNE)


def network():
    """A Keras model from images, float32 [batch, 24, 24, 3], to logits, float32 [batch, 10]."""
    def start(stddev, bias):
        return {'kernel_initializer': keras.initializers.TruncatedNormal(stddev=stddev),
                'bias_initializer': keras.initializers.Constant(bias)}

    def normalise(net):
        return tf.nn.local_response_normalization(net, 4, bias=1.0, alpha=0.001 / 9, beta=0.75)

    conv = {'filters': 64, 'kernel_size': 5, 'padding': 'same', 'activation': 'relu'}
    local = {'activation': 'relu', 'kernel_regularizer': keras.regularizers.L2(0.004 / 2)}
    return keras.Sequential([
        keras.Input([24, 24, 3]),
        layers.Conv2D(**conv, **start(5e-2, 0.0), name='conv1'),
        layers.MaxPooling2D(3, 2, padding='same'),
        layers.Lambda(normalise, name='norm1'),
        layers.Conv2D(**conv, **start(5e-2, 0.1), name='conv2'),
        layers.Lambda(normalise, name='norm2'),
        layers.MaxPooling2D(3, 2, padding='same'),
        layers.Flatten(),
        layers.Dense(384, **local, **start(0.04, 0.1), name='local3'),
        layers.Dense(192, **local, **start(0.04, 0.1), name='local4'),
        layers.Dense(10, **start(1 / 192, 0.0), name='softmax_linear')])


def load(model, checkpoint, averaged=True):
    """Sets the model's weights to those of a TensorFlow 1 checkpoint, by name."""
    reader = tf.train.load_checkpoint(checkpoint)
    suffix = '/ExponentialMovingAverage' if averaged else ''
    for layer in model.layers:
        if layer.weights:
            layer.set_weights([reader.get_tensor(f'{layer.name}/{part}{suffix}')
                               for part in ('weights', 'biases')])


class MovingAverages(keras.callbacks.Callback):
    """Averages of the weights, as `tf.train.ExponentialMovingAverage` with `num_updates` does."""

    def on_train_begin(self, logs=None):
        self.values = [tf.Variable(weight) for weight in self.model.trainable_weights]

    def on_train_batch_end(self, batch, logs=None):
        step = int(self.model.optimizer.iterations)
        decay = min(0.9999, (1 + step) / (10 + step))
        for value, weight in zip(self.values, self.model.trainable_weights):
            value.assign_sub((1 - decay) * (value - weight))


def train(model, paths, steps, rate=0.1, every=100, batch_size=128):
    """Trains; returns the mean loss of each `every` steps, and the averaged weights."""
    epoch = sum(map(os.path.getsize, paths)) // RECORD_BYTES / batch_size  # In steps.
    schedule = keras.optimizers.schedules.ExponentialDecay(
        rate, int(epoch * 350), 0.1, staircase=True)
    model.compile(keras.optimizers.SGD(schedule),
                  keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    averages = MovingAverages()
    history = model.fit(batches(paths, training=True, batch_size=batch_size), verbose=2,
                        shuffle=False,  # The data set shuffles.
                        steps_per_epoch=every, epochs=steps // every, callbacks=[averages])
    return history.history['loss'], [value.numpy() for value in averages.values]


def precision(model, paths):
    """Fraction of the images of the record files whose largest logit is that of the label."""
    right = [tf.equal(tf.argmax(model(images), 1, tf.int32), labels)
             for images, labels in batches(paths, training=False)]
    return float(tf.reduce_mean(tf.cast(tf.concat(right, 0), tf.float32)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--records', default='/tmp/cifar10_data/cifar-10-batches-bin',
                        help='folder of the record files')
    parser.add_argument('--steps', type=int, default=1000, help='multiple of 100')
    parser.add_argument('--rate', type=float, default=0.1, help='initial learning rate')
    parser.add_argument('--checkpoint', help='checkpoint to evaluate, without .index')
    options = parser.parse_args()
    training, test = (glob.glob(os.path.join(options.records, name))
                      for name in ('data_batch_*.bin', 'test_batch.bin'))
    if not training or not test:
        sys.exit(f'--records is {options.records}; expected a folder with data_batch_*.bin and '
                 'test_batch.bin: run cifar10_train.py first, which downloads them')
    if options.steps < 100 or options.steps % 100:
        sys.exit(f'--steps is {options.steps}; expected a positive multiple of 100')
    if options.checkpoint and not os.path.exists(options.checkpoint + '.index'):
        sys.exit(f'--checkpoint is {options.checkpoint}; expected a checkpoint such as '
                 '/tmp/cifar10_train/model.ckpt-1000: look into the folder')
    model = network()
    if options.checkpoint:
        load(model, options.checkpoint, averaged=False)
        raw = precision(model, test)
        load(model, options.checkpoint)
    else:
        averaged = train(model, training, options.steps, options.rate)[1]
        raw = precision(model, test)
        for variable, value in zip(model.trainable_weights, averaged):
            variable.assign(value)
    print(f'precision @ 1 = {precision(model, test):.3f}, with raw weights {raw:.3f}')


if __name__ == '__main__':
    main()
