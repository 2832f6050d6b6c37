"""The linear scaling rule: with k batches per step, k times the learning rate, after a warm-up.

Goyal et al., "Accurate, Large Minibatch SGD" (2017), https://arxiv.org/abs/1706.02677.
"""
import tensorflow.compat.v1 as tf

WARMUP_EPOCHS = 5  # Of the paper, and of NNabla's example.


def batches_per_step(batch_size, batches, unit):
    """The number of batches by which the rule multiplies the learning rate, an int.

    A batch of k times the usual size counts as k batches, so that one tower with 256 images trains
    as two with 128. A batch of any other size counts as one.

    Args:
        batch_size: number of images in each batch.
        batches: number of batches in a step, over all towers and workers.
        unit: the usual size of a batch, for which the learning rate was chosen.
    """
    multiple, rest = divmod(batch_size, unit)
    return batches * (1 if rest else multiple)


def factor(global_step, steps_per_epoch, batches, warmup_epochs=WARMUP_EPOCHS):
    """What to multiply the rate by, float32 []: rises linearly from 1 to `batches`, then stays.

    This is the gradual warm-up of the paper's section 2.2; the rule is in section 2.1.

    Args:
        global_step: int [], the number of earlier steps.
        steps_per_epoch: number of steps in an epoch, a float.
        batches: number of batches per step, see `batches_per_step`.
        warmup_epochs: length of the warm-up; 0 disables it.
    """
    warmup_steps = steps_per_epoch * warmup_epochs
    if warmup_steps == 0:
        return tf.constant(float(batches))
    progress = tf.minimum(tf.cast(global_step, tf.float32) / warmup_steps, 1.0)
    return 1.0 + (batches - 1.0) * progress
