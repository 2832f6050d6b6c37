"""Trains a network on one device.

    python cifar10_train.py

The tutorial reports about 86 percent after 100,000 steps (256 epochs). Training goes on from the
latest checkpoint in --train_dir; --restart starts over. Evaluate with cifar10_eval.py, watch with
tensorboard --logdir.
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from program import startup  # First: it imports TensorFlow quietly.

import tensorflow.compat.v1 as tf
from absl import flags

import cifar10
from program import ownership
import recipes
from training import session as training

FLAGS = flags.FLAGS


def train():
    """Builds the graph and runs it until --max_steps, from the latest checkpoint if there is
    one."""
    net = recipes.net()
    with tf.Graph().as_default():
        training.use_seed()
        with tf.device('/cpu:0'):  # Input on the host leaves the GPU to the network.
            global_step = tf.train.get_or_create_global_step()
            images, labels = cifar10.distorted_inputs(net.augment)
        loss = cifar10.loss(net.inference(images, training=True), labels)
        train_op = cifar10.train(loss, global_step, net.schedule, net.optimizer)
        with training.session(loss, examples_per_step=FLAGS.batch_size) as session:
            while not session.should_stop():
                session.run(train_op)


def main():
    startup.visible_gpus()
    training.use_recipe()
    if training.steps_left():
        cifar10.maybe_download_and_extract()
        train()


if __name__ == '__main__':
    startup.run(main, [startup, cifar10, recipes, training, ownership])
