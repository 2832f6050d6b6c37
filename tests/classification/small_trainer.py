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
    'shared': '', 'repeat': 1,  # A text that worker 0 shares, and how many times in a row.
    'differs': None,  # The worker that has another learning rate.
    'slow': None,  # The worker that takes `seconds` after step 2, before the workers' sum.
    'seconds': 0.0,
    'fails': None,  # The worker that raises an error after step 2.
    'lost': None,  # The worker that is killed before the workers' sum.
    'killed': None}  # The worker that is killed after the last step.


def main(words):
    folder, options = words[0], {**_DEFAULTS, **json.loads(words[1])}
    stop = session.StopSignal()
    with workers.joined(options['step_timeout'], options['interface']) as worker:
        found = _train(folder, options, worker, stop)
        number = max(worker.gather(stop.number))
    pathlib.Path(folder, f'worker-{worker.rank}.json').write_text(json.dumps(found))
    if number:
        session.end_by(int(number))


def _train(folder, options, worker, stop):
    rate = 0.2 if options['differs'] == worker.rank else 0.1
    worker.compare({'--learning_rate': rate})
    found = {'shared': worker.gather([worker.rank, options['repeat'] * options['shared']])[0],
             'cores': len(os.sched_getaffinity(0))}
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
    own_signal = tf.placeholder_with_default(0.0, [])
    loss, any_signal = worker.means([loss, own_signal])
    train_op = tf.group(
        opt.apply_gradients([pair for pair in grads if pair[0] is not None], global_step),
        moving.assign_add(float(worker.rank)))
    variables = {each.op.name: each for each in tf.global_variables() if each is not moving}
    share_op = worker.sharing(tf.global_variables())
    with session.training_session(
            is_chief=worker.is_chief, checkpoint_dir=folder, stop=stop,
            hooks=[tf.train.StopAtStepHook(last_step=options['steps'])],
            save_checkpoint_steps=options['save_steps'], save_summaries_steps=None,
            **worker.session_options(tf.ConfigProto())) as mon_sess:
        sess = mon_sess.raw_session()
        worker.share(sess, share_op)
        step = int(sess.run(global_step))
        any_stop = 0
        while step < options['steps'] and not any_stop:
            _, found['loss'], any_stop = map(_as_float, mon_sess.run(
                [train_op, loss, any_signal], {own_signal: stop.number},
                options=worker.options(step)))
            step += 1
            if step == 2:  # As a validation.
                worker.share(sess, share_op)
                found['moved'] = float(sess.run(moving))
                if options['slow'] == worker.rank:
                    time.sleep(options['seconds'])
                if options['lost'] == worker.rank:
                    os.kill(os.getpid(), signal.SIGKILL)
                counts = worker.gather([worker.rank + 1, 10 * (worker.rank + 1)])
                found['sum'] = np.sum(counts, axis=0).tolist()
                if options['fails'] == worker.rank:
                    raise errors.UserError(f'worker {worker.rank} has failed')
            print('step', step, flush=True)
            time.sleep(options['pause'])
        found |= {name: value.tolist() for name, value in sess.run(variables).items()}
    if options['killed'] == worker.rank:
        os.kill(os.getpid(), signal.SIGKILL)
    return found


def _as_float(value):
    return value if value is None else float(value)


if __name__ == '__main__':
    script.run(main, 'FOLDER OPTIONS')
