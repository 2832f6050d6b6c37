"""The graphs of the collective operations; test_workers.py runs them."""
from classification_lib import collectives

import pytest
import tensorflow.compat.v1 as tf


def gradients(**sizes):
    """(gradient, variable) pairs of float32 vectors, by name with '__' for '/'."""
    return [(tf.zeros([size]), tf.get_variable(name.replace('__', '/'), [size]))
            for name, size in sizes.items()]


def names(buckets):
    return [[variable.op.name for _, variable in bucket] for bucket in buckets]


def test_buckets_by_hand():
    """3, 2, 6 and 1 numbers of four bytes, in buckets of 20 bytes, as in the docstring. A bucket
    has gradients of one type."""
    grads = gradients(a=3, b=2, c=6, d=1)
    assert names(collectives.buckets(grads, 20)) == [['a', 'b'], ['c'], ['d']]
    grads.append((tf.zeros([3], tf.bfloat16), tf.get_variable('e', [3], tf.bfloat16)))
    assert names(collectives.buckets(grads, 100)) == [['a', 'b', 'c', 'd'], ['e']]


def test_a_bucket_ends_at_a_layer():
    """Two layers of 4 + 1 numbers: a bucket of 6 ends before the second layer's weights."""
    grads = gradients(one__weights=4, one__biases=1, two__biases=1, two__weights=4)
    assert names(collectives.buckets(grads, 24)) == [
        ['one/weights', 'one/biases'], ['two/biases', 'two/weights']]
    # A layer that is larger than a bucket is divided.
    assert names(collectives.buckets(grads, 16)) == [
        ['one/weights'], ['one/biases'], ['two/biases'], ['two/weights']]


@pytest.fixture
def small_buckets(monkeypatch):
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


def test_the_last_layers_come_first_and_overlap_with_the_others(small_buckets):
    grads = gradients(a=13, b=99, c=7)
    means = collectives.mean_gradients([*grads, (None, tf.get_variable('d', [5]))], 2)
    assert [variable.op.name for _, variable in means] == ['a', 'b', 'c']
    first, second, third = reductions()
    assert [each.inputs[0].shape.as_list() for each in (first, second, third)] == [[7], [99], [13]]
    assert grads[2][0].op.name in waits_for(first)
    assert not {grads[0][0].op.name, grads[1][0].op.name} & waits_for(first)
    assert first.name not in waits_for(second)


def test_without_overlap_they_wait_for_the_whole_backward_pass(small_buckets):
    grads = gradients(a=13, b=99, c=7)
    collectives.mean_gradients(grads, 2, overlap=False)
    assert len(reductions()) == 3
    for each in reductions():
        assert {gradient.op.name for gradient, _ in grads} <= waits_for(each)


def test_on_gpus_buckets_go_one_after_another(small_buckets):
    """Otherwise, two workers whose GPUs take them in different orders would wait forever."""
    collectives.mean_gradients(gradients(a=13, b=99, c=7), 2, on_gpu=True)
    first, second, third = reductions()
    assert first.name in waits_for(second)
    assert second.name in waits_for(third)
    assert first.device == '/device:GPU:0'
    assert first.get_attr('communication_hint') == b'nccl'
