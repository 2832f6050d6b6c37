"""Reads random files of each kind that a user may bring, ten thousand of each.

    python -m drills.fuzz records
    python -m drills.fuzz checkpoints
    python -m drills.fuzz images
    python -m drills.fuzz run           (run.json)
    python -m drills.fuzz dataset       (dataset.json)
    python -m drills.fuzz metrics       (metrics.csv)
    python -m drills.fuzz mat           (SVHN's files)
    python -m drills.fuzz events

Files are whole ones with bytes changed, cut out, doubled or added, or bytes without any sense.
Child processes read them, so that a crash of TensorFlow's is seen and counted. Wanted of record
files: `DataSet.check` refuses those with a label that is no class or a part of a record, and the
reader never yields such a label. Of an index file: `checkpoints.latest` takes the checkpoint
before. Of an image, JSON or MATLAB file: what it should hold, or one line that names it. Of an
event file: the points before the damage. Of metrics: every row that is left, and no figures that a
plot or a later row could not take.
"""
from program import startup  # noqa: F401, first: it imports TensorFlow quietly.

import collections
import contextlib
import io
import json
import os
import random
import signal
import struct
import sys
import tempfile

import numpy as np
from absl import app
from PIL import ExifTags, Image

import tensorflow.compat.v1 as tf
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

import cifar10_input
from datasets import custom
from datasets import images
from datasets import svhn
from datasets import table
from drills import small_data
from drills import trial
from program import errors
from runs import checkpoints
from runs import folder as run_folder
from runs import metrics

_COUNT = 10000
_A_PROCESS = 100  # Files that a child process reads.
_SECONDS = 60  # For those.
_RECORD = small_data.RECORD_BYTES


def main():
    parser = trial.parser('fuzz', __doc__)
    parser.add_argument('kind', choices=_KINDS, help='of the files')
    options = parser.parse_args()
    return fuzz(options.kind, options.sample or _COUNT, options.seed, options.verbose)


def fuzz(kind, count, seed, verbose):
    """Reads so many files; returns the exit code, 0 where nothing else came than should."""
    outcomes = collections.Counter()
    with tempfile.TemporaryDirectory(prefix='drill-fuzz-') as folder:
        read = _KINDS[kind](folder)
        done = 0
        while done < count:
            found = _in_a_child(read, range(done, min(done + _A_PROCESS, count)), seed)
            for number, outcome in enumerate(found, done):
                outcomes[outcome] += 1
                if verbose or outcome.startswith('FAILED'):
                    print(f'{kind} {number}: {outcome}', flush=True)
            done += len(found)
    tally = ', '.join(f'{number} {outcome[:60]}' for outcome, number in outcomes.most_common())
    print(f'Fuzz, {kind}: {done} tried: {tally}.')
    return int(any(outcome.startswith(('FAILED', 'a crash')) for outcome in outcomes))


def _in_a_child(read, numbers, seed):
    """What came of files in a forked process, up to one that ended it: list of words."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read_end)
        signal.alarm(_SECONDS)
        _run_in_a_fork(lambda: _read_all(read, numbers, seed, write_end))
    os.close(write_end)
    with os.fdopen(read_end) as stream:
        found = stream.read().splitlines()
    _, status = os.waitpid(pid, 0)
    if status:
        found.append(f'a crash, exit code {os.waitstatus_to_exitcode(status)}')
    return found


def _run_in_a_fork(work):
    """Ends the process that does the work; nothing of its parent is cleaned up here."""
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


def _read_all(read, numbers, seed, pipe):
    """Writes a line for each file to a pipe."""
    with os.fdopen(pipe, 'w', buffering=1) as stream:
        for number in numbers:
            try:
                outcome = read(random.Random(f'{seed} {number}'))
            except Exception as error:
                outcome = f'FAILED: {type(error).__name__} {errors.one_line(error)}'
            stream.write(outcome + '\n')


def mutated(draw, data):
    """Bytes of a file, changed in one to eight places; now and then none of them is left."""
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
    """Reads a set of one file of records, and checks by hand what came of it."""
    row = table.DataSet('fuzz', 'fuzz', folder, {'a.bin': 20}, {}, table.CIFAR10.classes)
    path = os.path.join(folder, 'a.bin')
    random_ = np.random.RandomState(1)
    rows = random_.randint(0, 256, [20, _RECORD]).astype(np.uint8)
    rows[:, 0] %= 10
    graph = tf.Graph()
    with graph.as_default():
        files = tf.train.string_input_producer([path], num_epochs=1)
        label = cifar10_input.read_cifar10(files, 8, row).label
        initialiser = tf.local_variables_initializer()

    def read(draw):
        data = mutated(draw, rows.tobytes())
        _write(path, data)
        labels = list(data[:len(data) // _RECORD * _RECORD:_RECORD])
        is_whole = bool(data) and len(data) % _RECORD == 0 and max(labels) < 10
        _expect(is_whole, _fault_of_records(row, folder), path)
        seen, fault = _read_labels(graph, label, initialiser)
        first_bad = next((k for k, value in enumerate(labels) if value > 9), len(labels))
        is_read = first_bad == len(labels)  # Else a read of eight ends with the bad one's.
        if seen != (labels if is_read else labels[:first_bad // 8 * 8]):
            raise trial.Fault(f'labels {seen}, in the file {labels}')
        if not is_read and f'{path} has label ' not in (fault or ''):
            raise trial.Fault(f'a label out of range was told as {fault}')
        return 'whole' if is_whole else 'refused in one line'

    return read


def _fault_of_records(row, folder):
    try:
        row.check(folder)
    except errors.DataError as error:
        return str(error)
    return None


def _expect(is_whole, fault, path):
    if (fault is None) != is_whole or (fault and ('\n' in fault or path not in fault)):
        raise trial.Fault(f'wanted a whole file: {is_whole}; came {fault}')


def _read_labels(graph, label, initialiser):
    """Labels that the reader yields, and what it says of one that is none."""
    seen, fault = [], None
    with tf.Session(graph=graph, config=tf.ConfigProto(
            intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)) as session:
        session.run(initialiser)
        coordinator = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(session, coordinator)
        try:
            while True:
                seen += [int(value) for value in session.run(label).ravel()]
        except tf.errors.OutOfRangeError:
            pass
        except tf.errors.InvalidArgumentError as error:
            fault = errors.record_fault(error)
        coordinator.request_stop()
        coordinator.join(threads)
    return seen, fault


def _checkpoints(folder):
    """Looks for the latest of two checkpoints, of which the later one's index is damaged."""
    _in_its_own_process(lambda: _save_checkpoints(folder))
    index = os.path.join(folder, 'model.ckpt-7.index')
    with open(index, 'rb') as stream:
        whole = stream.read()

    def read(draw):
        _write(index, mutated(draw, whole))
        path = checkpoints.latest(folder, report=False)
        if path.endswith('-5'):
            return 'taken for damaged'
        _wanted_the_same(os.path.join(folder, 'whole', 'model.ckpt-7'), path)
        return 'read as it was'

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


def _wanted_the_same(whole, path):
    """Checks that two checkpoints hold the same values."""
    wanted, found = (tf.train.load_checkpoint(name) for name in (whole, path))
    names = wanted.get_variable_to_shape_map()
    for name in names:
        if not found.has_tensor(name) or not np.array_equal(
                wanted.get_tensor(name), found.get_tensor(name)):
            raise trial.Fault(f'{name} has other values')


def _in_its_own_process(work):
    """Sessions have threads, and a process that is to be forked must have none."""
    pid = os.fork()
    if not pid:
        _run_in_a_fork(work)
    _, status = os.waitpid(pid, 0)
    if status:
        raise trial.Fault('the whole files could not be made')


def _images(folder):
    """Decodes image files, each of one kind."""
    _in_its_own_process(lambda: _save_images(folder))
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
            if '\n' in str(error) or path not in str(error):
                raise trial.Fault(str(error)) from error
            return 'refused in one line'
        if found.shape != (32, 32, 3) or found.dtype != np.uint8:
            raise trial.Fault(f'came {found.dtype} {found.shape}')
        return 'read'

    return read


def _save_images(folder):
    pixels = np.random.RandomState(1).randint(0, 256, [40, 48, 3]).astype(np.uint8)
    grey = pixels[:, :, :1]
    with tf.Graph().as_default(), tf.Session() as session:
        for name, made in (
                ('a.jpg', tf.io.encode_jpeg(pixels)), ('b.png', tf.io.encode_png(pixels)),
                ('c.png', tf.io.encode_png(grey.astype(np.uint16))),
                ('d.jpg', tf.io.encode_jpeg(grey, progressive=True))):
            _write(os.path.join(folder, name), session.run(made))
    _write(os.path.join(folder, 'e.bmp'), small_data.BMP)
    _write(os.path.join(folder, 'f.gif'), small_data.GIF)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    image = Image.fromarray(pixels)
    for name, options in (
            ('g.webp', {'save_all': True, 'append_images': [image]}),
            ('h.webp', {'lossless': True}), ('i.tif', {}), ('j.tif', {'compression': 'tiff_lzw'}),
            ('k.jpg', {})):
        image.save(os.path.join(folder, name), exif=exif, **options)


def _refusal(read, path):
    """Reads a file; returns (what came, None), or (None, the line that refuses it).

    Raises:
        trial.Fault: it is not one short, printable line that names the file.
    """
    try:
        return read(), None
    except (errors.DataError, app.UsageError) as error:
        line = errors.one_line(error)
        if path not in line or not line.isprintable() or len(line) > 600 + 2 * len(path):
            raise trial.Fault(f'came {line!r}') from error
        return None, line


# What JSON can hold, and no field of ours should.
_ODD_VALUES = (None, True, -1, 0, 1.5, 10 ** 400, float('nan'), float('inf'), '', '\0', 'a\nb',
               '\x1b[2J', '\ud800', 5000 * 'x', '..', '/', [], {}, [[]], [None], {'': []},
               ['a', 'a'], {'x': {'y': 'z'}})


def _mutated_json(draw, value):
    """Bytes of a JSON file: damaged ones, or whole ones with an odd value in some place."""
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
    """Reads the notes of runs."""
    path = os.path.join(folder, 'run.json')
    whole = {'net': 'tutorial', 'dataset': 'cifar10', 'classes': list(table.CIFAR10.classes),
             'settings': {'batch_size': 128, 'examples_per_step': 256, 'seed': 'x'}}

    def read(draw):
        _write(path, _mutated_json(draw, whole))
        found, line = _refusal(lambda: run_folder.check_run(
            folder, 'tutorial', table.CIFAR10, 'name another'), folder)
        if line:
            return 'refused in one line'
        if not isinstance(found, dict) or type(found.get('examples_per_step', 1)) is not int:
            raise trial.Fault(f'settings {found}')
        return 'read'

    return read


def _sets(folder):
    """Reads the rows of data sets, and the record files that they name."""
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
        if len(row.classes) != len(set(row.classes)) or not all(
                name.isprintable() for name in (row.title, *row.classes, *row.files)):
            raise trial.Fault(f'came {row}')
        _, line = _refusal(lambda: row.check(folder), folder)
        return 'refused for a record file' if line else 'read'

    return read


def _metrics(folder):
    """Reads the metrics of runs, and continues them."""
    path = os.path.join(folder, 'metrics.csv')
    lines = [','.join(metrics.COLUMNS).encode(), *(
        b'%d,%d.5,1700000000.250,0.1,2.5%d,0.75,%s,1234.5' % (
            step, step // 100, step, b'0.5' if step % 200 else b'')
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
            if int(line.split(b',')[0]) not in steps:
                raise trial.Fault(f'the row {line} is lost')
        if not all(np.isfinite([value for value in row.values() if value is not None]).all()
                   and type(row['step']) is int and 0 <= row['step'] < 2 ** 63 for row in rows):
            raise trial.Fault(f'came {rows}')
        with contextlib.redirect_stdout(None):  # It says what it drops.
            metrics.Metrics(folder, 2 ** 63)
        if [row['step'] for row in metrics.read(path)] != steps:
            raise trial.Fault('a run that continues has other rows')
        return 'all rows' if len(rows) == len(lines) - 1 else 'other rows'

    return read


def _mats(folder):
    """Reads files of SVHN's kind."""
    import scipy.io  # Only here: the other files need no SciPy.
    path, random_ = os.path.join(folder, 'a.mat'), np.random.RandomState(1)
    content = {'X': random_.randint(0, 256, [32, 32, 3, 5]).astype(np.uint8),
               'y': np.array([[1], [10], [3], [9], [5]])}
    whole = []
    for is_compressed in (False, True):
        scipy.io.savemat(path, content, do_compression=is_compressed)
        with open(path, 'rb') as stream:
            whole.append(stream.read())

    def read(draw):
        _write(path, _mutated_header(draw, draw.choice(whole)))
        found, line = _refusal(lambda: svhn.read(path), path)
        if line:
            return 'refused in one line'
        if found.dtype != np.uint8 or found.shape[1:] != (_RECORD,) or found[:, 0].max() > 9:
            raise trial.Fault(f'came {found.dtype} {found.shape}')
        return 'read'

    return read


def _mutated_header(draw, data):
    """`mutated`, but half of the times in the first bytes only, where kinds and sizes are."""
    if draw.random() < 0.5:
        return mutated(draw, data)
    return mutated(draw, data[:250]) + data[250:]


def _events(folder):
    """Reads a curve from an event file with damaged bytes, or with a damaged record in the middle
    whose checksums are right."""
    _in_its_own_process(lambda: _save_events(folder))
    path, = (os.path.join(folder, name) for name in os.listdir(folder))
    with open(path, 'rb') as stream:
        whole = stream.read()
    payload = tf.Summary(value=[tf.Summary.Value(tag='other', simple_value=1)])
    payload = tf.Event(step=99, summary=payload).SerializeToString()

    def read(draw):
        if draw.random() < 0.5:
            _write(path, mutated(draw, whole))
        else:
            data = mutated(draw, payload)
            length = draw.choice([len(data), len(data), draw.getrandbits(draw.randrange(65))])
            _write(path, whole + _framed(data, length) + whole)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            found = metrics.read_scalars(folder, 'curve')
        told = out.getvalue()
        if told and (path not in told or told.count('\n') > 1):
            raise trial.Fault(f'told: {told}')
        wrong = {step: value for step, value in found.items() if value != step / 8}
        if wrong:
            raise trial.Fault(f'wrong points: {wrong}')
        return 'read up to the damage' + ', which a line told' * bool(told)

    return read


def _save_events(folder):
    with tf.Graph().as_default(), tf.summary.FileWriter(folder) as writer:
        for step in range(10):
            writer.add_summary(
                tf.Summary(value=[tf.Summary.Value(tag='curve', simple_value=step / 8)]), step)


def _framed(data, length):
    """A record as event files hold it, with a length that may be wrong and right checksums."""
    header = struct.pack('<Q', length)
    return b''.join([header, struct.pack('<I', masked_crc32c(header)),
                     data, struct.pack('<I', masked_crc32c(data))])


_KINDS = {'records': _records, 'checkpoints': _checkpoints, 'images': _images, 'events': _events,
          'run': _runs, 'dataset': _sets, 'metrics': _metrics, 'mat': _mats}


if __name__ == '__main__':
    sys.exit(main())
