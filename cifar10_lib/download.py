"""Downloads a data set's archive, verifies it and unpacks it.

We trust the archive's SHA-256, not the hosts that sent it: each host is tried in turn and resumes
where the last one ended. After any failure, the downloaded bytes stay in a `.part` file, and the
next start resumes there. Only a complete file with the wrong checksum is deleted.
"""
import hashlib
import http.client
import os
import shutil
import tarfile
import urllib.error
import urllib.parse
import urllib.request

from cifar10_lib import errors, files
from classification_lib import data_sets

import numpy as np
import tqdm

_BLOCK_BYTES = 1 << 18
_SILENCE = 30.0  # Seconds within which a host must respond, or send more data.


def maybe_download_and_extract(data_set: data_sets.DataSet, data_dir: str) -> None:
    """Makes sure that a data set's folder exists in `data_dir` and that its files are valid.

    If it is missing, unpacks the archive in `data_dir`; if that is missing too, downloads it.
    Concurrent processes wait for the first one. Raises `errors.UserError`.
    """
    folder = os.path.join(data_dir, data_set.folder)
    if not os.path.isdir(folder):
        if os.path.basename(os.path.abspath(data_dir)) == data_set.folder:
            raise errors.UserError(f'--data_dir={data_dir} is the folder of the record files; '
                                    f'expected the folder that contains {data_set.folder}')
        archive = os.path.join(data_dir, os.path.basename(data_set.url))
        try:
            os.makedirs(data_dir, exist_ok=True)
            with files.locked(os.path.join(data_dir, f'.{data_set.folder}.lock'),
                              waiting='Waiting for another process to fetch the data.'):
                if not os.path.isdir(folder):  # Another process may have created it by now.
                    download(archive, data_set)
                    extract(archive, data_dir, data_set)
        except errors.UserError:
            raise
        except (OSError, http.client.HTTPException, ValueError, EOFError,
                tarfile.TarError) as error:
            raise errors.UserError(
                f'Cannot download {data_set.url} to {data_dir}: {errors.one_line(error)}. After a '
                'lost connection, the same command resumes. Or copy the correct '
                f'{os.path.basename(archive)} there, choose another --data_dir, or try generated '
                'images: cifar10_convert.py synthetic DATA_DIR') from error
    data_sets.check(data_set, folder)


def download(archive: str, data_set: data_sets.DataSet) -> None:
    """Verifies an archive; if it is missing, downloads it from the first host that has it.

    Resumes from `archive`.part. Honours proxy variables. If a host fails, prints a line and tries
    the next one. Raises `OSError`, or `ValueError` if the archive is another one.
    """
    if os.path.lexists(archive):
        fault = _fault(archive, data_set)
        if fault:
            raise errors.UserError(f'{fault}; replace it, or remove it to download it again')
        return
    print(f'Downloading {os.path.basename(archive)} to {os.path.dirname(archive)}.', flush=True)
    for url in data_set.copies:
        try:
            _fetch(url, archive, data_set)
            return
        except (OSError, http.client.HTTPException, ValueError) as error:
            print(f'{urllib.parse.urlsplit(url).hostname}: {errors.one_line(error)}. Trying the '
                  'next host.', flush=True)
    _fetch(data_set.url, archive, data_set)


def _fetch(url, archive, data_set):
    """Completes the part of an archive from one host, verifies it and renames it.

    Removes a part with the wrong checksum.
    """
    part = archive + '.part'
    with open(part, 'ab') as stream:
        if stream.tell() < data_set.archive_bytes:
            _append(url, stream, data_set.archive_bytes)
        stream.flush()
        os.fsync(stream.fileno())
    fault = _fault(part, data_set)
    if fault:
        os.remove(part)
        raise ValueError(fault)
    os.replace(part, archive)


def _append(url, stream, size):
    """Appends the rest of a file of `size` bytes to its part, with a progress bar."""
    first = stream.tell()
    request = urllib.request.Request(url, headers={'User-Agent': 'cifar10-tutorial'})
    if first:
        request.add_header('Range', f'bytes={first}-')
    # A new opener reads the proxy variables. It refuses redirections to files.
    with urllib.request.build_opener().open(request, timeout=_SILENCE) as response:
        if response.getcode() != 206:  # It ignores ranges.
            first = 0
        offered = first + int(response.headers.get('Content-Length', size - first))
        if offered != size:
            raise ValueError(f'the server offers a file of {offered} bytes; expected {size}')
        stream.truncate(first)
        with tqdm.tqdm(total=size, initial=first, unit='B', unit_scale=True,
                       desc=urllib.parse.urlsplit(url).hostname) as bar:
            while bar.n < size:
                # Unlike `read1`, `read` loses received bytes when the connection breaks.
                block = response.read1(min(_BLOCK_BYTES, size - bar.n))
                if not block:
                    raise ConnectionError(f'the connection ended after {bar.n} of {size} bytes')
                stream.write(block)
                bar.update(len(block))


def _fault(path, data_set):
    """Describes what is wrong with an archive's size or SHA-256; None if both are right."""
    size = os.path.getsize(path)
    if size != data_set.archive_bytes:
        return f'{path} has {size} bytes; expected {data_set.archive_bytes}'
    digest = hashlib.sha256(np.memmap(path, np.uint8, 'r').data).hexdigest()
    if digest != data_set.sha256:
        return f'{path} has SHA-256 {digest}; expected {data_set.sha256}'
    return None


def extract(archive: str, data_dir: str, data_set: data_sets.DataSet) -> None:
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
