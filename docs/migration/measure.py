"""Prints the training speed, in images/s, of each stage that runs on today's TensorFlow.

    python docs/migration/measure.py --rounds=5
    python docs/migration/measure.py --rounds=5 --tf1=tf1/bin/python
    python docs/migration/measure.py --tf1=tf1/bin/python --precision

The stages run in turn, so that other load on the machine affects all of them. Each run takes 300
steps; its last 100 count. With --tf1, an interpreter that has TensorFlow 1.15.5, stage 0 and
cifar10_train.py run, too. --precision compares these two instead: the precision @ 1 with averaged
weights after 5,000 and 20,000 steps, all evaluated by cifar10_eval.py.
"""
import argparse
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
TUTORIAL = ROOT / 'cifar10_train.py'


def run(path, *arguments, python=sys.executable):
    """Runs a program: what it prints."""
    return subprocess.run([python, str(path), *arguments], text=True, check=True,
                          stdout=subprocess.PIPE).stdout


def train(path, options, folder, steps):
    """Trains with a stage, or with cifar10_train.py, in a folder: what it prints."""
    if path == TUTORIAL:
        return run(path, f'--data_dir={options.records.parent}', f'--train_dir={folder}',
                   f'--max_steps={steps}')
    return run(path, f'--records={options.records}', f'--steps={steps}',
               *[f'--train_dir={folder}'] * ('keras' not in path.name),
               python=options.tf1 if path.name.startswith('stage_0') else sys.executable)


def images_per_second(path, options, steps=300, batch_size=128):
    """Trains; returns the images per second of the last 100 steps."""
    with tempfile.TemporaryDirectory() as folder:
        printed = train(path, options, folder, steps)
    rates = [float(rate) for rate in re.findall(r'([\d.]+) examples/sec', printed)]
    if path == TUTORIAL:  # A line each ten steps.
        return statistics.harmonic_mean(rates[-10:])
    milliseconds = re.findall(r'([\d.]+)ms/step', printed)  # As Keras prints it.
    return rates[-1] if rates else 1000 * batch_size / float(milliseconds[-1])


def print_precision(path, options):
    """Trains for 5,000 and then up to 20,000 steps, and prints the precision after each."""
    with tempfile.TemporaryDirectory() as folder:
        for steps in (5000, 20000):
            train(path, options, folder, steps)
            printed = run(ROOT / 'cifar10_eval.py', '--run_once', f'--eval_dir={folder}/eval',
                          f'--data_dir={options.records.parent}', f'--checkpoint_dir={folder}')
            print(f'{path.stem}, {steps} steps: {printed.split()[-1]}', flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--records', type=pathlib.Path,
                        default='/tmp/cifar10_data/cifar-10-batches-bin')
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--tf1', help='interpreter with TensorFlow 1.15.5')
    parser.add_argument('--precision', action='store_true', help='requires --tf1')
    options = parser.parse_args()
    published = [FOLDER / 'stage_0_published.py', TUTORIAL] if options.tf1 else []
    if options.precision:
        if not published:
            parser.error('--precision requires --tf1')
        for path in published:
            print_precision(path, options)
        return
    found = {path: [] for path in [*sorted(FOLDER.glob('stage_[1-4]_*.py')), *published]}
    for _ in range(options.rounds):
        for path, rates in found.items():
            rates.append(images_per_second(path, options))
    for path, rates in found.items():
        print(f'{path.stem}: {statistics.median(rates):.0f} images/s '
              f'({min(rates):.0f} to {max(rates):.0f})')


if __name__ == '__main__':
    main()
