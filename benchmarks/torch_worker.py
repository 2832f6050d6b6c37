"""Trains the tutorial's network in PyTorch, alone or as one of several processes.

    python -m benchmarks.torch_worker --batch_size=128
    python -m benchmarks.torch_worker --size=2 --rank=0 --address=127.0.0.1:2222 --interface=lo

Several processes average their gradients by `DistributedDataParallel` over gloo, with its defaults.
Each trains forever on a batch of noise of its own, so no input is read. Process 0 prints a line per
step, like that of the trainers.
"""
import argparse
import datetime
import itertools
import os

import torch
from torch import distributed

from benchmarks import torch_net

_FROZEN = datetime.timedelta(days=1)  # The benchmark freezes processes for a while.


def main():
    parser = argparse.ArgumentParser(
        prog='python -m benchmarks.torch_worker', description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--batch_size', type=int, default=128, help='images per step and process')
    parser.add_argument('--size', type=int, default=1, help='number of processes')
    parser.add_argument('--rank', type=int, default=0, help='number of this process')
    parser.add_argument('--address', help='HOST:PORT of process 0')
    parser.add_argument('--interface', help='network interface')
    options = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    if options.size > 1:
        os.environ['GLOO_SOCKET_IFNAME'] = options.interface
        distributed.init_process_group(
            'gloo', init_method=f'tcp://{options.address}', rank=options.rank,
            world_size=options.size, timeout=_FROZEN)
    trainer = torch_net.Trainer(options.batch_size, compiled=False, distributed=options.size > 1)
    for step in itertools.count():
        trainer.step()
        if options.rank == 0:
            print(f'{datetime.datetime.now()}: step {step}', flush=True)


if __name__ == '__main__':
    main()
