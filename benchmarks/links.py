"""Throughput of several workers on links of limited rate and latency: expected and measured.

    python -m benchmarks.links --workers 2 --data_dir=/tmp/cifar10_data
    python -m benchmarks.links --step 0.044 --overlap 0.6  # A table of what to expect.

The first requires root on Linux. Each worker has a network namespace of its own. This process
carries their packets, limits the rate of each sender, delays all, and changes both as they train.
The workers train three times: each on its own, which gives the time of a step; together; and
without overlap. The difference on the first link gives the share of a step that overlaps. Flags
that are not listed are passed to classification.py.
"""
import argparse
import datetime
import fcntl
import heapq
import json
import os
import re
import select
import socket
import struct
import subprocess
import sys
import tempfile
import time
from concurrent import futures

import numpy as np

from benchmarks import processes

_LINKS = [(rate * 1e6, ping / 1e3)  # Bits per second and seconds.
          for rate in (100, 500, 1000) for ping in (1, 10)]
_STEPS, _WARM_UP = 10, 3  # Steps on each link in each turn, and those of them that do not count.
_START = 20  # Steps before the first turn.


def throughput(workers, images, step, size, bandwidth, ping, overlap):
    """Images/s to expect of several workers that exchange gradients around a ring.

    Args:
        workers: their number.
        images: images per worker and step.
        step: seconds of a step without the exchange.
        size: bytes of all gradients.
        bandwidth: bytes/s that each worker's link carries in each direction.
        ping: seconds from a request over the link to its answer.
        overlap: the share of a step during which the exchange runs beside the computation.
    """
    # Each of 2 (n - 1) rounds sends the n-th part: see classification_lib/collectives.py.
    exchange = 2 * (workers - 1) * (size / workers / bandwidth + ping)
    return workers * images / (step + max(0, exchange - overlap * step))


class Network:
    """Carries packets between the devices of the workers' namespaces."""

    def __init__(self, devices):
        self._devices = devices
        self._waiting = []  # A heap of (time of arrival, number, receiver, packet).
        self._free_at = [0.0] * len(devices)  # When each sender's link has sent what it got.
        self._count = 0
        self.rate, self.ping = _LINKS[0]

    def carry(self, pipe):
        """Carries packets until a pipe can be read."""
        ready = []
        while pipe not in ready:
            seconds = 1.0
            while self._waiting:
                seconds = self._waiting[0][0] - time.monotonic()
                if seconds > 0:
                    break
                _, _, receiver, packet = heapq.heappop(self._waiting)
                os.write(self._devices[receiver], packet)
                seconds = 1.0
            ready, _, _ = select.select([*self._devices, pipe], [], [], seconds)
            for sender in set(ready) - {pipe}:
                self._take(self._devices.index(sender))

    def _take(self, sender):
        packet = os.read(self._devices[sender], 1 << 17)
        receiver = packet[_HEADER + 19] - 1  # The last byte of the destination, 10.97.0.N.
        if packet[_HEADER] >> 4 == 4 and receiver < len(self._devices):  # IPv4, to a worker.
            self._count += 1
            self._free_at[sender] = 8 * len(packet) / self.rate + max(
                self._free_at[sender], time.monotonic())
            heapq.heappush(self._waiting, (
                self._free_at[sender] + self.ping / 2, self._count, receiver, packet))


_HEADER = 10  # Bytes of `struct virtio_net_hdr` before each packet.
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454ca, 0x400454d0  # From <linux/if_tun.h>.
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x1, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4 = 0x1, 0x2


def become_worker(rank, connection, words):
    """Makes a device for this network namespace, sends it to the parent, and runs a program."""
    device = os.open('/dev/net/tun', os.O_RDWR)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack(
        '16sH22x', b'tun0', _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR))
    # The kernel hands over segments of up to 64 kB, of which this Python can carry enough.
    fcntl.ioctl(device, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4)
    for change in (f'addr add 10.97.0.{rank + 1}/24 dev tun0', 'link set tun0 up',
                   'link set lo up'):
        subprocess.run(['ip', *change.split()], check=True)
    with socket.socket(fileno=connection) as parent:
        socket.send_fds(parent, [b'.'], [device])
    os.execv(sys.executable, [sys.executable, *words])


def train(options, *flags):
    """Seconds per step on each of `_LINKS`: {link: a list of one per turn}."""
    plan = [link for _ in range(options.turns) for link in _LINKS]
    hosts = [f'10.97.0.{rank + 1}:2222' for rank in range(options.workers)]
    started, devices = [], []
    pipe, end = os.pipe()
    with tempfile.TemporaryDirectory() as folder:
        words = ['classification.py', f'--data_dir={options.data_dir}', f'--train_dir={folder}',
                 f'--net={options.net}', f'--batch_size={options.batch_size}',
                 '--log_frequency=1', '--validate_every=0',
                 f'--max_steps={_START + _STEPS * len(plan) + 1}', *options.flags, *flags]
        for rank in range(options.workers):
            here, there = socket.socketpair()
            config = {'cluster': {'worker': hosts}, 'task': {'type': 'worker', 'index': rank}}
            started.append(subprocess.Popen(
                ['unshare', '--net', sys.executable, '-m', 'benchmarks.links',
                 '--become', str(rank), str(there.fileno()), *words],
                cwd=processes.ROOT, env={**os.environ, 'TF_CONFIG': json.dumps(config)},
                pass_fds=[there.fileno()], stdout=end, stderr=end))
            there.close()
            devices += socket.recv_fds(here, 1, 1)[1]
        os.close(end)
        times = _times(plan, Network(devices), pipe)
        if any(process.wait() for process in started):
            raise SystemExit('A worker has failed')
    found = {link: [] for link in _LINKS}
    for number, link in enumerate(plan):
        first = _START + number * _STEPS
        found[link].append(np.diff(times[first + _WARM_UP:first + _STEPS + 1]).mean())
    return found


def _times(plan, network, pipe):
    """Times of all steps, in seconds; changes the links as worker 0 prints them."""
    text = ''
    while True:
        network.carry(pipe)
        data = os.read(pipe, 1 << 16)
        if not data:
            break
        text += data.decode()
        times = [datetime.datetime.fromisoformat(time).timestamp()
                 for time in re.findall(r'^(\S+ \S+): step \d+, loss', text, re.MULTILINE)]
        if _START <= len(times) < _START + _STEPS * len(plan):
            network.rate, network.ping = plan[(len(times) - _START) // _STEPS]
    if len(times) < _START + _STEPS * len(plan):
        raise SystemExit(text)
    return times


def main():
    parser = argparse.ArgumentParser(prog='python -m benchmarks.links', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--data_dir', default='/tmp/cifar10_data', help='data folder')
    parser.add_argument('--workers', type=int, default=2, help='number of workers')
    parser.add_argument('--net', default='tutorial', help='name of the network')
    parser.add_argument('--parameters', type=int, default=1068298, help='of the network')
    parser.add_argument('--batch_size', type=int, default=128, help='images per worker and step')
    parser.add_argument('--steps', type=int, default=150, help='steps of runs that share nothing')
    parser.add_argument('--turns', type=int, default=5, help='times on each link')
    parser.add_argument('--step', type=float, help='seconds per step of one worker, for a table')
    parser.add_argument('--overlap', type=float, default=0.5, help='share of a step, for a table')
    parser.add_argument('--ping', type=float, default=1e-4, help='in seconds, for a table')
    options, options.flags = parser.parse_known_args()
    if options.step:
        print('workers  images/s at 1, 10 and 100 Gbit/s')
        for workers in (1, 2, 4, 8, 16, 64):
            rates = [throughput(workers, options.batch_size, options.step, 4 * options.parameters,
                                bits / 8, options.ping, options.overlap)
                     for bits in (1e9, 1e10, 1e11)]
            print(f'{workers:7}', *(f'{rate:9.0f}' for rate in rates))
        return
    with futures.ThreadPoolExecutor() as pool:
        alone = list(pool.map(lambda _: processes.train(options), range(options.workers)))
    step = options.batch_size / np.median([found['rate'] for found in alone])
    with_overlap, without = train(options), train(options, '--nowith_all_reduce_callback')
    gained = np.median(without[_LINKS[0]]) - np.median(with_overlap[_LINKS[0]])
    overlap = gained / step
    print(f'{options.workers} workers with {options.batch_size} images each: a step of runs that '
          f'share nothing takes {step:.3f} s; {overlap:.0%} of it overlaps with the exchange.')
    print('Images/s: expected, measured (middle half), with n =', options.turns)
    for rate, ping in _LINKS:
        for name, share, seconds in (('', overlap, with_overlap), (', afterwards', 0, without)):
            expected = throughput(options.workers, options.batch_size, step,
                                  4 * options.parameters, rate / 8, ping, share)
            low, middle, high = np.percentile(
                options.workers * options.batch_size / np.array(seconds[rate, ping]), [25, 50, 75])
            print(f'{rate / 1e6:5.0f} Mbit/s, {1000 * ping:2.0f} ms{name:12}{expected:8.0f}'
                  f'{middle:8.0f} ({low:.0f} to {high:.0f}), {expected / middle - 1:+.0%}')


if __name__ == '__main__':
    if sys.argv[1:2] == ['--become']:
        become_worker(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
    else:
        main()
