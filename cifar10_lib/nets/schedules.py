"""Schedules of the learning rate that the tutorial does not have."""
import math

import tensorflow.compat.v1 as tf


def linear_scaling(global_step, batches, warmup_steps):
    """What to multiply the rate by, float32 []: the number of batches per step, after a warm-up.

    It rises linearly from 1 in the warm-up. Goyal et al., "Accurate, Large Minibatch SGD" (2017),
    sections 2.1, 2.2, https://arxiv.org/abs/1706.02677.

    Args:
        global_step: int [], the number of earlier steps.
        batches: number of batches per step, over all towers and workers; see `usual_batches`.
        warmup_steps: number of steps of the warm-up, a float.
    """
    if warmup_steps == 0:
        return tf.constant(float(batches))
    progress = tf.minimum(tf.cast(global_step, tf.float32) / warmup_steps, 1.0)
    return 1.0 + (batches - 1.0) * progress


def usual_batches(images_per_step, batch_size, usual_size):
    """Number of batches of the usual size in a step, an int.

    A batch of k times the usual size counts as k batches, so that one tower with 256 images trains
    as two with 128. A batch of any other size counts as one.
    """
    batches = images_per_step // batch_size
    multiple, rest = divmod(batch_size, usual_size)
    if rest:
        return batches
    return batches * multiple


def one_cycle(global_step, max_steps, peak):
    """The rate rises from 0 and falls once, as a cosine, to 0 at the last step: float32 [].

    Smith and Topin, "Super-Convergence" (2017), https://arxiv.org/abs/1708.07120. `global_step`,
    int [], is the number of earlier steps, `peak` the highest rate.
    """
    rising = 0.15  # Fraction of the steps.
    # The first step is in the middle of its share, so that its rate is above zero.
    done = (tf.cast(global_step, tf.float32) + 0.5) / max_steps
    fallen = tf.clip_by_value((done - rising) / (1.0 - rising), 0.0, 1.0)
    return peak * tf.minimum(done / rising, 0.5 + 0.5 * tf.cos(math.pi * fallen))
