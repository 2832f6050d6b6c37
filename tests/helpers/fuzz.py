"""Reads random files of one kind, and prints a line for each: test_fuzz.py runs `main`.

A reader is a function that makes one random file, reads it with the project's code, and returns the
outcome in a few words; an `AssertionError` is a fault.
"""
from cifar10_lib.program import startup  # noqa: F401, first: it imports TensorFlow quietly.

import contextlib
import io
import json
import os
import pathlib
import random
import signal
import struct
import sys

import image_files
import numpy as np
import record_files
import tensorflow.compat.v1 as tf
from absl import app
from PIL import ExifTags, Image
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

import cifar10_input
from cifar10_lib.datasets import custom, images, svhn, table
from cifar10_lib.program import errors
from cifar10_lib.runs import checkpoints, events, folder as run_folder, metrics

_SECONDS = 60  # For one file.
_RECORD = table.CIFAR10.record_bytes


def main(kind, folder, first, last, seed):
    """Reads the files numbered from `first` to below `last`; prints a line for each."""
    lines = os.fdopen(os.dup(1), 'w', buffering=1)
    sys.stdout = io.StringIO()  # Discards the output of the project's code.
    read = KINDS[kind](folder)
    for number in range(int(first), int(last)):
        signal.alarm(_SECONDS)
        try:
            outcome = read(random.Random(f'{seed} {number}'))
        except Exception as error:
            outcome = f'FAILED: {type(error).__name__} {errors.one_line(error)}'
        lines.write(outcome + '\n')


def mutated(draw, data):
    """Bytes of a file, changed in one to eight places; one time in twenty, all random."""
    if draw.random() < 0.05:
        return draw.randbytes(draw.randrange(2 * len(data)))
    data = bytearray(data)
    for _ in range(draw.randint(1, 8)):
        start = draw.randrange(len(data) + 1)
        end = min(len(data), start + int(draw.paretovariate(0.5)))
        data[start:end] = draw.choice([
            draw.randbytes(end - start), b'', 2 * data[start:end], bytes(end - start),
            (end - start) * b'\xff', draw.randbytes(draw.randint(1, 8))])
        if len(data) > 1 << 20:
            del data[1 << 20:]
    return bytes(data)


def _write(path, data):
    with open(path, 'wb') as stream:
        stream.write(data)


def _records(folder):
    """Record files: `DataSet.check` and the reader must find every partial record and bad label."""
    row = table.DataSet('fuzz', 'fuzz', folder, {'a.bin': 20}, {}, table.CIFAR10.classes)
    path = os.path.join(folder, 'a.bin')
    record_files.write(path, record_files.noise(20, seed=1))
    whole = pathlib.Path(path).read_bytes()
    graph = tf.Graph()
    with graph.as_default():
        files = tf.train.string_input_producer([path], num_epochs=1)
        label = cifar10_input.read_cifar10(files, 8, row).label
        initializer = tf.local_variables_initializer()

    def read(draw):
        data = mutated(draw, whole)
        _write(path, data)
        labels = list(data[:len(data) // _RECORD * _RECORD:_RECORD])
        is_whole = bool(data) and len(data) % _RECORD == 0 and max(labels) < 10
        fault = _check_fault(row, folder)
        assert (fault is None) == is_whole, fault
        assert is_whole or '\n' not in fault and path in fault, fault
        seen, is_refused = _read_labels(graph, label, initializer)
        first_bad = next((k for k, value in enumerate(labels) if value > 9), len(labels))
        is_read = first_bad == len(labels)  # If not, reading ends before the eight with a bad one.
        assert seen == (labels if is_read else labels[:first_bad // 8 * 8]), (seen, labels)
        assert is_refused != is_read
        return 'intact' if is_whole else 'refused in one line'

    return read


def _check_fault(row, folder):
    try:
        row.check(folder)
    except errors.DataError as error:
        return str(error)
    return None


def _read_labels(graph, label, initializer):
    """Labels that the reader yields, and whether it refuses one out of range."""
    seen, is_refused = [], False
    with tf.Session(graph=graph, config=tf.ConfigProto(
            intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)) as session:
        session.run(initializer)
        coordinator = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(session, coordinator)
        try:
            while True:
                seen += [int(value) for value in session.run(label).ravel()]
        except tf.errors.OutOfRangeError:
            pass
        except tf.errors.InvalidArgumentError:
            is_refused = True
        coordinator.request_stop()
        coordinator.join(threads)
    return seen, is_refused


def _checkpoints(folder):
    """Two checkpoints, the later one with a damaged index: either it holds the same values as
    before, or `latest` returns the earlier one."""
    _save_checkpoints(folder)
    index = os.path.join(folder, 'model.ckpt-7.index')
    with open(index, 'rb') as stream:
        whole = stream.read()

    def read(draw):
        _write(index, mutated(draw, whole))
        path = checkpoints.latest(folder, report=False)
        if path.endswith('-5'):
            return 'skipped as damaged'
        _expect_the_same(os.path.join(folder, 'whole', 'model.ckpt-7'), path)
        return 'read unchanged'

    return read


def _save_checkpoints(folder):
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.Variable(0, dtype=tf.int64, name='global_step')
        variables = [step, *(tf.Variable(tf.random.uniform([10, 100]), name=f'conv{k}/weights')
                             for k in range(10))]
        session.run(tf.variables_initializer(variables))
        saver = tf.train.Saver(variables)
        os.mkdir(os.path.join(folder, 'whole'))
        for value, place in ((5, folder), (7, folder), (7, os.path.join(folder, 'whole'))):
            step.load(value, session)
            saver.save(session, os.path.join(place, 'model.ckpt'), global_step=value)


def _expect_the_same(whole, path):
    expected, found = (tf.train.load_checkpoint(name) for name in (whole, path))
    for name in expected.get_variable_to_shape_map():
        assert found.has_tensor(name), name
        np.testing.assert_array_equal(found.get_tensor(name), expected.get_tensor(name), name)


def _images(folder):
    """Image files of eleven kinds: 32 x 32 pixels, or one line that names the file."""
    _save_images(pathlib.Path(folder))
    whole = []
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), 'rb') as stream:
            whole.append((stream.read(), os.path.splitext(name)[1]))

    def read(draw):
        data, ending = draw.choice(whole)
        path = os.path.join(folder, 'fuzz' + ending)
        _write(path, mutated(draw, data))
        try:
            found = images.read(path)
        except images.ImageError as error:
            assert '\n' not in str(error) and path in str(error), error
            return 'refused in one line'
        assert found.shape == (32, 32, 3) and found.dtype == np.uint8, (found.shape, found.dtype)
        return 'read'

    return read


def _save_images(folder):
    pixels = np.random.RandomState(1).randint(0, 256, [40, 48, 3]).astype(np.uint8)
    grey = pixels[:, :, :1]
    image_files.jpeg(folder / 'a.jpg', pixels)
    image_files.png(folder / 'b.png', pixels)
    image_files.png(folder / 'c.png', grey.astype(np.uint16))
    image_files.jpeg(folder / 'd.jpg', grey, progressive=True)
    image_files.bmp(folder / 'e.bmp', pixels)
    image_files.gif(folder / 'f.gif', grey[:, :, 0], grey[:, :, 0])
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    image = Image.fromarray(pixels)
    for name, options in (
            ('g.webp', {'save_all': True, 'append_images': [image]}),
            ('h.webp', {'lossless': True}), ('i.tif', {}), ('j.tif', {'compression': 'tiff_lzw'}),
            ('k.jpg', {})):
        image.save(folder / name, exif=exif, **options)


def _refusal(read, path):
    """Reads a file: (result, None), or (None, the line that refuses it).

    That line must be short and printable, and must name the file.
    """
    try:
        return read(), None
    except (errors.DataError, app.UsageError) as error:
        line = errors.one_line(error)
        assert path in line and line.isprintable() and len(line) <= 600 + 2 * len(path), repr(line)
        return None, line


# Values that JSON can hold and no field of ours should.
_ODD_VALUES = (None, True, -1, 0, 1.5, 10 ** 400, float('nan'), float('inf'), '', '\0', 'a\nb',
               '\x1b[2J', '\ud800', 5000 * 'x', '..', '/', [], {}, [[]], [None], {'': []},
               ['a', 'a'], {'x': {'y': 'z'}})


def _mutated_json(draw, value):
    """Bytes of a JSON file: damaged, or valid with an odd value somewhere."""
    if draw.random() < 0.5:
        return mutated(draw, json.dumps(value).encode())
    if draw.random() < 0.1:
        depth = 10 ** draw.randint(1, 5)
        return json.dumps(value).replace('"x"', depth * '[' + depth * ']').encode()
    for _ in range(draw.randint(1, 3)):
        value = _with_an_odd_value(draw, value)
    return json.dumps(value).encode()


def _with_an_odd_value(draw, value):
    if not isinstance(value, (dict, list)) or not value or draw.random() < 0.2:
        return draw.choice(_ODD_VALUES)
    copy = value.copy()
    key = draw.choice(list(copy) if isinstance(copy, dict) else range(len(copy)))
    if draw.random() < 0.1:
        del copy[key]
    else:
        copy[key] = _with_an_odd_value(draw, copy[key])
    return copy


def _runs(folder):
    """run.json: settings, or one line."""
    path = os.path.join(folder, 'run.json')
    whole = {'net': 'tutorial', 'dataset': 'cifar10', 'classes': list(table.CIFAR10.classes),
             'settings': {'batch_size': 128, 'examples_per_step': 256, 'seed': 'x'}}

    def read(draw):
        _write(path, _mutated_json(draw, whole))
        found, line = _refusal(lambda: run_folder.check_run(
            folder, 'tutorial', table.CIFAR10, 'choose another'), folder)
        if line:
            return 'refused in one line'
        assert isinstance(found, dict) and type(found.get('examples_per_step', 1)) is int, found
        return 'read'

    return read


def _sets(folder):
    """dataset.json, and the record files that it names: a valid row, or one line."""
    path = os.path.join(folder, custom.FILE)
    whole = {'name': 'x', 'classes': ['cat', 'dog', 'cow'], 'train_files': {'train.bin': 3},
             'test_files': {'test.bin': 2, 'more.bin': 4}}
    for name in ('train.bin', 'test.bin', 'more.bin'):
        _write(os.path.join(folder, name), bytes(_RECORD))

    def read(draw):
        _write(path, _mutated_json(draw, whole))
        row, line = _refusal(lambda: custom.read(folder), path)
        if line:
            return 'refused in one line'
        assert len(row.classes) == len(set(row.classes)), row
        assert all(name.isprintable() for name in (row.title, *row.classes, *row.files)), row
        _, line = _refusal(lambda: row.check(folder), folder)
        return 'refused for a record file' if line else 'read'

    return read


def _metrics(folder):
    """metrics.csv: every intact row, and no figure that would break a plot or a resumed run."""
    path = os.path.join(folder, 'metrics.csv')
    lines = [','.join(metrics.COLUMNS).encode(), *(
        b'%d,%d.5,1700000000.250,0.1,2.5%d,0.75,%s,1234.5' % (
            step, step // 100, step, b'0.5,0.25' if step % 200 else b',')
        for step in range(100, 2100, 100))]
    whole = b''.join(line + b'\n' for line in lines)
    odd = (b'nan', b'inf', b'-inf', b'1e308', b'-1e39', b'1e-320', b'\0', b'-1', b'1_0', b' ',
           b'10' * 600, b'0x10', b'\xd9\xa1', b'"', b'1;2', b'\r')

    def read(draw):
        data = mutated(draw, whole) if draw.random() < 0.5 else whole
        for _ in range(draw.randint(0, 5)):
            figures = data.split(b',')
            figures[draw.randrange(len(figures))] = draw.choice(odd)
            data = b','.join(figures)
        _write(path, data)
        rows = metrics.read(path)
        steps = [row['step'] for row in rows]
        for line in set(data.split(b'\n')[1:-1]) & set(lines[1:]):
            assert int(line.split(b',')[0]) in steps, f'the row {line} is lost'
        for row in rows:
            assert np.isfinite([value for value in row.values() if value is not None]).all(), row
            assert type(row['step']) is int and 0 <= row['step'] < 2 ** 63, row
        metrics.Metrics(folder, 2 ** 63)
        assert [row['step'] for row in metrics.read(path)] == steps, 'lost on resuming'
        return 'all rows' if len(rows) == len(lines) - 1 else 'other rows'

    return read


def _mats(folder):
    """MATLAB files like SVHN's, which are compressed: records, or one line."""
    import scipy.io  # The other kinds do not require SciPy.
    paths, random_ = [os.path.join(folder, name) for name in svhn.FILES], np.random.RandomState(1)
    for path in paths:
        scipy.io.savemat(path, {'X': random_.randint(0, 256, [32, 32, 3, 5]).astype(np.uint8),
                                'y': np.array([[1], [10], [3], [9], [5]])}, do_compression=True)
    with open(paths[0], 'rb') as stream:
        whole = stream.read()

    def read(draw):
        _write(paths[0], mutated(draw, whole))
        found, line = _refusal(lambda: svhn.read(folder, []), paths[0])
        if line:
            return 'refused in one line'
        (records,) = found[1]
        assert records.dtype == np.uint8 and records.shape[1:] == (_RECORD,), records.shape
        assert records[:, 0].max() <= 9, records[:, 0]
        return 'read'

    return read


def _events(folder):
    """Event files with damaged bytes, or with a damaged record whose checksums are right: the
    points before the damage."""
    _save_events(folder)
    path, = (os.path.join(folder, name) for name in os.listdir(folder))
    with open(path, 'rb') as stream:
        whole = stream.read()
    payload = tf.Summary(value=[tf.Summary.Value(tag='other', simple_value=1)])
    payload = tf.Event(step=99, summary=payload).SerializeToString()

    def read(draw):
        if draw.random() < 0.5:
            _write(path, mutated(draw, whole))
        else:
            _write(path, whole + _framed(mutated(draw, payload)) + whole)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            found = events.read_scalars(folder, 'curve')
        warning = out.getvalue()
        assert not warning or path in warning and warning.count('\n') == 1, warning
        assert all(value == step / 8 for step, value in found.items()), found
        return 'read up to the damage' + ', and reported it' * bool(warning)

    return read


def _save_events(folder):
    with tf.Graph().as_default(), tf.summary.FileWriter(folder) as writer:
        for step in range(10):
            writer.add_summary(
                tf.Summary(value=[tf.Summary.Value(tag='curve', simple_value=step / 8)]), step)


def _framed(data):
    """A record of an event file, with correct checksums."""
    header = struct.pack('<Q', len(data))
    return b''.join([header, struct.pack('<I', masked_crc32c(header)),
                     data, struct.pack('<I', masked_crc32c(data))])


KINDS = {'records': _records, 'checkpoints': _checkpoints, 'images': _images, 'events': _events,
         'run': _runs, 'dataset': _sets, 'metrics': _metrics, 'mat': _mats}
