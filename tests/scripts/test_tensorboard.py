"""Queries a real TensorBoard server about a run."""
import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest
import spawn
from absl import flags
from absl.testing import flagsaver

import cifar10_eval
import cifar10_multi_gpu_train

FLAGS = flags.FLAGS


@pytest.fixture
def served(half_bright, tmp_path):
    """A function of a path and a query that returns the server's answer about a run of two towers
    and its evaluation."""
    with flagsaver.flagsaver(num_gpus=2, max_steps=100, batch_size=4, profile=3, validate_every=5):
        cifar10_multi_gpu_train.train()
    with flagsaver.flagsaver(run_once=True, per_class=True):
        cifar10_eval.evaluate()
    process = spawn.start(['-m', 'tensorboard.main', '--host=127.0.0.1', '--port=0',
                           f'--logdir={tmp_path}'])
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        for line in process.stderr:
            url = re.search(r'http://127\.0\.0\.1:\d+/', line)
            if url:
                break
        yield lambda path, **query: opener.open(
            f'{url.group()}data/{path}?{urllib.parse.urlencode(query)}',
            timeout=spawn.PATIENCE).read()
    finally:
        process.terminate()
        process.communicate(timeout=spawn.PATIENCE)


def wait_for_both(ask):
    """Waits until the server has read both runs; returns the tags of their scalars by run."""
    end = time.monotonic() + spawn.PATIENCE
    while time.monotonic() < end:
        tags = {run: set(found) for run, found in json.loads(ask('plugin/scalars/tags')).items()}
        if 'Precision @ 1' in tags.get('eval', ()) and 'Precision @ 1' in tags.get('train', ()):
            return tags
        time.sleep(0.2)
    raise AssertionError(f'the server shows {tags}')


def top_level_boxes(graph):
    return {name.split('/')[0] for name in re.findall(r'^  name: "(.*)"', graph, re.MULTILINE)}


@pytest.mark.slow
def test_the_dashboards_of_a_run(served):
    scalars = wait_for_both(served)
    assert {'total_loss', 'total_loss (raw)', 'learning_rate', 'conv1/sparsity',
            'validation/error_averaged', 'training/error'} <= scalars['train']
    assert {'validation/error_averaged', 'classes/airplane/recall'} <= scalars['eval']
    points = json.loads(served('plugin/scalars/scalars', run='eval', tag='Precision @ 1'))
    assert [step for _, step, _ in points] == [100]
    images = json.loads(served('plugin/images/tags'))
    assert 'images/image/0' in images['train']
    assert {'images/image/0', 'confusion_matrix'} <= set(images['eval'])
    histograms = json.loads(served('plugin/histograms/tags'))
    assert {'conv1/activations', 'conv1/weights', 'local3/weights/gradients'} <= set(
        histograms['train'])
    assert not [tag for kind in (images, histograms, scalars) for tags in kind.values()
                for tag in tags if 'tower' in tag or tag.endswith('_1')]
    graphs = json.loads(served('plugin/graphs/info'))
    assert graphs['train']['run_graph'] and graphs['eval']['run_graph']
    assert graphs['train']['tags']['step_3']['profile']
    boxes = {run: top_level_boxes(served('plugin/graphs/graph', run=run).decode())
             for run in ('train', 'eval')}
    assert {'input', 'tower_0', 'tower_1', 'average_gradients', 'learning_rate', 'summaries',
            'moving_averages'} <= boxes['train']
    assert {'input', 'conv1', 'pool1', 'norm1', 'local4', 'confusion'} <= boxes['eval']
    assert len(boxes['train']) < 40, ' '.join(boxes['train'])
    assert len(boxes['eval']) < 20, ' '.join(boxes['eval'])
