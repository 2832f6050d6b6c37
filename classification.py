"""Trains a network to classify images, alone or as one of several workers.

    python classification.py
    python classification.py -c cpu -n cifar100_resnet23
    python classification.py -n airbench94 --dataset=pets
    mpirun -n 4 python classification.py -b 64
    python classification.py --evaluate --best

With the results in --train_dir (tmp.monitor): checkpoints, the figures in metrics.csv, at the end
the variables in params.h5, and in best/ the checkpoint with the lowest validation error. If a run
is stopped or killed, run the same command again to resume it.

The flags that matter first:

    -n, --net            resnet23, airbench94 or tutorial; cifar10_resnet23 and cifar100_resnet23
                         name the data set, too
    --dataset            cifar10, cifar100, or a folder made by cifar10_convert.py
    -b, --batch_size     images per step of each worker; the default depends on the network
    --epochs             length of the training; the default depends on the network
    -l, --learning_rate  initial learning rate; the default depends on the network
    -e, --warmup_epoch   epochs in which the rate rises to that of several workers
    -c, --device         cpu, gpu or auto
    -m, --train_dir      folder of the results
    --validate_on        test, or held_out for a tenth of the training images
    --evaluate           evaluate the run in --train_dir instead of training

The flags of NNabla's example are known by its names, too; docs/usage.md has a table.
"""
import contextlib
import dataclasses
import os
import random
from datetime import datetime
from typing import NamedTuple

from cifar10_lib import checkpoints, errors, script, session
from classification_lib import (
    data_sets,
    evaluate,
    recipes,
    records,
    run,
    workers,
)

import numpy as np
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
flags.DEFINE_boolean('sync_bn', False, 'Whether batch norms use the batches of all workers.')
flags.DEFINE_float('step_timeout', 60, 'Seconds within which workers end if one of them is lost. A '
                   'step must take less.', lower_bound=1)
flags.DEFINE_string('interface', None, 'Network device by which workers on other machines reach '
                    'this one, such as eth0.')
flags.mark_flags_as_mutual_exclusive(['epochs', 'max_steps'])

# NNabla's names.
_ALIASES = {'b': 'batch_size', 'context': 'device', 'monitor_path': 'train_dir',
            'model_save_interval': 'save_checkpoint_steps'}
flags.DEFINE_string('device_id', None, 'Number of the GPU to use.', short_name='d')
flags.DEFINE_enum('type_config', 'float', ['float', 'half', 'mixed_half'],
                  'half and mixed_half are --use_fp16.', short_name='t')
flags.DEFINE_boolean('use_latest_checkpoint', False, 'No effect: a run resumes in any case.')
flags.DEFINE_string('model_save_path', None, 'No effect: all files are in --train_dir.',
                    short_name='o')
flags.DEFINE_float('weight_decay', None, 'No effect: each network has its own.', short_name='w')
_WITHOUT_EFFECT = ('use_latest_checkpoint', 'model_save_path', 'weight_decay')

# Flags that may differ between workers. All others are compared.
_OF_ONE_WORKER = ('data_dir', 'train_dir', 'interface', 'restart')
_SAMPLE = 5000  # Number of images for the initial values of a network: airbench94's paper.


def train(worker):
    """Trains the network of --net until its last step, together with the other workers.

    `worker` is this `workers.Worker`. Returns the number of the signal that ended the training, 0
    if none did. Raises `errors.UserError` if flags, images or the folder of the run do not fit.
    """
    worker.compare({f'--{FLAGS[name].name}': FLAGS[name].value for name in FLAGS
                    if FLAGS[name].name not in _OF_ONE_WORKER})
    with contextlib.ExitStack() as stack:
        # What an earlier start of the run has left. Only worker 0 uses its folder.
        opened, start = None, None
        if worker.is_chief:
            opened = stack.enter_context(session.opened(FLAGS.train_dir, FLAGS.restart))
            start = opened.step, run.earlier(opened), random.randrange(2 ** 31)
        first_step, earlier, seed = worker.gather(start)[0]

        settings, data_set, folder = chosen_settings(earlier, seed, worker.size)
        worker.compare({name: value for name, value in dataclasses.asdict(settings).items()
                        if name not in _OF_ONE_WORKER})
        if worker.is_chief:
            run.resumed(FLAGS.train_dir, earlier, settings)
            announce(settings, earlier)

        stack.enter_context(tf.Graph().as_default())
        graph = build_graph(worker, settings, first_step, not earlier, *records.used(
            data_set, folder, settings.validate_on))
        results = run.NoResults()
        if worker.is_chief:
            if opened.restart:
                opened.remove_files()
            run.write(FLAGS.train_dir, settings)  # Before the first checkpoint.
            results = run.Results(FLAGS.train_dir, settings, first_step, FLAGS.log_frequency)
        make_steps(worker, settings, first_step, graph, opened, results)
        return int(max(worker.gather(graph.stop.number)))


def chosen_settings(earlier, seed, workers):
    """The `run.Settings`, the `data_sets.DataSet`, and the folder of its files.

    They follow from the flags. Those that are not given get the values of an earlier start of the
    run, whose settings by name are `earlier`, or of the network's row. Functions of cifar10 read
    them, too.
    """
    defaults = {'seed': seed, **earlier}
    if is_given('epochs'):
        defaults['max_steps'] = None
    set_defaults(defaults)
    recipe, its_data_set = recipes.find(FLAGS.net)
    if is_given('dataset') and its_data_set not in (None, FLAGS.dataset):
        raise errors.UserError(f'--net={FLAGS.net} and --dataset={FLAGS.dataset} name two data '
                               'sets; expected one: leave out --dataset')
    data_set, folder = records.fetch(
        data_sets.find(its_data_set or FLAGS.dataset or 'cifar10'), FLAGS.data_dir)
    training, validation = records.used(data_set, folder, FLAGS.validate_on)
    if not earlier:
        set_defaults_of_row(recipe, training.count(), workers)

    chosen = {field.name: FLAGS[field.name].value for field in dataclasses.fields(run.Settings)
              if field.name in FLAGS}
    chosen |= {
        'net': recipe.name, 'dataset': data_set.name, 'classes': data_set.classes,
        'data_dir': os.path.abspath(FLAGS.data_dir), 'training_images': training.count(),
        'images_checksum': records.checksum({**training.files(), **validation.files()}),
        'workers': workers}
    if earlier:  # Later, a start has no effect.
        chosen['initial_checkpoint'] = earlier.get('initial_checkpoint')
    if os.path.isabs(data_set.folder):  # The user's own.
        chosen['dataset'] = data_set.folder
    if FLAGS.max_steps is None:
        chosen['max_steps'] = max(1, round(
            FLAGS.epochs * training.count() / (FLAGS.batch_size * workers)))
    return run.Settings(**chosen), data_set, folder


def set_defaults_of_row(recipe, images, workers):
    """Sets flags that are not given to a recipe's defaults for a number of images, and prints what
    is special about few."""
    usual = {'batch_size': recipe.batch_size, 'learning_rate': recipe.learning_rate(),
             'epochs': recipe.epochs}
    chosen = recipe.defaults(images, workers)
    if is_given('batch_size'):  # Its rate is for another one.
        chosen['learning_rate'] = usual['learning_rate']
    if is_given('max_steps'):  # The two exclude one another.
        del chosen['epochs']
    set_defaults(chosen)
    special = [f'--{name}={value:.4g}' for name, value in chosen.items()
               if value != usual[name] and not is_given(name)]
    if special:
        print(f'Few images: {" ".join(special)}. Give these flags to choose others.', flush=True)


def set_defaults(values):
    """Sets flags that are not given to some values by name; ignores names of others."""
    for name, value in values.items():
        if name in FLAGS:
            FLAGS.set_default(name, value)


def is_given(name):
    """Whether the command line has a flag."""
    return not FLAGS[name].using_default_value


def announce(settings, earlier):
    """Prints what will be trained, and on which devices; `earlier` as in `chosen_settings`."""
    if earlier and is_given('initial_checkpoint'):
        evaluate.find(FLAGS.initial_checkpoint)  # Raises an error if it is misspelled.
        print('--initial_checkpoint has no effect on a run that has begun. To start with it, '
              'choose another --train_dir, or add --restart.', flush=True)
    script.show_devices(cifar10.compute_type())
    print(f'{settings.max_steps} steps of {settings.images_per_step} images, by {settings.workers} '
          f'worker(s), are {settings.epochs(settings.max_steps):.4g} epochs.', flush=True)
    if settings.images_per_step > settings.training_images:
        print(f'A step takes more than the {settings.training_images} training images: a smaller '
              '--batch_size learns more from them.', flush=True)


class Graph(NamedTuple):
    """What `make_steps` runs."""

    train_op: tf.Operation  # A step.
    figures: dict  # training_loss, training_error and learning_rate of a step, float32 [].
    stop: session.StopSignal  # The signal that this worker has caught,
    own_signal: tf.Tensor  # a placeholder for its number,
    any_signal: tf.Tensor  # and the mean over all workers, which is 0 if none has caught one.
    first_image: tf.Operation  # Begins a validation.
    count_op: tf.Tensor  # Wrong predictions and images of its next batch, float32 [2].
    initial_values: dict  # Values with which a new run starts, by variable.
    network: set  # Names of the variables of the network.


def build_graph(worker, settings, first_step, is_new, training_images, validation_images):
    """Builds the network in training and in validation, in the default graph: a `Graph`.

    `first_step` is the number of steps of earlier starts; the images are `records.Images`.
    """
    recipe, dtype = recipes.TABLE[settings.net], cifar10.compute_type()
    tf.set_random_seed(settings.seed)
    with tf.device('/cpu:0'):  # Input and schedule on the CPU leave a GPU to the network.
        global_step = tf.train.get_or_create_global_step()
        lr = recipe.schedule(global_step, settings)

    # The network in training, [batch, height, width, 3] -> [batch, classes].
    images, labels = training_images.distorted_batches(
        settings.batch_size, recipe.distort, settings.seed, first_step, worker.rank, worker.size)
    logits = recipe.inference(images, len(settings.classes), True, dtype,
                              worker.synchrony(settings.sync_bn))
    loss = recipe.loss(logits, labels)
    error = wrong(logits, labels) / settings.batch_size
    network = {each.op.name for each in tf.global_variables()}
    initial = {}
    if worker.is_chief and is_new:  # All workers start with its values.
        initial = initial_values(recipe, training_images, settings)

    # The optimizer. Here the workers wait for one another, and agree on a signal.
    opt = recipe.optimizer(lr, settings.max_steps)
    grads = cifar10.compute_gradients(opt, loss)
    grads = worker.mean_gradients(grads, FLAGS.with_all_reduce_callback)
    own_signal = tf.placeholder_with_default(0.0, [])
    mean_loss, mean_error, any_signal = worker.means([loss, error, own_signal])
    train_op = cifar10.update(opt, grads, global_step, averages=recipe.averages)
    figures = {'training_loss': mean_loss, 'training_error': mean_error, 'learning_rate': lr}
    for name, figure in figures.items():
        tf.summary.scalar(f'metrics/{name}', figure)

    # The network in validation, with the variables that count: often the moving averages.
    with tf.name_scope('validation'), tf.variable_scope(
            tf.get_variable_scope(), reuse=True, auxiliary_name_scope=False,
            custom_getter=evaluate.result_getter(tf.global_variables(), recipe.averages)):
        pixels, labels, first_image = validation_images.batches(
            settings.batch_size, worker.rank, worker.size)
        with tf.device('/cpu:0'):  # Half of the operations on uint8 have no GPU kernel.
            images = recipe.prepare(pixels)
        logits = recipe.inference(images, len(settings.classes), False, dtype)
        count_op = tf.stack([wrong(logits, labels), tf.cast(tf.size(labels), tf.float32)])

    worker.add_sharing()
    return Graph(train_op, figures, session.StopSignal(), own_signal, any_signal, first_image,
                 count_op, initial, network)


def make_steps(worker, settings, first_step, graph, opened, results):
    """Trains from `first_step` on: step, log, validate, keep the best.

    `opened` is worker 0's `session.Run`, None for the others; `results` are its `run.Results`, or
    `run.NoResults`.
    """
    with session.training_session(
            is_chief=worker.is_chief, checkpoint_dir=opened, stop=graph.stop,
            hooks=[tf.train.StopAtStepHook(last_step=settings.max_steps),
                   tf.train.NanTensorHook(graph.figures['training_loss'])],
            # All summaries but those of the validation.
            scaffold=tf.train.Scaffold(summary_op=tf.summary.merge_all(scope='(?!validation/)'),
                                       **checkpoints.initial_values(graph.initial_values)),
            save_checkpoint_steps=FLAGS.save_checkpoint_steps,
            **worker.session_options(tf.ConfigProto(allow_soft_placement=True))
            ) as mon_sess, results:
        sess, step = mon_sess.raw_session(), first_step
        worker.share_variables(sess)
        is_due, is_stopped = worker.gather(results.lacks_validation())[0], False
        if is_due:
            print(f'Validating step {step}, which has no validation yet.', flush=True)
        if step < settings.max_steps:
            print('The first step takes longer: TensorFlow prepares the graph.', flush=True)
        while True:
            if is_due:
                error = validation_error(worker, sess, graph)
                results.validated(sess, step, error)
                is_stopped = error is None
            if is_stopped or step >= settings.max_steps:
                break
            _, values, signal = mon_sess.run(
                [graph.train_op, graph.figures, graph.any_signal],
                {graph.own_signal: graph.stop.number}, options=worker.options(step - first_step))
            step += 1
            results.add(step, values)
            is_due = settings.validates(step)
            # Several workers stop after the same step, in which each has told its signal.
            is_stopped = signal > 0 or (worker.size == 1 and graph.stop.number > 0)
    results.write_parameters(graph.network)


def validation_error(worker, sess, graph):
    """The validation error over all workers, each of which counts its shard.

    Returns None, in all workers, if a signal has ended it.
    """
    worker.share_variables(sess)  # Those that are saved.
    counts = np.zeros(2)
    sess.run(graph.first_image)
    with contextlib.suppress(tf.errors.OutOfRangeError):
        while not graph.stop.number:
            counts += sess.run(graph.count_op)
    wrong_images, images, stopped = np.sum(
        worker.gather([*counts, graph.stop.number]), axis=0)
    if stopped:
        return None
    return float(wrong_images / images)


def wrong(logits, labels):
    """Number of images whose most probable class is not the label, float32 []."""
    predictions = tf.argmax(logits, axis=1, output_type=tf.int32)
    return tf.reduce_sum(tf.cast(tf.not_equal(predictions, labels), tf.float32))


def initial_values(recipe, images, settings):
    """The values with which a new run starts: {variable: array}."""
    variables = [each for each in tf.global_variables() if each is not tf.train.get_global_step()]
    if settings.initial_checkpoint:
        trained = evaluate.find(settings.initial_checkpoint)
        found = evaluate.starting_weights(trained, variables, settings.classes)
        new = [each.op.name for each in variables if each.trainable and each not in found]
        print(f'Starting with {trained.checkpoint.path}; new: {", ".join(new) or "none"}.',
              flush=True)
    elif recipe.initial_values:
        _, pixels = images.read()
        values = recipe.initial_values(pixels[::-(-len(pixels) // _SAMPLE)])
        found = {each: values[each.op.name] for each in variables if each.op.name in values}
    else:
        found = {}
    return found


def evaluate_run():
    """Prints the precision of the run in --train_dir, on its own data set or on --dataset."""
    trained = evaluate.find(FLAGS.train_dir, FLAGS.best, evaluate.given_data_dir())
    if FLAGS.validate_on == 'held_out' and trained.settings.get('validate_on') != 'held_out':
        raise errors.UserError(f'{trained.checkpoint.path} was not trained with '
                               '--validate_on=held_out: leave it out')
    data_set, folder = records.fetch(
        data_sets.find(FLAGS.dataset or trained.dataset), evaluate.data_dir(trained))
    set_defaults({'batch_size': trained.recipe.batch_size})
    images = records.Images(data_set, folder, FLAGS.validate_on)
    if FLAGS.validate_on == 'held_out' and (
            run.is_of_version_1(trained.settings)
            or records.checksum(images.files()) != trained.settings['images_checksum']):
        raise errors.UserError(f'{folder} does not hold the images on which {FLAGS.train_dir} was '
                               'trained, or version 1 trained it, so that others would be held '
                               'out: restore them, or leave out --validate_on=held_out')
    counts = evaluate.confusion(trained, images, FLAGS.batch_size)
    print(f'Evaluated {trained.checkpoint.path} on {counts.sum()} images of '
          f'{data_set.name} ({FLAGS.validate_on}).')
    print(f'{datetime.now()}: precision @ 1 = {counts.trace() / counts.sum():.3f}')
    if FLAGS.per_class:
        print('\n'.join(evaluate.per_class(counts, trained.classes)))


def main():
    for name in filter(is_given, _WITHOUT_EFFECT):
        print(f'--{name}: {FLAGS[name].help}', flush=True)
    if FLAGS.type_config != 'float':
        FLAGS.use_fp16 = True
    if FLAGS.device_id is not None:  # Before TensorFlow looks for GPUs.
        os.environ['CUDA_VISIBLE_DEVICES'] = FLAGS.device_id
    if FLAGS.device == 'cpu':
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
        number = train(worker)
    if number:
        session.end_by(number)


if __name__ == '__main__':
    script.run(main, aliases=_ALIASES, batch_size=None)  # Its default depends on the network.
