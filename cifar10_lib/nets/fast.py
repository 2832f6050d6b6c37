"""What `--net=tutorial_fast` changes in the tutorial's network: initial values and weight decay."""
import tensorflow.compat.v1 as tf

# Weight decay by layer; the tutorial's is 0.004, only for local3 and local4. Chosen on held-out
# images, like the other numbers of this recipe: docs/results.md.
_DECAY = {'conv1': 0.0005, 'conv2': 0.0005, 'local3': 0.001, 'local4': 0.001}


def initial_weights(getter, name, *args, **options):
    """A `custom_getter` of `tf.variable_scope`: weights whose variance is 2 / (number of inputs).

    Then the activations of all layers have similar variances. He et al., "Delving Deep into
    Rectifiers" (2015), https://arxiv.org/abs/1502.01852.
    """
    if name.removesuffix('/weights') in _DECAY:
        options['initializer'] = tf.initializers.he_normal()
    return getter(name, *args, **options)


def add_weight_decay():
    """Adds the weight decay of each layer to the collection `losses`."""
    for variable in tf.trainable_variables():
        layer = variable.op.name.removesuffix('/weights')
        if layer in _DECAY:
            tf.add_to_collection('losses', tf.multiply(
                tf.nn.l2_loss(variable), _DECAY[layer], name=f'{layer}/weight_decay'))
