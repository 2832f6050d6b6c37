"""Downloads a data set's archive, verifies it and unpacks it.

We trust the archive's SHA-256, not the hosts that sent it: each place is tried in turn and resumes
where the last one ended. After any failure, the downloaded bytes stay in a `.part` file, and the
next start resumes there. Only a complete file with the wrong checksum is deleted.
"""
import concurrent.futures
import dataclasses
import glob
import hashlib
import http.client
import os
import shutil
import tarfile
import threading
import time
from collections.abc import Sequence

import numpy as np
from six.moves import urllib

from cifar10_lib.datasets import synthetic, table
from cifar10_lib.program import console, errors, files

_BLOCK_BYTES = 1 << 18


@dataclasses.dataclass(frozen=True)
class Limits:
    """When to leave a place that offers an archive.

    Attributes:
        connect: seconds within which it must answer the request.
        silence: seconds within which it must send something.
        window: seconds over which its rate is measured.
        rate: bytes per second that it must send at least.
    """

    connect: float = 10.0
    silence: float = 30.0
    window: float = 30.0
    rate: float = 50e3


COPY = Limits()
LAST = Limits(connect=30.0, rate=0.0)  # A slow place is better than none.


def maybe_download_and_extract(data_set: table.DataSet, data_dir: str, url: str | None = None,
                               copy_limits: Limits = COPY) -> None:
    """Makes sure that a data set's folder exists in `data_dir` and its files are valid.

    If it is missing, unpacks the archive in `data_dir`; if that is missing too, downloads it from
    `url`, by default from the places of the row. `copy_limits` are the `Limits` of all but the last
    one, which has `LAST`. A data set without a URL is generated. Concurrent processes wait for the
    first one. Raises `errors.DataError` with cause, place and remedy, or `OSError` if the images
    cannot be generated.
    """
    folder = os.path.join(data_dir, data_set.folder)
    if not os.path.isdir(folder):
        _check_data_dir(data_set, data_dir)
        urls = [*filter(None, (*data_set.copies, data_set.url))]
        if url:
            urls = [url]
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
                    download(urls, archive, data_set, copy_limits)
                    extract(archive, data_dir, data_set)
        except (OSError, ValueError) as error:
            if data_set.url is None:
                raise
            raise errors.DataError(
                f'Cannot download {urls[-1]} to {data_dir}: {errors.one_line(error)}. After a lost '
                'connection, the same command resumes. Or copy the correct '
                f'{os.path.basename(data_set.url)} there, choose another --data_dir, or try '
                '--dataset=synthetic.') from error
    data_set.check(folder)


def _check_data_dir(data_set, data_dir):
    """Raises `errors.DataError` for a folder that the user mistook for the data folder."""
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


def download(urls: Sequence[str], archive: str, data_set: table.DataSet,
             copy_limits: Limits = COPY) -> None:
    """Verifies an archive; if it is missing, downloads it from the first place that has it.

    Resumes from `archive`.part. Honours proxy variables. Leaves a place that fails, or exceeds
    `copy_limits`, with one line. Raises `OSError` if the disk failed, or `errors.DataError` if the
    last place did, or exceeded `LAST`.
    """
    if os.path.lexists(archive):
        if fault := _fault(archive, data_set):
            raise errors.DataError(f'{fault}; replace it, or remove it to download it again')
        return
    console.line(f'Downloading {os.path.basename(archive)} to {os.path.dirname(archive)}.')
    for url in urls[:-1]:
        try:
            _fetch(url, archive, data_set, copy_limits)
            return
        except errors.DataError as error:
            console.line(f'{_host(url)}: {error}. Trying the next place.')
    _fetch(urls[-1], archive, data_set, LAST)


def _fetch(url, archive, data_set, limits):
    """Completes the part of an archive from one place, verifies it and renames it.

    Removes a part with the wrong checksum, and starts again if only its end was from this place.
    Raises `OSError` if the disk failed, or `errors.DataError` if the place did.
    """
    part = archive + '.part'
    with open(part, 'ab') as stream:
        first = stream.tell()
        if first < data_set.archive_bytes:
            try:
                first = _append(url, stream, data_set.archive_bytes, limits)
            finally:
                console.end()
        stream.flush()
        os.fsync(stream.fileno())
    fault = _fault(part, data_set)
    if fault is None:
        os.replace(part, archive)
        return
    os.remove(part)
    if first == 0:
        raise errors.DataError(fault)
    console.line(f'{fault}. Starting again.')
    _fetch(url, archive, data_set, limits)


def _append(url, stream, size, limits):
    """Appends the rest of a file of `size` bytes to its part, and shows progress.

    Returns the number of the first byte from this place. Raises what `_fetch` raises.
    """
    first, began = stream.tell(), time.monotonic()
    for done, block in _blocks(url, first, size, limits):
        if done < first:  # The server ignores the range and sends the file from the start.
            first = done
            stream.truncate(first)
        stream.write(block)
        before, done = done, done + len(block)
        rate = (done - first) / max(time.monotonic() - began, 1e-3)
        minutes, seconds = divmod(int((size - done) / rate), 60)
        # A narrow terminal cuts the end.
        text = (f'{_host(url)}: {100 * done // size} % of {size / 1e6:.0f} MB, '
                f'{minutes}:{seconds:02} left, {rate / 1e6:.2f} MB/s')
        if console.shows_progress():
            console.progress(text)
        elif 10 * before // size < 10 * done // size:  # A line for every 10 %.
            console.line(text)
    return first


def _blocks(url, offset, size, limits):
    """Yields (number of the first byte, bytes) of a file of `size` bytes from `offset` to its end,
    or from 0 if the server ignores ranges. Raises `errors.DataError`."""
    try:
        with _open(url, offset, limits) as response:
            is_page = response.headers.get_content_type() == 'text/html'
            if is_page and 'Content-Length' not in response.headers:
                raise ValueError('the server sends a page, perhaps to log in; expected a file')
            if response.getcode() != 206:
                offset = 0
            offered = offset + int(response.headers.get('Content-Length', size - offset))
            if offered != size:
                raise ValueError(f'the server offers a file of {offered} bytes; expected {size}')
            if offset:
                console.line(f'{_host(url)}: resuming at {offset / 1e6:.1f} MB.')
            start, since = offset, time.monotonic()
            while offset < size:
                if time.monotonic() - since >= limits.window:
                    if offset - start < limits.rate * limits.window:
                        raise TimeoutError(f'less than {limits.rate / 1e3:g} kB/s for '
                                           f'{limits.window:g} seconds')
                    start, since = offset, time.monotonic()
                # Unlike `read1`, `read` loses received bytes when the connection breaks.
                block = response.read1(min(_BLOCK_BYTES, size - offset))
                if not block:
                    raise ConnectionError(f'the connection ended after {offset} of {size} bytes')
                yield offset, block
                offset += len(block)
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: invalid URL.
        cause: BaseException | str = error
        if type(error) is urllib.error.URLError:
            cause = error.reason
        raise errors.DataError(errors.one_line(cause) or type(cause).__name__) from error


def _open(url, offset, limits):
    """Requests a file from `offset` on and returns the response.

    Raises what `urllib` raises, and `TimeoutError` if there is no response in time. The timeout of
    `urllib` is for each address of a host and each read, and not for looking up the name.
    """
    if not url.lower().startswith(('http:', 'https:', 'file:')):
        raise ValueError('the URL does not start with http:, https: or file:')
    request = urllib.request.Request(url, headers={'User-Agent': 'cifar10-tutorial'})
    if offset:
        request.add_header('Range', f'bytes={offset}-')
    # A new opener reads the proxy variables. Redirections to files are refused.
    opener = urllib.request.build_opener()
    answer: concurrent.futures.Future[http.client.HTTPResponse] = concurrent.futures.Future()

    def ask():
        try:
            answer.set_result(opener.open(request, timeout=limits.silence))
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    if not concurrent.futures.wait([answer], limits.connect).done:
        raise TimeoutError(f'no answer within {limits.connect:g} seconds')
    return answer.result()


def _host(url):
    """The host of a URL; all of a URL without one."""
    return urllib.parse.urlsplit(url).hostname or url


def _fault(path, data_set):
    """Describes what is wrong with an archive's size or SHA-256; None if both are right."""
    size = os.path.getsize(path)
    if size != data_set.archive_bytes:
        return f'{path} has {size} bytes; expected {data_set.archive_bytes}'
    digest = hashlib.sha256(np.memmap(path, np.uint8, 'r').data).hexdigest()
    if digest != data_set.sha256:
        return f'{path} has SHA-256 {digest}; expected {data_set.sha256}'
    return None


def extract(archive: str, data_dir: str, data_set: table.DataSet) -> None:
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
                packed = tar.extractfile(member)
                assert packed  # It has content, since it is a file.
                with packed, open(path, 'wb') as unpacked:
                    shutil.copyfileobj(packed, unpacked)
