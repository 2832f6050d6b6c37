"""A trainer from nothing: a graph, a queue, a network, a loss and a loop.

Section 2 of docs/tutorial.md builds it in four stages.
"""
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
tf.set_random_seed(1)
random = np.random.RandomState(1)


# Stage 1: images and a queue. Two kinds: bright stripes, horizontal (0) or vertical (1), and noise.
def draw(count):
    """Images, float32 [count, 8, 8, 1], and labels, int32 [count]."""
    labels = random.randint(0, 2, count)
    stripes = np.tile([[0.0], [1.0]], [4, 8])  # [8, 8]
    images = np.where(labels[:, None, None], stripes.T, stripes) + random.normal(size=[count, 8, 8])
    return images[..., None].astype(np.float32), labels.astype(np.int32)


indices = tf.random_uniform([32], maxval=500, dtype=tf.int32)  # Of 500 images; drawn in each run.
train_images, train_labels = map(tf.constant, draw(500))
queue = tf.FIFOQueue(4, [tf.float32, tf.int32], [[32, 8, 8, 1], [32]])
enqueue = queue.enqueue([tf.gather(train_images, indices), tf.gather(train_labels, indices)])
tf.train.add_queue_runner(tf.train.QueueRunner(queue, [enqueue]))
images, labels = queue.dequeue()
print(images)


# Stage 2: the network. Nothing is computed yet; the functions return tensors.
def inference(images):
    """Images, float32 [batch, 8, 8, 1] -> logits, float32 [batch, 2]."""
    with tf.variable_scope('conv1'):
        kernel = tf.get_variable('weights', [3, 3, 1, 4])
        conv1 = tf.nn.conv2d(images, kernel, [1, 2, 2, 1], 'SAME')  # Stride 2: [batch, 4, 4, 4].
        conv1 = tf.nn.relu(conv1)
    with tf.variable_scope('softmax_linear'):
        weights = tf.get_variable('weights', [64, 2])
        return tf.matmul(tf.reshape(conv1, [-1, 64]), weights)


logits = inference(images)
print(logits, [variable.op.name for variable in tf.trainable_variables()])

# Stage 3: the loss, its gradients, and the step against them.
loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
variables = tf.trainable_variables()
gradients = tf.gradients(loss, variables)
with tf.control_dependencies(gradients):  # All are computed before the first variable changes.
    train_op = tf.group(*[variable.assign_sub(0.1 * gradient)
                          for variable, gradient in zip(variables, gradients)])
print(gradients)

# Stage 4: the loop, and the precision on images that training has not seen.
with tf.variable_scope(tf.get_variable_scope(), reuse=True):
    test_images, test_labels = draw(200)
    right = tf.nn.in_top_k(inference(tf.constant(test_images)), test_labels, 1)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    coordinator = tf.train.Coordinator()
    threads = tf.train.start_queue_runners(session, coordinator)
    for step in range(201):
        _, value = session.run([train_op, loss])
        if step % 100 == 0:
            print(f'step {step}, loss = {value:.1f}')
    print(f'precision @ 1 = {session.run(right).mean():.2f}')
    coordinator.request_stop()
    coordinator.join(threads)
