"""A small data set's archive, and servers on loopback that offer it, most of them badly."""
import contextlib
import gzip
import hashlib
import http.server
import io
import os
import tarfile
import threading

from cifar10_lib import data_sets

import numpy as np

CONTENTS = {name: np.random.RandomState(count).randint(0, 10, 3073 * count).astype(np.uint8)
            .tobytes() for name, count in {'data_batch_1.bin': 40, 'test_batch.bin': 10}.items()}


def tar(members, **options):
    """Bytes of a .tar.gz of (TarInfo, bytes) pairs."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode='w', **options) as archive:
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


def row(url='http://nowhere.invalid/small.tar.gz', archive=ARCHIVE, copies=()):
    """The row of a small data set with this archive."""
    return data_sets.DataSet(
        'small', 'small', {'data_batch_1.bin': 40}, {'test_batch.bin': 10},
        classes=data_sets.CIFAR10.classes, url=url, copies=copies,
        archive_bytes=len(archive), sha256=hashlib.sha256(archive).hexdigest())


def use_no_proxy(monkeypatch):
    for name in [name for name in os.environ if name.lower().endswith('_proxy')]:
        monkeypatch.delenv(name)


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves ARCHIVE in the way that the server's `behaviour` names."""

    def do_GET(self):
        self.server.requests.append((self.path, self.headers.get('Range')))
        with contextlib.suppress(ConnectionError):  # The client hung up.
            getattr(self, '_' + self.server.behaviour)()

    def _send(self, code, body, cut=None, **headers):
        self.send_response(code)
        for name, value in {'Content_Length': len(body), **headers}.items():
            self.send_header(name.replace('_', '-'), str(value))
        self.end_headers()
        self.wfile.write(body[:cut])

    def _good(self, cut=None):
        start = int((self.headers.get('Range') or 'bytes=0-')[6:-1])
        if start:
            last = len(ARCHIVE) - 1
            self._send(206, ARCHIVE[start:], cut, Content_Range=f'bytes {start}-{last}/{last + 1}')
        else:
            self._send(200, ARCHIVE, cut)
        return start

    def _cut(self):
        """Closes each connection after 10,000 bytes."""
        self._good(cut=10000)

    def _stall(self):
        """Sends 10,000 bytes, then nothing for a minute."""
        self._good(cut=10000)
        self.server.closing.wait(60)

    def _held(self):
        """Sends nothing until the event `released` is set."""
        self.server.released.wait()
        self._good()

    def _without_range(self):
        self._send(200, ARCHIVE)

    def _other_bytes(self):
        self._send(200, bytes(len(ARCHIVE)))

    def _redirect_to_a_file(self):
        self._send(302, b'', Location='file:///etc/passwd')

    def _page(self):
        self._send(200, b'<html>Log in first</html>')

    def _not_http(self):
        self.wfile.write(b'SSH-2.0-OpenSSH_9.2\r\n')

    def _missing(self):
        self._send(404, b'')

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
