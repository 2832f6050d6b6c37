"""Training in float16."""
import tensorflow.compat.v1 as tf

# Multiplies the loss before differentiation; the gradients are divided by it in float32. Otherwise
# small ones underflow: float16 has no numbers below 6e-8. Micikevicius et al., "Mixed Precision
# Training" (2018), section 3.2.
_LOSS_SCALE = 128.0


def scaled(opt, dtype):
    """A `tf.train.Optimizer` whose gradients do not underflow if layers compute in `dtype`."""
    if dtype != tf.float16:
        return opt
    return tf.mixed_precision.MixedPrecisionLossScaleOptimizer(
        opt, tf.mixed_precision.FixedLossScale(_LOSS_SCALE))
