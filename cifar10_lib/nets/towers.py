"""Towers share the names of their losses and updates, apart from a prefix such as `tower_0/`."""
import re

import tensorflow.compat.v1 as tf


def strip(name, tower):
    """The name of an operation without its tower: 'tower_1/conv1' -> 'conv1' if `tower` is 'tower',
    the tutorial's TOWER_NAME."""
    return re.sub(f'^{tower}_[0-9]+/', '', name)


def of_first(nodes, tower):
    """The operations or tensors of a list without those of towers 1, 2 and so on."""
    later = re.compile(f'{tower}_[1-9]')
    return [node for node in nodes if not later.match(node.name)]


def losses():
    """The losses of the collection `losses` in the current name scope: list of float32 []."""
    scope = tf.get_default_graph().get_name_scope()
    return tf.get_collection('losses', scope + '/' if scope else None)


def losses_by_name(total_loss, tower):
    """All losses of the current name scope and their total, float32 [].

    Returns a dictionary from name without the tower, such as 'local3/weight_loss', to float32 [].
    """
    return {strip(each.op.name, tower): each for each in [*losses(), total_loss]}
