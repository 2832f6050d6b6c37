"""A forked process behaves like one that was started."""
import json
import os
import signal
import subprocess
import sys

import forks
import pytest

STATE = '''
import json, os, signal, sys
print(json.dumps([
    __name__, sys.argv, sys.orig_argv, sys.path, os.getcwd(), os.umask(0),
    dict(os.environ),
    sorted(os.sched_getaffinity(0)),
    [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
    [(stream.encoding, stream.errors, stream.line_buffering)
     for stream in (sys.stdin, sys.stdout, sys.stderr)]]))
'''


def state(run, arguments, **options):
    done = run([sys.executable, *arguments], capture_output=True, text=True, check=True, **options)
    assert done.stderr == ''
    return json.loads(done.stdout)


@pytest.mark.parametrize('way', ['-c', '-m', 'file'])
def test_the_state_at_the_start_is_pythons(tmp_path, way):
    (tmp_path / 'state.py').write_text(STATE)
    arguments = {'-c': ['-c', STATE], '-m': ['-m', 'state'], 'file': [tmp_path / 'state.py']}[way]
    options = {'cwd': tmp_path, 'umask': 0o027, 'env': {**os.environ, 'OF_A_TEST': 'x'}}
    # Under `nohup`, a started process would ignore SIGHUP.
    expected = state(subprocess.run, [*arguments, 'word'], **options,
                     preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))
    got = state(forks.run, [*arguments, 'word'], **options)
    assert got == expected


@pytest.mark.parametrize('statement, code, error', [
    ('pass', 0, ''),
    ('raise SystemExit(3)', 3, ''),
    ('raise SystemExit("words")', 1, 'words\n'),
    ('1 / 0', 1, 'ZeroDivisionError: division by zero\n'),
    ('raise KeyboardInterrupt', -signal.SIGINT, 'interrupted\n'),
    ('import os; os.abort()', -signal.SIGABRT, '')])
def test_ends(statement, code, error):
    program = f'print("first", flush=True); {statement}'
    done = forks.run([sys.executable, '-c', program], capture_output=True, text=True)
    assert done.returncode == code
    assert done.stderr.endswith(error) and bool(done.stderr) == bool(error)
    assert done.stdout == 'first\n'
