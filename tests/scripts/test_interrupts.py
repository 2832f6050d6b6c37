"""Ctrl-C while a graph is built, with its KeyboardInterrupt discarded as by TensorFlow."""
import pytest
import spawn
from absl import flags

FLAGS = flags.FLAGS

PROGRAM = f'''
import sys; sys.path.insert(0, {str(spawn.ROOT)!r})
from cifar10_lib.program import startup
import os, signal, time
import cifar10, cifar10_train
from cifar10_lib.evaluation import model

convolutions = cifar10.convolutions

def interrupted(images):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    except KeyboardInterrupt:
        pass
    return convolutions(images)

cifar10.convolutions = interrupted

def main():
    %s
    print('not interrupted')

startup.run(main)
'''


@pytest.mark.slow
@pytest.mark.parametrize('build', ['cifar10_train.train()', 'model.Model()'])
def test_a_lost_interrupt_ends_the_process_when_the_graph_is_built(half_bright, build):
    done = spawn.run(['-c', PROGRAM % build, f'--data_dir={FLAGS.data_dir}',
                      f'--train_dir={FLAGS.train_dir}'], capture_output=True)
    assert done.returncode == 130, done.stderr
    assert done.stderr.endswith('interrupted\n') and done.stderr.count('\n') == 1
    assert 'not interrupted' not in done.stdout and 'step 0' not in done.stdout
