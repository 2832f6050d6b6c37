"""Finds a trained network, of a run of classification.py or of the tutorial's programs, and the
images that it was trained on."""
import dataclasses
import os
from typing import NamedTuple

from cifar10_lib import checkpoints, errors
from classification_lib import data_sets, recipes, records, run

import numpy as np

import cifar10
import cifar10_input


class Network(NamedTuple):
    """A trained network."""

    checkpoint: checkpoints.Found
    recipe: recipes.Recipe
    classes: tuple  # Their names.
    settings: dict  # Those of `run.Settings` by name; {} if it is a run of the tutorial.


def find(checkpoint_dir, best=False, data_dir=None):
    """Finds the `Network` of a run: its newest checkpoint or, with `best`, the one with the lowest
    validation error. `checkpoint_dir` may also be a checkpoint.

    A run of the tutorial does not record its classes: their names come from `data_dir`, if the user
    has given it, or else from the folder of the record files that it was trained on, or they are
    those of CIFAR-10. Raises `errors.UserError`.
    """
    advice = 'train first, or choose another run'
    if best:
        checkpoint_dir = os.path.join(checkpoint_dir, run.BEST)
        advice = ('choose another run, train with classification.py --validate_every=1, or leave '
                  'out --best')
    path = run.best_checkpoint(checkpoint_dir)
    if path is None and not best:
        path = checkpoint_dir
    found = path and checkpoints.newest(path)
    if not found:
        raise errors.UserError(f'No checkpoint in {checkpoint_dir}: {advice}')
    content = run.read(os.path.dirname(found.path))
    if content is None:
        return Network(
            found, recipes.TABLE['tutorial'], _tutorial_classes(found, data_dir), {})
    if content['net'] not in recipes.TABLE:
        raise errors.UserError(f'{found.path} is of --net={content["net"]}; expected one of '
                                f'{", ".join(recipes.TABLE)}: use the version that trained it')
    return Network(found, recipes.TABLE[content['net']], tuple(content['classes']), content)


def _tutorial_classes(found, data_dir):
    """Names of the classes of a checkpoint of the tutorial, as many as its last layer has.

    If they may be wrong, a line says whose names they are.
    """
    folder = _tutorial_folder(found, data_dir)
    names = data_sets.class_names(folder) or ()
    last = 'softmax_linear/biases'
    biases = found.values.get(last, found.values.get(last + checkpoints.AVERAGE))
    count = len(names or data_sets.CIFAR10.classes) if biases is None else len(biases)
    if not names and count == len(data_sets.CIFAR10.classes):
        names = data_sets.CIFAR10.classes
        if not os.path.isdir(folder):
            errors.note(f'the images of the run were not found in {folder}, so the names of the '
                        'classes are those of CIFAR-10: if it had other images, add their '
                        '--data_dir')
    return (*names, *map(str, range(len(names), count)))[:count]


def data_dir(network):
    """The folder of the data sets of a `Network`: --data_dir if given, or its own."""
    return given_data_dir() or network.settings.get('data_dir', cifar10.FLAGS.data_dir)


def given_data_dir():
    """The value of --data_dir; None if the user has not given it."""
    if cifar10.FLAGS['data_dir'].using_default_value:
        return None
    return cifar10.FLAGS.data_dir


def _tutorial_folder(checkpoint, data_dir):
    """The folder of the record files of a run of the tutorial: in `data_dir`, or if that is None,
    the one from which it was trained.

    The graph beside the checkpoint holds the names of the files, relative to the folder in which
    the training was started.
    """
    if data_dir is None:
        for node in checkpoints.graph(checkpoint.path).graph_def.node:
            for name in node.attr['value'].tensor.string_val:
                if name.endswith(b'.bin'):
                    return os.path.dirname(os.fsdecode(name))
        data_dir = cifar10.FLAGS.data_dir
    return os.path.join(data_dir, data_sets.CIFAR10.folder)


def images(network, dataset, subset):
    """The `records.Images` of a value of --dataset or, if it is None, of a `Network`.

    `subset` is a field of theirs. Raises `errors.UserError`.
    """
    data_set = data_sets.find(dataset or network.settings.get('dataset', 'cifar10'))
    if not dataset and not network.settings:
        data_set = _tutorial_set(data_set, network)
    return records.Images(*records.fetch(data_set, data_dir(network)), subset)


def _tutorial_set(row, network):
    """The `data_sets.DataSet` that cifar10_input.py reads: `row`, CIFAR-10's, unless it is edited.

    It is in --data_dir, or, if the user has not given it, where a run of the tutorial has read it.
    """
    folder = _tutorial_folder(network.checkpoint, given_data_dir())
    if not os.path.isdir(folder):
        folder = os.path.join(cifar10.FLAGS.data_dir, row.folder)
    if not os.path.isdir(folder):
        return row  # To be downloaded.
    training, test = (cifar10_input.record_files(eval_data, folder) for eval_data in (False, True))
    classes = row.classes
    if len(classes) != cifar10_input.NUM_CLASSES:
        classes = tuple(map(str, range(cifar10_input.NUM_CLASSES)))
    return dataclasses.replace(
        row, folder=os.path.abspath(folder), classes=classes,
        train_files=tuple(map(os.path.basename, training)),
        test_files=tuple(map(os.path.basename, test)),
        record_bytes=cifar10_input._RECORD_BYTES)


def names_of_result(variables, stored, averages):
    """Under which of the `stored` names to look for the result of a training: {name: variable}.

    With `averages`, the moving averages are the result, otherwise the variables themselves. Where
    one is missing, it is the other: some variables have no average, and a checkpoint may be reduced
    to its averages.
    """
    found = {}
    for variable in variables:
        name = variable.op.name
        choices = [name, name + checkpoints.AVERAGE]
        if averages:
            choices.reverse()
        found[next((choice for choice in choices if choice in stored), name)] = variable
    return found


def starting_weights(network, variables, classes):
    """The values of a `Network` with which a new one can start: {variable: array}.

    Layers of another shape start anew, and so does the last one if the classes are others.
    `variables` are those of the new network, in its order, `classes` the names of its classes.

    Raises `errors.UserError` if no layer fits, or a value is not finite.
    """
    path, stored = network.checkpoint
    layers = [variable.op.name.rpartition('/')[0] for variable in variables if variable.trainable]
    found = {}
    for name, variable in names_of_result(variables, stored, network.recipe.averages).items():
        is_last = variable.op.name.rpartition('/')[0] == layers[-1]
        if name in stored and list(stored[name].shape) == variable.shape.as_list() and not (
                is_last and network.classes != tuple(classes)):
            found[variable] = stored[name]
    if not any(variable.trainable for variable in found):
        raise errors.UserError(f'{path} has no layer of this network: choose another '
                                '--initial_checkpoint, or its --net')
    if not all(np.isfinite(value).all() for value in found.values()):
        raise errors.UserError(f'{path} has values that are not finite: choose another '
                                '--initial_checkpoint')
    return found
