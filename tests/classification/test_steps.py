"""What a step of classification.py costs, by counting: runs, operations, exchanges and memory."""
import types

from classification_lib import data_sets, records, workers

import psutil
import pytest
import run_settings
import tensorflow.compat.v1 as tf
from small_runs import ran
from tensorflow.python.client import session

import cifar10
import classification

pytestmark = pytest.mark.usefixtures('small_rows')


@pytest.fixture
def runs(monkeypatch):
    """A list to which each `session.run` adds the sizes of what it fetches, and the memory of the
    process after it, in bytes."""
    found, process, do_run = [], psutil.Process(), session.BaseSession._do_run

    def counted(*arguments, **options):
        fetched = do_run(*arguments, **options)
        found.append(([getattr(each, 'size', 1) for each in fetched], process.memory_info().rss))
        return fetched

    monkeypatch.setattr(session.BaseSession, '_do_run', counted)
    return found


def test_a_step_is_one_run_that_fetches_a_few_numbers(runs):
    """Thirty more steps are thirty more runs; nothing but numbers comes back."""
    ran(max_steps=10, validate_every=0)
    first = len(runs)
    ran(max_steps=40, validate_every=0, train_dir='longer')
    assert len(runs) - first == first + 30
    assert all(sizes == runs[-20][0] for sizes, _ in runs[-30:-10])
    assert len(runs[-20][0]) < 8 and set(runs[-20][0]) == {1}


def test_memory_does_not_grow(runs):
    """A batch of 49 kB that each step kept would be 49 MB more after a thousand steps."""
    ran(max_steps=1300, validate_every=0, log_frequency=50)
    assert runs[-20][1] - runs[-1020][1] < 20e6


def step_of(net, size, **settings):
    """The operations of a step of the first of `size` workers, by type: {type: count}."""
    worker = workers.Worker(types.SimpleNamespace(rank=0, size=size), step_timeout=60)
    images = records.Images(*records.fetch(data_sets.CIFAR10, cifar10.FLAGS.data_dir), 'all')
    with tf.Graph().as_default():
        graph = classification.build_graph(worker, run_settings.of(
            net=net, workers=size, classes=data_sets.CIFAR10.classes, **settings),
            0, False, images, images)
        return operations([graph.train_op, graph.any_signal.op] + [
            figure.op for figure in graph.figures.values()])


def operations(fetched):
    """All operations that some need, themselves included, by type: {type: count}."""
    found, waiting = set(fetched), list(fetched)
    while waiting:
        operation = waiting.pop()
        for before in [each.op for each in operation.inputs] + operation.control_inputs:
            if before not in found:
                found.add(before)
                waiting.append(before)
    types_of = [operation.type for operation in found]
    return {name: types_of.count(name) for name in types_of}


@pytest.mark.parametrize('net, buckets', [('tutorial', 2), ('resnet23', 1)])
def test_several_workers_exchange_each_bucket_once_per_step(net, buckets):
    """And once the figures. The tutorial's dense layers are 3.8 MB, a bucket is 4, and its
    convolutions are the second one; all of ResNet-23 is 0.4 MB."""
    alone, found = step_of(net, 1), step_of(net, 3)
    assert found['CollectiveReduceV2'] == buckets + 1
    assert not [name for name in alone if 'Collective' in name]
    assert not [name for name in found if 'Bcast' in name]  # Variables are shared between steps.


def test_a_step_has_no_more_operations_than_the_tutorials():
    """The same network, trained by cifar10.py alone."""
    images, labels = (tf.zeros([16, 24, 24, 3]), tf.zeros([16], tf.int32))
    loss = cifar10.loss(cifar10.inference(images), labels)
    plain = operations([cifar10.train(loss, tf.train.get_or_create_global_step()), loss.op])
    found = step_of('tutorial', 1)
    assert sum(found.values()) <= sum(plain.values())
