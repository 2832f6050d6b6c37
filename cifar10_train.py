"""Trains a network on one device.

    python cifar10_train.py

The tutorial reports an accuracy of about 0.86 after 100,000 steps (256 epochs). If --train_dir
holds a checkpoint, training resumes from it; --restart starts over. Evaluate the run with
cifar10_eval.py, and watch it with tensorboard --logdir.
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from cifar10_lib.program import startup  # First: it imports TensorFlow quietly.

import tensorflow.compat.v1 as tf

import cifar10
from cifar10_lib import recipes
from cifar10_lib.nets import variables
from cifar10_lib.program import console, devices
from cifar10_lib.training import session as training
from cifar10_lib.workers import cluster

FLAGS = cifar10.FLAGS


def train():
    """Builds the graph and steps it until --max_steps, resuming if it can."""
    recipe = recipes.chosen(training=True)
    with tf.Graph().as_default():
        training.use_seed()
        with tf.device('/cpu:0'):  # Input on the host leaves the GPU to the network.
            global_step = tf.train.get_or_create_global_step()
            images, labels = cifar10.distorted_inputs(recipe)
        logits = recipe.inference(images)  # cifar10.inference, unless --net names another.
        loss = cifar10.loss(logits, labels, recipe.label_smoothing)
        train_op = cifar10.train(loss, global_step, recipe)
        with training.session(loss, FLAGS.batch_size) as mon_sess:
            while not mon_sess.should_stop():
                mon_sess.run(train_op)


def main(argv=None):  # `tf.app.run` passes the arguments.
    del argv
    cluster.refuse_several()
    used = devices.line(dtype=variables.compute_type())
    training.apply_recipe_defaults()
    if training.steps_left():
        console.line(used)
        cifar10.maybe_download_and_extract()
        train()


if __name__ == '__main__':
    startup.run(main)
