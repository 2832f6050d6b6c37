"""Starts the distributed training with Ray, and starts it again after a loss (pip install ray).

    python docs/examples/ray_launcher.py 4 --train_dir=/shared/run --data_dir=/tmp/cifar10_data

The first argument is the largest number of workers; the others are the script's. Each worker takes
one CPU of Ray's, and the script must be at the same path on each machine. Without a free CPU for
all, as after the loss of a machine, fewer workers continue.
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
        with socket.socket() as free:
            free.bind(('', 0))
            return f'{ray.util.get_node_ip_address()}:{free.getsockname()[1]}'

    def run(self, hosts, index, arguments):
        task = {'cluster': {'worker': hosts}, 'task': {'type': 'worker', 'index': index}}
        environment = {**os.environ, 'TF_CONFIG': json.dumps(task)}
        return subprocess.run([sys.executable, SCRIPT, *arguments], env=environment).returncode


def codes(size, arguments):
    """Exit codes of one start; 75 if an actor or its machine is lost."""
    workers = [Worker.remote() for _ in range(size)]
    try:
        hosts = ray.get([worker.address.remote() for worker in workers])
        return ray.get([worker.run.remote(hosts, index, arguments)
                        for index, worker in enumerate(workers)])
    except ray.exceptions.RayActorError:
        return [75]
    finally:
        for worker in workers:
            ray.kill(worker)


if __name__ == '__main__':
    ray.init()
    found = [75]
    while any(code == 75 or code < 0 for code in found):
        free = int(ray.available_resources().get('CPU', 0))
        found = codes(max(1, min(int(sys.argv[1]), free)), sys.argv[2:])
        print('exit codes:', found, flush=True)
    sys.exit(max(found))
