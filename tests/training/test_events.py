import pytest
import tensorflow.compat.v1 as tf

from cifar10_lib.runs import events


@pytest.fixture
def event_file(tmp_path):
    """Path of an event file whose curve is 0.5 at step 1 and 0.25 at step 2."""
    with tf.summary.FileWriter(str(tmp_path)) as writer:
        for step, value in ((2, 0.25), (1, 0.5)):
            writer.add_summary(
                tf.Summary(value=[tf.Summary.Value(tag='curve', simple_value=value)]), step)
    path, = tmp_path.iterdir()
    return path


def test_a_curve(event_file):
    """Sorted by step; later files replace values of earlier ones."""
    assert list(events.read_curves(str(event_file.parent)).get('curve', {}).items()) == [
        (1, 0.5), (2, 0.25)]
    with tf.summary.FileWriter(str(event_file.parent), filename_suffix='.later') as writer:
        writer.add_summary(tf.Summary(value=[tf.Summary.Value(tag='curve', simple_value=4)]), 2)
    assert events.read_curves(str(event_file.parent)).get('curve', {}) == {1: 0.5, 2: 4}
    assert events.read_curves(str(event_file.parent)).get('other', {}) == {}


@pytest.mark.parametrize('added, reported', [
    (b'', False), (b'\0', False), (bytes(100), True), (b'longer than the frame of a record', True)])
def test_a_curve_ends_where_its_file_is_damaged(event_file, capsys, added, reported):
    """A record that is cut short may still be being written, so it is not reported."""
    whole = event_file.read_bytes()
    event_file.write_bytes(whole + added)
    assert events.read_curves(str(event_file.parent)).get('curve', {}) == {1: 0.5, 2: 0.25}
    assert capsys.readouterr().out == reported * (
        f'{event_file} is damaged; using the part before the damage.\n')
    event_file.write_bytes(whole[:-1])
    assert events.read_curves(str(event_file.parent)).get('curve', {}) == {2: 0.25}
