"""The flags of data and schedule that the tutorial does not have."""
import tensorflow.compat.v1 as tf
from absl import flags

import cifar10_input
from cifar10_lib.datasets import image_source, table
from cifar10_lib.program import command_line, errors

command_line.define_path('dataset', 'cifar10', f'The images: {", ".join(table.TABLE)}, or a folder '
                         'made by cifar10_convert.py.')
flags.DEFINE_string('data_url', None, 'URL (http, https or file) to download the archive from; by '
                    "default the data set's own.")
flags.DEFINE_enum('validate_on', 'test', ['test', 'held_out'], 'Images for --validate_every: '
                  'the test set, or a tenth of the training images, which is then excluded from '
                  'training.')
flags.DEFINE_float('learning_rate', None, 'Initial learning rate. The default depends on --net and '
                   '--dataset.', lower_bound=0.0, upper_bound=1e6, short_name='l')
flags.DEFINE_boolean('linear_scaling', None, 'With k batches per step, use k times the learning '
                     'rate after a warm-up. Counts the batches of all towers and workers; a batch '
                     'of k times the default --batch_size counts as k. Default: true for resnet23.')
flags.DEFINE_float('warmup_epochs', 5, 'Epochs of the warm-up of --linear_scaling; 0 starts at the '
                   'full rate.', lower_bound=0.0, upper_bound=1e6, short_name='e')
flags.DEFINE_float('min_fraction_of_examples_in_queue',
                   cifar10_input.MIN_FRACTION_OF_EXAMPLES_IN_QUEUE,
                   'Fraction of the training images to keep in the shuffle queue.',
                   lower_bound=0.0, upper_bound=1.0)

FLAGS = tf.app.flags.FLAGS  # Parses the command line on first use, as in `cifar10`.

# Scripts that do not train, or do not read record files, omit these from --help.
TRAINING_FLAGS = ('learning_rate', 'linear_scaling', 'min_fraction_of_examples_in_queue',
                  'validate_on', 'warmup_epochs')
INPUT_FLAGS = ('batch_size', 'data_dir', 'data_url')

# Programs written against the tutorial may define their own flags of these names, which then
# replace ours.
for _name in (*TRAINING_FLAGS, 'dataset', 'data_url'):
    FLAGS[_name].allow_override = True


@flags.validator('dataset')
def _check_dataset(name):
    try:
        image_source.find(name)
    except errors.DataError as error:
        raise flags.ValidationError(str(error)) from error
    return True


def scales_linearly(recipe):
    """Whether the linear scaling rule applies: `--linear_scaling`, or else the `Recipe`'s own."""
    return bool(recipe and recipe.linear_scaling if FLAGS.linear_scaling is None else
                FLAGS.linear_scaling)
