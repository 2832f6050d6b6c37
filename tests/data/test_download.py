"""Downloads from a real server on loopback, and unpacks hostile archives."""
import gzip
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time

import downloads
import pytest
import spawn
from downloads import ARCHIVE, CONTENTS, GOOD, Server, member, row, tar

from cifar10_lib.datasets import download
from cifar10_lib.program import errors
from cifar10_lib.workers import ports


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    downloads.use_no_proxy(monkeypatch)


@pytest.fixture
def server():
    with Server().running() as running:
        yield running


def assert_whole(data_dir):
    for name, data in CONTENTS.items():
        assert (data_dir / 'small' / name).read_bytes() == data
    assert names(data_dir) == ['small', 'small.tar.gz']


def names(folder):
    """The sorted names in a folder, without the lock, which some versions of filelock remove."""
    return sorted({path.name for path in folder.iterdir()} - {'.small.lock'})


def limits(**some):
    """Limits that no machine is too slow for, except for `some`."""
    return download.Limits(**{'connect': 60, 'silence': 60, 'rate': 0, **some})


def lines_of_failed_places(capsys):
    lines = capsys.readouterr().out.splitlines()
    return [line for line in lines if line.endswith('. Trying the next place.')]


def failure(data_dir, url, copies=(), **options):
    """Returns the one line with which a download fails."""
    with pytest.raises(errors.DataError) as error:
        download.maybe_download_and_extract(row(url, copies=copies), str(data_dir), **options)
    message = str(error.value)
    assert '\n' not in message
    assert url in message
    assert str(data_dir) in message
    assert '--dataset=synthetic' in message
    assert not (data_dir / 'small').exists()
    return message


@pytest.mark.parametrize('slash', ['', '/'])
def test_the_folder_of_the_files_in_place_of_its_parent(server, tmp_path, slash):
    download.maybe_download_and_extract(row(server.url), str(tmp_path))
    inside = f'{tmp_path}/small{slash}'
    with pytest.raises(errors.DataError, match=f'{inside} holds the record files; expected the '
                       f'folder that contains small: pass --data_dir={tmp_path}$'):
        download.maybe_download_and_extract(row(server.url), inside)
    assert_whole(tmp_path)
    assert sorted(os.listdir(inside)) == sorted(CONTENTS)


@pytest.mark.parametrize('split', ['.', 'train', 'test'])
def test_a_folder_of_images_is_left_alone(server, tmp_path, split):
    """Unless one folder is not a class: a home directory may have two with images."""
    for place in (split, 'test') if split == 'train' else (split,):
        for name in ('cat', 'dog'):
            (tmp_path / place / name).mkdir(parents=True)
            (tmp_path / place / name / '1.jpg').touch()
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(errors.DataError, match=(
            f'{tmp_path} holds a folder of images for each class, not small: convert '
            f'the images with cifar10_convert.py {tmp_path} DATA_DIR')):
        download.maybe_download_and_extract(row(server.url), str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == before and server.requests == []
    (tmp_path / split / 'notes').mkdir()
    download.maybe_download_and_extract(row(server.url), str(tmp_path))
    assert server.requests == [('/small.tar.gz', None)]


def test_a_second_start_needs_no_network(server, tmp_path):
    """Nor does the archive without its folder. The scheme of the URL may be in capitals."""
    there = row(server.url.replace('http:', 'HTTP:'))
    download.maybe_download_and_extract(there, str(tmp_path / 'new'))
    shutil.rmtree(tmp_path / 'new' / 'small')
    download.maybe_download_and_extract(there, str(tmp_path / 'new'))
    assert_whole(tmp_path / 'new')
    (tmp_path / 'new' / 'small.tar.gz').unlink()
    download.maybe_download_and_extract(there, str(tmp_path / 'new'))
    assert server.requests == [('/small.tar.gz', None)]


def test_a_proxy(server, tmp_path, monkeypatch):
    monkeypatch.setenv('http_proxy', server.url.removesuffix('/small.tar.gz'))
    download.maybe_download_and_extract(row('http://nowhere.invalid/small.tar.gz'), str(tmp_path))
    assert_whole(tmp_path)


def test_a_file_url(tmp_path):
    (tmp_path / 'there.tar.gz').write_bytes(ARCHIVE)
    (tmp_path / 'data').mkdir()
    (tmp_path / 'data' / 'small.tar.gz.part').write_bytes(ARCHIVE[:100])
    download.maybe_download_and_extract(row('http://nowhere.invalid/small.tar.gz'),
                                        str(tmp_path / 'data'), f'file://{tmp_path}/there.tar.gz')
    assert_whole(tmp_path / 'data')


@pytest.mark.parametrize('wrong', [b'', b'<html>', ARCHIVE[:-1], bytes(len(ARCHIVE))])
def test_a_wrong_archive_of_the_user_stays(tmp_path, wrong):
    (tmp_path / 'small.tar.gz').write_bytes(wrong)
    message = failure(tmp_path, 'http://nowhere.invalid/small.tar.gz')
    assert 'small.tar.gz has' in message
    assert 'replace it, or remove it' in message
    assert (tmp_path / 'small.tar.gz').read_bytes() == wrong


@pytest.mark.parametrize('wrong, size, ranges', [
    (False, 5000, ['bytes=5000-']), (False, len(ARCHIVE), []),
    (True, 5000, ['bytes=5000-', None]), (True, len(ARCHIVE), [None])])
def test_resumes_from_a_part(server, tmp_path, wrong, size, ranges):
    """Once it is complete, wrong bytes are noticed, and all are downloaded again."""
    part = bytes(size) if wrong else ARCHIVE[:size]
    (tmp_path / 'small.tar.gz.part').write_bytes(part)
    download.maybe_download_and_extract(row(server.url), str(tmp_path))
    assert [range_ for _, range_ in server.requests] == ranges
    assert_whole(tmp_path)


def test_bytes_received_before_a_lost_connection_are_kept(server, tmp_path):
    """Each start makes one request and resumes where the last one ended."""
    server.behaviour = 'cut'
    assert f'10000 of {len(ARCHIVE)} bytes' in failure(tmp_path, server.url)
    assert f'20000 of {len(ARCHIVE)} bytes' in failure(tmp_path, server.url)
    assert (tmp_path / 'small.tar.gz.part').read_bytes() == ARCHIVE[:20000]
    server.behaviour = 'good'
    download.maybe_download_and_extract(row(server.url), str(tmp_path))
    assert [range_ for _, range_ in server.requests] == [None, 'bytes=10000-', 'bytes=20000-']
    assert_whole(tmp_path)


@pytest.mark.parametrize('behaviour', ['without_range', 'more_than_all'])
def test_servers_that_send_the_file_from_the_start(server, tmp_path, behaviour):
    server.behaviour = behaviour
    (tmp_path / 'small.tar.gz.part').write_bytes(b'other' + ARCHIVE[5:5000])
    download.maybe_download_and_extract(row(server.url), str(tmp_path))
    assert_whole(tmp_path)


def test_a_file_with_the_wrong_checksum_is_removed(server, tmp_path):
    server.behaviour = 'other_bytes'
    assert 'SHA-256' in failure(tmp_path, server.url)
    assert names(tmp_path) == []


@pytest.mark.parametrize('behaviour, limit, reason, resumed', [
    ('page', {}, f'the server offers a file of 25 bytes; expected {len(ARCHIVE)}', 'None'),
    ('portal', {}, 'the server sends a page, perhaps to log in; expected a file', 'None'),
    ('not_http', {}, 'SSH-2.0', 'None'),
    ('redirect_to_a_file', {}, 'file:///etc/passwd', 'None'),
    ('other_bytes', {}, 'small.tar.gz.part has SHA-256 ', 'None'),
    ('long_header', {'connect': 0.5}, 'no answer within 0.5 seconds', 'None'),
    ('slow', {'window': 0.5, 'rate': 1e6}, 'less than 1000 kB/s for 0.5 seconds', 'bytes=.+'),
    ('stall', {'silence': 1}, 'timed out', 'None|bytes=.+')])
def test_a_place_that_fails_is_left_with_one_line(
        server, tmp_path, capsys, behaviour, limit, reason, resumed):
    """The next place sends the bytes that are missing."""
    with Server(behaviour).running() as copy:
        download.maybe_download_and_extract(
            row(server.url, copies=(copy.url,)), str(tmp_path), copy_limits=limits(**limit))
    line, = lines_of_failed_places(capsys)
    assert line.startswith('127.0.0.1: ') and reason in line
    assert copy.requests == [('/small.tar.gz', None)]
    (_, range_), = server.requests
    assert re.fullmatch(resumed, str(range_))
    assert_whole(tmp_path)


def test_a_place_that_does_not_connect(server, tmp_path, capsys):
    """The queue of a socket that accepts nobody is full, so that it ignores further connections."""
    with socket.create_server(('127.0.0.1', 0), backlog=0) as deaf, \
            socket.create_connection(deaf.getsockname()):
        copy = f'http://127.0.0.1:{deaf.getsockname()[1]}/small.tar.gz'
        download.maybe_download_and_extract(
            row(server.url, copies=(copy,)), str(tmp_path), copy_limits=limits(connect=0.5))
    assert lines_of_failed_places(capsys) == [
        '127.0.0.1: no answer within 0.5 seconds. Trying the next place.']
    assert_whole(tmp_path)


@pytest.mark.parametrize('behaviour', ['good', 'without_range'])
def test_places_are_tried_in_order(server, tmp_path, capsys, behaviour):
    server.behaviour = behaviour
    with ports.reserve(host='127.0.0.1') as silent, Server('missing').running() as missing, \
            Server('cut').running() as cut, Server().running() as unused:
        refused = f'http://127.0.0.1:{silent.getsockname()[1]}/small.tar.gz'
        download.maybe_download_and_extract(
            row(unused.url, copies=(refused, missing.url, cut.url, server.url)), str(tmp_path),
            copy_limits=limits())
    reasons = lines_of_failed_places(capsys)
    assert len(reasons) == 3
    assert 'refused' in reasons[0] and '404' in reasons[1] and 'ended after' in reasons[2]
    assert server.requests == [('/small.tar.gz', 'bytes=10000-')] and unused.requests == []
    assert_whole(tmp_path)


def test_wrong_bytes_of_one_place_before_those_of_another(server, tmp_path):
    """The second place is not to blame: it is asked again, from the start."""
    with Server('other_bytes_cut').running() as copy:
        download.maybe_download_and_extract(row(server.url, copies=(copy.url,)), str(tmp_path))
    assert [range_ for _, range_ in server.requests] == ['bytes=10000-', None]
    assert_whole(tmp_path)


def test_all_places_fail(server, tmp_path, capsys):
    """The bytes that one of them sent stay for the next start, as does the first place."""
    server.behaviour = 'page'
    with Server('cut').running() as cut, Server('missing').running() as missing:
        message = failure(tmp_path, server.url, (cut.url, missing.url))
        assert 'offers a file of 25 bytes' in message
        reasons = lines_of_failed_places(capsys)
        assert len(reasons) == 2 and 'ended after' in reasons[0] and '404' in reasons[1]
        assert (tmp_path / 'small.tar.gz.part').read_bytes() == ARCHIVE[:10000]
        cut.behaviour = 'good'
        download.maybe_download_and_extract(
            row(server.url, copies=(cut.url, missing.url)), str(tmp_path))
        assert cut.requests[1:] == [('/small.tar.gz', 'bytes=10000-')]
    assert_whole(tmp_path)


def test_the_last_place_may_be_slow(server, tmp_path):
    server.behaviour = 'slow'
    (tmp_path / 'small.tar.gz.part').write_bytes(ARCHIVE[:-11000])
    download.maybe_download_and_extract(
        row(server.url), str(tmp_path), copy_limits=limits(window=0.1, rate=1e6))
    assert download.LAST.rate == 0
    assert_whole(tmp_path)


def test_a_url_of_the_user_is_the_only_place(server, tmp_path, capsys):
    with Server('missing').running() as own, pytest.raises(errors.DataError, match=own.url):
        download.maybe_download_and_extract(
            row(server.url, copies=(server.url,)), str(tmp_path), own.url)
    assert own.requests == [('/small.tar.gz', None)] and server.requests == []
    assert lines_of_failed_places(capsys) == []


def test_a_server_that_does_not_listen_and_an_unwritable_folder(tmp_path):
    with ports.reserve(host='127.0.0.1') as silent:
        url = f'http://127.0.0.1:{silent.getsockname()[1]}/small.tar.gz'
        assert 'refused' in failure(tmp_path, url)
    (tmp_path / 'file').write_text('in the way')
    assert 'file' in failure(tmp_path / 'file' / 'data', url)


@pytest.mark.parametrize('url, reason', [
    ('ftp://127.0.0.1/small.tar.gz', 'does not start with http:'), ('http:///x', 'no host given'),
    ('/etc/passwd', 'does not start with http:'), ('http://[::1/x', ''), ('http://h:0x/x', '')])
def test_invalid_urls(tmp_path, url, reason):
    assert reason in failure(tmp_path, url)


def process(url, copy, data_dir, before=''):
    """Starts a process that downloads the small data set, after the code `before`."""
    code = ('import sys; sys.path[:0] = sys.argv[1:]\n'
            'from cifar10_lib.datasets import download\nfrom downloads import row\n' + before +
            f'download.maybe_download_and_extract(row("{url}", copies=("{copy}",)), "{data_dir}")')
    return subprocess.Popen([sys.executable, '-c', code, str(spawn.ROOT), str(spawn.HELPERS)],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


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


def test_interrupted_and_started_again(server, tmp_path):
    with Server('stall').running() as copy:
        with process(server.url, copy.url, tmp_path) as interrupted:
            while ' % of ' not in (line := interrupted.stdout.readline()):
                assert line, interrupted.stderr.read()
            interrupted.send_signal(signal.SIGINT)
            interrupted.communicate()
        size = (tmp_path / 'small.tar.gz.part').stat().st_size
        assert len(ARCHIVE) / 10 <= size <= 10000
        copy.behaviour = 'good'
        with process(server.url, copy.url, tmp_path) as again:
            out, err = again.communicate()
        assert again.returncode == 0, err
        assert f'127.0.0.1: resuming at {size / 1e6:.1f} MB.\n' in out
        assert [range_ for _, range_ in copy.requests] == [None, f'bytes={size}-']
    assert server.requests == []
    assert_whole(tmp_path)


def test_a_full_disk_is_not_the_fault_of_a_place(server, tmp_path):
    limit = 'import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n'
    with Server().running() as copy, process(server.url, copy.url, tmp_path, limit) as limited:
        out, err = limited.communicate()
    assert 'File too large' in err and 'next place' not in out
    assert copy.requests == [('/small.tar.gz', None)] and server.requests == []


def test_progress_in_a_log(server, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(download, '_BLOCK_BYTES', 1000)
    download.maybe_download_and_extract(row(server.url), str(tmp_path))
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f'Downloading small.tar.gz to {tmp_path}.'
    assert len(lines) == 10
    for tenth, line in enumerate(lines, 1):
        assert re.fullmatch(rf'127\.0\.0\.1: {tenth}\d % of 0 MB, \d+:\d\d left, \d+\.\d\d MB/s',
                            line)


def _extract(tmp_path, archive):
    """Unpacks an archive without the SHA-256 check, which would refuse all but the published ones;
    returns {name: bytes} of the files that it made in the data folder."""
    (tmp_path / 'hostile.tar.gz').write_bytes(archive)
    data_dir = tmp_path / 'data'
    data_dir.mkdir()
    download.extract(str(tmp_path / 'hostile.tar.gz'), str(data_dir), row())
    assert [path.name for path in data_dir.iterdir()] == ['small']
    assert sorted(path.name for path in tmp_path.iterdir()) == ['data', 'hostile.tar.gz']
    assert not any(path.is_symlink() for path in data_dir.rglob('*'))
    return {path.name: path.read_bytes() for path in (data_dir / 'small').iterdir()}


@pytest.mark.parametrize('wrong', [
    member('../outside', b'x'), member('/tmp/outside-absolute', b'x'),
    member('small/../../outside', b'x'), member('small/readme.html', b'x'),
    member('small', type=tarfile.DIRTYPE), member('small/test_batch.bin', b'too short'),
    member('small', type=tarfile.SYMTYPE, linkname='..'),
    member('small/a', b'x', pax_headers={'path': '../../outside'})])
def test_only_the_expected_files_are_unpacked(tmp_path, wrong):
    assert _extract(tmp_path, tar([wrong, *GOOD])) == CONTENTS
    assert not os.path.exists('/tmp/outside-absolute')


@pytest.mark.parametrize('kind', [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE,
                                  tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_links_and_devices_are_not_unpacked(tmp_path, kind):
    """Also if the header claims the size of the expected file."""
    info, _ = member('small/test_batch.bin', type=kind, linkname='/etc/passwd')
    info.size = len(CONTENTS['test_batch.bin'])
    first, data = GOOD[0]
    padding = bytes(-len(data) % tarfile.BLOCKSIZE)
    archive = gzip.compress(first.tobuf() + data + padding + info.tobuf())
    assert _extract(tmp_path, archive) == {'data_batch_1.bin': CONTENTS['data_batch_1.bin']}
