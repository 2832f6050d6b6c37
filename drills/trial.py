"""What the drills share: cases that are tried one after another, and counted.

A case is a name and a function that gets an empty folder of its own. It returns in a few words what
came of it, and raises `Fault` where that is not what should.
"""
import argparse
import collections
import contextlib
import io
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback

# What makes root's processes subject to permissions, as those of other users are.
UNPRIVILEGED = ('setpriv', '--bounding-set=-all') if os.getuid() == 0 else ()

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Fault(Exception):
    """What a drill has found: the message tells what came, and what was wanted."""


def parser(module, description):
    """An argument parser with what most drills take."""
    result = argparse.ArgumentParser(prog=f'python -m drills.{module}', description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument('--sample', type=int, help='try so many cases, drawn at random, not all')
    result.add_argument('--seed', type=int, default=1, help='of what is drawn at random')
    result.add_argument('--verbose', action='store_true', help='a line for each case')
    return result


def run(title, cases, options):
    """Tries cases, each in an empty folder, and prints what came of them.

    Args:
        title: of the drill.
        cases: iterable of (name, function of a folder's path).
        options: what `parser` made of the command line.

    Returns:
        The exit code: 0 where all came out as they should, else 1.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # Ends children, too.
    if options.sample:
        cases = list(cases)
        cases = random.Random(options.seed).sample(cases, min(options.sample, len(cases)))
    outcomes = collections.Counter()
    failed = 0
    for count, (name, case) in enumerate(cases, 1):
        with tempfile.TemporaryDirectory(prefix='drill-') as folder:
            try:
                with contextlib.redirect_stdout(io.StringIO()):  # What it says is not of interest.
                    outcome = case(folder)
            except Fault as fault:
                failed += 1
                outcome = 'FAILED'
                print(f'{title}, {name}: {fault}', flush=True)
            except Exception:
                failed += 1
                outcome = 'FAILED'
                print(f'{title}, {name}:\n{traceback.format_exc()}', flush=True)
        outcomes[outcome] += 1
        if options.verbose:
            print(f'{name}: {outcome}', flush=True)
        elif sys.stderr.isatty():
            print(f'\r{title}: {count} ', end='', file=sys.stderr)
    if not outcomes:
        failed = 1
    tally = ', '.join(f'{number} {outcome}' for outcome, number in sorted(outcomes.items()))
    print(f'{title}: {sum(outcomes.values())} tried: {tally}. {failed} failed.', flush=True)
    return int(failed > 0)


@contextlib.contextmanager
def killed_at_the_end(process):
    """Sees to it that a process has ended, however the block ends."""
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def script(name, *arguments, seconds=120, command=(), **options):
    """Runs a script of the project in a process of its own, as a user does.

    Args:
        name: of the file.
        *arguments: what follows it on the command line.
        seconds: after how many to give up.
        command: what to run it with, such as `UNPRIVILEGED`.
        **options: those of `subprocess.run`.

    Returns:
        A `subprocess.CompletedProcess`, with text.

    Raises:
        Fault: it has not ended by then.
    """
    try:
        return subprocess.run(
            [*command, sys.executable, os.path.join(ROOT, name), *arguments], text=True,
            timeout=seconds, capture_output=True, check=False, **options)
    except subprocess.TimeoutExpired as error:
        raise Fault(f'{name} {" ".join(arguments)} did not end in {seconds} seconds') from error


def signals_as_in_a_terminal():
    """For a child process, where this one was started by nohup or in a script's background."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def await_text(path, text, process, seconds=60):
    """Returns when a log file holds a text.

    Raises:
        Fault: the process that writes it ended before, or the time is over.
    """
    until = time.monotonic() + seconds
    while True:
        is_over = process.poll() is not None or time.monotonic() > until
        with open(path) as stream:
            found = stream.read()
        if text in found:
            return
        if is_over:
            raise Fault(f'waited for "{text}", came\n{found[-2000:]}')
        time.sleep(0.005)


def wanted_one_line(done, *words):
    """Checks that a script ended with exit code 1 and one line, which holds these words.

    Each worker of `--num_workers` may add a line of its own.

    Raises:
        Fault: it did not.
    """
    lines = collections.Counter(
        re.match(r'(\[worker \d+\] )?', line).group() for line in done.stderr.splitlines())
    first = next((line for line in done.stderr.splitlines() if not line.startswith('[worker ')), '')
    if (done.returncode != 1 or set(lines.values()) != {1} or '' not in lines
            or not all(word in first for word in words)):
        raise Fault(f'wanted exit code 1 and one line with {words}; came code {done.returncode} '
                    f'and\n{done.stderr[-3000:]}')


def contents(folder):
    """What is in a folder: dictionary from path to bytes, of a link where it leads, of all else the
    kind."""
    found = {}
    for place, folders, names in os.walk(folder):
        for path in (os.path.join(place, name) for name in [*folders, *names]):
            if os.path.islink(path):
                found[path] = os.readlink(path)
            elif os.path.isfile(path):
                with open(path, 'rb') as stream:
                    found[path] = stream.read()
            else:
                found[path] = os.lstat(path).st_mode
    return found
