"""A trainer of a few lines for the tests of workers: python small_trainer.py FOLDER OPTIONS.

It fits y = x w + b to twelve fixed points with all workers, each on its part, and writes what each
worker holds at the end to FOLDER/worker-RANK.json. OPTIONS is a JSON object; see `_DEFAULTS`.
"""
import json
import os
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from cifar10_lib import errors, script, session
from classification_lib import workers

import numpy as np  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402

_DEFAULTS = {
    'steps': 5, 'step_timeout': 300.0, 'interface': None, 'overlap': True, 'save_steps': 100,
    'pause': 0.0,  # Seconds between two steps.
    'differs': None,  # The worker that has another learning rate.
    'slow': None,  # The worker that takes `seconds` after step 2, before the workers' sum.
    'seconds': 0.0,
    'fails': None,  # The worker that raises an error after step 2.
    'killed': None}  # The worker that is killed after the last step.


def main(words):
    folder, options = words[0], {**_DEFAULTS, **json.loads(words[1])}
    with workers.joined(options['step_timeout'], options['interface']) as worker:
        found = _train(folder, options, worker)
    pathlib.Path(folder, f'worker-{worker.rank}.json').write_text(json.dumps(found))


def _train(folder, options, worker):
    rate = 0.2 if options['differs'] == worker.rank else 0.1
    worker.compare({'--learning_rate': rate})
    found = {'shared': worker.share({'rank': worker.rank}), 'cores': len(os.sched_getaffinity(0))}
    global_step = tf.train.get_or_create_global_step()
    random = np.random.RandomState(0)
    x, y = random.normal(size=[12, 7]).astype(np.float32), random.normal(size=[12, 1])
    own = slice(worker.rank * 12 // worker.size, (worker.rank + 1) * 12 // worker.size)
    # Each worker would start from values of its own.
    weights = tf.get_variable('w', initializer=tf.fill([7, 1], 1.0 + worker.rank))
    bias = tf.get_variable('bias/b', initializer=tf.zeros([1]))
    tf.get_variable('unused', [3])
    moving = tf.get_variable('moving', initializer=0.0, trainable=False)
    error = tf.matmul(tf.constant(x[own]), weights) + bias - tf.constant(y[own], tf.float32)
    loss = tf.reduce_mean(tf.square(error))
    opt = tf.train.GradientDescentOptimizer(rate)
    grads = worker.mean_gradients(opt.compute_gradients(loss), options['overlap'])
    loss = worker.mean({'loss': loss})['loss']
    train_op = tf.group(
        opt.apply_gradients([pair for pair in grads if pair[0] is not None], global_step),
        moving.assign_add(float(worker.rank)))
    master, config = worker.session_options(tf.ConfigProto())
    variables = {each.op.name: each for each in tf.global_variables() if each is not moving}
    with session.training_session(
            master, worker.is_chief, folder, config=config,
            hooks=[worker, tf.train.StopAtStepHook(last_step=options['steps'])],
            save_checkpoint_secs=None, save_checkpoint_steps=options['save_steps'],
            save_summaries_steps=None) as running:
        steps = 0
        while not running.should_stop():
            loss_value = float(running.run([train_op, loss])[1])
            steps += 1
            if steps == 2:  # As a validation.
                worker.share_variables(running.raw_session())
                found['moved'] = float(running.raw_session().run(moving))
                if options['slow'] == worker.rank:
                    time.sleep(options['seconds'])
                found['sum'] = worker.sum(np.array([1, 10]) * (worker.rank + 1)).tolist()
                if options['fails'] == worker.rank:
                    raise errors.UserError(f'worker {worker.rank} has failed')
            print('step', steps, flush=True)
            time.sleep(options['pause'])
            if not running.should_stop():
                values = running.raw_session().run(variables)
                found |= {name: value.tolist() for name, value in values.items()}
                found['loss'] = loss_value
    if options['killed'] == worker.rank:
        os.kill(os.getpid(), signal.SIGKILL)
    return found


if __name__ == '__main__':
    script.run(main, 'FOLDER OPTIONS')
