"""Exports a trained network as a SavedModel, for TensorFlow Serving, TensorFlow Lite and others.

    python cifar10_export.py --checkpoint_dir=/tmp/cifar10_train --export_dir=/tmp/cifar10_model/1

The signature `serving_default` maps `images`, uint8 [batch, 32, 32, 3], to `logits` and
`probabilities`, both float32 [batch, classes], and `classes`, int64 [batch], the most probable
ones. It includes the preprocessing for evaluation. The signature `preprocessed` leaves that out,
for integer quantisation: its `images` are float32, for the tutorial's network [batch, 24, 24, 3],
each standardised. The variables are constants. The names of the classes are in
assets.extra/labels.txt, one per line. --export_dir must be a new or empty folder. For TensorFlow
Serving, its name must be a number, as here.
"""
from cifar10_lib.program import quiet

quiet.import_tensorflow()

import os
import pathlib

import tensorflow.compat.v1 as tf
from absl import app

from cifar10_lib import settings
from cifar10_lib.evaluation import model, trained
from cifar10_lib.program import command_line, console, devices, files, startup

settings.define_checkpoint_flags()
command_line.define_path('export_dir', None, 'Folder to create for the SavedModel.')

FLAGS = tf.app.flags.FLAGS


def export():
    """Exports the checkpoint that the flags select to --export_dir, all or nothing.

    Raises:
        app.UsageError: --export_dir is not given or not empty, the checkpoint is missing or does
            not fit --net and --dataset, or the network requires a fixed batch size.
    """
    devices.choose(FLAGS.device)
    if not FLAGS.export_dir:
        raise app.UsageError('--export_dir is missing: choose a new folder')
    given = settings.checkpoint()
    checkpoint = trained.checkpoint(given)
    trained.say_owner(checkpoint)
    found = trained.read(os.path.dirname(checkpoint), reads_images=False)
    classes = found.classes
    with files.new_folder(FLAGS.export_dir, '--export_dir') as partial:
        network = network_of_any_batch_size(found.recipe, len(classes))
        # The part of the graph that computes the outputs, with the variables as constants.
        with network.session(checkpoint, given.use_moving_averages) as session:
            graph_def = tf.graph_util.convert_variables_to_constants(
                session, network.graph.as_graph_def(),
                [out.op.name for out in network.outputs.values()])

        with tf.Graph().as_default(), tf.Session(config=devices.session_config()) as session:
            tf.import_graph_def(graph_def, name='')

            def same(tensor):
                return session.graph.get_tensor_by_name(tensor.name)

            outputs = {name: same(tensor) for name, tensor in network.outputs.items()}
            signatures = {
                name: tf.saved_model.predict_signature_def({'images': same(images)}, outputs)
                for name, images in (('serving_default', network.pixels),
                                     ('preprocessed', network.images))}
            builder = tf.saved_model.Builder(partial)
            builder.add_meta_graph_and_variables(
                session, ['serve'], signatures, clear_devices=True)
            builder.save()

        labels = pathlib.Path(partial, 'assets.extra', 'labels.txt')
        labels.parent.mkdir()
        labels.write_text(''.join(f'{name}\n' for name in classes), 'utf-8')
    console.line(f'{FLAGS.export_dir} holds {checkpoint} as a SavedModel.')


def network_of_any_batch_size(recipe, num_classes):
    """The `model.Model` that takes any number of images.

    Raises `app.UsageError` if the network requires a fixed number. The tutorial's own versions
    flattened in three ways: to [FLAGS.batch_size, 2304], which fixes the shape of the logits; and
    to [FLAGS.batch_size, -1] or [images.get_shape()[0], -1], of which TensorFlow can build the
    next layer only if the number is known.
    """
    error = None
    try:
        network = model.Model(recipe, num_classes)
    except (TypeError, ValueError) as raised:
        error = raised
        # Any other mistake of the network is raised again here.
        network = model.Model(recipe, num_classes, settings.batch_size(recipe))
    if network.outputs['logits'].shape.as_list()[0] is not None:
        raise app.UsageError(
            'inference requires a fixed batch size; expected any number of images: flatten by '
            'tf.reshape(net, [-1, UNITS]), not by tf.reshape(net, [FLAGS.batch_size, -1])'
            ) from error
    return network


if __name__ == '__main__':
    startup.run(export, unused=(*settings.TRAINING_FLAGS, *settings.INPUT_FLAGS))
