"""Every operation that may run on a GPU has a kernel there, which needs no GPU to check.

TensorFlow's packages register their GPU kernels on every machine.
"""
import functools

import placement
import pytest
import record_files
import tensorflow.compat.v1 as tf
from absl.testing import flagsaver
from tensorflow.python.framework import kernels

import cifar10
from cifar10_lib import recipes
from cifar10_lib.evaluation import accuracy, model


@functools.cache
def _gpu_kernels(kind):
    """The type constraints of an operation's kernels for GPUs, or for any device ('DEFAULT')."""
    return [kernel.constraint for kernel in kernels.get_registered_kernels_for_op(kind).kernel
            if kernel.device_type in ('GPU', 'DEFAULT')]


def has_gpu_kernel(op):
    """Whether a kernel for GPUs is registered for an operation with the types that it has."""
    def fits(constraint):
        attribute = op.node_def.attr[constraint.name]
        types = attribute.list.type or [attribute.type]
        return set(types) <= set(constraint.allowed_values.list.type)

    return any(all(map(fits, constraints)) for constraints in _gpu_kernels(op.type))


def _check(operations):
    """Each of a graph's operations has a GPU kernel or is expected on the host."""
    operations = list(operations)
    assert len(operations) > 90
    for op in operations:
        assert has_gpu_kernel(op) or op.type in placement.ON_THE_HOST, op
        if op.type == 'Const' and not has_gpu_kernel(op):
            assert op.outputs[0].dtype == tf.string, op


@pytest.fixture(scope='module')
def records(tmp_path_factory):
    """Small record files in --data_dir."""
    folder = tmp_path_factory.mktemp('data')
    record_files.write_noise(folder, count=20)
    with flagsaver.flagsaver(data_dir=str(folder), batch_size=4):
        yield


@pytest.mark.parametrize('options', [
    {}, {'use_fp16': True}, {'use_bf16': True}, {'variables': 'gpu'}], ids=str)
@pytest.mark.parametrize('net', recipes.TABLE)
def test_a_tower(net, options, records):
    """And the update of the variables, if they are on the GPU."""
    with flagsaver.flagsaver(net=net, num_gpus=1, **options):
        graph = placement.graph_of_towers()
    of_gpu = [op for op in graph.get_operations() if 'gpu' in op.device.lower()]
    updates = [op for op in of_gpu if op.type.startswith('ResourceApply')]
    assert bool(updates) == ('variables' in options)
    _check(of_gpu)


@pytest.mark.parametrize('net', recipes.TABLE)
def test_inference_of_evaluation_prediction_and_export(net, records):
    """Operations without a device go to a GPU if there is one. Evaluation and validation read
    batches; predictions and exports any number of images."""
    with flagsaver.flagsaver(net=net):
        recipe = recipes.chosen()
        source = cifar10.default_source(eval_data=True)
        with tf.device('/cpu:0'):
            images, _ = cifar10.inputs(True, source, recipe.prepare)
        accuracy.predictions(recipe.logits(images, 10))
        for graph in tf.get_default_graph(), model.Model(recipe, 10).graph:
            _check(op for op in graph.get_operations() if not op.device)
