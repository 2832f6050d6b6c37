"""What every peer is given and prints: flags, batches of CIFAR-10, the tutorial's line."""
import argparse
import datetime
import pathlib

import numpy as np


def options():
    """The flags of a peer, and `folder`, that of the record files."""
    parser = argparse.ArgumentParser()
    parser.add_argument('--data_dir', type=pathlib.Path, default='/tmp/cifar10_data')
    parser.add_argument('--batch_size', type=int, default=128)
    parser.add_argument('--max_steps', type=int, default=1000)
    found, _ = parser.parse_known_args()  # Not all flags of this project's trainers.
    found.folder = found.data_dir / 'cifar-10-batches-bin'
    return found


def batches(folder, batch_size, max_steps):
    """Yields a batch per step: uint8 [batch_size, 32, 32, 3], and labels, int32 [batch_size]."""
    records = np.concatenate([np.fromfile(path, np.uint8) for path in folder.glob('data_batch_*')])
    records = records.reshape(-1, 1 + 3 * 32 * 32)  # A label, then three planes.
    steps_per_epoch = len(records) // batch_size
    for step in range(max_steps):
        if step % steps_per_epoch == 0:
            order = np.random.permutation(len(records))
        batch = records[order[step % steps_per_epoch::steps_per_epoch][:batch_size]]
        images = batch[:, 1:].reshape(batch_size, 3, 32, 32).transpose(0, 2, 3, 1)
        yield images, batch[:, 0].astype(np.int32)


def report(step, loss):
    """Prints the line that `benchmarks.processes` reads."""
    print(f'{datetime.datetime.now()}: step {step}, loss = {loss:.2f}', flush=True)
