"""The user's commands on the GPU: training, evaluation, prediction, export, workers."""
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile

from absl import flags
from PIL import Image

from benchmarks import children
import cifar10
from datasets import table
from program import devices

flags.DEFINE_integer('short_steps', 200, 'Steps of short training runs.', lower_bound=11)
flags.DEFINE_integer('long_steps', 10000, 'Steps of the run whose precision is reported.',
                     lower_bound=1)

FLAGS = flags.FLAGS

_SAME_PRECISION = 0.002  # 20 of 10,000 images: the devices round differently.


def _flags(**flags_):
    common = {'data_dir': FLAGS.data_dir, 'dataset': FLAGS.dataset, **flags_}
    return [f'--{name}={value}' for name, value in common.items()]


def _run(script, *words, **flags_):
    """Runs a script, which must succeed; returns its standard output."""
    done = subprocess.run([sys.executable, script, *words, *_flags(**flags_)], cwd=children.ROOT,
                          capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f'{script} ended with {done.returncode}: {done.stderr[-2000:]}')
    return done.stdout


def _train(folder, steps, script='cifar10_train.py', **flags_):
    return _run(script, train_dir=folder, max_steps=steps, validate_every=0, **flags_)


def _precision(run, folder, device):
    out = _run('cifar10_eval.py', '--run_once', checkpoint_dir=run, device=device,
               eval_dir=os.path.join(folder, f'eval_{device}'))
    return float(re.search(r'precision @ 1 = ([\d.]+)', out)[1])


def _last_rate(out):
    """Images per second in the last line of a trainer."""
    return round(float(re.findall(r'\(([\d.]+) examples/sec', out)[-1]))


def all_scripts():
    """Trains, then evaluates, predicts and exports on the default device and on the CPU."""
    with tempfile.TemporaryDirectory() as folder:
        run, exported = os.path.join(folder, 'run'), os.path.join(folder, 'model')
        trained = _train(run, FLAGS.short_steps)
        precisions = {device: _precision(run, folder, device) for device in ('auto', 'cpu')}
        difference = round(abs(precisions['auto'] - precisions['cpu']), 4)
        image = _an_image(folder)
        predicted = {device: _predicted(image, checkpoint_dir=run, device=device)
                     for device in ('auto', 'cpu')}
        _run('cifar10_export.py', checkpoint_dir=run, export_dir=exported)
        predicted.update({f'SavedModel, {device}': _predicted(
            image, saved_model=exported, device=device) for device in ('auto', 'cpu')})
        beside = _evaluate_beside_training(run, folder)
    classes = {name: top['class'] for name, top in predicted.items()}
    return {
        'rows': [{'what': 'first line', 'value': trained.splitlines()[0]},
                 {'what': 'last line\'s images/s', 'value': _last_rate(trained)},
                 *({'what': f'precision @ 1 on --device={device}', 'value': value}
                   for device, value in precisions.items()),
                 *({'what': f'prediction, {name}', 'value': f'{top["class"]} {top["probability"]}'}
                   for name, top in predicted.items())],
        'checks': [
            {'what': 'a checkpoint from the default device, evaluated there and on the CPU',
             'value': difference, 'limit': _SAME_PRECISION,
             'passed': difference <= _SAME_PRECISION},
            {'what': 'checkpoint and SavedModel predict one class on both devices',
             'value': ', '.join(sorted(set(classes.values()))), 'limit': 'one class',
             'passed': len(set(classes.values())) == 1},
            {'what': 'evaluation beside training on the same device', 'value': beside,
             'limit': 'exit codes 0 and 130', 'passed': beside == 'exit codes 0 and 130'}],
        'notes': []}


def _an_image(folder):
    """Writes the first test image to a file; returns its path."""
    data_set = cifar10.data_set()
    path = data_set.paths(cifar10.data_folder(), eval_data=True)[0]
    with open(path, 'rb') as stream:
        record = stream.read(data_set.record_bytes)
    size = table.WIDTH * table.HEIGHT
    planes = [Image.frombytes('L', (table.WIDTH, table.HEIGHT), record[start:start + size])
              for start in range(data_set.label_bytes, len(record), size)]
    image = os.path.join(folder, 'image.png')
    Image.merge('RGB', planes).save(image)
    return image


def _predicted(image, **flags_):
    return json.loads(_run('cifar10_predict.py', image, '--json', **flags_))['predictions'][0]


def _evaluate_beside_training(run, folder):
    """Evaluates a run while another one trains; returns the exit codes of both."""
    command = [sys.executable, 'cifar10_train.py', *_flags(
        train_dir=os.path.join(folder, 'other'), validate_every=0)]
    with subprocess.Popen(command, cwd=children.ROOT, stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.DEVNULL) as trainer:
        try:
            for line in trainer.stdout:
                if ': step 10, ' in line:
                    break
            failed = 0
            with contextlib.suppress(RuntimeError):
                failed = 1
                _precision(run, os.path.join(folder, 'beside'), 'auto')
                failed = 0
            trainer.send_signal(signal.SIGINT)
            trainer.stdout.read()
            return f'exit codes {failed} and {trainer.wait()}'
        finally:
            trainer.kill()


def precision():
    """Precision @ 1 after `--long_steps` steps with the default settings."""
    with tempfile.TemporaryDirectory() as folder:
        run = os.path.join(folder, 'run')
        rate = _last_rate(_train(run, FLAGS.long_steps, save_checkpoint_secs=3600))
        found = _precision(run, folder, 'auto')
    return {'rows': [{'data': cifar10.data_set().title, 'steps': FLAGS.long_steps,
                      'precision @ 1': found, 'images/s in the last line': rate}],
            'checks': [], 'notes': []}


def workers():
    """Two workers: on two GPUs, whose gradients NCCL averages; else on the CPU."""
    gpus = devices.visible_gpus()
    notes = [] if gpus != 1 else [
        'Two workers on one GPU are not possible: NCCL requires a GPU for each. They ran on the '
        'CPU.']
    with tempfile.TemporaryDirectory() as folder:
        out = _train(os.path.join(folder, 'run'), FLAGS.short_steps, num_workers=2,
                     script='cifar10_distributed_train.py', device='gpu' if gpus > 1 else 'cpu')
    return {'rows': [{'workers': 2, 'on': '2 GPUs, NCCL' if gpus > 1 else 'the CPU',
                      'images/s': _last_rate(out)}], 'checks': [], 'notes': notes}
