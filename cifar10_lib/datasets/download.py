"""Downloads a data set's archive, verifies it and unpacks it.

We trust the archive's SHA-256, not the host that sent it. After any failure, the downloaded bytes
stay in a `.part` file, and the next attempt resumes there. Only a complete file with the wrong
checksum is deleted.
"""
import contextlib
import hashlib
import http.client
import os
import shutil
import tarfile
import time
import urllib.error
import urllib.request

from cifar10_lib.datasets import synthetic
from cifar10_lib.program import console, errors, files

_TIMEOUT_SECONDS = 30.0  # To connect, and between two reads.
_PAUSE_SECONDS = 1.0  # Before reconnecting.
_BLOCK_BYTES = 1 << 18


def maybe_download_and_extract(data_set, data_dir, url=None):
    """Makes sure that a data set's folder exists in `data_dir` and its files are valid.

    If it is missing, unpacks the archive in `data_dir`; if that is missing too, downloads it from
    `url`, by default that of the row. A data set without a URL is generated. Concurrent processes
    wait for the first one. Raises `errors.DataError` with cause, place and remedy.
    """
    folder = os.path.join(data_dir, data_set.folder)
    if not os.path.isdir(folder):
        _check_place(data_set, data_dir)
        if not url:
            _check_form(data_set, data_dir)
        url = url or data_set.url
        try:
            files.own_folder(data_dir)
            with files.locked(os.path.join(data_dir, f'.{data_set.folder}.lock'),
                              waiting='Waiting for another process to fetch the data.'):
                if not os.path.isdir(folder):  # Another process may have created it by now.
                    _make_folder(data_set, data_dir, url)
        except (OSError, http.client.HTTPException, ValueError) as error:  # Or an invalid URL.
            raise errors.DataError(_failure(data_set, data_dir, url, error)) from error
    data_set.check(folder)


def _check_place(data_set, data_dir):
    """Rejects the folder of the record files in place of its parent."""
    parent, name = os.path.split(os.path.abspath(data_dir))
    if name == data_set.folder and any(
            os.path.exists(os.path.join(data_dir, file)) for file in data_set.files):
        raise errors.DataError(f'{data_dir} holds the record files; expected the folder that '
                               f'contains {name}: pass --data_dir={parent}')


def _check_form(data_set, data_dir):
    """Rejects a folder that holds the data in another form, unless a download has begun there."""
    if data_set.url is None or os.path.isdir(data_dir) and any(
            name.startswith(os.path.basename(data_set.url)) for name in os.listdir(data_dir)):
        return
    from cifar10_lib.datasets import forms  # It imports Pillow, which few runs need.
    with contextlib.suppress(OSError):  # Of a folder in it, such as lost+found, or a link.
        form = forms.find(data_dir, data_set.name)
        if form:
            raise errors.DataError(f'{data_dir} holds {form.title}; convert that with python '
                                   f'cifar10_convert.py {data_dir} NEW_FOLDER, and train with '
                                   '--dataset=NEW_FOLDER, or choose another --data_dir')


def _make_folder(data_set, data_dir, url):
    if data_set.url is None:
        console.line(f'Generating the {data_set.title} images in {data_dir}.')
        synthetic.write(data_set, data_dir)
        return
    archive = os.path.join(data_dir, os.path.basename(data_set.url))
    if os.path.lexists(archive):
        try:
            _verify(archive, data_set)
        except errors.DataError as error:
            raise errors.DataError(f'{error}; replace it, or remove it to download '
                                   'it again') from error
    else:
        download(url, archive, data_set)
    extract(archive, data_dir, data_set)


def _failure(data_set, data_dir, url, error):
    """Returns a line with the failed action, its cause and the remedies."""
    if isinstance(error, urllib.error.URLError) and not isinstance(error, urllib.error.HTTPError):
        error = error.reason  # Without "<urlopen error ...>".
    reason = errors.one_line(error) or type(error).__name__
    if data_set.url is None:
        return (f'Cannot generate the {data_set.title} images in {data_dir}: {reason}. '
                'Choose another --data_dir.')
    archive = os.path.basename(data_set.url)
    return (f'Cannot download {url} to {data_dir}: {reason}. Run the same command again to resume, '
            f'copy the correct {archive} there, choose another --data_dir, or try '
            '--dataset=synthetic.')


def download(url, archive, data_set):
    """Downloads and verifies an archive, resuming from `archive`.part if it exists.

    Reconnects as long as each connection delivers something. Honours proxy variables. The part
    stays if it raises OSError or http.client.HTTPException (the server or the disk failed), or
    `errors.DataError` (another file is offered); but not if the checksum is wrong.
    """
    if not url.lower().startswith(('http:', 'https:', 'file:')):
        raise errors.DataError('the URL does not start with http:, https: or file:')
    part = archive + '.part'
    with open(part, 'ab', buffering=0) as stream:
        progress = _Progress(os.path.basename(archive), stream.tell(), data_set.archive_bytes)
        try:
            _complete(url, stream, data_set.archive_bytes, progress)
        finally:
            console.end()
        os.fsync(stream.fileno())
    try:
        _verify(part, data_set)
    except errors.DataError:
        os.remove(part)
        raise
    os.rename(part, archive)


def _complete(url, stream, size, progress):
    """Repeats requests until the part has `size` bytes, or one delivers nothing and fails."""
    while stream.tell() < size:
        before = stream.tell()
        try:
            _append(url, stream, size, progress)
        except (OSError, http.client.HTTPException):
            if stream.tell() == before:
                raise
            time.sleep(_PAUSE_SECONDS)


def _append(url, stream, size, progress):
    """Appends the response to one request to the part, up to `size` bytes in total.

    A server that ignores the range sends the file from the start; known bytes are skipped.
    """
    start = stream.tell()
    headers = {'User-Agent': 'cifar10-tutorial', 'Accept-Encoding': 'identity'}
    if start:
        headers['Range'] = 'bytes=%d-' % start
    request = urllib.request.Request(url, headers=headers)
    # A new opener reads the proxy variables. Redirections to files are refused.
    with urllib.request.build_opener().open(request, timeout=_TIMEOUT_SECONDS) as response:
        position = start if response.getcode() == 206 else 0
        offered = position + int(response.headers.get('Content-Length', size - position))
        if offered != size:
            raise errors.DataError(f'the server offers a file of {offered} bytes; expected {size}')
        while stream.tell() < size:
            # Unlike `read1`, `read` loses received bytes when the connection breaks.
            block = response.read1(min(_BLOCK_BYTES, size - position))
            if not block:
                raise ConnectionError(f'the connection ended after {stream.tell()} of {size} bytes')
            new = memoryview(block)[max(0, start - position):]
            while new:  # On a nearly full disk, `write` may take only a part.
                new = new[stream.write(new):]
            position += len(block)
            progress.update(stream.tell())


class _Progress:
    """Shows a download's progress: redraws a line on a terminal, elsewhere a line every 10 %."""

    def __init__(self, name, done, total):
        self._name, self._first, self._total = name, done, total
        self._start, self._tenth = time.monotonic(), 10 * done // total
        if done:
            console.line(f'Resuming {name} at {done / 1e6:.1f} MB.')

    def update(self, done):
        """Shows that `done` bytes have arrived."""
        rate = max((done - self._first) / max(time.monotonic() - self._start, 1e-3), 1.0)
        minutes, seconds = divmod(int((self._total - done) / rate), 60)
        text = (f'{self._name}: {100 * done // self._total:3} %, {rate / 1e6:.2f} MB/s, '
                f'{minutes}:{seconds:02} left')
        tenth = 10 * done // self._total
        if console.shows_progress():
            console.progress(text)
        elif tenth > self._tenth:
            console.line(text)
        self._tenth = tenth


def _verify(path, data_set):
    """Raises `errors.DataError` if an archive has the wrong size or SHA-256."""
    size = os.path.getsize(path)
    if size != data_set.archive_bytes:
        raise errors.DataError(f'{path} has {size} bytes; expected {data_set.archive_bytes}')
    digest = hashlib.sha256()
    with open(path, 'rb') as stream:
        for block in iter(lambda: stream.read(_BLOCK_BYTES), b''):
            digest.update(block)
    if digest.hexdigest() != data_set.sha256:
        raise errors.DataError(
            f'{path} has SHA-256 {digest.hexdigest()}; expected {data_set.sha256}')


def extract(archive, data_dir, data_set):
    """Unpacks a verified .tar.gz file into a data set's folder below `data_dir`, all or nothing.

    Only files with the expected names and sizes are unpacked. Raises `errors.DataError` if the
    archive is damaged or lacks one.
    """
    missing = {f'{data_set.folder}/{name}': count * data_set.record_bytes
               for name, count in data_set.files.items()}
    try:
        with files.new_folder(os.path.join(data_dir, data_set.folder), '--data_dir') as partial, \
                tarfile.open(archive, 'r|gz') as tar:
            for member in tar:
                if member.isreg() and missing.get(member.name) == member.size:
                    with open(os.path.join(partial, os.path.basename(member.name)), 'xb') as target:
                        shutil.copyfileobj(tar.extractfile(member), target, _BLOCK_BYTES)
                    del missing[member.name]
            if missing:
                lacking = [f'{name} of {size} bytes' for name, size in missing.items()]
                raise errors.DataError(f'{archive} lacks {", ".join(lacking)}')
    except tarfile.TarError as error:
        raise errors.DataError(f'{archive} is damaged ({error})') from error
