"""Exports a trained network as a SavedModel: for TensorFlow Serving, LiteRT, ONNX and others.

    python cifar10_export.py --checkpoint_dir=/tmp/cifar10_train --export_dir=/tmp/cifar10_model/1

The model maps `images`, uint8 [batch, 32, 32, 3], the channels red, green and blue, to `logits` and
`probabilities`, both float32 [batch, classes], and `classes`, int64 [batch], the most probable
ones. It includes the preprocessing of the evaluation. Images of another size are an error. The
names of the classes are in assets.extra/labels.txt, one per line in UTF-8. For TensorFlow Serving,
the name of --export_dir must be a number, as here.

Other programs get the pixels of a photo, as cifar10_predict.py does, by

    from PIL import Image, ImageOps

    photo = ImageOps.exif_transpose(Image.open('cat.jpg')).convert('RGB')
    photo = ImageOps.fit(photo, (32, 32), Image.Resampling.BILINEAR)
    images = numpy.asarray(photo)[numpy.newaxis]  # uint8 [1, 32, 32, 3]
"""
import os

from cifar10_lib import errors, files, script
from classification_lib import evaluate, trained

import tensorflow.compat.v1 as tf
from absl import flags

flags.DEFINE_string('checkpoint_dir', '/tmp/cifar10_train',
                    'Folder of a run, or path of a checkpoint.')
flags.DEFINE_boolean('best', False, 'Export the checkpoint in best/, the one with the lowest '
                     'validation error, instead of the latest one.')
flags.DEFINE_string('export_dir', None, 'New folder for the SavedModel.')

FLAGS = flags.FLAGS


def export():
    """Exports a checkpoint to --export_dir, all or nothing.

    Raises `errors.UserError` if --export_dir is missing or not empty, if there is no checkpoint or
    it does not fit its network, or if the network accepts one batch size only.
    """
    if not FLAGS.export_dir:
        raise errors.UserError('--export_dir is missing: choose a new folder')
    found = trained.find(FLAGS.checkpoint_dir, FLAGS.best, trained.given_data_dir())
    network = evaluate.Classifier(found.recipe, len(found.classes))
    if network.batch_size is not None:
        raise errors.UserError(
            f'inference accepts batches of {network.batch_size} images only; a model must accept '
            'any number: write -1 instead of the batch size in cifar10.py, as in '
            'tf.reshape(pool2, [-1, pool2.shape[1:].num_elements()])')
    with files.new_folder(FLAGS.export_dir, '--export_dir') as folder:
        with network.restored(found.checkpoint) as session, network.graph.as_default():
            classes = tf.argmax(network.logits, axis=1, name='classes')
            signature = tf.saved_model.predict_signature_def(
                {'images': network.pixels},
                {'logits': network.logits, 'probabilities': network.probabilities,
                 'classes': classes})
            builder = tf.saved_model.Builder(folder)
            builder.add_meta_graph_and_variables(
                session, ['serve'], {'serving_default': signature}, clear_devices=True)
            builder.save()
        os.mkdir(os.path.join(folder, 'assets.extra'))
        with open(f'{folder}/assets.extra/labels.txt', 'w', encoding='utf-8') as stream:
            stream.writelines(f'{name}\n' for name in found.classes)
    print(f'{FLAGS.export_dir} holds {found.checkpoint.path} as a SavedModel.')


if __name__ == '__main__':
    script.run(export)
