"""Starts the distributed training with Ray, and starts it again after a loss (pip install ray).

    python docs/examples/ray_launcher.py 4 --train_dir=/shared/run --data_dir=/tmp/cifar10_data

The first argument is the number of workers; the others are the script's. Each worker takes one of
Ray's CPUs. If a machine is lost and too few CPUs are left, fewer workers continue. The script must
be at the same path on each machine.
"""
import json
import os
import pathlib
import socket
import subprocess
import sys

import ray

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / 'cifar10_distributed_train.py'


@ray.remote(num_cpus=1)
class Worker:
    def address(self):
        with socket.create_server(('', 0)) as free:
            return f'{ray.util.get_node_ip_address()}:{free.getsockname()[1]}'

    def run(self, hosts, index, arguments):
        config = {'cluster': {'worker': hosts}, 'task': {'type': 'worker', 'index': index}}
        environment = {**os.environ, 'TF_CONFIG': json.dumps(config)}
        return subprocess.run([sys.executable, SCRIPT, *arguments], env=environment).returncode


def code_of(run):
    try:
        return ray.get(run)
    except ray.exceptions.RayActorError:  # The actor or its machine is lost.
        return os.EX_TEMPFAIL


def start(count, arguments):
    """Runs the script in `count` workers; returns their exit codes."""
    workers = [Worker.remote() for _ in range(count)]
    hosts = ray.get([worker.address.remote() for worker in workers])
    runs = [worker.run.remote(hosts, index, arguments) for index, worker in enumerate(workers)]
    return [code_of(run) for run in runs]


if __name__ == '__main__':
    ray.init()
    codes = [os.EX_TEMPFAIL]
    while any(code == os.EX_TEMPFAIL or code < 0 for code in codes):  # Negative: killed.
        cpus = int(ray.cluster_resources().get('CPU', 1))
        codes = start(min(int(sys.argv[1]), cpus), sys.argv[2:])
        print('Exit codes of the workers:', codes, flush=True)
    sys.exit(max(codes))
