"""Downloads from a real server on loopback, and unpacks hostile archives."""
import contextlib
import os
import re
import shutil
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
    assert '\n' not in message and url in message and str(data_dir) in message
    assert not (data_dir / 'small').exists()
    return message


def test_the_folder_of_the_files_in_place_of_its_parent(server, tmp_path):
    fetch(tmp_path, server.url)
    with pytest.raises(errors.UserError, match='/small/ is the folder of the record files; expect'):
        fetch(f'{tmp_path}/small/', server.url)
    assert_whole(tmp_path)
    assert sorted(os.listdir(tmp_path / 'small')) == sorted(CONTENTS)


def test_converted_images_are_not_the_folder_of_a_download(server, tmp_path):
    (tmp_path / 'dataset.json').touch()
    with pytest.raises(errors.UserError, match=f'use classification.py --dataset={tmp_path}, '):
        fetch(tmp_path, server.url)
    assert os.listdir(tmp_path) == ['dataset.json']


def test_a_second_start_needs_no_network(server, tmp_path):
    """Nor does the archive without its folder."""
    fetch(tmp_path / 'new', server.url)
    shutil.rmtree(tmp_path / 'new' / 'small')
    fetch(tmp_path / 'new', server.url)
    assert_whole(tmp_path / 'new')
    (tmp_path / 'new' / 'small.tar.gz').unlink()
    fetch(tmp_path / 'new', server.url)
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


@pytest.mark.parametrize('behaviour', ['good', 'no_length'])
def test_another_url_is_not_verified(server, tmp_path, capsys, behaviour):
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


def test_progress_in_a_log_and_on_a_terminal(server, tmp_path, monkeypatch):
    """A log has few lines. On a terminal, the last of many stays."""
    monkeypatch.setattr(download, '_BLOCK_BYTES', len(ARCHIVE) // 20)
    shown = {}
    for name, (ours, theirs) in (('log', os.pipe()), ('terminal', os.openpty())):
        with open(theirs, 'w') as stream, contextlib.redirect_stdout(stream):
            download.maybe_download_and_extract(server.url, str(tmp_path / name), 'small')
            stream.flush()
            shown[name] = os.read(ours, 1 << 16).decode()
    figures = r'>> Downloading small\.tar\.gz \d+\.\d%'
    lines = shown['log'].splitlines()[2:]
    assert 1 <= len(lines) <= 12 and all(re.fullmatch(figures, line) for line in lines)
    assert len(re.findall('\r' + figures, shown['terminal'])) >= 20
    assert shown['terminal'].endswith(' 100.0%\r\n')


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


@pytest.mark.slow
def test_two_processes_share_one_download(server, tmp_path):
    server.behaviour, server.released = 'held', threading.Event()
    program = ('import sys; sys.path[:0] = sys.argv[1:]\n'
               f'from downloads import fetch\nfetch("{tmp_path}", "{server.url}")')
    words = ['-c', program, spawn.ROOT, spawn.HELPERS]
    first = spawn.start(words)
    while not server.requests and first.poll() is None:
        time.sleep(0.01)
    second = spawn.start(words)
    assert second.stdout.readline() == 'Waiting for another process to fetch the data.\n'
    server.released.set()
    for each in (first, second):
        spawn.ended(each, 0)
    assert server.requests == [('/small.tar.gz', None)]
    assert_whole(tmp_path)


@pytest.mark.parametrize('wrong', [
    member('../outside', b'x'), member('small/../../outside', b'x'),
    member('small/deeper/a', b'x'), member('/small/a', b'x'), member('other/a', b'x'),
    member('small', type=tarfile.SYMTYPE, linkname='..'),
    *(member('small/a', type=kind, linkname='/etc/passwd')
      for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE)),
    member('small/a', b'x', pax_headers={'path': '../../outside'})])
def test_only_the_files_of_the_folder_are_unpacked(tmp_path, wrong):
    (tmp_path / 'hostile.tar.gz').write_bytes(tar([wrong, *GOOD]))
    data_dir = tmp_path / 'data'
    data_dir.mkdir()
    download.extract(str(tmp_path / 'hostile.tar.gz'), str(data_dir), 'small')
    assert os.listdir(data_dir) == ['small'] and not (data_dir / 'small').is_symlink()
    assert sorted(os.listdir(tmp_path)) == ['data', 'hostile.tar.gz']
    assert sorted(os.listdir(data_dir / 'small')) == sorted(CONTENTS)
    for name, data in CONTENTS.items():
        assert (data_dir / 'small' / name).read_bytes() == data
