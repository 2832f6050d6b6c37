import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios

import pytest
import spawn
from absl import flags

FLAGS = flags.FLAGS
CLEAR = '\r\x1b[K'

LINES = '''
from cifar10_lib.program import console
console.progress('epoch 0.5')
console.progress('epoch 0.6')
console.line('step 6')
console.line('step 7')
console.progress('0123456789' * 3)
console.progress('step 7, 0:12:34 left, loss 4.68')
console.line('done')
console.progress('epoch 2')
console.end()
console.end()
print('an error')
'''


def on_a_terminal(arguments, columns=20):
    """Runs Python on a terminal of this width; returns what it shows."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack('HHHH', 24, columns, 0, 0))
    environment = {name: value for name, value in spawn.environment().items()
                   if name not in ('COLUMNS', 'LINES')}
    with spawn.start(arguments, stdout=theirs, text=False, cwd=spawn.ROOT,
                     env=environment) as process:
        os.close(theirs)
        shown = b''
        while True:
            try:
                block = os.read(ours, 65536)
            except OSError:  # How Linux reports that the other end is closed.
                block = b''
            if not block:
                break
            shown += block
        error = process.stderr.read()
    os.close(ours)
    assert process.returncode == 0, error
    return shown.decode().replace('\r\n', '\n')


def left_on_screen(shown):
    """The lines of a terminal that has shown a text: each as last overwritten."""
    return [line.split(CLEAR)[-1] for line in shown.split('\n')]


def test_progress_is_overwritten_and_cut_to_the_width():
    shown = on_a_terminal(['-c', LINES])
    assert shown == (
        f'{CLEAR}epoch 0.5{CLEAR}epoch 0.6{CLEAR}step 6\nstep 7\n'
        f'{CLEAR}0123456789012345678{CLEAR}step 7{CLEAR}done\n'
        f'{CLEAR}epoch 2\nan error\n')  # 19 of 20 columns: it does not wrap.
    assert left_on_screen(shown) == ['step 6', 'step 7', 'done', 'epoch 2', 'an error', '']


def test_a_pipe_gets_only_the_lines():
    done = subprocess.run([sys.executable, '-c', LINES], cwd=spawn.ROOT, capture_output=True,
                          env=spawn.environment(), text=True, check=True)
    assert done.stdout == 'step 6\nstep 7\ndone\nan error\n'


def test_a_terminal_without_columns_counts_as_a_pipe():
    """mpirun creates one if its own output goes to a file."""
    assert on_a_terminal(['-c', LINES], columns=0) == 'step 6\nstep 7\ndone\nan error\n'


@pytest.mark.slow
def test_a_runs_progress_on_a_terminal(half_bright):
    """It is overwritten; validations and other messages have lines of their own.

    One and a half epochs of 80 images.
    """
    shown = on_a_terminal(
        [str(spawn.ROOT / 'cifar10_train.py'), f'--data_dir={FLAGS.data_dir}', '--batch_size=40',
         f'--train_dir={FLAGS.train_dir}', '--max_steps=3', '--log_frequency=100',
         '--validate_every=1', '--device=cpu'], columns=100)
    lines = left_on_screen(shown)
    assert re.search(
        r'epoch 1\.00: step 2 of 3, 0:00:\d\d left, loss \d+\.\d\d, \d+ images/s', shown), shown
    assert not any(line.startswith('epoch ') for line in lines)
    assert 'step 3: validating on 130 images' in shown
    assert 'step 3: saving a checkpoint' in shown
    assert lines[-2:] == [f'Saved step 3 in {FLAGS.train_dir}.', '']
    for step in (2, 3):
        line, = [line for line in lines if f': step {step}, training error = ' in line]
        assert re.match(r'\d{4}-', line)
        assert ', validation error = ' in line


def test_a_lost_console_is_a_hang_up():
    """Never an OSError, which callers would attribute to a folder."""
    program = '''
from cifar10_lib.program import console
try:
    console.line('lost')
except OSError:
    console.note('an OSError')
'''
    with open('/dev/full', 'w') as full:
        done = spawn.run(['-c', program], cwd=spawn.ROOT, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == -signal.SIGHUP
    assert done.stderr.endswith('\nThe console is gone: No space left on device.\n')


def test_all_output_is_made_printable():
    """Escape sequences, undecodable bytes of a name, and characters that cannot be encoded."""
    program = r'''
from cifar10_lib.program import console, errors
text = 'k\xe4fer\x1b[2J\n\udcff 猫'
console.line(text)
console.note(text)
errors.say(text)
'''
    for encoding, shown in (('utf-8', 'käfer?[2J?? 猫'), ('ascii', 'k?fer?[2J?? ?')):
        done = subprocess.run(
            [sys.executable, '-c', program], cwd=spawn.ROOT, capture_output=True,
            encoding='utf-8', env={**spawn.environment(), 'PYTHONIOENCODING': encoding})
        assert done.stdout == f'{shown}\n'
        assert done.stderr == f'{shown}\n-c: {shown}\n'
