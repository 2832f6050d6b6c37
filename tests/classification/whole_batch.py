"""Six steps on 32 fixed images, by one worker or by several, each on its part.

    mpirun -n 2 python whole_batch.py FILE NET RATE SYNC

Worker 0 writes the losses and all variables to the .npz FILE; SYNC is 1 for `--sync_bn`.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from cifar10_lib import script  # noqa: E402
from classification_lib import recipes, workers  # noqa: E402

import numpy as np  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402

import cifar10  # noqa: E402


def main(words):
    path, net, rate, sync = words
    with workers.joined(step_timeout=300.0) as worker:
        random = np.random.RandomState(0)
        images = random.randint(0, 256, [32, 32, 32, 3]).astype(np.float32)
        labels = random.randint(0, 10, 32)
        own = slice(worker.rank * 32 // worker.size, (worker.rank + 1) * 32 // worker.size)
        tf.set_random_seed(1)
        recipe = recipes.TABLE[net]
        logits = recipe.inference(tf.constant(images[own]), 10, True, tf.float32,
                                  worker.synchrony(sync == '1'))
        loss = recipe.loss(logits, tf.constant(labels[own]))
        opt = tf.train.GradientDescentOptimizer(float(rate))
        grads = worker.mean_gradients(opt.compute_gradients(loss))
        mean_loss, = worker.means([loss])
        train_op = cifar10.update(opt, grads, tf.train.get_or_create_global_step(), averages=False)
        share_op = worker.sharing(tf.global_variables())
        with tf.train.SingularMonitoredSession(
                **worker.session_options(tf.ConfigProto())) as session:
            running = session.raw_session()
            variables = {each.op.name: each for each in tf.global_variables()}
            if 'whitening/weights' in variables:  # They do not learn, and are 0 at first.
                variables['whitening/weights'].load(
                    random.normal(size=[2, 2, 3, 24]).astype(np.float32), running)
            worker.share(running, share_op)
            losses = [session.run([train_op, mean_loss], options=worker.options(step))[1]
                      for step in range(6)]
            if worker.is_chief:
                np.savez(path, losses=losses, **running.run(variables))


if __name__ == '__main__':
    script.run(main, 'FILE NET RATE SYNC')
