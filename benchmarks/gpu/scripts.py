"""The user's commands on the GPU: training, evaluation, prediction, export, workers.

Nothing here imports TensorFlow: each command is a process of its own.
"""
import json
import os
import re
import tempfile
import time

from benchmarks.gpu import child
from cifar10_lib.datasets import table

_SAME_PRECISION = 0.005  # 50 of 10,000 images: the devices round differently.


class Scripts:
    """Runs the scripts on one data set, until a deadline."""

    def __init__(self, options, limit):
        self._options = options
        self.batch_size = options.batch_size
        self._deadline = time.monotonic() + limit

    def words(self, script, *words, **flags):
        """The words of a command, with the data set's flags."""
        flags = {'data_dir': self._options.data_dir, 'dataset': self._options.dataset, **flags}
        return [script, *words, *(f'--{name}={value}' for name, value in flags.items())]

    def run(self, script, *words, **flags):
        """Runs a script, which must succeed; returns its standard output."""
        return child.run(self.words(script, *words, **flags), self._deadline - time.monotonic())

    def train(self, folder, steps, script='cifar10_train.py', **flags):
        return self.run(script, train_dir=folder, max_steps=steps, validate_every=0,
                        batch_size=self.batch_size, **flags)

    def precision(self, run, device='auto'):
        with tempfile.TemporaryDirectory() as folder:
            out = self.run('cifar10_eval.py', '--run_once', checkpoint_dir=run, device=device,
                           eval_dir=folder)
        return float(re.search(r'precision @ 1 = ([\d.]+)', out)[1])

    def top(self, image, **flags):
        """The most probable class of an image: dictionary of `class` and `probability`."""
        out = self.run('cifar10_predict.py', image, '--json', **flags)
        return json.loads(out)['predictions'][0]


def train_and_evaluate(options, limit):
    """Trains, and evaluates the checkpoint on the same device and on the CPU."""
    scripts = Scripts(options, limit)
    with tempfile.TemporaryDirectory() as run:
        out = scripts.train(run, options.short_steps)
        precisions = {device: scripts.precision(run, device) for device in ('auto', 'cpu')}
        beside = _evaluate_beside_training(scripts, run)
    difference = round(abs(precisions['auto'] - precisions['cpu']), 4)
    return {
        'rows': [{'what': 'first line', 'value': out.splitlines()[0]},
                 {'what': 'images/s in the last line', 'value': _last_rate(out)},
                 *({'what': f'precision @ 1 with --device={device}', 'value': value}
                   for device, value in precisions.items())],
        'checks': [
            {'what': 'precision on the default device and on the CPU: difference',
             'value': difference, 'limit': _SAME_PRECISION,
             'passed': difference <= _SAME_PRECISION},
            {'what': 'evaluation beside training on one device: exit code of the trainer after '
             'SIGTERM', 'value': beside, 'limit': 143, 'passed': beside == 143}],
        'notes': []}


def _evaluate_beside_training(scripts, run):
    """Evaluates a run while another one trains and then stops it; returns its exit code."""
    with tempfile.TemporaryDirectory() as folder, child.start(scripts.words(
            'cifar10_train.py', train_dir=folder, validate_every=0,
            batch_size=scripts.batch_size)) as trainer:
        try:
            for line in trainer.stdout:
                if ': step 10, ' in line:
                    break
            scripts.precision(run)
            trainer.terminate()
            trainer.communicate(timeout=60)
        finally:
            child.end(trainer)
        return trainer.returncode


def predict_and_export(options, limit):
    """Classifies an image with a checkpoint and with its SavedModel, on both devices."""
    scripts = Scripts(options, limit)
    with tempfile.TemporaryDirectory() as folder:
        run, exported = os.path.join(folder, 'run'), os.path.join(folder, 'model')
        scripts.train(run, options.short_steps)
        scripts.run('cifar10_export.py', checkpoint_dir=run, export_dir=exported)
        image = _an_image(options, folder)
        found = {f'{what}, --device={device}': scripts.top(image, device=device, **{flag: path})
                 for what, flag, path in (('checkpoint', 'checkpoint_dir', run),
                                          ('SavedModel', 'saved_model', exported))
                 for device in ('auto', 'cpu')}
    probabilities = [top['probability'] for top in found.values()]
    spread = round(max(probabilities) - min(probabilities), 4)
    return {
        'rows': [{'what': what, **{key: top[key] for key in ('class', 'probability')}}
                 for what, top in found.items()],
        'checks': [{'what': 'largest difference of the top probability', 'value': spread,
                    'limit': 0.01, 'passed': spread <= 0.01}],
        'notes': []}


def _an_image(options, folder):
    """Writes the first test image to a file; returns its path."""
    from PIL import Image  # Here, since the other parts run without it.

    data_set = table.TABLE[options.dataset]
    records = os.path.join(options.data_dir, data_set.folder)
    with open(data_set.paths(records, eval_data=True)[0], 'rb') as stream:
        record = stream.read(data_set.record_bytes)
    size = table.WIDTH * table.HEIGHT
    planes = [Image.frombytes('L', (table.WIDTH, table.HEIGHT), record[start:start + size])
              for start in range(data_set.label_bytes, len(record), size)]
    path = os.path.join(folder, 'image.png')
    Image.merge('RGB', planes).save(path)
    return path


def precision(options, limit):
    """Precision @ 1 after `--long_steps` steps with the default settings."""
    scripts = Scripts(options, limit)
    with tempfile.TemporaryDirectory() as run:
        out = scripts.train(run, options.long_steps, save_checkpoint_secs=3600)
        found = scripts.precision(run)
    return {'rows': [{'data': options.dataset, 'batch': options.batch_size,
                      'steps': options.long_steps, 'precision @ 1': found,
                      'images/s in the last line': _last_rate(out)}], 'checks': [], 'notes': []}


def workers(options, limit):
    """Two workers: on two GPUs, whose gradients NCCL averages; else on the CPU."""
    gpus = len(child.nvidia_smi(['name']))
    with tempfile.TemporaryDirectory() as run:
        out = Scripts(options, limit).train(
            run, options.short_steps, script='cifar10_distributed_train.py', num_workers=2,
            device='gpu' if gpus > 1 else 'cpu')
    return {'rows': [{'workers': 2, 'on': '2 GPUs, NCCL' if gpus > 1 else 'the CPU',
                      'images/s': _last_rate(out)}],
            'checks': [], 'notes': [] if gpus != 1 else [
                'NCCL requires a GPU for each worker, and there is one: both ran on the CPU.']}


def _last_rate(out):
    """Images per second in the last line of a trainer."""
    return round(float(re.findall(r'\(([\d.]+) examples/sec', out)[-1]))
