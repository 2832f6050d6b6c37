"""Downloads an archive, verifies it and unpacks its record files; checks record files.

Of the published archives, we trust the SHA-256, not the hosts that sent them: each host is tried in
turn and resumes where the last one ended. An archive from any other URL is not verified. After any
failure, the downloaded bytes stay in a `.part` file, and the next start resumes there. Only a
complete file with the wrong checksum is deleted.
"""
import contextlib
import gzip
import hashlib
import http.client
import os
import posixpath
import shutil
import sys
import tarfile
import urllib.error
import urllib.parse
import urllib.request
import zlib
from typing import NamedTuple

from cifar10_lib import errors, files

import numpy as np

_BLOCK_BYTES = 1 << 18
_SILENCE = 30.0  # Seconds within which a host must respond, or send more data.


class Archive(NamedTuple):
    """What is known of an archive."""

    size: int | None = None  # In bytes.
    sha256: str | None = None
    copies: tuple[str, ...] = ()  # URLs that are tried before its own.


# The copies are those that Swift for TensorFlow and MindSpore use. The published host sends 66 to
# 85 kB/s: https://github.com/pytorch/vision/issues/9536
_MINDSPORE = 'https://mindspore-website.obs.cn-north-4.myhuaweicloud.com/notebook/datasets/'
PUBLISHED = {
    'https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz': Archive(
        170052171, 'c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd',
        ('https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/'
         'cifar-10-binary.tar.gz', _MINDSPORE + 'cifar-10-binary.tar.gz')),
    'https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz': Archive(
        168513733, '58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec',
        (_MINDSPORE + 'cifar-100-binary.tar.gz',))}


def maybe_download_and_extract(url: str, data_dir: str, folder: str) -> None:
    """Makes sure that a folder of record files exists in `data_dir`.

    If it is missing, unpacks it from the archive in `data_dir`; if that is missing too, downloads
    the archive from `url`. Concurrent processes wait for the first one. Raises `errors.UserError`.
    """
    path = os.path.join(data_dir, folder)
    if os.path.isdir(path):
        return
    if os.path.basename(os.path.abspath(data_dir)) == folder:
        raise errors.UserError(f'--data_dir={data_dir} is the folder of the record files; '
                               f'expected the folder that contains {folder}')
    if os.path.exists(os.path.join(data_dir, 'dataset.json')):
        raise errors.UserError(f'--data_dir={data_dir} holds converted images (dataset.json): use '
                               f'classification.py --dataset={data_dir}, or choose another '
                               '--data_dir')
    archive = os.path.join(data_dir, posixpath.basename(urllib.parse.urlsplit(url).path))
    try:
        os.makedirs(data_dir, exist_ok=True)
        with files.locked(os.path.join(data_dir, f'.{folder}.lock'),
                          waiting='Waiting for another process to fetch the data.'):
            if not os.path.isdir(path):  # Another process may have created it by now.
                download(url, archive)
                extract(archive, data_dir, folder)
    except errors.UserError:
        raise
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise errors.UserError(
            f'Cannot download {url} to {data_dir}: {errors.one_line(error)}. After a lost '
            'connection, the same command resumes. Or copy the correct '
            f'{os.path.basename(archive)} there, choose another --data_dir, or try the tutorial '
            'with generated images: cifar10_convert.py synthetic DATA_DIR') from error


def download(url: str, archive: str) -> None:
    """Verifies an archive; if it is missing, downloads it from the first host that has it.

    Resumes from `archive`.part. Honours proxy variables. If a host fails, prints a line and tries
    the next one. If the URL is not a published one, a line warns that nothing is verified. Raises
    `OSError`, or `ValueError` if the archive is another one.
    """
    known = PUBLISHED.get(url, Archive())
    if url not in PUBLISHED:
        print(f'{url} is not the published URL: {os.path.basename(archive)} is not verified.',
              flush=True)
    if os.path.lexists(archive):
        fault = _fault(archive, known)
        if fault:
            raise errors.UserError(f'{fault}; replace it, or remove it to download it again')
        return
    print(f'Downloading {os.path.basename(archive)} to {os.path.dirname(archive)}.', flush=True)
    for copy in known.copies:
        try:
            _fetch(copy, archive, known)
            return
        except (OSError, http.client.HTTPException, ValueError) as error:
            print(f'{urllib.parse.urlsplit(copy).hostname}: {errors.one_line(error)}. Trying the '
                  'next host.', flush=True)
    _fetch(url, archive, known)


def _fetch(url, archive, known):
    """Completes the part of an archive from one host, verifies it and renames it.

    Removes a part with the wrong checksum.
    """
    part = archive + '.part'
    with open(part, 'ab') as stream:
        if known.size is None or stream.tell() < known.size:
            try:
                _append(url, stream, known.size)
            except urllib.error.HTTPError as error:
                if error.code == 416 and known.size is None:  # The part is not the file's.
                    stream.truncate(0)
                raise
        stream.flush()
        os.fsync(stream.fileno())
    fault = _fault(part, known)
    if fault:
        os.remove(part)
        raise ValueError(fault)
    os.replace(part, archive)


def _append(url, stream, expected):
    """Appends the rest of a file to its part, and prints the progress.

    `expected` is its size, None if it is not known.
    """
    received = stream.tell()
    request = urllib.request.Request(url, headers={'User-Agent': 'cifar10-tutorial'})
    if received:
        request.add_header('Range', f'bytes={received}-')
    # A new opener reads the proxy variables. It refuses redirections to files.
    with urllib.request.build_opener().open(request, timeout=_SILENCE) as response:
        if response.getcode() != 206:  # It ignores ranges.
            received = 0
        length = response.headers.get('Content-Length')
        size = expected if length is None else received + int(length)
        if expected not in (None, size):
            raise ValueError(f'the server offers a file of {size} bytes; expected {expected}')
        stream.truncate(received)
        with _progress(os.path.basename(stream.name).removesuffix('.part'), size) as show:
            while received != size:
                # Unlike `read1`, `read` loses received bytes when the connection breaks.
                block = response.read1(min(_BLOCK_BYTES, (size or sys.maxsize) - received))
                if not block and size is None:
                    break
                if not block:
                    raise ConnectionError(f'the connection ended after {received} of {size} bytes')
                stream.write(block)
                received += len(block)
                show(received)


@contextlib.contextmanager
def _progress(name, size):
    """Yields a function that prints how much of a file has been received.

    On a terminal, the line `>> Downloading FILE 12.3%` is rewritten in place. In a log, there is
    one for every 10 %. If the size is None, it has MB instead.
    """
    begin, end, interval = '', '\n', 10.0
    if sys.stdout and sys.stdout.isatty():
        begin, end, interval = '\r', '', 0.1
    due = 0.0

    def show(received):
        nonlocal due
        figure, unit = received / 1e6, ' MB'
        if size:
            figure, unit = 100 * received / size, '%'
        if figure >= due or received == size:
            due = figure + interval
            print(f'{begin}>> Downloading {name} {figure:.1f}{unit}', end=end, flush=True)

    try:
        yield show
    finally:
        if not end:
            print(flush=True)


def _fault(path, known):
    """Describes what is wrong with an archive's size or SHA-256; None if both are right, or not
    known."""
    size = os.path.getsize(path)
    if known.size not in (None, size):
        return f'{path} has {size} bytes; expected {known.size}'
    if known.sha256 is not None:
        digest = hashlib.sha256(np.memmap(path, np.uint8, 'r').data).hexdigest()
        if digest != known.sha256:
            return f'{path} has SHA-256 {digest}; expected {known.sha256}'
    return None


def extract(archive: str, data_dir: str, folder: str) -> None:
    """Unpacks a .tar.gz file into a folder below `data_dir`, all or nothing.

    The archive may be anyone's: only regular files directly in `folder` are unpacked. Raises
    `OSError`, or `errors.UserError` if there aren't any, or the archive is damaged.
    """
    path = os.path.join(data_dir, folder)
    skipped = []
    try:
        with files.new_folder(path, '--data_dir') as partial, gzip.open(archive) as stream, \
                tarfile.open(fileobj=stream, mode='r|') as tar:
            for member in tar:
                parent, name = posixpath.split(posixpath.normpath(member.name))
                # On Windows, a name may have a drive or a backslash.
                if member.isreg() and parent == folder and name == os.path.basename(name):
                    packed = tar.extractfile(member)
                    assert packed  # It has content, since it is a file.
                    with packed, open(os.path.join(partial, name), 'wb') as unpacked:
                        shutil.copyfileobj(packed, unpacked)
                else:
                    skipped.append(member.name)
            while stream.read(_BLOCK_BYTES):
                pass  # At its end, gzip compares a checksum.
            if not os.listdir(partial):
                raise errors.UserError(
                    f'{archive} contains {", ".join(skipped) or "nothing":.200}; expected files in '
                    f'a folder {folder}: pack them so, or unpack them into {path}')
    except (gzip.BadGzipFile, EOFError, tarfile.TarError, zlib.error) as error:
        raise errors.UserError(f'{archive} cannot be unpacked: {errors.one_line(error)}; replace '
                               'it, or remove it to download it again') from error


def check_records(path: str, record_bytes: int, label_byte: int, num_classes: int, *,
                  if_torn: str, if_too_large: str) -> None:
    """Checks the size and the labels of a file of records.

    Args:
        path: the file.
        record_bytes: size of a record.
        label_byte: place of the label in a record.
        num_classes: each label must be below it.
        if_torn: what to do about a size that is not a multiple of a record's.
        if_too_large: what to do about a label that is too large.

    Raises `errors.UserError` that names the file, the record and what to do.
    """
    size = os.path.getsize(path)
    if size == 0 or size % record_bytes:
        raise errors.UserError(f'{path} has {size} bytes; expected one or more records of '
                               f'{record_bytes} bytes: {if_torn}')
    labels = np.memmap(path, np.uint8, 'r').reshape(-1, record_bytes)[:, label_byte]
    wrong = np.flatnonzero(labels >= num_classes)
    if wrong.size:
        raise errors.UserError(
            f'{path} has label {labels[wrong[0]]} in record {wrong[0]} (counted from 0); expected '
            f'0 to {num_classes - 1}: {if_too_large}')
