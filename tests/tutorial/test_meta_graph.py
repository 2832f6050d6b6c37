"""Programs that continue from the .meta file of a checkpoint differentiate our graph."""
import json

import numpy as np
import plain
import pytest
import spawn
import tensorflow.compat.v1 as tf
from absl import flags

import cifar10

FLAGS = flags.FLAGS

# Somebody else's: a saliency map, and a new last layer that is trained with all layers below. It
# takes the path of a checkpoint.
CONTINUED = '''
import json, sys
import numpy as np
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
images = tf.placeholder(tf.float32, [8, 24, 24, 3])
saver = tf.train.import_meta_graph(
    sys.argv[1] + '.meta', clear_devices=True, input_map={'input/shuffle_batch:0': images})
graph = tf.get_default_graph()
logits = graph.get_tensor_by_name('softmax_linear/softmax_linear:0')
saliency, = tf.gradients(logits[:, 3], images)
with tf.variable_scope('new'):
    weights = tf.get_variable('weights', [192, 3], initializer=tf.zeros_initializer())
labels = tf.placeholder(tf.int32, [8])
loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(
    labels=labels, logits=tf.matmul(graph.get_tensor_by_name('local4/local4:0'), weights)))
step = tf.train.GradientDescentOptimizer(0.05).minimize(loss)
first, *_ = tf.trainable_variables()
fed = {images: np.random.RandomState(0).normal(size=[8, 24, 24, 3]), labels: np.arange(8) % 3}
with tf.Session() as session:
    session.run(weights.initializer)
    saver.restore(session, sys.argv[1])
    before = session.run(first)
    map_ = session.run(saliency, fed)
    losses = [float(session.run([loss, step], fed)[0]) for _ in range(30)]
    print(json.dumps({'map': map_.tolist(), 'losses': losses, 'first': first.op.name,
                      'moved': float(abs(session.run(first) - before).max())}))
'''


@pytest.mark.slow
def test_another_process_differentiates_a_trained_graph(trained):
    """Loss starts at log 3, and the update reaches conv1 through both normalisations. The map is
    that of TensorFlow's own operations with the same weights."""
    path = tf.train.latest_checkpoint(FLAGS.train_dir)
    done = spawn.run(['-c', CONTINUED, path])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    np.testing.assert_allclose(found['losses'][0], np.log(3), rtol=1e-5)
    assert found['losses'][-1] < 0.9 * found['losses'][0]
    assert found['first'] == 'conv1/weights' and found['moved'] > 0
    images = tf.constant(np.random.RandomState(0).normal(size=[8, 24, 24, 3]), tf.float32)
    reader = tf.train.load_checkpoint(path)
    logits = plain.logits(images, {name: reader.get_tensor(name) for name in plain.SHAPES})
    with tf.Session() as session:
        expected, = session.run(tf.gradients(logits[:, 3], images))
    assert abs(expected).max() > 0
    np.testing.assert_allclose(found['map'], expected, atol=1e-4 * abs(expected).max())


def test_the_same_process_differentiates_an_imported_graph():
    """As often as it likes: the imported graph has the gradient of the first, and one of it."""
    values = np.random.RandomState(0).normal(size=[2, 24, 24, 3])
    weights = plain.weights(seed=1, scale=2.0)

    def gradients(graph):
        images = graph.get_tensor_by_name('images:0')
        logits = graph.get_tensor_by_name('softmax_linear/softmax_linear:0')
        first, = tf.gradients(logits[:, 0], images)
        second, = tf.gradients(first, images)
        with tf.Session() as session:
            session.run([tf.raw_ops.AssignVariableOp(
                resource=graph.get_tensor_by_name(f'{name}:0'), value=value)
                for name, value in weights.items()])
            return session.run([first, second], {images: values})

    cifar10.inference(tf.placeholder(tf.float32, [None, 24, 24, 3], name='images'))
    graph_def = tf.get_default_graph().as_graph_def()
    expected = gradients(tf.get_default_graph())
    with tf.Graph().as_default() as imported:
        tf.import_graph_def(graph_def, name='')
        found = gradients(imported)
    for got, wanted in zip(found, expected):
        assert abs(wanted).max() > 0
        np.testing.assert_allclose(got, wanted, atol=1e-5 * abs(wanted).max())
