"""Where the operations of a step run, and which others they wait for.

TensorFlow divides the graph of a step into one part per device, which
`RunOptions.output_partition_graphs` returns.
"""
import collections
import dataclasses

import pytest
import tensorflow.compat.v1 as tf
from absl import flags

import cifar10
import cifar10_multi_gpu_train
from cifar10_lib import recipes, settings
from cifar10_lib.program import devices
from cifar10_lib.runs import starting

FLAGS = flags.FLAGS

# Operations that a tower or an inference graph leaves to the CPU, and why. Soft placement moves
# those that ask for a GPU. They run only in the steps that write summaries.
ON_THE_HOST = {
    'ScalarSummary': 'makes a string, and strings are in host memory',
    'HistogramSummary': 'makes a string',
    'MergeSummary': 'makes a string',
    'Const': 'if it is a string: the tag of a summary',
}


def graph_of_towers():
    """The graph that cifar10_multi_gpu_train.py builds for the flags: a `tf.Graph`.

    Its step is the operation `train`. The folder of its run cannot be made: the script ends after
    the graph is built, before its session starts.
    """
    graphs = []

    def inference(images, *options):
        graphs.append(images.graph)
        return recipe.inference(images, *options)

    recipe = recipes.chosen()
    noted = dataclasses.replace(recipe, inference=inference)
    source = cifar10.default_source(batch_size=settings.batch_size(recipe))
    run = dataclasses.replace(settings.run(recipe), train_dir='/proc/run', validate_every=0)
    start = starting.read(run, source, noted, FLAGS.num_gpus)
    with pytest.raises(OSError):
        cifar10_multi_gpu_train.train(source, noted, start)
    return graphs[0]


def inputs_of(op):
    """Names of all operations that an operation waits for, directly or indirectly."""
    found, waiting = set(), [op]
    while waiting:
        op = waiting.pop()
        for before in [tensor.op for tensor in op.inputs] + list(op.control_inputs):
            if before.name not in found:
                found.add(before.name)
                waiting.append(before)
    return found


def gpus_as_cpus(op):
    """A device function for graphs: CPU 1 stands in for GPU 0, CPU 2 for GPU 1, and so on."""
    device = tf.DeviceSpec.from_string(op.device)
    if device.device_type == 'GPU':
        device = device.replace(device_type='CPU', device_index=1 + (device.device_index or 0))
    return device.to_string()


def config(towers):
    """A `tf.ConfigProto` that runs the graph as built, with one more CPU per tower."""
    result = devices.session_config()
    result.graph_options.rewrite_options.disable_meta_optimizer = True
    result.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
    result.device_count['CPU'] = 1 + towers
    return result


def parts(session, step):
    """Runs a step; returns its parts, one `tf.GraphDef` per device."""
    metadata = tf.RunMetadata()
    session.run(step, options=tf.RunOptions(output_partition_graphs=True), run_metadata=metadata)
    return metadata.partition_graphs


def moved(graph, partitions):
    """Operations that ran elsewhere than they ask to: {'Type: asks for GPU:0, ran on CPU:0': n}."""
    found = collections.Counter()
    asked = {op.name: op.device for op in graph.get_operations() if op.device}
    for node in (node for part in partitions for node in part.node):
        if node.name in asked and short(asked[node.name]) != short(node.device):
            found[f'{node.op}: asks for {short(asked[node.name])}, ran on '
                  f'{short(node.device)}'] += 1
    return dict(found)


def short(device):
    """'/job:localhost/replica:0/task:0/device:CPU:0' -> 'CPU:0'."""
    spec = tf.DeviceSpec.from_string(device)
    return f'{spec.device_type}:{spec.device_index or 0}'
