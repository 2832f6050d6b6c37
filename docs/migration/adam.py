"""Continues a run of `tf.train.AdamOptimizer` with `keras.optimizers.Adam`."""
import math

import tensorflow as tf


def load_adam(optimizer, variables, checkpoint, number=0):
    """Sets the state of a Keras optimizer to that in a checkpoint of a TensorFlow 1 program.

    Args:
        optimizer: `keras.optimizers.Adam(..., epsilon=1e-8)`, TensorFlow 1's default; Keras's own
            default is 1e-7.
        variables: dictionary from names in the checkpoint to the model's variables, in the order
            of `model.trainable_variables`.
        checkpoint: path without `.index`.
        number: 0 for the first optimizer that the program created, 1 for the second.
    """
    reader = tf.train.load_checkpoint(checkpoint)
    # Not beta1_power: 0.9 ** n is 0 in float32 after a thousand steps, 0.999 ** n after 100,000.
    power = max(1e-38, float(reader.get_tensor('beta2_power' + (f'_{number}' if number else ''))))
    optimizer.build(list(variables.values()))
    optimizer.iterations.assign(round(math.log(power) / math.log(optimizer.beta_2)) - 1)
    slots = optimizer.variables[2:]  # After the iterations and the learning rate.
    for name, momentum, velocity in zip(variables, slots[::2], slots[1::2]):
        momentum.assign(reader.get_tensor(f'{name}/Adam'))
        velocity.assign(reader.get_tensor(f'{name}/Adam_1'))
