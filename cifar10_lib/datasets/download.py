"""Downloads a data set's archive, verifies it and unpacks it.

We trust the archive's SHA-256, not the host that sent it. After any failure, the downloaded bytes
stay in a `.part` file, and the next start resumes there. Only a complete file with the wrong
checksum is deleted.
"""
import glob
import hashlib
import http.client
import os
import shutil
import tarfile
import time
import urllib.error
import urllib.request

import numpy as np

from cifar10_lib.datasets import synthetic
from cifar10_lib.program import console, errors, files

_TIMEOUT_SECONDS = 30.0  # To connect, and between two reads.
_BLOCK_BYTES = 1 << 18


def maybe_download_and_extract(data_set, data_dir, url=None):
    """Makes sure that a data set's folder exists in `data_dir` and its files are valid.

    If it is missing, unpacks the archive in `data_dir`; if that is missing too, downloads it from
    `url`, by default that of the row. A data set without a URL is generated. Concurrent processes
    wait for the first one. Raises `errors.DataError` with cause, place and remedy, or `OSError` if
    the images cannot be generated.
    """
    folder = os.path.join(data_dir, data_set.folder)
    if not os.path.isdir(folder):
        parent, name = os.path.split(os.path.abspath(data_dir))
        if name == data_set.folder and any(
                os.path.exists(os.path.join(data_dir, file)) for file in data_set.files):
            raise errors.DataError(f'{data_dir} holds the record files; expected the folder that '
                                   f'contains {name}: pass --data_dir={parent}')
        if glob.glob('*/', root_dir=data_dir):
            from cifar10_lib.datasets import folders  # Rarely needed: it imports Pillow.
            if folders.holds_classes(data_dir):
                raise errors.DataError(
                    f'{data_dir} holds a folder of images for each class, not '
                    f'{data_set.folder}: convert the images with cifar10_convert.py {data_dir} '
                    'DATA_DIR, then pass --dataset=DATA_DIR')
        url = url or data_set.url
        try:
            os.makedirs(data_dir, exist_ok=True)
            with files.locked(os.path.join(data_dir, f'.{data_set.folder}.lock'),
                              waiting='Waiting for another process to fetch the data.'):
                if os.path.isdir(folder):
                    pass  # Another process has created it by now.
                elif data_set.url is None:
                    console.line(f'Generating the {data_set.title} images in {data_dir}.')
                    synthetic.write(data_set, data_dir)
                else:
                    archive = os.path.join(data_dir, os.path.basename(data_set.url))
                    download(url, archive, data_set)
                    extract(archive, data_dir, data_set)
        except (OSError, http.client.HTTPException, ValueError) as error:  # Or an invalid URL.
            if data_set.url is None:
                raise
            cause = error.reason if type(error) is urllib.error.URLError else error
            cause = errors.one_line(cause) or type(cause).__name__
            raise errors.DataError(
                f'Cannot download {url} to {data_dir}: {cause}. After a lost connection, the same '
                f'command resumes. Or copy the correct {os.path.basename(data_set.url)} there, '
                'choose another --data_dir, or try --dataset=synthetic.') from error
    data_set.check(folder)


def download(url, archive, data_set):
    """Verifies an archive; if it is missing, downloads it, resuming from `archive`.part.

    Honours proxy variables. Raises `OSError` or `http.client.HTTPException` if the server or the
    disk failed, or `errors.DataError` if another file is offered; removes the part only if its
    checksum is wrong.
    """
    if os.path.lexists(archive):
        if fault := _fault(archive, data_set):
            raise errors.DataError(f'{fault}; replace it, or remove it to download it again')
        return
    if not url.lower().startswith(('http:', 'https:', 'file:')):
        raise errors.DataError('the URL does not start with http:, https: or file:')
    part = archive + '.part'
    with open(part, 'ab') as stream:
        if stream.tell() < data_set.archive_bytes:
            try:
                _append(url, stream, data_set.archive_bytes, os.path.basename(archive))
            finally:
                console.end()
        stream.flush()
        os.fsync(stream.fileno())
    if fault := _fault(part, data_set):
        os.remove(part)
        raise errors.DataError(fault)
    os.rename(part, archive)


def _append(url, stream, size, name):
    """Appends the rest of a file of `size` bytes to its part, and shows progress under a name."""
    done = stream.tell()
    request = urllib.request.Request(url, headers={'User-Agent': 'cifar10-tutorial'})
    if done:
        request.add_header('Range', f'bytes={done}-')
    # A new opener reads the proxy variables. Redirections to files are refused.
    with urllib.request.build_opener().open(request, timeout=_TIMEOUT_SECONDS) as response:
        if response.getcode() != 206:
            done = 0  # The server ignores the range and sends the file from the start.
        offered = done + int(response.headers.get('Content-Length', size - done))
        if offered != size:
            raise errors.DataError(f'the server offers a file of {offered} bytes; expected {size}')
        if done:
            console.line(f'Resuming {name} at {done / 1e6:.1f} MB.')
        stream.truncate(done)
        first, began = done, time.monotonic()
        while done < size:
            # Unlike `read1`, `read` loses received bytes when the connection breaks.
            block = response.read1(min(_BLOCK_BYTES, size - done))
            if not block:
                raise ConnectionError(f'the connection ended after {done} of {size} bytes')
            stream.write(block)
            before, done = done, done + len(block)
            rate = (done - first) / max(time.monotonic() - began, 1e-3)
            minutes, seconds = divmod(int((size - done) / rate), 60)
            text = (f'{name}: {100 * done // size:3} %, {rate / 1e6:.2f} MB/s, '
                    f'{minutes}:{seconds:02} left')
            if console.shows_progress():
                console.progress(text)
            elif 10 * before // size < 10 * done // size:  # A line for every 10 %.
                console.line(text)


def _fault(path, data_set):
    """Describes what is wrong with an archive's size or SHA-256; None if both are right."""
    size = os.path.getsize(path)
    if size != data_set.archive_bytes:
        return f'{path} has {size} bytes; expected {data_set.archive_bytes}'
    digest = hashlib.sha256(np.memmap(path, np.uint8, 'r')).hexdigest()
    return None if digest == data_set.sha256 else (
        f'{path} has SHA-256 {digest}; expected {data_set.sha256}')


def extract(archive, data_dir, data_set):
    """Unpacks a verified .tar.gz file into a data set's folder below `data_dir`, all or nothing.

    Only files with the expected names and sizes are unpacked.
    """
    sizes = {f'{data_set.folder}/{name}': count * data_set.record_bytes
             for name, count in data_set.files.items()}
    with files.new_folder(os.path.join(data_dir, data_set.folder), '--data_dir') as partial, \
            tarfile.open(archive, 'r|gz') as tar:
        for member in tar:
            if member.isreg() and sizes.get(member.name) == member.size:
                path = os.path.join(partial, os.path.basename(member.name))
                with tar.extractfile(member) as packed, open(path, 'wb') as unpacked:
                    shutil.copyfileobj(packed, unpacked)
