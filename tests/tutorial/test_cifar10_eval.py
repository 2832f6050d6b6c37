"""What cifar10_eval.py counts, prints and writes."""
import os
import signal
import time

from cifar10_lib import errors

import numpy as np
import outcomes
import plain
import pytest
import record_files
import spawn
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver

import cifar10
import cifar10_eval
import cifar10_train

FLAGS = flags.FLAGS


@pytest.fixture
def evaluate(half_bright, capsys):
    """A function that evaluates once with these flags: the precision that is printed."""
    def run(**options):
        capsys.readouterr()
        with flagsaver.flagsaver(run_once=True, **options), tf.Graph().as_default():
            cifar10_eval.main(['script'])
        line, = capsys.readouterr().out.splitlines()
        return float(line.split(': precision @ 1 = ')[1])
    return run


def curve():
    """The curve 'Precision @ 1' in the event files of --eval_dir: {step: value}."""
    return {step: values['Precision @ 1'].simple_value
            for step, values in outcomes.summaries(FLAGS.eval_dir).items()
            if 'Precision @ 1' in values}


def test_the_latest_checkpoint(trained, evaluate):
    """Each of 130 images counts once, although batches have 8; earlier event files stay."""
    os.makedirs(FLAGS.eval_dir)
    earlier = os.path.join(FLAGS.eval_dir, 'events.out.tfevents.1.mine')
    open(earlier, 'w').close()
    expected = outcomes.precision(FLAGS.train_dir)
    np.testing.assert_allclose(evaluate(), expected, atol=5e-4)
    assert list(curve()) == [10]
    np.testing.assert_allclose(curve()[10], expected, rtol=1e-6)
    assert {'input/images/image/0', 'conv1/conv1/activations', 'local4/local4/sparsity'} <= (
        outcomes.summaries(FLAGS.eval_dir)[10].keys())
    assert os.path.exists(earlier)


def constant(folder, label):
    """Saves a network that gives every image this label, or the same logits if it is None."""
    values = {name + suffix: np.zeros(shape, np.float32) for name, shape in plain.SHAPES.items()
              for suffix in ('', plain.AVERAGE)}
    if label is not None:
        values['softmax_linear/biases' + plain.AVERAGE][label] = 1
    plain.save(os.path.join(folder, 'model.ckpt-7'), {**values, 'global_step': np.int64(7)})


def test_a_checkpoint_of_another_network(trained, evaluate, monkeypatch):
    monkeypatch.setattr(cifar10, 'NUM_CLASSES', 20)
    with pytest.raises(errors.UserError, match=(
            r'softmax_linear/biases/\w+ has shape \[10\]; expected \[20\]')):
        evaluate()


def test_which_images_count(half_bright, evaluate, monkeypatch):
    """Always 3: 2 of the first 5 test images, 9 of 30; and 20 of 100 training images. The
    averages are what counts: the variables themselves are zero."""
    def images(labels):
        return [(label, np.zeros([32, 32, 3], np.uint8)) for label in labels]

    record_files.write(half_bright / 'test_batch.bin', images([3, 3, 0, 1, 2, *[3] * 7, *[4] * 18]))
    for i in range(1, 6):
        record_files.write(half_bright / f'data_batch_{i}.bin', images([3] * 4 + [i] * 16))
    record_files.write(half_bright / 'data_batch_3.bin', images([3] * 4 + [9] * 16))
    constant(FLAGS.train_dir, 3)
    assert evaluate(num_examples=5) == 0.4
    assert evaluate() == 0.3
    assert evaluate(eval_data='train_eval') == 0.2
    assert evaluate(eval_data='train_eval', num_examples=4) == 1
    monkeypatch.setattr(cifar10, 'NUM_EXAMPLES_PER_EPOCH_FOR_EVAL', 2)  # As in an edited file.
    assert evaluate() == 1


def test_one_prediction_per_image(half_bright, evaluate):
    """All logits are the same: the first class is predicted, not all of them."""
    constant(FLAGS.train_dir, None)
    assert evaluate() == 0.5  # 65 of 130 images have label 0.


def test_without_a_checkpoint(half_bright):
    with flagsaver.flagsaver(run_once=True), pytest.raises(
            errors.UserError, match=f'No checkpoint in {FLAGS.train_dir}: train first'):
        cifar10_eval.main()


def test_a_run_of_classification_needs_no_download(half_bright, tmp_path):
    (tmp_path / 'run.json').touch()
    with flagsaver.flagsaver(checkpoint_dir=str(tmp_path), data_dir=f'{tmp_path}/none'), \
            pytest.raises(errors.UserError, match='use classification.py --evaluate --train_dir='):
        cifar10_eval.main()


@pytest.mark.slow
def test_it_waits_for_checkpoints_and_takes_each_once(half_bright):
    """The evaluation starts in an empty folder; then training starts, resumes, and starts over."""
    process = spawn.start([
        spawn.ROOT / 'cifar10_eval.py', f'--data_dir={FLAGS.data_dir}', '--eval_interval_secs=1',
        f'--checkpoint_dir={FLAGS.train_dir}', f'--eval_dir={FLAGS.eval_dir}'])

    def wait_for(step):
        end = time.monotonic() + spawn.PATIENCE
        while step not in curve():
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < end
            time.sleep(0.1)

    for steps, restart in ((10, False), (12, False), (11, True)):
        with flagsaver.flagsaver(max_steps=steps, restart=restart), tf.Graph().as_default():
            cifar10_train.main()
        wait_for(steps)
    process.send_signal(signal.SIGINT)
    out, error = spawn.ended(process, 130)
    # Step 0 may have been evaluated, too, while it was the latest.
    assert 3 <= out.count(': precision @ 1 = ') <= 5
    assert error == 'cifar10_eval.py: interrupted\n'
