"""`tf.contrib.crf.crf_log_likelihood` for today's TensorFlow."""
import tensorflow.compat.v1 as tf


def crf_log_likelihood(inputs, tag_indices, sequence_lengths, transition_params=None):
    """Log-likelihood of sequences of tags in a linear-chain conditional random field.

    Args:
        inputs: float32 [batch, time, tags], the score of each tag at each position.
        tag_indices: int32 [batch, time], the correct tags.
        sequence_lengths: int32 [batch], each at least 1.
        transition_params: float32 [tags, tags], the score of tag j after tag i; by default the
            variable `transitions`.

    Returns:
        Log-likelihoods, float32 [batch], and `transition_params`.
    """
    tags = inputs.shape.as_list()[2]
    if transition_params is None:
        transition_params = tf.get_variable('transitions', [tags, tags])
    inside = tf.sequence_mask(sequence_lengths, tf.shape(inputs)[1])  # [batch, time]
    mask = tf.cast(inside, tf.float32)
    one_hot = tf.one_hot(tag_indices, tags)  # [batch, time, tags]
    pairs = tf.einsum('bti,ij,btj->bt', one_hot[:, :-1], transition_params, one_hot[:, 1:])
    score = (tf.reduce_sum(mask * tf.reduce_sum(one_hot * inputs, 2), 1)
             + tf.reduce_sum(mask[:, 1:] * pairs, 1))  # [batch]

    def step(alphas, position):
        scores, inside = position  # [batch, tags] and [batch].
        following = tf.reduce_logsumexp(alphas[:, :, tf.newaxis] + transition_params, 1) + scores
        return tf.where(inside, following, alphas)

    # Log of the sum over all paths that end in a tag, [batch, tags].
    alphas = tf.foldl(step, (tf.transpose(inputs[:, 1:], [1, 0, 2]), tf.transpose(inside[:, 1:])),
                      initializer=inputs[:, 0])
    return score - tf.reduce_logsumexp(alphas, 1), transition_params
