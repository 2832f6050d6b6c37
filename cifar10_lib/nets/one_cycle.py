"""The one-cycle schedule: the learning rate rises and falls once, and ends at zero with the run.

Smith and Topin, "Super-Convergence" (2017), https://arxiv.org/abs/1708.07120.
"""
import tensorflow.compat.v1 as tf

# Chosen with Nesterov momentum 0.9, on held-out images: docs/results.md.
PEAK = 0.03
RISING = 0.15


def rate(global_step, steps, peak=PEAK, rising=RISING):
    """The learning rate, float32 []: from 0 to `peak` in the first part of the steps, then to 0.

    Args:
        global_step: int [], the number of earlier steps.
        steps: number of steps of the whole run.
        peak: the highest rate.
        rising: fraction of the steps in which the rate rises.
    """
    # The first step is in the middle of its share, so that its rate is above zero.
    done = (tf.cast(global_step, tf.float32) + 0.5) / max(1, steps)
    return peak * tf.maximum(0.0, tf.minimum(done / rising, (1.0 - done) / (1.0 - rising)))
