"""Fetches a data set's archive, verifies it and unpacks it.

What is trusted is the archive's SHA-256, not the host that it came from. Whatever goes wrong, what
was downloaded stays in a `.part` file, where the next attempt goes on; only a file that is complete
and has the wrong checksum is thrown away.
"""
import contextlib
import fcntl
import gzip
import hashlib
import http.client
import os
import re
import shutil
import tarfile
import time
import zlib

from six.moves import urllib

from datasets import synthetic
from program import console
from program import errors
from program import files
from program import ownership

_TIMEOUT_SECONDS = 30.0  # To connect, and between two reads.
_PAUSE_SECONDS = 1.0  # Before going on after a connection that was cut.
_BLOCK_BYTES = 1 << 18
_ARCHIVE_MARGIN_BYTES = 1 << 24  # An archive holds more than the files wanted: a read-me, padding.


def maybe_download_and_extract(data_set, data_dir, url=None):
    """Sees to it that a data set's folder is there and its files are whole.

    A folder that is there is used as it is. Else the archive that lies in `data_dir` is unpacked;
    if none does, it is downloaded first. A data set without a URL is drawn instead. Processes that
    ask at the same time wait for the first of them.

    Args:
        data_set: row of the data-set table.
        data_dir: the data folder, made if missing.
        url: where to download from instead of the place that the row names.

    Raises:
        errors.DataError: one line that says what failed, where, and what to do.
        PermissionError: the data folder is to be made or filled, and others could change it.
    """
    folder = os.path.join(data_dir, data_set.folder)
    if not os.path.isdir(folder):
        url = url or data_set.url
        ownership.check_place(data_dir)
        try:
            files.make_folder(data_dir)
            with _locked(os.path.join(data_dir, f'.{data_set.folder}.lock')):
                if not os.path.isdir(folder):  # Else another process made it while this one waited.
                    _make_folder(data_set, data_dir, url)
        except (OSError, http.client.HTTPException, ValueError) as error:  # Or a URL that is none.
            raise errors.DataError(_failure(data_set, data_dir, url, error)) from error
    data_set.check(folder)


def is_url(text):
    """Whether a text names a place that `download` can read."""
    return text.lower().startswith(('http:', 'https:', 'file:'))


def _make_folder(data_set, data_dir, url):
    if data_set.url is None:
        console.line(f'Drawing the {data_set.title} images in {data_dir}.')
        synthetic.write(data_set, data_dir)
        return
    archive = os.path.join(data_dir, os.path.basename(data_set.url))
    if os.path.lexists(archive):
        try:
            _verify(archive, data_set)
        except errors.DataError as error:
            raise errors.DataError(f'{error}; replace it, or remove it to download it') from error
    else:
        download(url, archive, data_set)
    extract(archive, data_dir, data_set)


def _failure(data_set, data_dir, url, error):
    """One line: what was wanted, why it failed, and the ways on."""
    if isinstance(error, urllib.error.URLError) and not isinstance(error, urllib.error.HTTPError):
        error = error.reason  # What lies below, without "<urlopen error ...>".
    reason = ' '.join(str(error).split()) or type(error).__name__
    if data_set.url is None:
        return (f'Cannot draw the {data_set.title} images in {data_dir}: {reason}. '
                'Name another folder with --data_dir.')
    archive = os.path.basename(data_set.url)
    return (f'Cannot get {url} into {data_dir}: {reason}. Run again to go on from what is there, '
            f'put the right {archive} there by hand, name another folder with --data_dir, or try '
            '--dataset=synthetic.')


@contextlib.contextmanager
def _locked(path):
    """Holds a lock on a file; it ends with the process, however that ends. The file stays."""
    with os.fdopen(files.open_own(path, mode=files.LOCK_MODE), 'ab') as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.line('Waiting for another process to fetch the data.')
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def download(url, archive, data_set):
    """Downloads an archive, going on from `archive`.part if that is there, and verifies it.

    A connection that is cut is made again, as long as each one brings something.

    Args:
        url: an http, https or file URL; proxy variables are honoured.
        archive: path of the file to make.
        data_set: row of the data-set table that tells size and checksum.

    Raises:
        OSError, http.client.HTTPException: the server or the disk failed; the part stays.
        errors.DataError: the server offers another file (the part stays), or what came has the
            wrong checksum (the part is removed).
    """
    if not is_url(url):
        raise errors.DataError('the URL starts with neither http:, https: nor file:')
    part = archive + '.part'
    with os.fdopen(files.open_own(part, os.O_APPEND), 'ab', buffering=0) as stream:
        progress = _Progress(os.path.basename(archive), stream.tell(), data_set.archive_bytes)
        try:
            _complete(url, stream, data_set.archive_bytes, progress)
        finally:
            progress.close()
        os.fsync(stream.fileno())
    try:
        _verify(part, data_set)
    except errors.DataError:
        os.remove(part)
        raise
    os.rename(part, archive)


def _complete(url, stream, size, progress):
    """Appends to a part until it has `size` bytes, by as many requests as bring something."""
    while stream.tell() < size:
        before = stream.tell()
        try:
            _append(url, stream, size, progress)
        except (OSError, http.client.HTTPException):
            if stream.tell() == before:
                raise
            time.sleep(_PAUSE_SECONDS)


def _append(url, stream, size, progress):
    """Appends to a part what one request brings, up to `size` bytes in all.

    A server that ignores the range sends the file from its beginning: what is here already is
    read past.
    """
    start = stream.tell()
    headers = {'User-Agent': 'cifar10-tutorial', 'Accept-Encoding': 'identity'}
    if start:
        headers['Range'] = 'bytes=%d-' % start
    request = urllib.request.Request(url, headers=headers)
    with _opener().open(request, timeout=_TIMEOUT_SECONDS) as response:
        position = _check_offer(response, start, size)
        while stream.tell() < size:
            # Not `read`, which loses what it has when the connection breaks.
            block = response.read1(min(_BLOCK_BYTES, size - position))
            if not block:
                raise ConnectionError(
                    f'the connection ended after {stream.tell()} of {size} bytes')
            new = memoryview(block)[max(0, start - position):]
            while new:  # A disk that is nearly full takes less than it is given.
                new = new[stream.write(new):]
            position += len(block)
            progress.update(stream.tell())


def _opener():
    """Opens http, https and file, and nothing else, also after a redirection."""
    opener = urllib.request.OpenerDirector()
    for handler in (urllib.request.ProxyHandler, urllib.request.UnknownHandler,
                    urllib.request.HTTPHandler, urllib.request.HTTPSHandler,
                    urllib.request.HTTPDefaultErrorHandler, urllib.request.HTTPRedirectHandler,
                    urllib.request.FileHandler, urllib.request.HTTPErrorProcessor):
        opener.add_handler(handler())
    return opener


def _check_offer(response, start, size):
    """Where in the file a response begins.

    Raises:
        errors.DataError: its length or range shows that it is not the file wanted.
    """
    position = start if response.getcode() == 206 else 0
    if response.getcode() == 206:
        offered = re.match(r'bytes (\d+)-\d+/(\d+|\*)$', response.headers.get('Content-Range', ''))
        if (not offered or int(offered.group(1)) != start
                or offered.group(2) not in ('*', str(size))):
            raise errors.DataError(f'asked for bytes from {start} of {size}, the server sent '
                                  f'"{response.headers.get("Content-Range")}"')
    length = response.headers.get('Content-Length')
    if length is not None and position + int(length) != size:
        raise errors.DataError(
            f'the file has {size} bytes, the server offers one of {position + int(length)}')
    return position


class _Progress:
    """Tells how far a download is: a bar on a terminal, elsewhere a line every 10 %."""

    def __init__(self, name, done, total):
        self._name, self._total = name, total
        self._start, self._start_time = done, time.monotonic()
        self._shown_tenth, self._shown_time = 10 * done // total, 0.0
        self._bar = console.shows_progress()
        if done:
            console.line(f'Going on with {name} after {done / 1e6:.1f} MB.')

    def update(self, done):
        """Shows `done` bytes, counted from the file's beginning, where it is time to."""
        now = time.monotonic()
        tenth = 10 * done // self._total
        if self._bar and (now - self._shown_time >= 0.2 or done == self._total):
            self._shown_time = now
            bar = '=' * (2 * tenth) + '>' * (tenth < 10)
            console.progress(f'{self._name:.20} [{bar:20}] {self._figures(done, now)}')
        elif not self._bar and tenth > self._shown_tenth:
            console.line(f'{self._name}: {self._figures(done, now)}')
        self._shown_tenth = tenth

    def _figures(self, done, now):
        rate = (done - self._start) / max(now - self._start_time, 1e-3)
        left = int((self._total - done) / max(rate, 1.0))
        return '%3d %%, %.2f MB/s, %d:%02d left' % (
            100 * done // self._total, rate / 1e6, left // 60, left % 60)

    def close(self):
        """Ends the bar's line."""
        console.end()


def _verify(path, data_set):
    """Checks an archive's size and SHA-256.

    Raises:
        errors.DataError: it is another file.
    """
    size = os.path.getsize(path)
    if size != data_set.archive_bytes:
        raise errors.DataError('%s has %d bytes; wanted: %d' % (path, size, data_set.archive_bytes))
    digest = hashlib.sha256()
    with open(path, 'rb') as stream:
        for block in iter(lambda: stream.read(_BLOCK_BYTES), b''):
            digest.update(block)
    if digest.hexdigest() != data_set.sha256:
        raise errors.DataError(
            f'{path} has SHA-256 {digest.hexdigest()}; wanted: {data_set.sha256}')


def extract(archive, data_dir, data_set):
    """Unpacks a data set's files, and nothing else, into its folder below `data_dir`, all or
    nothing.

    Each file is found by its exact name and size and written under a name that is ours; links,
    directories and other names in the archive are passed over.

    Args:
        archive: path of a .tar.gz file.
        data_dir: the data folder.
        data_set: row of the data-set table.

    Raises:
        errors.DataError: the archive is damaged, lacks a file, or is far larger than the files
        wanted.
        OSError: the disk failed.
    """
    try:
        with files.new_folder(os.path.join(data_dir, data_set.folder), '--data_dir') as partial:
            missing = _unpack(archive, partial, data_set)
            if missing:
                wanted = [f'{data_set.folder}/{name} of {size} bytes'
                          for name, size in missing.items()]
                raise errors.DataError(f'{archive} lacks {", ".join(wanted)}')
    except (tarfile.TarError, zlib.error, EOFError, gzip.BadGzipFile) as error:
        raise errors.DataError(f'{archive} is damaged ({error})') from error


def _unpack(archive, folder, data_set):
    """Writes the files wanted into `folder`; returns name -> size of those that were not found."""
    missing = {name: count * data_set.record_bytes for name, count in data_set.files.items()}
    limit = sum(missing.values()) + _ARCHIVE_MARGIN_BYTES
    with gzip.open(archive) as stream, \
            tarfile.open(fileobj=_Limited(stream, limit), mode='r|') as tar:
        for member in tar:
            name = member.name[len(data_set.folder) + 1:]
            if (member.isreg() and member.name == f'{data_set.folder}/{name}'
                    and missing.get(name) == member.size):
                with open(os.path.join(folder, name), 'xb') as target:
                    shutil.copyfileobj(tar.extractfile(member), target, _BLOCK_BYTES)
                del missing[name]
            if not missing:
                break
    return missing


class _Limited:
    """A stream that ends in an error after `limit` bytes: a few kilobytes of gzip may hold
    terabytes."""

    def __init__(self, stream, limit):
        self._stream, self._left = stream, limit

    def read(self, size):
        block = self._stream.read(min(size, self._left + 1))
        self._left -= len(block)
        if self._left < 0:
            raise tarfile.ReadError('it holds far more than the files wanted')
        return block
