"""Downloads from servers that misbehave.

The servers are real, on loopback. Expected: the right files, or one line that names the URL and the
folder; and in each case the next attempt, from a server that behaves, completes the folder.
"""
import os

import downloads
import pytest
from downloads import ARCHIVE, CONTENTS, Server

from cifar10_lib.datasets import download
from cifar10_lib.program import errors

_CUTS = [(2 * part + 1) * len(ARCHIVE) // 40 for part in range(20)]
_HALF = ARCHIVE[:len(ARCHIVE) // 2]

# Behaviour of the server, a partial download to resume, and whether the download succeeds.
_CASES = [
    ('good', _HALF, True), ('good', ARCHIVE, True), ('good', b'other' + _HALF[5:], False),
    ('good', ARCHIVE + b'more', False), ('cut', b'', True), ('stall', b'', True),
    ('silent', b'', False), ('page', b'', False), ('page', _HALF, False),
    ('page_for_a_part', _HALF, False), ('other_bytes', b'', False), ('not_http', b'', False),
    ('wrong_length', _HALF, False), ('length_too_large', b'', False),
    ('length_too_small', b'', False), ('without_length', _HALF, True),
    ('more_than_all', b'', True), ('without_range', _HALF, True),
    ('too_far', _HALF, False), ('missing', _HALF, False), ('broken', _HALF, False),
    ('redirected', _HALF, False), ('to_a_file', _HALF, False), ('to_ftp', _HALF, False)]


@pytest.mark.slow
@pytest.mark.drill('Downloads', short=44)
@pytest.mark.parametrize('behaviour, cut, part, is_good', [
    *(pytest.param('cut_once', cut, b'', False, id=f'cut after {cut}') for cut in _CUTS),
    *(pytest.param(behaviour, 0, part, is_good, id=f'{behaviour}, {len(part)} bytes to resume')
      for behaviour, part, is_good in _CASES)])
def test_a_bad_server(tmp_path, monkeypatch, tally, behaviour, cut, part, is_good):
    downloads.retry_at_once(monkeypatch)
    if behaviour in ('stall', 'silent'):  # For a second.
        monkeypatch.setattr(download, '_TIMEOUT_SECONDS', 0.4)
    tally(_download(behaviour, cut, part, is_good, str(tmp_path)))


def _download(behaviour, cut, part, is_good, folder):
    with open(os.path.join(folder, 'small.tar.gz.part'), 'wb') as stream:
        stream.write(part)
    with Server(behaviour, cut).running() as server:
        error = _attempt(server.url, folder)
    assert len(server.requests) < 30, 'it retries forever'
    assert (error is None) == is_good, error
    with Server().running() as server:
        assert _attempt(server.url, folder) is None
    return 'the right files' if is_good else 'refused in one line, completed by the next attempt'


def _attempt(url, folder):
    """Downloads: None, or the line of the error; checks the files that it leaves."""
    try:
        download.maybe_download_and_extract(downloads.row(url), folder)
    except errors.DataError as error:
        line = str(error)
        assert '\n' not in line and url in line and folder in line
        assert not os.path.lexists(os.path.join(folder, 'small')), 'it failed and left a folder'
        return line
    for name, expected in CONTENTS.items():
        with open(os.path.join(folder, 'small', name), 'rb') as stream:
            assert stream.read() == expected, name
    return None
