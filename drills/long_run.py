"""Trains for 100,000 steps over as many starts as it takes, with an evaluation beside it.

    python -m drills.long_run /tmp/long_run --data_dir=/tmp/cifar10_data

Start it again after whatever ended it. Each start adds to the same run, in the folders `train` and
`eval`, and to `usage.csv`: memory, open files and threads of both processes, every half a minute.
When the last step is done it prints what the run came to.
"""
import argparse
import contextlib
import csv
import os
import signal
import subprocess
import sys
import time

from program import startup  # noqa: F401, first: it imports TensorFlow quietly.

from drills import trial
from runs import metrics

_EVERY = 30.0  # Seconds between looks at the processes.
_FIELDS = ['time', 'start', 'step', 'who', 'rss_mb', 'open_files', 'threads']


def main():
    options = _options()
    os.makedirs(options.folder, exist_ok=True)
    data = [f'--data_dir={options.data_dir}', f'--dataset={options.dataset}']
    train_dir = os.path.join(options.folder, 'train')
    eval_dir = os.path.join(options.folder, 'eval')
    training = _start(options.folder, 'train', [
        'cifar10_train.py', *data, f'--train_dir={train_dir}', f'--max_steps={options.max_steps}'])
    evaluation = _start(options.folder, 'eval', [
        'cifar10_eval.py', *data, f'--checkpoint_dir={train_dir}', f'--eval_dir={eval_dir}',
        f'--eval_interval_secs={options.eval_interval_secs}'])
    signal.signal(signal.SIGTERM, lambda *_: training.terminate())
    with trial.killed_at_the_end(evaluation), trial.killed_at_the_end(training):
        _watch(options.folder, {'train': training, 'eval': evaluation})
        ended_early = evaluation.poll() is not None
    if training.returncode or ended_early:
        print(f'Training ended with code {training.returncode}, '
              f'{"so did" if ended_early else "not"} the evaluation: see the logs in '
              f'{options.folder}.')
        return 1
    trial.script('cifar10_eval.py', *data, f'--checkpoint_dir={train_dir}',  # Of the last step.
                 f'--eval_dir={eval_dir}', '--run_once', seconds=600)
    _tell(options.folder, eval_dir)
    return 0


def _tell(folder, eval_dir):
    """Prints the precisions, and what the training processes used."""
    print('| step | precision @ 1 |\n| --- | --- |')
    for step, precision in metrics.read_scalars(eval_dir, 'Precision @ 1').items():
        print(f'| {step} | {precision:.3f} |')
    with open(os.path.join(folder, 'usage.csv'), newline='') as stream:
        rows = [row for row in csv.DictReader(stream) if row['who'] == 'train']
    for start in sorted({row['start'] for row in rows}):
        # The first looks find a process that imports, or fills its queue.
        used = [row for row in rows if row['start'] == start][3:]
        if used:
            memory = [float(row['rss_mb']) for row in used]
            print(f'{used[0]["step"]} to {used[-1]["step"]}: {memory[0]:.0f} MB at first, '
                  f'{max(memory):.0f} at most; open files '
                  f'{sorted({int(row["open_files"]) for row in used})}, threads '
                  f'{sorted({int(row["threads"]) for row in used})}')


def _options():
    parser = argparse.ArgumentParser(prog='python -m drills.long_run', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', help='where the run lies')
    parser.add_argument('--data_dir', default='/tmp/cifar10_data', help='folder of the data sets')
    parser.add_argument('--dataset', default='cifar10', help='which of them')
    parser.add_argument('--max_steps', type=int, default=100000, help='steps of the whole run')
    parser.add_argument('--eval_interval_secs', type=int, default=600,
                        help='seconds between evaluations')
    return parser.parse_args()


def _start(folder, who, command):
    """A process whose output goes on in a log file of the folder."""
    with open(os.path.join(folder, f'{who}.log'), 'a') as log:
        return subprocess.Popen([sys.executable, *command], cwd=trial.ROOT, stdout=log, stderr=log)


def _watch(folder, processes):
    """Notes what the processes use, until the training ends."""
    path = os.path.join(folder, 'usage.csv')
    is_new = not os.path.exists(path)
    with open(path, 'a', newline='') as stream:
        rows = csv.writer(stream)
        if is_new:
            rows.writerow(_FIELDS)
        started = int(time.time())
        while processes['train'].poll() is None:
            step = _step(os.path.join(folder, 'train', 'metrics.csv'))
            for who, process in processes.items():
                if process.poll() is None:
                    rows.writerow([int(time.time()), started, step, who, *_usage(process.pid)])
            stream.flush()
            with contextlib.suppress(subprocess.TimeoutExpired):
                processes['train'].wait(timeout=_EVERY)


def _step(path):
    """The last step in a run's metrics, or 0."""
    rows = metrics.read(path)
    return rows[-1]['step'] if rows else 0


def _usage(pid):
    """Resident memory in MB, number of open files, number of threads."""
    with open(f'/proc/{pid}/status') as stream:
        status = dict(line.split(':', 1) for line in stream)
    memory = int(status.get('VmRSS', '0 kB').split()[0]) / 1024
    return f'{memory:.1f}', len(os.listdir(f'/proc/{pid}/fd')), int(status.get('Threads', 0))


if __name__ == '__main__':
    sys.exit(main())
