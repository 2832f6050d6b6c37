"""docs/differences.md: each row has a test, and the tutorial's own multi-GPU script runs after the
three changes of the page."""
import re

from cifar10_lib import checkpoints

import numpy as np
import outcomes
import pytest
import spawn
from absl import flags
from absl.testing import flagsaver

import cifar10_eval

FLAGS = flags.FLAGS
PAGE = (spawn.ROOT / 'docs/differences.md').read_text()

# The test of each row of the table, by the first words of the row.
TESTS = {
    'deletes `--train_dir`': 'test_resumes_exactly_and_stops_exactly',
    'multi-GPU script counts': 'test_training_resumes',
    'moving averages': 'test_the_update_and_the_average_by_hand',
    'multi-GPU script runs': 'test_a_run_on_two_towers',
    'multi-GPU script prints': 'test_the_loss_of_a_step_is_the_mean_of_the_towers',
    'multi-GPU script saves': 'test_checkpoints_by_steps_and_by_time',
    'with `--use_fp16`,': (
        'test_half_precision_learns_and_keeps_float32_variables test_float16_gradients_are_scaled'),
    'continues with': 'test_nan_in_the_loss test_variables_that_are_not_finite_are_not_saved',
    'the first': 'test_the_speed_is_that_of_all_steps',
    'two trainers': 'test_two_trainers_in_one_folder',
    'a damaged': 'test_a_damaged_newest_checkpoint',
    'absolute paths': 'test_a_run_that_was_moved',
    '`MonitoredTrainingSession` restarts': 'test_a_lost_network_share_is_not_a_preemption',
    '`tf.nn.lrn`': 'test_equals_tensorflows',
    '`wd=0.0` for': 'test_names_and_summaries_of_a_training_graph',
    '`inference` flattens': 'test_a_network_of_a_fixed_batch_size',
    'reads and': 'test_distortions_equal_those_of_tf_image',
    '"2 label': 'test_three_records',
    '`inputs` shuffles': 'test_evaluation_reads_each_record_once_in_order',
    "`inputs(eval_data='train_eval')` reads": 'test_the_name_of_a_set',
    'a missing': 'test_a_missing_file',
    'accepts any': 'test_damaged_files_are_named_and_stay',
    'trusts and': (
        'test_a_file_with_the_wrong_checksum_is_removed '
        'test_only_the_files_of_the_folder_are_unpacked'),
    'deletes `--eval_dir`': 'test_the_latest_checkpoint',
    'evaluates 10,112': 'test_which_images_count',
    'in a': 'test_one_prediction_per_image',
    '`--run_once` without': 'test_without_a_checkpoint',
    'evaluates the': 'test_it_waits_for_checkpoints_and_takes_each_once',
    'an error': 'test_input_that_fails_saves_the_steps',
    'ignores misspelled': 'test_an_unknown_flag_is_refused_and_nothing_is_written',
    'leaves oneDNN': 'test_one_dnn_is_used_unless_the_user_says_no',
    'a full': 'test_a_checkpoint',
}

# The calls of the published script in their order, for TensorFlow 1.
PUBLISHED = '''
import os.path
import re
import time
from datetime import datetime

import numpy as np
import tensorflow as tf
from six.moves import xrange

import cifar10

FLAGS = tf.app.flags.FLAGS
tf.app.flags.DEFINE_string('train_dir', '/tmp/cifar10_train', 'Folder.')
tf.app.flags.DEFINE_integer('max_steps', 1000000, 'Number of steps.')
tf.app.flags.DEFINE_integer('num_gpus', 1, 'Number of towers.')
tf.app.flags.DEFINE_boolean('log_device_placement', False, 'Print devices.')


def tower_loss(scope, images, labels):
    cifar10.loss(cifar10.inference(images), labels)
    losses = tf.get_collection('losses', scope)
    total_loss = tf.add_n(losses, name='total_loss')
    for each in losses + [total_loss]:
        tf.summary.scalar(re.sub('%s_[0-9]*/' % cifar10.TOWER_NAME, '', each.op.name), each)
    return total_loss


def average_gradients(tower_grads):
    averages = []
    for pairs in zip(*tower_grads):
        stacked = tf.concat(axis=0, values=[tf.expand_dims(grad, 0) for grad, _ in pairs])
        averages.append((tf.reduce_mean(stacked, 0), pairs[0][1]))
    return averages


def train():
    with tf.Graph().as_default(), tf.device('/cpu:0'):
        global_step = tf.get_variable(
            'global_step', [], initializer=tf.constant_initializer(0), trainable=False)
        batches_per_epoch = (
            cifar10.NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN / FLAGS.batch_size / FLAGS.num_gpus)
        rate = tf.train.exponential_decay(
            cifar10.INITIAL_LEARNING_RATE, global_step,
            int(batches_per_epoch * cifar10.NUM_EPOCHS_PER_DECAY),
            cifar10.LEARNING_RATE_DECAY_FACTOR, staircase=True)
        opt = tf.train.GradientDescentOptimizer(rate)
        images, labels = cifar10.distorted_inputs()
        images = tf.reshape(images, [cifar10.FLAGS.batch_size, 24, 24, 3])
        labels = tf.reshape(labels, [cifar10.FLAGS.batch_size])
        batch_queue = tf.contrib.slim.prefetch_queue.prefetch_queue(
            [images, labels], capacity=2 * FLAGS.num_gpus)
        tower_grads = []
        with tf.variable_scope(tf.get_variable_scope()):
            for i in xrange(FLAGS.num_gpus):
                with tf.device('/gpu:%d' % i):
                    with tf.name_scope('%s_%d' % (cifar10.TOWER_NAME, i)) as scope:
                        image_batch, label_batch = batch_queue.dequeue()
                        loss = tower_loss(scope, image_batch, label_batch)
                        tf.get_variable_scope().reuse_variables()
                        summaries = tf.get_collection(tf.GraphKeys.SUMMARIES, scope)
                        tower_grads.append(opt.compute_gradients(loss))
        grads = average_gradients(tower_grads)
        summaries.append(tf.summary.scalar('learning_rate', rate))
        for grad, var in grads:
            if grad is not None:
                summaries.append(tf.summary.histogram(var.op.name + '/gradients', grad))
        apply_gradient_op = opt.apply_gradients(grads, global_step=global_step)
        for var in tf.trainable_variables():
            summaries.append(tf.summary.histogram(var.op.name, var))
        variable_averages = tf.train.ExponentialMovingAverage(
            cifar10.MOVING_AVERAGE_DECAY, global_step)
        averages_op = variable_averages.apply(tf.trainable_variables())
        train_op = tf.group(apply_gradient_op, averages_op)
        saver = tf.train.Saver(tf.global_variables())
        summary_op = tf.summary.merge(summaries)
        sess = tf.Session(config=tf.ConfigProto(
            allow_soft_placement=True, log_device_placement=FLAGS.log_device_placement))
        sess.run(tf.global_variables_initializer())
        tf.train.start_queue_runners(sess=sess)
        summary_writer = tf.summary.FileWriter(FLAGS.train_dir, sess.graph)
        for step in xrange(FLAGS.max_steps):
            start_time = time.time()
            _, loss_value = sess.run([train_op, loss])
            duration = time.time() - start_time
            assert not np.isnan(loss_value), 'Model diverged with loss = NaN'
            if step % 10 == 0:
                print('%s: step %d, loss = %.2f (%.1f examples/sec; %.3f sec/batch)' % (
                    datetime.now(), step, loss_value,
                    FLAGS.batch_size * FLAGS.num_gpus / duration, duration / FLAGS.num_gpus))
            if step % 100 == 0:
                summary_writer.add_summary(sess.run(summary_op), step)
            if step % 1000 == 0 or (step + 1) == FLAGS.max_steps:
                saver.save(sess, os.path.join(FLAGS.train_dir, 'model.ckpt'), global_step=step)
        summary_writer.close()


def main(argv=None):
    cifar10.maybe_download_and_extract()
    if tf.gfile.Exists(FLAGS.train_dir):
        tf.gfile.DeleteRecursively(FLAGS.train_dir)
    tf.gfile.MakeDirs(FLAGS.train_dir)
    train()


if __name__ == '__main__':
    tf.app.run()
'''


def changed(script):
    """A script with the three changes of the page."""
    imported, = re.findall(r'^1\. `(.*)` becomes `(.*)`\.$', PAGE, re.MULTILINE)
    switched, = re.findall(r'^2\. `(.*)` follows', PAGE, re.MULTILINE)
    queue, = re.findall(r'^3\. `.*prefetch_queue.*\n\n```python\n(.*?)```\n', PAGE,
                        re.MULTILINE | re.DOTALL)
    assert queue.count('\n') == 3
    script = script.replace(imported[0], f'{imported[1]}\n{switched}')
    before, _, after = script.partition('        batch_queue = tf.contrib')
    _, _, after = after.partition('num_gpus)\n')
    return before + re.sub('^', ' ' * 8, queue.rstrip(), flags=re.MULTILINE) + '\n' + after


def test_each_row_of_the_table_has_a_test():
    rows = re.findall(r'^\| (.*?) \|', PAGE.partition('## What was changed')[2], re.MULTILINE)[2:]
    source = ''.join(path.read_text() for path in (spawn.ROOT / 'tests').glob('*/test_*.py'))
    for row in rows:
        names, = (names for words, names in TESTS.items() if row.startswith(words))
        assert all(f'def {name}(' in source for name in names.split()), row
    assert len(rows) == len(TESTS)


@pytest.mark.slow
def test_the_published_multi_gpu_script_after_three_changes(half_bright, tmp_path, capsys):
    """Two steps on two towers. Our programs evaluate what it saved as step 1."""
    script = tmp_path / 'their_multi_gpu_train.py'
    script.write_text(changed(PUBLISHED))
    done = spawn.run(
        [script, f'--data_dir={FLAGS.data_dir}', f'--train_dir={FLAGS.train_dir}',
         '--batch_size=8', '--num_gpus=2', '--max_steps=2'],
        env=spawn.environment(PYTHONPATH=str(spawn.ROOT)))
    assert done.returncode == 0, done.stderr
    assert [match[1] for match in outcomes.LINE.finditer(done.stdout)] == ['0']
    assert checkpoints.newest(FLAGS.train_dir).values['global_step'] == np.float32(2)
    tags = outcomes.summaries(FLAGS.train_dir)[0].keys()
    assert {'learning_rate', 'conv1/weights/gradients'} <= tags
    assert not [tag for tag in tags if 'sparsity' in tag]  # As the page says.
    with flagsaver.flagsaver(run_once=True):
        cifar10_eval.main()
    assert 'precision @ 1 = ' in capsys.readouterr().out
