"""An ExponentialMovingAverage keeps a smoothed companion of each variable."""
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()

with tf.Graph().as_default(), tf.Session() as session:
    weight = tf.get_variable('weight', initializer=0.0, use_resource=True)
    step = tf.get_variable('step', initializer=0, trainable=False, use_resource=True)
    update = tf.group(weight.assign(4.0), step.assign_add(1))
    with tf.control_dependencies([update]):
        averages = tf.train.ExponentialMovingAverage(0.9999, num_updates=step.read_value())
        train_op = averages.apply([weight])

    session.run(tf.global_variables_initializer())
    print(averages.average_name(weight))
    for _ in range(3):
        session.run(train_op)
        print(*session.run([step, weight, averages.average(weight)]))
