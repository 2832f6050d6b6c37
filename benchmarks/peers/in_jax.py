"""The tutorial's training in JAX, without other packages: one jitted function distorts and trains.

    python -m benchmarks.peers.in_jax --data_dir=/tmp/cifar10_data --max_steps=100
"""
import functools

import jax
from jax import lax, nn, random
from jax import numpy as jnp

from benchmarks.peers import task


def distort(key, image):
    """uint8 [32, 32, 3] -> float32 [24, 24, 3]."""
    keys = random.split(key, 4)
    top, left = random.randint(keys[0], [2], 0, 9)
    image = lax.dynamic_slice(image, [top, left, 0], [24, 24, 3]).astype(jnp.float32)
    image = jnp.where(random.bernoulli(keys[1]), image[:, ::-1], image)
    image += random.uniform(keys[2], minval=-63, maxval=63)
    mean = image.mean((0, 1))
    image = (image - mean) * random.uniform(keys[3], minval=0.2, maxval=1.8) + mean
    return (image - image.mean()) / jnp.maximum(image.std(), image.size ** -0.5)


def initial_variables(key):
    """The tutorial's: {layer: (weights, biases)}."""
    layers = {'conv1': ([5, 5, 3, 64], 5e-2, 0.0), 'conv2': ([5, 5, 64, 64], 5e-2, 0.1),
              'local3': ([2304, 384], 0.04, 0.1), 'local4': ([384, 192], 0.04, 0.1),
              'softmax_linear': ([192, 10], 1 / 192, 0.0)}
    return {name: (stddev * random.truncated_normal(random.fold_in(key, number), -2, 2, shape),
                   jnp.full(shape[-1], bias, jnp.float32))
            for number, (name, (shape, stddev, bias)) in enumerate(layers.items())}


def loss(variables, images, labels):
    """Mean cross entropy plus weight decay, of images, float32 [batch, 24, 24, 3]."""
    def convolution(net, weights, biases):
        return nn.relu(biases + lax.conv_general_dilated(
            net, weights, [1, 1], 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC')))

    def pool(net):
        return lax.reduce_window(net, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), 'SAME')

    def norm(net):
        sums = lax.reduce_window(net * net, 0.0, lax.add, (1, 1, 1, 9), (1, 1, 1, 1), 'SAME')
        return net * (1.0 + 0.001 / 9 * sums) ** -0.75

    net = norm(pool(convolution(images, *variables['conv1'])))  # [batch, 12, 12, 64]
    net = pool(norm(convolution(net, *variables['conv2'])))  # [batch, 6, 6, 64]
    net, decay = net.reshape(len(net), -1), 0.0
    for name in ('local3', 'local4'):
        weights, biases = variables[name]
        net = nn.relu(net @ weights + biases)
        decay += 0.004 / 2 * jnp.square(weights).sum()
    weights, biases = variables['softmax_linear']
    likelihoods = jnp.take_along_axis(nn.log_softmax(net @ weights + biases), labels[:, None], 1)
    return decay - likelihoods.mean()


@functools.partial(jax.jit, donate_argnums=(0, 1))
def train(variables, averages, key, images, labels):
    """A step on uint8 [batch, 32, 32, 3]: the new variables, their averages, and the loss."""
    images = jax.vmap(distort)(random.split(key, len(images)), images)
    value, gradients = jax.value_and_grad(loss)(variables, images, labels)
    variables = jax.tree.map(lambda each, slope: each - 0.1 * slope, variables, gradients)
    averages = jax.tree.map(lambda old, new: old + 1e-4 * (new - old), averages, variables)
    return variables, averages, value


def main():
    options = task.options()
    start, key = random.split(random.key(0))
    variables = initial_variables(start)
    averages = jax.tree.map(jnp.copy, variables)
    for step, (images, labels) in enumerate(task.batches(
            options.folder, options.batch_size, options.max_steps)):
        variables, averages, value = train(
            variables, averages, random.fold_in(key, step), images, labels)
        task.report(step, float(value))


if __name__ == '__main__':
    main()
