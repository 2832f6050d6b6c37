import os
import resource
import struct

import pytest
import tensorflow.compat.v1 as tf
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

from cifar10_lib.program import files
from cifar10_lib.runs import events


def point(value):
    """A summary with a point of a curve."""
    return tf.Summary(value=[tf.Summary.Value(tag='curve', simple_value=value)])


def read(folder):
    return events.read_scalars(str(folder), 'curve')


def test_the_first_event_is_the_version_and_a_summary_may_be_serialised(tmp_path):
    with events.Writer(tmp_path) as writer:
        writer.add_summary(point(0.5).SerializeToString(), 7)
        path, = tmp_path.iterdir()
        assert read(tmp_path) == {}  # Buffered.
        writer.flush()
        assert read(tmp_path) == {7: 0.5}
    assert next(tf.train.summary_iterator(str(path))).file_version == 'brain.Event:2'


def test_writers_that_start_in_the_same_second_have_files_of_their_own(tmp_path):
    with events.Writer(tmp_path) as first, events.Writer(tmp_path) as second:
        first.add_summary(point(0.5), 1)
        second.add_summary(point(0.25), 2)
    assert read(tmp_path) == {1: 0.5, 2: 0.25}
    one, two = sorted(path.name for path in tmp_path.iterdir())
    assert f'.{os.getpid()}' in one and f'.{os.getpid()}' in two


def test_a_file_that_was_removed_is_replaced(tmp_path):
    with events.Writer(tmp_path) as writer:
        writer.flush()
        next(tmp_path.iterdir()).unlink()
        writer.add_summary(point(0.5), 1)
    assert read(tmp_path) == {1: 0.5}


def test_a_folder_that_was_removed_raises(tmp_path):
    """TensorFlow's writer drops the events."""
    folder = tmp_path / 'eval'
    folder.mkdir()
    with events.Writer(folder) as writer:
        next(folder.iterdir()).unlink()
        folder.rmdir()
        with pytest.raises(tf.errors.NotFoundError, match=f'{folder}.*No such file or directory'):
            writer.add_summary(point(0.5), 1)


def test_a_file_that_may_not_grow_raises(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.raises(OSError, match=f'File too large in {tmp_path}'), \
            files.explain_full_disk(tmp_path), events.Writer(tmp_path) as writer:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        try:
            writer.add_summary(tf.Summary(value=[tf.Summary.Value(tag=1000 * 'x')]), 1)
            writer.flush()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.fixture
def event_file(tmp_path):
    """Path of an event file whose curve is 0.5 at step 1 and 0.25 at step 2."""
    (tmp_path / 'eval').mkdir()
    with events.Writer(tmp_path / 'eval') as writer:
        for step, value in ((1, 0.5), (2, 0.25)):
            writer.add_summary(point(value), step)
    path, = (tmp_path / 'eval').iterdir()
    return path


def framed(data):
    """A record with valid checksums."""
    header = struct.pack('<Q', len(data))
    return b''.join([header, struct.pack('<I', masked_crc32c(header)),
                     data, struct.pack('<I', masked_crc32c(data))])


@pytest.mark.parametrize('added, reported', [
    (b'', False), (b'\0', False), (framed(bytes(9))[:-1], False), (framed(b'\xff\xff\xff'), True),
    (bytes(100), True), (b'any text that is longer than the frame of a record', True)])
def test_a_curve_ends_where_its_file_is_damaged(event_file, capsys, added, reported):
    """A record that is cut short may still be being written, so it is not reported."""
    whole = event_file.read_bytes()
    event_file.write_bytes(whole + added)
    assert events.read_scalars(str(event_file.parent), 'curve') == {1: 0.5, 2: 0.25}
    assert capsys.readouterr().out == reported * (
        f'{event_file} is damaged; using the part before the damage.\n')
    event_file.write_bytes(whole[:-1])
    assert events.read_scalars(str(event_file.parent), 'curve') == {1: 0.5}
