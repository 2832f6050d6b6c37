"""The graphs of the collective operations; test_workers.py runs them."""
from classification_lib import collectives

import pytest
import tensorflow.compat.v1 as tf


def gradients(**sizes):
    """(gradient, variable) pairs of float32 vectors."""
    return [(tf.zeros([size]), tf.get_variable(name, [size])) for name, size in sizes.items()]


@pytest.fixture(autouse=True)
def _small_buckets(monkeypatch):
    """Buckets of 25 numbers."""
    monkeypatch.setattr(collectives, 'BUCKET_BYTES', 100)


def reductions():
    return [op for op in tf.get_default_graph().get_operations()
            if op.type == 'CollectiveReduceV2']


def waits_for(op):
    """Names of all operations that an operation waits for, directly or indirectly."""
    found, waiting = set(), [op]
    while waiting:
        op = waiting.pop()
        for before in [tensor.op for tensor in op.inputs] + list(op.control_inputs):
            if before.name not in found:
                found.add(before.name)
                waiting.append(before)
    return found


def test_the_last_layers_come_first_and_overlap_with_the_others():
    grads = gradients(a=13, b=99, c=7)
    means = collectives.mean_gradients([*grads, (None, tf.get_variable('d', [5]))], 2)
    assert [variable.op.name for _, variable in means] == ['a', 'b', 'c']
    first, second, third = reductions()
    assert [each.inputs[0].shape.as_list() for each in (first, second, third)] == [[7], [99], [13]]
    assert grads[2][0].op.name in waits_for(first)
    assert not {grads[0][0].op.name, grads[1][0].op.name} & waits_for(first)
    assert first.name not in waits_for(second)


def test_without_overlap_they_wait_for_the_whole_backward_pass():
    grads = gradients(a=13, b=99, c=7)
    collectives.mean_gradients(grads, 2, overlap=False)
    assert len(reductions()) == 3
    for each in reductions():
        assert {gradient.op.name for gradient, _ in grads} <= waits_for(each)


def test_on_gpus_buckets_go_one_after_another():
    """Otherwise, two workers whose GPUs take them in different orders would wait forever."""
    collectives.mean_gradients(gradients(a=13, b=99, c=7), 2, on_gpu=True)
    first, second, third = reductions()
    assert first.name in waits_for(second)
    assert second.name in waits_for(third)
    assert first.device == '/device:GPU:0'
    assert first.get_attr('communication_hint') == b'nccl'
