"""Downloads from a real server on loopback, and unpacks hostile archives."""
import contextlib
import gzip
import os
import re
import shutil
import signal
import socket
import tarfile
import threading
import time

from cifar10_lib import download, errors

import pytest
import spawn
from downloads import ARCHIVE, CONTENTS, GOOD, Server, fetch, member, tar


@pytest.fixture
def server():
    with Server().running() as running:
        yield running


def assert_whole(data_dir):
    for name, data in CONTENTS.items():
        assert (data_dir / 'small' / name).read_bytes() == data
    assert names(data_dir) == ['small', 'small.tar.gz']


def names(folder):
    """The sorted names in a folder, without the lock's."""
    return sorted({path.name for path in folder.iterdir()} - {'.small.lock'})


def failed_places(capsys):
    """The printed lines of places that failed."""
    return [line for line in capsys.readouterr().out.splitlines()
            if line.endswith('. Trying the next host.')]


def failure(data_dir, url, copies=()):
    """Returns the one line with which a download fails."""
    with pytest.raises(errors.UserError) as error:
        fetch(data_dir, url, copies)
    message = str(error.value)
    assert '\n' not in message
    assert url in message
    assert str(data_dir) in message
    assert not (data_dir / 'small').exists()
    return message


def test_the_folder_of_the_files_in_place_of_its_parent(server, tmp_path):
    fetch(tmp_path, server.url)
    inside = f'{tmp_path}/small/'
    with pytest.raises(errors.UserError, match=(
            f'^--data_dir={inside} is the folder of the record files; expected the folder that '
            'contains small$')):
        fetch(inside, server.url)
    assert_whole(tmp_path)
    assert sorted(os.listdir(inside)) == sorted(CONTENTS)


def test_converted_images_are_not_the_folder_of_a_download(server, tmp_path):
    (tmp_path / 'dataset.json').touch()
    with pytest.raises(errors.UserError, match=f'use classification.py --dataset={tmp_path}, '):
        fetch(tmp_path, server.url)
    assert os.listdir(tmp_path) == ['dataset.json']


def test_a_second_start_needs_no_network(server, tmp_path):
    """Nor does the archive without its folder. The scheme of the URL may be in capitals."""
    there = server.url.replace('http:', 'HTTP:')
    fetch(tmp_path / 'new', there)
    shutil.rmtree(tmp_path / 'new' / 'small')
    fetch(tmp_path / 'new', there)
    assert_whole(tmp_path / 'new')
    (tmp_path / 'new' / 'small.tar.gz').unlink()
    fetch(tmp_path / 'new', there)
    assert server.requests == [('/small.tar.gz', None)]


def test_a_proxy(server, tmp_path, monkeypatch):
    monkeypatch.setenv('http_proxy', server.url.removesuffix('/small.tar.gz'))
    fetch(tmp_path)
    assert_whole(tmp_path)


@pytest.mark.parametrize('wrong', [b'<html>', bytes(len(ARCHIVE))])
def test_a_wrong_archive_of_the_user_stays(tmp_path, wrong):
    (tmp_path / 'small.tar.gz').write_bytes(wrong)
    with pytest.raises(errors.UserError, match=f'^{tmp_path}/small.tar.gz has .* replace it, or '
                       'remove it to download it again$'):
        fetch(tmp_path)
    assert (tmp_path / 'small.tar.gz').read_bytes() == wrong


@pytest.mark.parametrize('wrong, size, ranges', [
    (False, 5000, ['bytes=5000-']), (False, len(ARCHIVE), []),
    (True, 5000, ['bytes=5000-', None]), (True, len(ARCHIVE), [None])])
def test_resumes_from_a_part(server, tmp_path, wrong, size, ranges):
    """Once it is complete, wrong bytes are noticed; the next start downloads all again."""
    part = bytes(size) if wrong else ARCHIVE[:size]
    (tmp_path / 'small.tar.gz.part').write_bytes(part)
    if wrong:
        assert 'SHA-256' in failure(tmp_path, server.url)
    fetch(tmp_path, server.url)
    assert [range_ for _, range_ in server.requests] == ranges
    assert_whole(tmp_path)


def test_bytes_received_before_a_lost_connection_are_kept(server, tmp_path):
    """Each start makes one request and resumes where the last one ended."""
    server.behaviour = 'cut'
    assert f'10000 of {len(ARCHIVE)} bytes' in failure(tmp_path, server.url)
    assert f'20000 of {len(ARCHIVE)} bytes' in failure(tmp_path, server.url)
    assert (tmp_path / 'small.tar.gz.part').read_bytes() == ARCHIVE[:20000]
    server.behaviour = 'good'
    fetch(tmp_path, server.url)
    assert [range_ for _, range_ in server.requests] == [None, 'bytes=10000-', 'bytes=20000-']
    assert_whole(tmp_path)


@pytest.mark.parametrize('behaviour', ['good', 'no_length'])
def test_another_url_is_not_verified(server, tmp_path, capsys, behaviour):
    """One line says so. A part is resumed."""
    server.behaviour = behaviour
    (tmp_path / 'small.tar.gz.part').write_bytes(ARCHIVE[:5000])
    download.maybe_download_and_extract(server.url, str(tmp_path), 'small')
    assert capsys.readouterr().out.startswith(
        f'{server.url} is not the published URL: small.tar.gz is not verified.\n'
        f'Downloading small.tar.gz to {tmp_path}.\n')
    assert server.requests == [('/small.tar.gz', 'bytes=5000-')]
    assert_whole(tmp_path)


@pytest.mark.parametrize('archive, reason', [
    (b'<html>Log in first</html>', "cannot be unpacked: Not a gzipped file .*, or remove it to"),
    (ARCHIVE[:-100], 'cannot be unpacked: .*, or remove it to download it again'),
    (ARCHIVE[:-8] + bytes(8), 'cannot be unpacked: CRC check failed .*, or remove it to'),
    (tar([member('a.bin', b'x'), member('other/b.bin', b'x')]),
     r'contains a\.bin, other/b\.bin; expected files in a folder small: pack them so, or')])
def test_an_unverified_archive_that_cannot_be_used(tmp_path, archive, reason):
    (tmp_path / 'mine.tar.gz').write_bytes(archive)
    with pytest.raises(errors.UserError, match=f'^{tmp_path}/mine.tar.gz {reason}.*$'):
        download.maybe_download_and_extract('http://nowhere.invalid/mine.tar.gz', str(tmp_path),
                                            'small')
    assert names(tmp_path) == ['mine.tar.gz']


@pytest.mark.parametrize('folder, advised', [
    ('cifar-10-batches-bin', True), ('cifar-100-binary', False)])
def test_generated_images_are_advised_in_place_of_cifar10_only(tmp_path, folder, advised):
    with pytest.raises(errors.UserError, match='choose another --data_dir') as error:
        download.maybe_download_and_extract('file:///gone/a.tar.gz', str(tmp_path), folder)
    assert ('cifar10_convert.py synthetic' in str(error.value)) == advised


@pytest.mark.parametrize('behaviour, unit', [('good', '%'), ('no_length', ' MB')])
def test_progress_in_a_log_and_on_a_terminal(tmp_path, monkeypatch, behaviour, unit):
    """A log has few lines. On a terminal, the last line stays."""
    monkeypatch.setattr(download, '_BLOCK_BYTES', len(ARCHIVE) // 20)
    shown = {}
    for name in ('log', 'terminal'):
        ours, theirs = os.openpty() if name == 'terminal' else os.pipe()
        with Server(behaviour).running() as server, open(theirs, 'w') as stream, \
                contextlib.redirect_stdout(stream):
            download.maybe_download_and_extract(server.url, str(tmp_path / name), 'small')
            stream.flush()
            shown[name] = os.read(ours, 1 << 16).decode()
    figures = r'>> Downloading small\.tar\.gz (\d+\.\d)' + unit
    lines = shown['log'].splitlines()[2:]
    assert 1 <= len(lines) <= 12 and all(re.fullmatch(figures, line) for line in lines), lines
    drawn = re.findall(r'\r' + figures, shown['terminal'])
    assert shown['terminal'].endswith('\r\n')
    if unit == '%':
        assert lines[-1].endswith(' 100.0%') and drawn[-1] == '100.0'
        assert len(drawn) >= 20


def test_a_server_that_sends_the_file_from_the_start(server, tmp_path):
    server.behaviour = 'without_range'
    (tmp_path / 'small.tar.gz.part').write_bytes(b'other' + ARCHIVE[5:5000])
    fetch(tmp_path, server.url)
    assert_whole(tmp_path)


def test_a_file_with_the_wrong_checksum_is_removed(server, tmp_path):
    server.behaviour = 'other_bytes'
    assert 'SHA-256' in failure(tmp_path, server.url)
    assert names(tmp_path) == []


@pytest.mark.parametrize('behaviour, reason, resumed', [
    ('not_http', 'SSH-2.0', 'None'),
    ('redirect_to_a_file', 'file:///etc/passwd', 'None'),
    ('other_bytes', 'small.tar.gz.part has SHA-256 ', 'None'),
    ('stall', 'timed out', 'bytes=10000-')])
def test_a_place_that_fails_is_left_with_one_line(
        server, tmp_path, capsys, monkeypatch, behaviour, reason, resumed):
    """The next host sends the bytes that are missing; what was not a part of it is noticed."""
    monkeypatch.setattr(download, '_SILENCE', 1.0)
    with Server(behaviour).running() as copy:
        fetch(tmp_path, server.url, (copy.url,))
    line, = failed_places(capsys)
    assert line.startswith('127.0.0.1: ') and reason in line
    assert copy.requests == [('/small.tar.gz', None)]
    assert re.fullmatch(resumed, str(server.requests[0][1]))
    assert len(server.requests) == 1
    assert_whole(tmp_path)


def test_all_places_fail(server, tmp_path, capsys):
    """In their order. The bytes that one of them sent stay for the next start."""
    server.behaviour = 'page'
    with Server('cut').running() as cut, Server('missing').running() as missing:
        message = failure(tmp_path, server.url, (cut.url, missing.url))
        assert 'offers a file of 25 bytes' in message
        reasons = failed_places(capsys)
        assert len(reasons) == 2 and 'ended after' in reasons[0] and '404' in reasons[1]
        assert (tmp_path / 'small.tar.gz.part').read_bytes() == ARCHIVE[:10000]
        cut.behaviour = 'good'
        fetch(tmp_path, server.url, (cut.url, missing.url))
        assert cut.requests[1:] == [('/small.tar.gz', 'bytes=10000-')]
    assert_whole(tmp_path)


def test_a_server_that_does_not_listen_and_an_unwritable_folder(tmp_path):
    with socket.socket() as silent:
        silent.bind(('127.0.0.1', 0))  # Its port is taken, but refuses connections.
        url = f'http://127.0.0.1:{silent.getsockname()[1]}/small.tar.gz'
        assert 'refused' in failure(tmp_path, url)
    (tmp_path / 'file').write_text('in the way')
    assert 'file' in failure(tmp_path / 'file' / 'data', url)


def process(url, copy, data_dir):
    """Starts a process that downloads the small data set."""
    code = ('import sys; sys.path[:0] = sys.argv[1:]\n'
            f'from downloads import fetch\nfetch("{data_dir}", "{url}", ("{copy}",))')
    return spawn.start(['-c', code, str(spawn.ROOT), str(spawn.HELPERS)])


@pytest.mark.slow
def test_two_processes_share_one_download(server, tmp_path):
    server.behaviour, server.released = 'held', threading.Event()
    with Server('cut').running() as copy, process(server.url, copy.url, tmp_path) as first:
        while not server.requests and first.poll() is None:
            time.sleep(0.01)
        with process(server.url, copy.url, tmp_path) as second:
            waiting = second.stdout.readline()
            server.released.set()
            for each in (first, second):
                out, err = each.communicate()
                assert each.returncode == 0 and 'Waiting' not in out, err
    assert waiting == 'Waiting for another process to fetch the data.\n'
    assert copy.requests == [('/small.tar.gz', None)]
    assert server.requests == [('/small.tar.gz', 'bytes=10000-')]
    assert_whole(tmp_path)


@pytest.mark.slow
def test_interrupted_and_started_again(server, tmp_path):
    part = tmp_path / 'small.tar.gz.part'
    with Server('stall').running() as copy:
        interrupted = process(server.url, copy.url, tmp_path)
        while not copy.requests:
            assert interrupted.poll() is None, interrupted.stderr.read()
            time.sleep(0.01)
        while not (part.exists() and part.stat().st_size):
            time.sleep(0.01)
        interrupted.send_signal(signal.SIGINT)
        interrupted.communicate()
        received = part.stat().st_size
        assert received <= 10000 and part.read_bytes() == ARCHIVE[:received]
        copy.behaviour = 'good'
        spawn.ended(process(server.url, copy.url, tmp_path), 0)
        assert [range_ for _, range_ in copy.requests] == [None, f'bytes={received}-']
    assert server.requests == []
    assert_whole(tmp_path)


def _extract(tmp_path, archive):
    """Unpacks an archive; returns {name: bytes} of the files that it made in the data folder."""
    (tmp_path / 'hostile.tar.gz').write_bytes(archive)
    data_dir = tmp_path / 'data'
    data_dir.mkdir()
    download.extract(str(tmp_path / 'hostile.tar.gz'), str(data_dir), 'small')
    assert [path.name for path in data_dir.iterdir()] == ['small']
    assert sorted(path.name for path in tmp_path.iterdir()) == ['data', 'hostile.tar.gz']
    assert not any(path.is_symlink() for path in data_dir.rglob('*'))
    return {path.name: path.read_bytes() for path in (data_dir / 'small').iterdir()}


@pytest.mark.parametrize('wrong', [
    member('../outside', b'x'), member('small/../../outside', b'x'),
    member('small/deeper/a', b'x'), member('/small/a', b'x'), member('other/a', b'x'),
    member('small', type=tarfile.SYMTYPE, linkname='..'),
    member('small/a', b'x', pax_headers={'path': '../../outside'})])
def test_only_the_files_of_the_folder_are_unpacked(tmp_path, wrong):
    assert _extract(tmp_path, tar([wrong, *GOOD])) == CONTENTS


@pytest.mark.parametrize('kind', [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_not_unpacked(tmp_path, kind):
    """Also if the header claims the size of a file."""
    info, _ = member('small/test_batch.bin', type=kind, linkname='/etc/passwd')
    info.size = len(CONTENTS['test_batch.bin'])
    first, data = GOOD[0]
    padding = bytes(-len(data) % tarfile.BLOCKSIZE)
    archive = gzip.compress(first.tobuf() + data + padding + info.tobuf())
    assert _extract(tmp_path, archive) == {'data_batch_1.bin': CONTENTS['data_batch_1.bin']}
