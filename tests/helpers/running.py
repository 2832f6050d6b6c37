"""Runs scripts for the drills, and checks how they ended and what they printed."""
import contextlib
import dataclasses
import os
import subprocess
import tempfile
import time
import typing

import spawn


@contextlib.contextmanager
def running(script, *arguments):
    """Starts a script, and kills it at the end; yields a `Running`."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        process = spawn.start([spawn.ROOT / script, *arguments], stdout=out, stderr=error)
        try:
            yield Running(process, out, error)
        finally:
            process.kill()
            process.wait()


@dataclasses.dataclass
class Running:
    """A `subprocess.Popen`, and the files for its standard output and error."""
    process: subprocess.Popen
    out_file: typing.BinaryIO
    error_file: typing.BinaryIO

    def out(self):
        """Standard output so far."""
        return _text(self.out_file)

    def error(self):
        """Standard error so far."""
        return _text(self.error_file)

    def await_text(self, text):
        """Waits until standard output contains a text."""
        end = time.monotonic() + spawn.PATIENCE
        while text not in self.out():
            assert self.process.poll() is None and time.monotonic() < end, (
                f'no "{text}" in\n{self.out()[-2000:]}{self.error()[-2000:]}')
            time.sleep(0.005)

    def result(self):
        """Waits for the end: a `subprocess.CompletedProcess`."""
        code = self.process.wait(timeout=spawn.PATIENCE)
        return subprocess.CompletedProcess(self.process.args, code, self.out(), self.error())


def _text(file):
    """All of a file that another process is writing; does not move its position."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode()


def expect_one_line(done, *words):
    """Checks that a script ended with exit code 1 and one line that contains these words."""
    assert (done.returncode == 1 and done.stderr.count('\n') == 1
            and all(word in done.stderr for word in words)), (
        f'exit code {done.returncode}; expected 1 and one line with {words}:\n'
        f'{done.stderr[-3000:]}')
