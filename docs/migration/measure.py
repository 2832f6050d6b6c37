"""Prints how many images per second each stage that runs today trains on.

    python docs/migration/measure.py --records=/tmp/cifar10_data/cifar-10-batches-bin --rounds=5

The stages run in turn, so that other load on the machine affects all of them. Each run takes 300
steps; its last 100 count.
"""
import argparse
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

FOLDER = pathlib.Path(__file__).resolve().parent
STAGES = sorted(FOLDER.glob('stage_[1-4]_*.py'))


def images_per_second(path, records, steps=300, batch_size=128):
    """Trains with a stage; returns the images per second of the last 100 steps."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [f'--records={records}', f'--steps={steps}']
        if 'keras' not in path.name:
            arguments.append(f'--train_dir={folder}')
        printed = subprocess.run([sys.executable, str(path), *arguments], text=True, check=True,
                                 stdout=subprocess.PIPE).stdout
    rates = re.findall(r'([\d.]+) examples/sec', printed)
    milliseconds = re.findall(r'([\d.]+)ms/step', printed)  # As Keras prints it.
    return float(rates[-1]) if rates else 1000 * batch_size / float(milliseconds[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--records', default='/tmp/cifar10_data/cifar-10-batches-bin')
    parser.add_argument('--rounds', type=int, default=5)
    options = parser.parse_args()
    found = {path: [] for path in STAGES}
    for _ in range(options.rounds):
        for path, rates in found.items():
            rates.append(images_per_second(path, options.records))
    for path, rates in found.items():
        print(f'{path.stem}: {statistics.median(rates):.0f} images/s '
              f'({min(rates):.0f} to {max(rates):.0f})')


if __name__ == '__main__':
    main()
