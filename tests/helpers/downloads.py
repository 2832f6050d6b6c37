"""A small data set's archive, and servers on loopback that offer it, most of them badly."""
import contextlib
import gzip
import hashlib
import http.server
import io
import tarfile
import threading

from cifar10_lib import download

import numpy as np

CONTENTS = {name: np.random.RandomState(count).randint(0, 10, 3073 * count).astype(np.uint8)
            .tobytes() for name, count in {'data_batch_1.bin': 40, 'test_batch.bin': 10}.items()}


def tar(members):
    """Bytes of a .tar.gz of (TarInfo, bytes) pairs."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode='w') as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return gzip.compress(stream.getvalue(), mtime=0)  # The same bytes in every process.


def member(name, data=b'', **fields):
    """A (TarInfo, bytes) pair."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, data


GOOD = [member(f'small/{name}', data) for name, data in CONTENTS.items()]
ARCHIVE = tar(GOOD)


def fetch(data_dir, url='http://nowhere.invalid/small.tar.gz', copies=()):
    """Makes sure that the folder `small` is in `data_dir`, as if ARCHIVE were published at `url`
    and had these copies."""
    known = download.Archive(len(ARCHIVE), hashlib.sha256(ARCHIVE).hexdigest(), copies)
    download.PUBLISHED[url] = known
    try:
        download.maybe_download_and_extract(url, str(data_dir), 'small')
    finally:
        del download.PUBLISHED[url]


# What a server sends in place of the archive: {its behaviour: (code, body, headers)}.
_ANSWERS = {
    'without_range': (200, ARCHIVE, {}),
    'other_bytes': (200, bytes(len(ARCHIVE)), {}),
    'page': (200, b'<html>Log in first</html>', {}),
    'missing': (404, b'', {}),
    'redirect_to_a_file': (302, b'', {'Location': 'file:///etc/passwd'})}


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves ARCHIVE in the way that the server's `behaviour` names.

    'cut' closes each connection after 10,000 bytes, 'stall' sends nothing more for a minute, 'held'
    waits for the event `released`, 'no_length' does not send the size.
    """

    def do_GET(self):
        behaviour, range_ = self.server.behaviour, self.headers.get('Range')
        self.server.requests.append((self.path, range_))
        with contextlib.suppress(ConnectionError):  # The client hung up.
            if behaviour in _ANSWERS:
                self._send(*_ANSWERS[behaviour])
            elif behaviour == 'not_http':
                self.wfile.write(b'SSH-2.0-OpenSSH_9.2\r\n')
            else:
                self._send_archive(behaviour, int((range_ or 'bytes=0-')[6:-1]))

    def _send_archive(self, behaviour, start):
        if behaviour == 'held':
            self.server.released.wait()
        code, headers, last = 200, {}, len(ARCHIVE) - 1
        if start > last:
            code = 416
        elif start:
            code, headers = 206, {'Content-Range': f'bytes {start}-{last}/{last + 1}'}
        self._send(code, ARCHIVE[start:], headers, 10000 if behaviour in ('cut', 'stall') else None)
        if behaviour == 'stall':
            self.server.closing.wait(60)

    def _send(self, code, body, headers, cut=None):
        self.send_response(code)
        if self.server.behaviour != 'no_length':
            headers = {'Content-Length': len(body), **headers}
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body[:cut])

    def log_message(self, *arguments):
        pass


class Server(http.server.ThreadingHTTPServer):
    """A server on loopback that records (path, Range) of each request."""

    def __init__(self, behaviour='good'):
        super().__init__(('127.0.0.1', 0), Handler)
        self.behaviour, self.requests = behaviour, []
        self.closing = threading.Event()
        self.url = f'http://127.0.0.1:{self.server_port}/small.tar.gz'

    @contextlib.contextmanager
    def running(self):
        """Serves in a thread while the block runs."""
        thread = threading.Thread(target=self.serve_forever, kwargs={'poll_interval': 0.01})
        thread.start()
        try:
            yield self
        finally:
            self.closing.set()
            self.shutdown()
            thread.join()
            self.server_close()
