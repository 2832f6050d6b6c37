"""Schedules of the learning rate that the tutorial does not have."""
import math

import tensorflow.compat.v1 as tf

FLAGS = tf.app.flags.FLAGS  # Parses the command line on first use, as in `cifar10`.


def linear_scaling(global_step, source, batches_per_step, usual_size):
    """What to multiply the rate by, float32 []: k with k batches per step, after a warm-up.

    It rises linearly from 1 to k during `--warmup_epochs`, by default the paper's 5. Goyal et al.,
    "Accurate, Large Minibatch SGD" (2017), sections 2.1, 2.2, https://arxiv.org/abs/1706.02677.

    A batch of k times the usual size counts as k batches, so that one tower with 256 images trains
    as two with 128. A batch of any other size counts as one.

    Args:
        global_step: int [], the number of earlier steps.
        source: a `Source`.
        batches_per_step: number of its batches in a step, over all towers and workers.
        usual_size: the size of a batch for which the learning rate was chosen.
    """
    multiple, rest = divmod(source.batch_size, usual_size)
    batches = batches_per_step * (1 if rest else multiple)
    warmup_steps = source.steps_per_epoch(batches_per_step) * FLAGS.warmup_epochs
    if warmup_steps == 0:
        return tf.constant(float(batches))
    progress = tf.minimum(tf.cast(global_step, tf.float32) / warmup_steps, 1.0)
    return 1.0 + (batches - 1.0) * progress


def one_cycle(global_step, batches_per_step):
    """The rate rises from 0 and falls once, as a cosine, to 0 at `--max_steps`: float32 [].

    Smith and Topin, "Super-Convergence" (2017), https://arxiv.org/abs/1708.07120. The peak is
    `--learning_rate`, if given. `global_step`, int [], is the number of earlier steps.
    """
    del batches_per_step
    peak = 0.06 if FLAGS.learning_rate is None else FLAGS.learning_rate
    rising = 0.15  # Fraction of the steps.
    # The first step is in the middle of its share, so that its rate is above zero.
    done = (tf.cast(global_step, tf.float32) + 0.5) / max(1, FLAGS.max_steps)
    fallen = tf.clip_by_value((done - rising) / (1.0 - rising), 0.0, 1.0)
    return peak * tf.minimum(done / rising, 0.5 + 0.5 * tf.cos(math.pi * fallen))
