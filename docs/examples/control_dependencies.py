"""Control dependencies put operations in order; they apply to operations created in the block."""
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()

with tf.Graph().as_default(), tf.Session() as session:
    counter = tf.get_variable('counter', initializer=0.0, use_resource=True)
    increment = counter.assign_add(1.0)
    earlier = counter.read_value()
    with tf.control_dependencies([increment]):
        later = counter.read_value()  # Created here: runs after the increment.
        wrong = earlier  # Created before: the block does not change it.

    session.run(tf.global_variables_initializer())
    print('wrong:', session.run(wrong), session.run(wrong))
    print('later:', session.run(later), session.run(later))
