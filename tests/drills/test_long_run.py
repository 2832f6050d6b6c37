"""Trains over several starts with an evaluation beside it, and records memory, files and threads.

    pytest tests/drills/test_long_run.py --long_run=/tmp/long_run --data_dir=/tmp/cifar10_data

trains for 100,000 steps in /tmp/long_run. Stop it with Ctrl-C, and resume with the same command.
That folder also gets the logs, and `usage.csv` with both processes' figures, every 30 seconds. At
the end, the test prints the precisions and the memory of each start. Without --long_run, it makes
two short starts.
"""
import contextlib
import csv
import os
import subprocess
import time

import pytest
import record_files
import spawn

from drills import helpers
from cifar10_lib.runs import events, metrics

_SECONDS = 30  # Between readings.
_FIELDS = ['time', 'start', 'step', 'who', 'rss_mb', 'open_files', 'threads']


@pytest.mark.slow
@pytest.mark.drill('Long run')
def test_the_long_run(request, tmp_path, tally, record_property):
    option = request.config.getoption
    data_dir = option('data_dir')
    if not data_dir:
        data_dir = tmp_path / 'data'
        record_files.write_noise(data_dir)
    folder = option('long_run') or str(tmp_path / 'run')
    os.makedirs(folder, exist_ok=True)
    steps, interval = ([100000], 600) if option('long_run') else ([30, 60], 1)
    for max_steps in steps:
        _train(folder, f'--data_dir={data_dir}', max_steps, interval)
    precisions = events.read_scalars(f'{folder}/eval', 'Precision @ 1')
    assert max(precisions) == steps[-1]
    for line in _report(folder, precisions):
        record_property('report', line)
    with open(f'{folder}/train.log') as log:
        text = log.read()
    assert f'Saved step {steps[-1]}' in text
    assert option('long_run') or 'model.ckpt-30.' in text  # Where the second start resumes.
    tally('trained to the last step')


def _train(folder, data, max_steps, interval):
    """Trains and evaluates until the last step."""
    train_dir, eval_dir = f'--train_dir={folder}/train', f'--eval_dir={folder}/eval'
    evaluate = ['cifar10_eval.py', data, f'--checkpoint_dir={folder}/train', eval_dir]
    with _started(folder, 'train', 'cifar10_train.py', data, train_dir,
                  f'--max_steps={max_steps}') as training, \
            _started(folder, 'eval', *evaluate, f'--eval_interval_secs={interval}') as evaluation:
        _watch(folder, {'train': training, 'eval': evaluation})
        assert training.returncode == 0, f'see {folder}/train.log'
        assert evaluation.poll() is None, f'see {folder}/eval.log'
    done = helpers.run_script(*evaluate, '--run_once')
    assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def _started(folder, who, script, *flags):
    """A script that appends to a log file; in the end it gets SIGTERM, and saves."""
    with open(f'{folder}/{who}.log', 'a') as log:
        process = spawn.start(  # In a session of its own: Ctrl-C reaches only pytest.
            [spawn.ROOT / script, *flags], stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _watch(folder, processes):
    """Appends to usage.csv what the processes use, until training ends."""
    path = f'{folder}/usage.csv'
    is_new = not os.path.exists(path)
    with open(path, 'a', newline='') as stream:
        rows = csv.writer(stream)
        if is_new:
            rows.writerow(_FIELDS)
        started = int(time.time())
        while processes['train'].poll() is None:
            steps = metrics.read(f'{folder}/train/metrics.csv')
            step = steps[-1]['step'] if steps else 0
            for who, process in processes.items():
                if process.poll() is None:
                    rows.writerow([int(time.time()), started, step, who, *_usage(process.pid)])
            stream.flush()
            with contextlib.suppress(subprocess.TimeoutExpired):
                processes['train'].wait(timeout=_SECONDS)


def _usage(pid):
    """Resident memory in MB, number of open files, number of threads."""
    with open(f'/proc/{pid}/status') as stream:
        status = dict(line.split(':', 1) for line in stream)
    memory = int(status.get('VmRSS', '0 kB').split()[0]) / 1024
    return f'{memory:.1f}', len(os.listdir(f'/proc/{pid}/fd')), int(status.get('Threads', 0))


def _report(folder, precisions):
    """Yields the lines of a table of precisions, and one line per start of training."""
    yield from ('| step | precision @ 1 |', '| --- | --- |')
    for step, precision in precisions.items():
        yield f'| {step} | {precision:.3f} |'
    with open(f'{folder}/usage.csv', newline='') as stream:
        rows = [row for row in csv.DictReader(stream) if row['who'] == 'train']
    for start in sorted({row['start'] for row in rows}):
        # In its first readings a process imports TensorFlow or fills its queue.
        used = [row for row in rows if row['start'] == start][3:]
        if used:
            memory = [float(row['rss_mb']) for row in used]
            yield (f'steps {used[0]["step"]} to {used[-1]["step"]}: {memory[0]:.0f} MB at first, '
                   f'{max(memory):.0f} at most; open files '
                   f'{sorted({int(row["open_files"]) for row in used})}, threads '
                   f'{sorted({int(row["threads"]) for row in used})}')
