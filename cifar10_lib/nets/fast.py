"""What `--net=tutorial_fast` changes in the tutorial's network: initial values and weight decay."""
import tensorflow.compat.v1 as tf

# Weight decay by layer; the tutorial's is 0.004, only for local3 and local4. Chosen on held-out
# images, like the other numbers of this recipe: docs/results.md.
_DECAY = {'conv1': 0.0005, 'conv2': 0.0005, 'local3': 0.001, 'local4': 0.001}


def inference(build, training):
    """Calls `build`, which builds the tutorial's layers, with other initial values; in training,
    replaces its losses by this weight decay.

    The variance of the initial weights is 2 / (number of inputs), so that the activations of all
    layers have similar variances: He et al., "Delving Deep into Rectifiers" (2015),
    https://arxiv.org/abs/1502.01852.

    Returns the result of `build`, the logits.
    """
    def initial_weights(getter, name, *args, **options):
        if name.removesuffix('/weights') in _DECAY:
            options['initializer'] = tf.initializers.he_normal()
        return getter(name, *args, **options)

    losses = tf.get_collection_ref('losses')
    before = len(losses)
    with tf.variable_scope(tf.get_variable_scope(), custom_getter=initial_weights,
                           auxiliary_name_scope=False):
        logits = build()
    if training:
        del losses[before:]
        for variable in tf.trainable_variables():
            layer = variable.op.name.removesuffix('/weights')
            if layer in _DECAY:
                losses.append(tf.multiply(
                    tf.nn.l2_loss(variable), _DECAY[layer], name=f'{layer}/weight_decay'))
    return logits
