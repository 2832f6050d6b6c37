"""Trains a network on several GPUs with synchronous updates.

    python cifar10_multi_gpu_train.py --num_gpus=2

Each GPU runs a copy of the network, a tower, on its own batches. The variables are in host memory,
unless --variables=gpu, and are updated with the mean of the towers' gradients. With fewer GPUs than
towers, towers share GPUs; without GPUs, all run on the CPU. The checkpoints are the same as those
of cifar10_train.py. Unlike the published script, it prints the mean loss of all towers and the time
of a whole step.
"""
from cifar10_lib.program import quiet

quiet.import_tensorflow()

import tensorflow.compat.v1 as tf
from absl import flags
from six.moves import xrange

import cifar10
from cifar10_lib import recipes, settings
from cifar10_lib.nets import precision
from cifar10_lib.program import console, devices, startup
from cifar10_lib.runs import starting
from cifar10_lib.training import monitored, session_hooks, worker
from cifar10_lib.workers import cluster

settings.define_training_flags(max_steps=1000000)
flags.DEFINE_integer('num_gpus', 1, 'Number of towers, one per GPU; each takes a batch per step.',
                     lower_bound=1, upper_bound=256)

FLAGS = tf.app.flags.FLAGS  # Parses the command line on first use, as in `cifar10`.


def tower_loss(scope, images, labels, recipe=None, num_classes=None):
    """Builds one tower, and returns its loss.

    Args:
        scope: name scope of the tower, such as 'tower_0/'.
        images: float32 [batch, height, width, 3].
        labels: int32 [batch].
        recipe: a `recipes.Recipe`; by default that of --net.
        num_classes: number of classes; by default that of --dataset.

    Returns:
        float32 [], the total loss of the tower's batch.
    """
    recipe = recipe or recipes.chosen()
    num_classes = num_classes or cifar10.default_source().num_classes
    with tf.name_scope(scope):
        logits = recipe.logits(images, num_classes, training=True)

        # Adds the tower's losses to the collection; the sum that it returns has those of earlier
        # towers, too.
        _ = recipe.loss(logits, labels)

        # Keep those whose names start with this tower's scope.
        losses = tf.get_collection('losses', scope)

        return tf.add_n(losses, name='total_loss')


def average_gradients(tower_grads):
    """Averages the gradient of each variable over all towers: the point where they synchronise.

    Args:
        tower_grads: list over towers of lists of (gradient, variable), all in the same order.

    Returns:
        List of (mean gradient, variable), without variables for which no tower has a gradient.

    Raises:
        ValueError: only some of the towers have a gradient for a variable.
    """
    average_grads = []
    for grad_and_vars in zip(*tower_grads):
        # One variable, which the towers share, with its gradient from each tower.
        grads = [grad for grad, _ in grad_and_vars if grad is not None]
        var = grad_and_vars[0][1]
        if not grads:
            continue
        if len(grads) < len(grad_and_vars):
            raise ValueError(f'{len(grads)} of {len(grad_and_vars)} towers have a gradient for '
                             f'{var.op.name}; expected all or none')
        with tf.name_scope(f'average_gradients/{var.op.name}/'), tf.device(var.device):
            average_grads.append((tf.add_n(grads) / len(grads), var))
    return average_grads


def average_losses(num_towers):
    """Replaces the losses of the towers in the collection `losses` by their means over the towers.

    Returns the mean of the total loss, float32 [].
    """
    scopes = [f'{cifar10.TOWER_NAME}_{i}/' for i in xrange(num_towers)]
    tower_losses = [tf.get_collection('losses', scope) for scope in scopes]
    means = []
    with tf.name_scope(None):  # Their names are those of cifar10_train.py: 'cross_entropy' etc.
        for losses in zip(*tower_losses):
            name = losses[0].op.name.removeprefix(scopes[0])
            means.append(tf.divide(tf.add_n(losses), num_towers, name=name))
        tf.get_collection_ref('losses')[:] = means
        return tf.add_n(means, name='total_loss')


def train(source=None, recipe=None, start=None):
    """Builds the towers, and runs training until `start.max_steps`.

    Args:
        source: the `image_source.Source` of the training images.
        recipe: the `recipes.Recipe`: `cifar10.inference`, unless --net names another network.
        start: the `starting.Start` of the run, which says where to begin and when to stop.
    """
    if start is None:  # Programs written against the tutorial pass nothing.
        main()
        return
    with tf.Graph().as_default(), tf.device(devices.variables_on(start.run.variables)), \
            tf.device('/cpu:0'):
        monitored.use_seed(start)
        # The number of steps, each of a batch per tower.
        global_step = tf.train.get_or_create_global_step()

        # The rate depends on the number of images, so that towers do not change it.
        lr = recipe.learning_rate(global_step, source, start.epochs)
        opt = recipe.own_optimizer(lr, start.max_steps)
        if opt is None:
            opt = precision.scaled(tf.train.GradientDescentOptimizer(lr), recipe.dtype)

        images, labels = cifar10.distorted_inputs(source, recipe.distort)
        batch_queue = tf.FIFOQueue(2 * FLAGS.num_gpus, [images.dtype, labels.dtype],
                                   [images.shape, labels.shape], name='prefetch_queue')
        enqueue_op = batch_queue.enqueue([images, labels])
        tf.train.add_queue_runner(tf.train.QueueRunner(batch_queue, [enqueue_op]))

        # For each tower, its gradients.
        tower_grads = []
        with tf.variable_scope(tf.get_variable_scope()):
            for i in xrange(FLAGS.num_gpus):
                with tf.name_scope('%s_%d' % (cifar10.TOWER_NAME, i)) as scope:
                    # Each tower takes a batch of its own.
                    image_batch, label_batch = batch_queue.dequeue()
                    with tf.device('/gpu:%d' % i):
                        # A whole network, with the variables of the first tower.
                        loss = tower_loss(
                            scope, image_batch, label_batch, recipe, source.num_classes)

                        grads = opt.compute_gradients(loss)

                    tower_grads.append(grads)

                    # Later towers share the variables.
                    tf.get_variable_scope().reuse_variables()

                    # Summaries, and updates of batch norms' statistics, are the first tower's.
                    if i == 0:
                        summaries = tf.get_collection(tf.GraphKeys.SUMMARIES)
                        update_ops = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
        tf.get_collection_ref(tf.GraphKeys.UPDATE_OPS)[:] = update_ops

        # Here the towers wait for one another.
        grads = average_gradients(tower_grads)
        loss = average_losses(FLAGS.num_gpus)

        # One update of the shared variables. Its summaries join those of the first tower.
        before = len(tf.get_collection(tf.GraphKeys.SUMMARIES))
        train_op = cifar10.train(loss, global_step, lr, opt, grads)
        summaries += tf.get_collection(tf.GraphKeys.SUMMARIES)[before:]

        with monitored.session(start, hooks=[
                tf.train.StopAtStepHook(last_step=start.max_steps),
                tf.train.NanTensorHook(loss),
                session_hooks.LoggerHook(loss, start.epochs, start.run.log_frequency),
                # Checkpoints, summaries, metrics.csv, validation.
                *monitored.shared_hooks(start, loss, tf.summary.merge(summaries))]) as mon_sess:
            while not mon_sess.should_stop():
                mon_sess.run(train_op)


def main(argv=None):  # `tf.app.run` passes the arguments.
    del argv
    cluster.refuse_several()
    devices.choose(FLAGS.device)
    recipe = recipes.chosen()
    source = cifar10.default_source(batch_size=settings.batch_size(recipe))
    start = starting.read(settings.run(recipe), source, recipe, FLAGS.num_gpus)
    if start.steps_left():
        console.line(devices.line(FLAGS.num_gpus, recipe.dtype, FLAGS.device))
        cifar10.maybe_download_and_extract(source)
        with worker.interrupts_deferred():
            train(source, recipe, start)


if __name__ == '__main__':
    startup.run(main)
