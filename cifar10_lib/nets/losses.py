"""Parts of the loss that the tutorial does not have."""
import tensorflow.compat.v1 as tf


def add_training_error(logits, labels):
    """Adds the fraction of images whose top prediction is wrong, float32 [], to `errors`.

    `errors` is a collection; training averages it over the towers. For the arguments see
    `cifar10.loss`.
    """
    with tf.name_scope('error'):
        is_wrong = tf.not_equal(tf.argmax(logits, axis=1), tf.cast(labels, tf.int64))
        tf.add_to_collection('errors', tf.reduce_mean(tf.cast(is_wrong, tf.float32)))


def smoothed(logits, labels, label_smoothing):
    """`cifar10.loss` with smoothed labels: Szegedy et al., "Rethinking the Inception Architecture"
    (2015), section 7.

    `label_smoothing` is the fraction of each label that is spread evenly over all classes.
    """
    add_training_error(logits, labels)
    cross_entropy = tf.losses.softmax_cross_entropy(
        tf.one_hot(tf.cast(labels, tf.int64), logits.shape.as_list()[-1]), logits,
        label_smoothing=label_smoothing, loss_collection=None)
    tf.add_to_collection('losses', tf.identity(cross_entropy, name='cross_entropy'))
    return tf.add_n(tf.get_collection('losses'), name='total_loss')
