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
    mpi,
    recipes,
    records,
    run,
    trained,
    workers,
)

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

import cifar10

FLAGS = tf.app.flags.FLAGS

# A flag on which the updates depend is also a field of `run.Settings`: a resume keeps its value.
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

# Flags that may differ between workers. All others are compared, and so are the images.
_OF_ONE_WORKER = ('data_dir', 'dataset', 'train_dir', 'interface', 'restart')


def train(worker):
    """Trains the network of --net until its last step, together with the other workers.

    `worker` is this `workers.Worker`. Returns the number of the signal that ended the training, 0
    if none did. Raises `errors.UserError` if flags, images or the folder of the run do not fit.
    """
    worker.compare({f'--{FLAGS[name].name}': FLAGS[name].value for name in FLAGS  # Also short ones.
                    if FLAGS[name].name not in _OF_ONE_WORKER})
    stop = session.StopSignal()
    with contextlib.ExitStack() as stack:
        # What an earlier start of the run has left. Only worker 0 uses its folder.
        opened, start = None, None
        if worker.is_chief:
            opened = stack.enter_context(session.opened(FLAGS.train_dir, FLAGS.restart))
            start = opened.step, run.earlier(opened), random.randrange(2 ** 31)
        first_step, earlier, seed = worker.gather(start)[0]

        settings, training, validation = chosen_settings(earlier, seed, worker.size)
        worker.compare({name: value for name, value in dataclasses.asdict(settings).items()
                        if name not in _OF_ONE_WORKER})
        for name in ('batch_size', 'use_fp16', 'use_bf16'):  # The tutorial's modules read them.
            FLAGS[name].value = getattr(settings, name)
        if worker.is_chief:
            run.check_resume(FLAGS.train_dir, earlier, settings)
            announce(settings)

        stack.enter_context(tf.Graph().as_default())
        graph = build_graph(worker, settings, first_step, not earlier, training, validation)
        log = best = run.Nothing()
        if worker.is_chief:
            if opened.restart:  # Not before: a wrong flag must not remove anything.
                run.remove_files(opened.folder)
            log = run.Log(FLAGS.train_dir, settings, first_step, FLAGS.log_frequency)
            best = run.Best(FLAGS.train_dir, settings)
            run.write(FLAGS.train_dir, settings)  # Before the first checkpoint.
        make_steps(worker, settings, first_step, graph, stop, opened, log, best)
        number = max(worker.gather(stop.number))
        if worker.is_chief:
            run.write_parameters(FLAGS.train_dir, graph.network)
        return number


def chosen_settings(earlier, seed, workers):
    """The `run.Settings`, and the `records.Images` to train and to validate on; downloads these.

    They follow from the flags that are given; the others are those of an earlier start of the run,
    `earlier` by name, or of the network's row.
    """
    names = [field.name for field in dataclasses.fields(run.Settings)]
    values = {name: FLAGS[name].value for name in [*names, 'epochs'] if name in FLAGS}
    given = given_settings(values)
    chosen = {**values, 'seed': seed, **earlier, **given}

    recipe, its_data_set = recipes.find(chosen['net'])
    if 'dataset' in given and its_data_set not in (None, FLAGS.dataset):
        raise errors.UserError(f'--net={FLAGS.net} and --dataset={FLAGS.dataset} name two data '
                               'sets; expected one: leave out --dataset')
    data_set, folder = records.fetch(
        data_sets.find(its_data_set or chosen['dataset'] or 'cifar10'), chosen['data_dir'])
    training, validation = records.training_and_validation(
        data_set, folder, chosen['validate_on'])

    if earlier:  # A run that has begun keeps its own.
        chosen['initial_checkpoint'] = earlier.get('initial_checkpoint')
    else:
        chosen |= {**defaults_of_row(recipe, training.count(), workers, given), **given}
    if chosen['max_steps'] is None:
        chosen['max_steps'] = max(1, round(
            chosen['epochs'] * training.count() / (chosen['batch_size'] * workers)))
    chosen |= {
        'net': recipe.name, 'dataset': data_set.flag, 'classes': data_set.classes,
        'data_dir': os.path.abspath(chosen['data_dir']), 'training_images': training.count(),
        'images_checksum': records.checksum(data_set, folder, chosen['validate_on']),
        'workers': workers}
    return run.Settings(**{name: chosen[name] for name in names}), training, validation


def given_settings(values):
    """Of these values of flags, those that the command line has, or that it replaces."""
    given = {name: value for name, value in values.items() if is_given(name)}
    if FLAGS.use_fp16 or FLAGS.use_bf16 or is_given('type_config'):  # One type, not both.
        given |= {'use_fp16': FLAGS.use_fp16, 'use_bf16': FLAGS.use_bf16}
    if is_given('epochs'):
        given['max_steps'] = None
    return given


def defaults_of_row(recipe, images, workers, given):
    """A recipe's defaults for a number of images, by name; prints what is special about few.

    `given` are the flags of the command line by name.
    """
    usual = {'batch_size': recipe.batch_size, 'learning_rate': recipe.learning_rate(),
             'epochs': recipe.epochs}
    chosen = recipe.defaults(images, workers)
    if 'batch_size' in given:  # Its rate is for another one.
        chosen['learning_rate'] = usual['learning_rate']
    if given.get('max_steps'):  # It replaces them.
        chosen['epochs'] = usual['epochs']
    special = [f'--{name}={value:.4g}' for name, value in chosen.items()
               if value != usual[name] and name not in given]
    if special:
        print(f'Few images: {" ".join(special)}. Give these flags to choose others.', flush=True)
    return chosen


def is_given(name):
    """Whether the command line has a flag."""
    return not FLAGS[name].using_default_value


def announce(settings):
    """Prints what will be trained, on which devices, and which flags have no effect."""
    for name in filter(is_given, _WITHOUT_EFFECT):
        print(f'--{name}: {FLAGS[name].help}', flush=True)
    if FLAGS.initial_checkpoint not in (None, settings.initial_checkpoint):
        trained.find(FLAGS.initial_checkpoint)  # Raises an error if it is misspelled.
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
    own_signal: tf.Tensor  # A placeholder for the number of the signal that this worker caught.
    any_signal: tf.Tensor  # Its mean over all workers: 0 if none has caught one.
    initializer: tf.Operation  # Begins a validation.
    count_op: tf.Tensor  # Wrong predictions and images of its next batch, float32 [2].
    share_op: tf.Operation  # Gives all workers worker 0's variables.
    starting_values: dict  # Values with which a new run starts, by variable.
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
    logits = recipe.inference(images, len(settings.classes), training=True, dtype=dtype,
                              synchrony=worker.synchrony(settings.sync_bn))
    loss = recipe.loss(logits, labels)
    error = wrong(logits, labels) / settings.batch_size
    # Those of the network. The optimizer adds its own below.
    variables = [each for each in tf.global_variables() if each is not global_step]
    starting = {}
    if worker.is_chief and is_new:  # All workers start with its values.
        starting = starting_values(recipe, variables, training_images, settings)

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

    # The network in validation, with the moving averages, which exist by now if they count. The
    # loss and the update have taken what they need from the graph's collections.
    known = {each.op.name: each for each in tf.global_variables()}

    def average_or_variable(getter, name, **options):
        if name + checkpoints.AVERAGE in known:
            return known[name + checkpoints.AVERAGE]
        return getter(name, **options)

    with tf.name_scope('validation'), tf.variable_scope(
            tf.get_variable_scope(), reuse=True, auxiliary_name_scope=False,
            custom_getter=average_or_variable):
        pixels, labels, initializer = validation_images.batches(
            settings.batch_size, worker.rank, worker.size)
        with tf.device('/cpu:0'):  # Half of the operations on uint8 have no GPU kernel.
            images = recipe.prepare(pixels)
        logits = recipe.inference(images, len(settings.classes), training=False, dtype=dtype)
        count_op = tf.stack([wrong(logits, labels), tf.cast(tf.size(labels), tf.float32)])
    for new in tf.global_variables()[len(known):]:  # By tf.Variable, for example.
        raise errors.UserError(f'{script.place(new.op.traceback)}({new.op.name}): in validation, '
                               'the network has a variable that was not trained: create it by '
                               'tf.get_variable')

    share_op = worker.sharing(tf.global_variables())
    return Graph(train_op, figures, own_signal, any_signal, initializer, count_op, share_op,
                 starting, {each.op.name for each in variables})


def make_steps(worker, settings, first_step, graph, stop, opened, log, best):
    """Trains from `first_step` on: step, log, validate, keep the best.

    `stop` is the `session.StopSignal` that this worker may catch. `opened`, `log` and `best` are
    worker 0's `session.Run`, `run.Log` and `run.Best`; the others have None and `run.Nothing`.
    """
    with session.training_session(
            is_chief=worker.is_chief, checkpoint_dir=opened, stop=stop,
            hooks=[tf.train.StopAtStepHook(last_step=settings.max_steps),
                   tf.train.NanTensorHook(graph.figures['training_loss'])],
            # Not those of the validation, which would read its images in a training step.
            scaffold=tf.train.Scaffold(summary_op=tf.summary.merge_all(scope='(?!validation/)'),
                                       **checkpoints.scaffold_options(graph.starting_values)),
            save_checkpoint_steps=FLAGS.save_checkpoint_steps,
            **worker.session_options) as mon_sess, log:
        sess, step = mon_sess.raw_session(), first_step
        worker.share(sess, graph.share_op)
        is_stopped = False
        if worker.gather(log.lacks_validation())[0]:
            print(f'Validating step {step}, which has no validation yet.', flush=True)
            error = validation_error(worker, sess, graph, stop)
            best.offer(sess, step, error)
            log.validated(step, error)
            is_stopped = error is None
        if step < settings.max_steps and not is_stopped:
            print('The first step takes longer: TensorFlow prepares the graph.', flush=True)
        while step < settings.max_steps and not is_stopped and not mon_sess.should_stop():
            _, values, signal = mon_sess.run(
                [graph.train_op, graph.figures, graph.any_signal],
                {graph.own_signal: stop.number}, options=worker.options(step - first_step))
            step += 1
            log.add(step, values)
            # Several workers stop after the same step, in which each has told its signal.
            is_stopped = signal > 0 or (worker.size == 1 and stop.number > 0)
            if settings.validates(step) and not is_stopped:
                error = validation_error(worker, sess, graph, stop)
                best.offer(sess, step, error)  # First: a resume repeats a validation without a row.
                log.validated(step, error)
                is_stopped = error is None


def validation_error(worker, sess, graph, stop):
    """The validation error over all workers, each of which counts its shard.

    Returns None, in all workers, if a signal has ended it.
    """
    worker.share(sess, graph.share_op)  # Moving statistics differ, and worker 0's are saved.
    counts = np.zeros(2)
    sess.run(graph.initializer)
    with contextlib.suppress(tf.errors.OutOfRangeError):
        while not stop.number:
            counts += sess.run(graph.count_op)
    wrong_images, images, stopped = np.sum(worker.gather([*counts, stop.number]), axis=0)
    if stopped:
        return None
    return float(wrong_images / images)


def wrong(logits, labels):
    """Number of images whose most probable class is not the label, float32 []."""
    predictions = tf.argmax(logits, axis=1, output_type=tf.int32)
    return tf.reduce_sum(tf.cast(tf.not_equal(predictions, labels), tf.float32))


def starting_values(recipe, variables, images, settings):
    """The values with which these variables of a new run start, unless it is their initial one:
    {variable: array}."""
    values = {}
    if recipe.initial_values:
        _, pixels = images.read()
        values = recipe.initial_values(pixels)
    found = {each: values[each.op.name] for each in variables if each.op.name in values}
    if settings.initial_checkpoint:
        start = trained.find(settings.initial_checkpoint)
        weights = trained.starting_weights(start, variables, settings.classes)
        new = [each.op.name for each in variables if each.trainable and each not in weights]
        print(f'Starting with {start.checkpoint.path}; new: {", ".join(new) or "none"}.',
              flush=True)
        found |= weights
    return found


def evaluate_run():
    """Prints the precision of the run in --train_dir, on its own data set or on --dataset."""
    network = trained.find(FLAGS.train_dir, FLAGS.best, trained.given_data_dir())
    images = trained.images(network, FLAGS.dataset, FLAGS.validate_on)
    if not is_given('batch_size'):
        FLAGS.batch_size = network.recipe.batch_size
    if FLAGS.validate_on == 'held_out' and network.settings.get('images_checksum') != (
            records.checksum(images.data_set, images.folder, 'held_out')):
        raise errors.UserError(f'{network.checkpoint.path} was not trained with '
                               f'--validate_on=held_out on the images in {images.folder}: restore '
                               'those images, or leave out --validate_on=held_out')
    counts = evaluate.confusion(network, images, FLAGS.batch_size)
    print(f'Evaluated {network.checkpoint.path} on {counts.sum()} images of '
          f'{images.data_set.name} ({FLAGS.validate_on}).')
    print(f'{datetime.now()}: precision @ 1 = {counts.trace() / counts.sum():.3f}')
    if FLAGS.per_class:
        print('\n'.join(evaluate.per_class(counts, network.classes)))


def choose_devices():
    """Hides GPUs from TensorFlow as --device and --device_id say, before it looks for them.

    Raises `errors.UserError` if there isn't one and must be.
    """
    if FLAGS.device_id is not None:
        os.environ['CUDA_VISIBLE_DEVICES'] = FLAGS.device_id
    if FLAGS.device == 'cpu':
        os.environ['CUDA_VISIBLE_DEVICES'] = '-1'
    if FLAGS.device == 'gpu' and not tf.config.list_physical_devices('GPU'):
        raise errors.UserError('--device=gpu, but TensorFlow finds no GPU: use --device=auto, or '
                                'TF_CPP_MIN_LOG_LEVEL=0 to see why')


def main():
    if is_given('type_config'):
        FLAGS.use_fp16 = FLAGS.type_config != 'float'
    choose_devices()
    if (FLAGS.best or FLAGS.per_class) and not FLAGS.evaluate:
        raise errors.UserError('--best and --per_class are for --evaluate: add it')
    if FLAGS.evaluate and not mpi.is_launcher():
        evaluate_run()
        return
    number = 0
    with workers.joined(FLAGS.step_timeout, FLAGS.interface) as worker:
        if not FLAGS.evaluate:
            number = train(worker)
        elif worker.is_chief:  # The others wait.
            evaluate_run()
    if number:
        session.end_by(number)


if __name__ == '__main__':
    script.run(main, aliases=_ALIASES, batch_size=None)  # Its default depends on the network.
