"""`tf.contrib.rnn.BasicLSTMCell` without tf_keras, and its weights for `keras.layers.LSTM`."""
import numpy as np
import tensorflow.compat.v1 as tf


class BasicLSTMCell:
    """The cell with the same variables, for `tf.nn.dynamic_rnn`.

    Makes its variables at once: `dynamic_rnn` would cache their reads. The names are those of a
    single cell; of the k-th in a `MultiRNNCell`, the scope is
    'rnn/multi_rnn_cell/cell_k/basic_lstm_cell'.
    """

    def __init__(self, inputs, units, forget_bias=1.0, scope='rnn/basic_lstm_cell'):
        """`inputs` and `units` are the numbers of channels of its inputs and outputs."""
        self.state_size, self.output_size, self._forget_bias = (units, units), units, forget_bias
        with tf.variable_scope(scope):
            self._kernel = tf.get_variable('kernel', [inputs + units, 4 * units])
            self._bias = tf.get_variable('bias', [4 * units], initializer=tf.zeros_initializer())

    def zero_state(self, batch_size, dtype):
        return tuple(tf.zeros([batch_size, size], dtype) for size in self.state_size)

    def __call__(self, inputs, state, scope=None):
        """One step: float32 [batch, inputs] and the state -> [batch, units] and the new state."""
        c, h = state
        gates = tf.matmul(tf.concat([inputs, h], 1), self._kernel) + self._bias
        i, j, f, o = tf.split(gates, 4, axis=1)
        c = c * tf.sigmoid(f + self._forget_bias) + tf.sigmoid(i) * tf.tanh(j)
        h = tf.tanh(c) * tf.sigmoid(o)
        return h, (c, h)


def keras_weights(kernel, bias, forget_bias=1.0):
    """What `keras.layers.LSTM.set_weights` takes, from the values of a cell's variables.

    Keras has the gates in another order, two kernels, and the forget bias in the bias. For the
    state of an optimizer, which has the same shapes, pass forget_bias=0.
    """
    units = len(bias) // 4
    kernel, bias = (np.concatenate([np.split(value, 4, axis=-1)[k] for k in (0, 2, 1, 3)], axis=-1)
                    for value in (kernel, bias))
    bias[units:2 * units] += forget_bias
    return [kernel[:-units], kernel[-units:], bias]
