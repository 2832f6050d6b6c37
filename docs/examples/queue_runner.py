"""A queue stays empty, and dequeuing waits, until the queue runners' threads have started."""
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()

with tf.Graph().as_default(), tf.Session() as session:
    number = tf.random_uniform([], 0, 10, dtype=tf.int32)
    queue = tf.FIFOQueue(capacity=5, dtypes=[tf.int32], shapes=[[]])
    tf.train.add_queue_runner(tf.train.QueueRunner(queue, 2 * [queue.enqueue(number)]))
    batch = queue.dequeue_many(3)

    try:
        session.run(batch, options=tf.RunOptions(timeout_in_ms=1000))
    except tf.errors.DeadlineExceededError:
        print('No queue runner: nothing arrived within a second.')

    coordinator = tf.train.Coordinator()
    threads = tf.train.start_queue_runners(session, coordinator)
    print('With queue runners:', len(session.run(batch)), 'numbers.')
    coordinator.request_stop()
    coordinator.join(threads)
