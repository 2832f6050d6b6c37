"""Trains a network to classify images, alone or as one of several workers.

    python classification.py
    python classification.py -c cpu -n cifar100_resnet23
    python classification.py -n airbench94 --dataset=pets
    mpirun -n 4 python classification.py -b 64
    python classification.py --evaluate --best

With the results in --train_dir (tmp.monitor): checkpoints, the figures in metrics.csv, after the
last step the variables in params.h5, and in best/ the checkpoint with the lowest validation error.
If a run is stopped or killed, run the same command again to resume it.

The flags that matter first:

    -n, --net            resnet23, airbench94 or tutorial; cifar100_resnet23 names the data set, too
    --dataset            cifar10, cifar100, or a folder made by cifar10_convert.py
    -b, --batch_size     images per step of each worker; the default depends on the network
    --epochs             length of the training; the default depends on the network
    -l, --learning_rate  initial learning rate; the default depends on the network
    -e, --warmup_epoch   epochs in which the rate rises to that of several workers
    -c, --device         cpu, gpu or auto
    -m, --train_dir      folder of the results
    --validate_on        test, or held_out for a tenth of the training images
    --evaluate           evaluate the run in --train_dir instead of training
"""
import os
from datetime import datetime

from cifar10_lib import checkpoints, errors, script, session
from classification_lib import (
    data_sets,
    evaluate,
    hooks,
    recipes,
    records,
    run,
    workers,
)

import tensorflow.compat.v1 as tf
from absl import flags

import cifar10

FLAGS = tf.app.flags.FLAGS

flags.DEFINE_string('net', 'resnet23', f'The network: {", ".join(recipes.TABLE)}.', short_name='n')
flags.DEFINE_string('dataset', None, f'The images: {", ".join(data_sets.TABLE)}, or the folder of '
                    'a data set. By default cifar10; of --evaluate, that of the run.')
flags.DEFINE_float('epochs', None, 'Total number of epochs.', lower_bound=0)
flags.DEFINE_integer('max_steps', None, 'Total number of steps, instead of --epochs.',
                     lower_bound=1)
flags.DEFINE_float('learning_rate', None, 'Initial learning rate.', lower_bound=0, short_name='l')
flags.DEFINE_float('warmup_epoch', 5, 'Number of epochs in which the learning rate of resnet23 '
                   'rises to k times the initial one, with k workers.', lower_bound=0,
                   short_name='e')
flags.DEFINE_enum('device', 'auto', ['auto', 'cpu', 'gpu', 'cudnn', 'cuda'], 'auto, cudnn and cuda '
                  'use a GPU if there is one, cpu does not, gpu requires one.', short_name='c')
flags.DEFINE_alias('context', 'device')
flags.DEFINE_string('train_dir', 'tmp.monitor', 'Folder of the run.', short_name='m')
flags.DEFINE_integer('validate_every', 1, 'Number of epochs between validations; 0 means never.',
                     lower_bound=0)
flags.DEFINE_enum('validate_on', 'test', ['test', 'held_out'], 'Images for validation and '
                  '--evaluate: the test set, or a tenth of the training images, which is then '
                  'excluded from training.')
flags.DEFINE_boolean('evaluate', False, 'Evaluate the run in --train_dir, and train nothing.')
flags.DEFINE_boolean('best', False, 'Evaluate the checkpoint with the lowest validation error.')
flags.DEFINE_boolean('per_class', False, 'Print the recall and precision of each class, too.')
flags.DEFINE_string('initial_checkpoint', None, 'Folder of another run, or a checkpoint, with '
                    'whose weights a new run starts; layers that do not fit start anew.')
flags.DEFINE_integer('seed', None, 'Seed of the order of the images and of the initial values.',
                     lower_bound=0, upper_bound=2**31 - 1)
flags.DEFINE_boolean('restart', False, "Remove an earlier run's files from --train_dir first.")
flags.DEFINE_integer('save_checkpoint_steps', None, 'Number of steps between checkpoints; by '
                     'default, one is saved every ten minutes.', lower_bound=1, short_name='s')
flags.DEFINE_integer('log_frequency', 100, 'Number of steps between printed lines, and between '
                     'rows of metrics.csv.', lower_bound=1)
flags.DEFINE_boolean('with_all_reduce_callback', True, 'Whether workers average gradients while '
                     'they compute others, or afterwards.')
flags.DEFINE_alias('with-all-reduce-callback', 'with_all_reduce_callback')
flags.DEFINE_float('step_timeout', 60, 'Seconds within which workers end if one of them is lost. A '
                   'step must take less.', lower_bound=1)
flags.DEFINE_string('interface', None, 'Network device by which workers on other machines reach '
                    'this one, such as eth0.')
flags.mark_flags_as_mutual_exclusive(['epochs', 'max_steps'])

# Flags on which the updates of all workers depend.
_SHARED = ('epochs', 'max_steps', 'learning_rate', 'warmup_epoch', 'validate_every', 'use_fp16',
           'use_bf16', 'with_all_reduce_callback', 'step_timeout')
_SAMPLE = 5000  # Number of images for the initial values of a network: airbench94's paper.


def train(worker):
    """Trains the network of --net until its last step, together with the other workers.

    `worker` is this `workers.Worker`. Raises `errors.UserError` if flags, images or the folder of
    the run do not fit.
    """
    recipe, its_data_set = recipes.named(FLAGS.net)
    if FLAGS.dataset and its_data_set not in (None, FLAGS.dataset):
        raise errors.UserError(f'--net={FLAGS.net} and --dataset={FLAGS.dataset} name two data '
                                'sets; expected one: leave out --dataset')
    learning_rate, batch_size = recipe.learning_rate, recipe.batch_size
    if FLAGS.learning_rate is not None:
        learning_rate = FLAGS.learning_rate
    if not FLAGS['batch_size'].using_default_value:
        batch_size = FLAGS.batch_size
    script.show_devices(cifar10.compute_type())

    # The images.
    data_set, folder = records.fetch(
        data_sets.find(FLAGS.dataset or its_data_set or 'cifar10'), FLAGS.data_dir)
    training_images = records.Images(data_set, folder, 'all')
    if FLAGS.validate_on == 'held_out':
        training_images = records.Images(data_set, folder, 'training')
    validation_images = records.Images(data_set, folder, FLAGS.validate_on)

    # What all workers agree on, and what an earlier start of the run has left.
    settings = {
        'batch_size': batch_size, 'workers': worker.size, 'validate_on': FLAGS.validate_on,
        'training_images': training_images.count(), 'images_checksum': records.checksum(
            {**training_images.files(), **validation_images.files()}),
        'seed': FLAGS.seed, 'dataset': data_set.name, 'learning_rate': learning_rate,
        'tensorflow': tf.version.VERSION, 'started': datetime.now().isoformat()}
    if os.path.isabs(data_set.folder):  # The user's own.
        settings['dataset'] = data_set.folder
    content = {'net': recipe.name, 'dataset': data_set.name, 'classes': data_set.classes,
               'settings': settings}
    worker.compare(run.facts(content) | {f'--{name}': FLAGS[name].value for name in _SHARED})
    start = None
    if worker.is_chief:  # Its folder may be out of the others' reach.
        start = run.begin(FLAGS.train_dir, content, FLAGS.restart)
    first_step, seed = worker.share(start)
    plan = run.Plan(
        first_step, max_steps(recipe, training_images.count(), batch_size * worker.size),
        batch_size, worker.size, training_images.count(), FLAGS.validate_every, FLAGS.warmup_epoch)
    settings.update(seed=seed, first_step=first_step, max_steps=plan.max_steps)
    print(f'{plan.max_steps} steps of {plan.images_per_step} images are '
          f'{plan.epochs(plan.max_steps):.4g} epochs.', flush=True)

    with tf.Graph().as_default():
        tf.set_random_seed(seed)
        with tf.device('/cpu:0'):  # Input and schedule on the CPU leave a GPU to the network.
            global_step = tf.train.get_or_create_global_step()
            lr = recipe.schedule(global_step, learning_rate, plan)

        # The network in training, [batch, height, width, 3] -> [batch, classes].
        images, labels = training_images.train(
            batch_size, recipe.distort, seed, first_step, worker.rank, worker.size)
        logits = recipe.inference(images, len(data_set.classes), True, cifar10.compute_type())
        loss = recipe.loss(logits, labels)
        error = wrong(logits, labels) / batch_size
        network = {each.op.name for each in tf.global_variables()}
        initial = {}
        if worker.is_chief and first_step == 0:  # All workers start with its values.
            initial = initial_values(recipe, training_images, data_set.classes)

        # The optimizer. Here the workers wait for one another.
        opt = cifar10.scaled(recipe.optimizer(lr, plan.max_steps))
        grads = opt.compute_gradients(loss, gate_gradients=opt.GATE_NONE)  # As in cifar10.py.
        grads = worker.mean_gradients(grads, FLAGS.with_all_reduce_callback)
        figures = worker.mean({'training_loss': loss, 'training_error': error})
        train_op = cifar10.update(opt, grads, global_step)

        figures['learning_rate'] = lr
        for name, figure in figures.items():
            tf.summary.scalar(f'metrics/{name}', figure)
        scaffold = tf.train.Scaffold(summary_op=tf.summary.merge_all(), init_feed_dict=initial)

        # The network in validation, with the variables that count: often the moving averages.
        result = evaluate.result_getter(tf.global_variables(), recipe.averages)
        with tf.name_scope('validation'), tf.variable_scope(
                tf.get_variable_scope(), custom_getter=result, auxiliary_name_scope=False):
            pixels, labels, initializer = validation_images.evaluation(
                batch_size, worker.rank, worker.size)
            with tf.device('/cpu:0'):  # Half of the operations on uint8 have no GPU kernel.
                images = recipe.prepare(pixels)
            logits = recipe.inference(images, len(data_set.classes), False, cifar10.compute_type())
            count_op = tf.stack([wrong(logits, labels), tf.cast(tf.size(labels), tf.float32)])

        logger = hooks.LoggerHook(FLAGS.train_dir, content, plan, figures, FLAGS.log_frequency)
        validation = hooks.ValidationHook(worker, plan, initializer, count_op, logger,
                                          run.Best(FLAGS.train_dir, content))
        all_hooks = [worker, tf.train.StopAtStepHook(last_step=plan.max_steps)]
        if worker.is_chief:
            all_hooks += [tf.train.NanTensorHook(figures['training_loss']), logger]
        all_hooks.append(validation)

        master, config = worker.session_options(tf.ConfigProto(allow_soft_placement=True))
        with session.training_session(
                master, worker.is_chief, FLAGS.train_dir, scaffold, all_hooks, config=config,
                save_checkpoint_steps=FLAGS.save_checkpoint_steps,
                restart=FLAGS.restart) as mon_sess:
            while not mon_sess.should_stop():
                mon_sess.run(train_op)

        if worker.is_chief:
            run.write_parameters(
                os.path.join(FLAGS.train_dir, run.PARAMETERS),
                checkpoints.newest(FLAGS.train_dir).values, network)


def max_steps(recipe, count, images_per_step):
    """Number of steps of the run; `count` is the number of images of an epoch."""
    if FLAGS.max_steps is not None:
        return FLAGS.max_steps
    epochs = recipe.epochs
    if FLAGS.epochs is not None:
        epochs = FLAGS.epochs
    return max(1, round(epochs * count / images_per_step))


def wrong(logits, labels):
    """Number of images whose most probable class is not the label, float32 []."""
    predictions = tf.argmax(logits, axis=1, output_type=tf.int32)
    return tf.reduce_sum(tf.cast(tf.not_equal(predictions, labels), tf.float32))


def initial_values(recipe, images, classes):
    """Values for the initial values of a new run's variables: {tensor: array}."""
    variables = [each for each in tf.global_variables() if each is not tf.train.get_global_step()]
    if FLAGS.initial_checkpoint:
        trained = evaluate.find(FLAGS.initial_checkpoint)
        found = evaluate.starting_weights(trained, variables, classes)
        new = [each.op.name for each in variables if each.trainable and each not in found]
        print(f'Starting with {trained.checkpoint.path}; new: {", ".join(new) or "none"}.',
              flush=True)
    elif recipe.initial_values:
        _, pixels = images.read()
        values = recipe.initial_values(pixels[::-(-len(pixels) // _SAMPLE)])
        found = {each: values[each.op.name] for each in variables if each.op.name in values}
    else:
        found = {}
    return {variable.initial_value: value for variable, value in found.items()}


def evaluate_run():
    """Prints the precision of the run in --train_dir, on its own data set or on --dataset."""
    trained = evaluate.find(FLAGS.train_dir, FLAGS.best, FLAGS.data_dir)
    trained_on = trained.run.get('settings', {}).get('validate_on')
    if FLAGS.validate_on == 'held_out' and trained_on != 'held_out':
        raise errors.UserError(f'{trained.checkpoint.path} was not trained with '
                                '--validate_on=held_out: leave it out')
    data_set, folder = records.fetch(
        data_sets.find(FLAGS.dataset or trained.dataset), FLAGS.data_dir)
    batch_size = trained.recipe.batch_size
    if not FLAGS['batch_size'].using_default_value:
        batch_size = FLAGS.batch_size
    images = records.Images(data_set, folder, FLAGS.validate_on)
    counts = evaluate.confusion(trained, images, batch_size)
    print(f'Evaluated {trained.checkpoint.path} on {counts.sum()} images of '
          f'{data_set.name} ({FLAGS.validate_on}).')
    print(f'{datetime.now()}: precision @ 1 = {counts.trace() / counts.sum():.3f}')
    if FLAGS.per_class:
        print('\n'.join(evaluate.per_class(counts, trained.classes)))


def main():
    if FLAGS.device == 'cpu':  # Before TensorFlow looks for GPUs.
        os.environ['CUDA_VISIBLE_DEVICES'] = '-1'
    if FLAGS.device == 'gpu' and not tf.config.list_physical_devices('GPU'):
        raise errors.UserError('--device=gpu, but TensorFlow finds no GPU: use --device=auto, or '
                                'TF_CPP_MIN_LOG_LEVEL=0 to see why')
    if FLAGS.evaluate:
        evaluate_run()
        return
    if FLAGS.best or FLAGS.per_class:
        raise errors.UserError('--best and --per_class are for --evaluate: add it')
    with workers.joined(FLAGS.step_timeout, FLAGS.interface) as worker:
        train(worker)


if __name__ == '__main__':
    script.run(main)
