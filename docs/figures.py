"""Draws the figures of the walk-through that contain computed numbers.

    python docs/figures.py --records=/tmp/cifar10_data/cifar-10-batches-bin

Writes convolution.svg, gradient.svg and distortions.png into docs/. Requires Matplotlib.
"""
import argparse
import pathlib

import numpy as np
import tensorflow.compat.v1 as tf

DOCS = pathlib.Path(__file__).resolve().parent
_HEAD = ('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" '
         'font-family="Helvetica, Arial, sans-serif" font-size="14">\n'
         '<defs><marker id="a" markerUnits="userSpaceOnUse" markerWidth="9" markerHeight="9" '
         'refX="8" refY="4.5" orient="auto-start-reverse"><path d="M0,0 L9,4.5 L0,9 z" '
         'fill="#333"/></marker></defs>\n<rect width="{0}" height="{1}" fill="#ffffff"/>\n')


def _text(x, y, words, size=14, weight='normal', fill='#000'):
    return (f'<text x="{x}" y="{y}" text-anchor="middle" font-size="{size}" font-weight="{weight}" '
            f'fill="{fill}">{words}</text>\n')


def _grid(left, top, numbers, marked, colour):
    """A table of numbers in cells of 36 x 36; `marked` is a set of (row, column)."""
    drawn = ''
    for (row, column), number in np.ndenumerate(numbers):
        x, y = left + 36 * column, top + 36 * row
        fill = colour if (row, column) in marked else '#ffffff'
        drawn += f'<rect x="{x}" y="{y}" width="36" height="36" fill="{fill}" stroke="#4a6fa5"/>\n'
        drawn += _text(x + 18, y + 23, f'{number:g}')
    return drawn


def convolution():
    """One channel of 5 x 5 pixels, one kernel of 3 x 3, and their convolution with zeros around."""
    image = np.array([[0, 0, 1, 0, 0]] * 3 + [[1, 1, 1, 1, 1], [0, 0, 1, 0, 0]])
    kernel = np.array([[-1, 2, -1]] * 3)
    padded = np.pad(image, 1)
    result = np.array([[(padded[row:row + 3, column:column + 3] * kernel).sum()
                        for column in range(5)] for row in range(5)])
    window = {(row, column) for row in (1, 2, 3) for column in (1, 2, 3)}
    terms = ' + '.join(map(str, (image[1:4, 1:4] * kernel).flat)).replace('+ -', '- ')
    return (_HEAD.format(760, 300) + _text(120, 30, 'pixels', weight='bold')
            + _grid(30, 50, image, window, '#f3dccb') + _text(254, 146, '*', 24)
            + _text(370, 30, 'kernel', weight='bold')
            + _grid(316, 86, kernel, {(r, c) for r in range(3) for c in range(3)}, '#eef3fa')
            + _text(484, 146, '=', 24)
            + _text(630, 30, 'result, before bias and ReLU', weight='bold')
            + _grid(540, 50, result, {(2, 2)}, '#f3dccb')
            + _text(380, 270, f'{terms}  =  {result[2, 2]:g}') + '</svg>\n')


def gradient():
    """The graph of y = relu(w x + b) and (y - 1)^2, and what `tf.gradients` adds; real values."""
    with tf.Graph().as_default(), tf.Session() as session:
        w = tf.get_variable('w', initializer=2.0, use_resource=True)
        b = tf.get_variable('b', initializer=-1.0, use_resource=True)
        x = tf.constant(3.0, name='x')
        y = tf.nn.relu(w * x + b, name='y')
        loss = tf.square(y - 1.0, name='loss')
        tf.gradients(loss, [w, b])
        session.run(tf.global_variables_initializer())
        names = ['mul', 'add', 'y', 'sub', 'loss', 'gradients/grad_ys_0',
                 'gradients/loss_grad/Mul_1', 'gradients/y_grad/ReluGrad', 'gradients/mul_grad/Mul']
        value = dict(zip(names, session.run([f'{name}:0' for name in names])))
    drawn = (_HEAD.format(900, 250) + _text(55, 60, 'x = 3') + _text(55, 95, 'w = 2')
             + _text(300, 30, 'b = -1'))
    formulas = {'mul': 'w x', 'add': 'w x + b', 'y': 'relu', 'sub': 'y - 1', 'loss': 'square'}
    for column, (name, formula) in enumerate(formulas.items()):
        left = 110 + 160 * column
        drawn += (f'<rect x="{left}" y="50" width="110" height="50" rx="3" fill="#eef3fa" '
                  'stroke="#4a6fa5"/>\n' + _text(left + 55, 70, f'{name}: {formula}', 12)
                  + _text(left + 55, 91, f'{value[name]:g}', 15, 'bold'))
        if column < 4:
            drawn += (f'<path d="M{left + 112},75 H{left + 156}" stroke="#333" '
                      'marker-end="url(#a)"/>\n')
    drawn += '<path d="M80,56 L106,66 M80,91 L106,84" stroke="#333" marker-end="url(#a)"/>\n'
    drawn += '<path d="M300,34 V47" stroke="#333" marker-end="url(#a)"/>\n'
    rows = [(750, 'grad_ys_0', 'starts with 1'), (590, 'loss_grad/Mul_1', '2 (y - 1)'),
            (350, 'y_grad/ReluGrad', '8 where y &gt; 0: d loss / d b'),
            (110, 'mul_grad/Mul', 'times x: d loss / d w')]
    for left, name, why in rows:
        width = 120 if left > 500 else 200
        drawn += (f'<rect x="{left}" y="160" width="{width}" height="50" rx="3" fill="#f3dccb" '
                  'stroke="#c2571a"/>\n' + _text(left + width / 2, 180, name, 12)
                  + _text(left + width / 2, 201, f'{value["gradients/" + name]:g}', 15, 'bold')
                  + _text(left + width / 2, 230, why, 12, fill='#555'))
    for start, end in ((748, 714), (588, 554), (348, 314)):
        drawn += f'<path d="M{start},185 H{end}" stroke="#c2571a" marker-end="url(#a)"/>\n'
    return drawn + '</svg>\n'


def distortions(records):
    """Four test images: the crop, and each distortion alone, as the network sees it."""
    import matplotlib
    matplotlib.use('Agg')
    from matplotlib import pyplot
    rows = np.fromfile(pathlib.Path(records, 'test_batch.bin'), np.uint8).reshape(-1, 3073)[:4, 1:]
    images = rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).astype(float)
    crops = images[:, 4:28, 4:28]
    means = crops.mean((1, 2), keepdims=True)
    columns = {'central crop': crops, 'another crop': images[:, :24, 8:],
               'mirrored': crops[:, :, ::-1], 'brightness + 63': crops + 63,
               'contrast x 1.8': (crops - means) * 1.8 + means,
               'contrast x 0.5': (crops - means) * 0.5 + means,
               'contrast x 0.2': (crops - means) * 0.2 + means}
    figure, axes = pyplot.subplots(4, len(columns), figsize=(9.8, 5.9))
    for place, (title, pictures) in zip(axes.T, columns.items()):
        place[0].set_title(title, fontsize=10)
        for axis, picture in zip(place, pictures):
            seen = (picture - picture.mean()) / picture.std()
            axis.imshow(np.clip(0.5 + seen / 5, 0, 1), interpolation='nearest')
            axis.axis('off')
    figure.tight_layout()
    figure.savefig(DOCS / 'distortions.png', dpi=80)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--records', default='/tmp/cifar10_data/cifar-10-batches-bin')
    options = parser.parse_args()
    tf.disable_v2_behavior()
    (DOCS / 'convolution.svg').write_text(convolution())
    (DOCS / 'gradient.svg').write_text(gradient())
    distortions(options.records)


if __name__ == '__main__':
    main()
