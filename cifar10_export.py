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
import os
import pathlib
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from cifar10_lib.program import startup  # First: it imports TensorFlow quietly.

import tensorflow.compat.v1 as tf
from absl import app, flags

import cifar10
from cifar10_lib import settings
from cifar10_lib.evaluation import checkpoint_flags, model
from cifar10_lib.program import command_line, console, devices, files

command_line.define_path('export_dir', None, 'Folder to create for the SavedModel.')

FLAGS = flags.FLAGS


def export():
    """Exports the checkpoint that the flags select to --export_dir, all or nothing.

    Raises:
        app.UsageError: --export_dir is not given or not empty, or the checkpoint is missing or
            does not fit --net and --dataset.
    """
    if not FLAGS.export_dir:
        raise app.UsageError('--export_dir is missing: choose a new folder')
    checkpoint = checkpoint_flags.checkpoint()
    model.use_run(checkpoint, reads_images=False)
    with files.new_folder(FLAGS.export_dir, '--export_dir') as partial:
        network = model.Model()
        # The part of the graph that computes the outputs, with the variables as constants.
        averaged = FLAGS.use_moving_averages
        with network.session(network.read(checkpoint, averaged), averaged) as session:
            graph_def = tf.graph_util.convert_variables_to_constants(
                session, network.graph.as_graph_def(),
                [out.op.name for out in network.outputs.values()])
        for node in graph_def.node:  # Other processes do not know the gradient of our `lrn`.
            node.attr.pop('_gradient_op_type', None)

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
        labels.write_text(
            ''.join(f'{name}\n' for name in cifar10.source().data_set.classes), 'utf-8')
    console.line(f'{FLAGS.export_dir} holds {checkpoint} as a SavedModel.')


if __name__ == '__main__':
    startup.run(export, unused=(*settings.TRAINING_FLAGS, *settings.INPUT_FLAGS))
