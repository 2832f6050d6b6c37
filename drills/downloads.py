"""Downloads from servers that misbehave.

    python -m drills.downloads

Real servers on loopback. Wanted: the right files, or one line that names the URL and the folder;
and in any case the next attempt, from a server that behaves, makes the folder whole.
"""
import contextlib
import functools
import http.server
import os
import sys
import threading
import time

from datasets import download
from drills import archives
from drills import trial
from program import errors

ARCHIVE = archives.ARCHIVE
_CUTS = 20


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves ARCHIVE, misbehaving as the server's `behaviour` says."""

    def do_GET(self):
        self.server.requests.append((self.path, self.headers.get('Range')))
        with contextlib.suppress(ConnectionError):  # The client has had enough.
            getattr(self, '_' + self.server.behaviour)()

    def _send(self, code, body, cut=None, **headers):
        self.send_response(code)
        for name, value in {'Content_Length': len(body), **headers}.items():
            if value is not None:
                self.send_header(name.replace('_', '-'), str(value))
        self.end_headers()
        self.wfile.write(body[:cut])

    def _start(self):
        return int((self.headers.get('Range') or 'bytes=0-')[6:-1])

    def _good(self, cut=None):
        start = self._start()
        if start:
            last = len(ARCHIVE) - 1
            self._send(206, ARCHIVE[start:], cut, Content_Range=f'bytes {start}-{last}/{last + 1}')
        else:
            self._send(200, ARCHIVE, cut)

    def _cut(self):
        """Ends each connection after 10,000 bytes."""
        self._good(cut=10000)

    def _cut_once(self):
        """Ends the first connection after `cut_after` bytes, and sends nothing later."""
        self._good(cut=self.server.cut_after if len(self.server.requests) == 1 else 0)

    def _stall(self):
        """Sends 10,000 bytes, then nothing more for a second."""
        self._good(cut=10000)
        self.wfile.flush()
        threading.Event().wait(1)

    def _silent(self):
        """Says nothing at all for a second."""
        threading.Event().wait(1)

    def _slow(self):
        threading.Event().wait(1)
        self._good()

    def _without_range(self):
        self._send(200, ARCHIVE)

    def _without_length(self):
        self._send(200, ARCHIVE, Content_Length=None)

    def _wrong_length(self):
        self._send(200, ARCHIVE, Content_Length='abc')

    def _length_too_large(self):
        self._send(200, ARCHIVE, Content_Length=len(ARCHIVE) + 1)

    def _length_too_small(self):
        self._send(200, ARCHIVE, Content_Length=len(ARCHIVE) - 1)

    def _more_than_all(self):
        """The archive and then zeros, without a length."""
        self._send(200, ARCHIVE + bytes(1 << 20), Content_Length=None)

    def _wrong_range(self):
        self._send(206, ARCHIVE[5:], Content_Range=f'bytes 5-{len(ARCHIVE) - 1}/{len(ARCHIVE)}')

    def _other_bytes(self):
        self._send(200, bytes(len(ARCHIVE)))

    def _page(self):
        self._send(200, b'<html>Log in first</html>')

    def _page_for_a_part(self):
        """A page, said to be the rest of the file."""
        rest = b'<html>Log in first</html>'.ljust(len(ARCHIVE) - self._start())
        last = len(ARCHIVE) - 1
        self._send(206, rest, Content_Range=f'bytes {self._start()}-{last}/{last + 1}')

    def _no_http(self):
        self.wfile.write(b'SSH-2.0-OpenSSH_9.2\r\n')

    def _missing(self):
        self._send(404, b'')

    def _broken(self):
        self._send(503, b'')

    def _too_far(self):
        self._send(416, b'')

    def _redirected(self):
        self._send(302, b'', Location=self.path)

    def _to_a_file(self):
        self._send(302, b'', Location='file:///etc/passwd')

    def _to_ftp(self):
        self._send(302, b'', Location='ftp://127.0.0.1/small.tar.gz')

    def log_message(self, *arguments):
        pass


class Server(http.server.ThreadingHTTPServer):
    """A server on loopback that notes (path, Range) of each request."""

    def __init__(self, behaviour='good', cut_after=10000):
        super().__init__(('127.0.0.1', 0), Handler)
        self.behaviour, self.cut_after, self.requests = behaviour, cut_after, []
        self.url = f'http://127.0.0.1:{self.server_port}/small.tar.gz'

    @contextlib.contextmanager
    def running(self):
        """Serves in a thread while the block runs."""
        thread = threading.Thread(target=self.serve_forever, kwargs={'poll_interval': 0.01})
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            thread.join()
            self.server_close()


@contextlib.contextmanager
def in_a_hurry():
    """Seconds that a download waits, in tenths, and no proxies."""
    names = ('_TIMEOUT_SECONDS', '_PAUSE_SECONDS')
    earlier = [getattr(download, name) for name in names]
    proxies = {name: os.environ.pop(name) for name in list(os.environ)
               if name.lower().endswith('_proxy')}
    download._TIMEOUT_SECONDS, download._PAUSE_SECONDS = 0.2, 0.0
    try:
        yield
    finally:
        os.environ.update(proxies)
        for name, value in zip(names, earlier):
            setattr(download, name, value)


def cases():
    for part in range(_CUTS):
        cut = (2 * part + 1) * len(ARCHIVE) // (2 * _CUTS)
        yield f'cut after {cut}', functools.partial(_download, 'cut_once', cut, b'', False)
    half = ARCHIVE[:len(ARCHIVE) // 2]
    for behaviour, part, is_good in (
            ('good', half, True), ('good', ARCHIVE, True), ('good', b'other' + half[5:], False),
            ('good', ARCHIVE + b'more', False), ('cut', b'', True), ('stall', b'', True),
            ('silent', b'', False), ('page', b'', False), ('page', half, False),
            ('page_for_a_part', half, False), ('other_bytes', b'', False), ('no_http', b'', False),
            ('wrong_length', half, False), ('length_too_large', b'', False),
            ('length_too_small', b'', False), ('without_length', half, True),
            ('more_than_all', b'', True), ('without_range', half, True),
            ('wrong_range', half, False), ('too_far', half, False), ('missing', half, False),
            ('broken', half, False), ('redirected', half, False), ('to_a_file', half, False),
            ('to_ftp', half, False)):
        name = f'{behaviour}, {len(part)} bytes there'
        yield name, functools.partial(_download, behaviour, 0, part, is_good)


def _download(behaviour, cut, part, is_good, folder):
    with open(os.path.join(folder, 'small.tar.gz.part'), 'wb') as stream:
        stream.write(part)
    with in_a_hurry():
        with Server(behaviour, cut).running() as server:
            began = time.monotonic()
            outcome = _attempt(server.url, folder)
            if time.monotonic() - began > 20:
                raise trial.Fault(f'it took {time.monotonic() - began:.0f} seconds')
        if (outcome is None) != is_good:
            raise trial.Fault(f'{"no error" if outcome is None else outcome}')
        with Server().running() as server:
            later = _attempt(server.url, folder)
        if later:
            raise trial.Fault(f'a server that behaves was of no use later: {later}')
    return 'the right files' if is_good else 'refused in one line, made good by the next attempt'


def _attempt(url, folder):
    """What the one line says, or None where all files are right afterwards."""
    try:
        download.maybe_download_and_extract(archives.row(url), folder)
    except errors.DataError as error:
        if '\n' in str(error) or url not in str(error) or folder not in str(error):
            raise trial.Fault(f'wanted one line with {url} and {folder}; came {error}') from error
        if os.path.lexists(os.path.join(folder, 'small')):
            raise trial.Fault('it failed, and there is a folder') from error
        return str(error)
    for name, wanted in archives.CONTENTS.items():
        with open(os.path.join(folder, 'small', name), 'rb') as stream:
            if stream.read() != wanted:
                raise trial.Fault(f'{name} is not what it should be')
    return None


def main():
    return trial.run('Downloads', cases(), trial.parser('downloads', __doc__).parse_args())


if __name__ == '__main__':
    sys.exit(main())
