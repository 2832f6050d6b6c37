"""What scripts show: one line per mistake, quiet starts, and nothing changed by an import."""
import os
import re
import signal

from cifar10_lib import errors, script, session

import pytest
import spawn
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver

flags.DEFINE_integer('whole_dirs', 3, 'A number, for the tests.', lower_bound=1)
flags.DEFINE_string('there_dir', '/there', 'A folder, for the tests.')
flags.DEFINE_list('some', 'a,b', 'Names, for the tests.')
flags.DEFINE_float('rate', 0.5, 'A rate, for the tests.', short_name='r')
flags.DEFINE_boolean('maybe', False, 'A choice, for the tests.')
flags.DEFINE_boolean('keep_dir', True, 'A choice whose name ends like that of a folder.')
FLAGS = flags.FLAGS


@pytest.fixture
def run(monkeypatch, capsys):
    """A function that runs a `main` as a script does, with the words of the command line: its exit
    code and what it wrote to both streams."""
    def run_(main, *words, **options):
        monkeypatch.setattr('sys.argv', ['/here/script.py', *words])
        with pytest.raises(SystemExit) as ended, flagsaver.flagsaver():
            script.run(main, **options)
        return (ended.value.code, *capsys.readouterr())

    handler, environment = signal.getsignal(signal.SIGINT), dict(os.environ)
    yield run_
    signal.signal(signal.SIGINT, handler)
    os.environ.clear()
    os.environ.update(environment)


def nothing(*_):
    pytest.fail('main must not run')


# ---- The command line


@pytest.mark.parametrize('positional, words, line', [
    ('', ['--whole_dir=1'], "Unknown command line flag 'whole_dir'"),
    ('', ['--whole_dirs=0'], 'flag --whole_dirs=0: '), ('', ['--nomaybe=1'], 'maybe'),
    ('', ['--use_fp16', '--use_bf16'], 'use_fp16=True, use_bf16=True: At most one'),
    ('', ['--there_dir='], 'flag --there_dir= has no usable value'),
    ('', ['--some='], 'flag --some=[] has no usable value'),
    ('', ['--rate=nan'], 'flag --rate=nan has no usable value'),
    ('', ['--rate=inf'], 'flag --rate=inf has no usable value'),
    ('', ['--there_dir=s3://bucket/a'], 'flag --there_dir=s3://bucket/a is a URL; expected a '),
    ('', ['--there_dir=a', 'b'], 'got b; expected --name=value, quoted if it contains spaces'),
    ('', ['stray', '--maybe'], 'got stray --maybe; expected --name=value'),
    ('IMAGE...', [], 'got no arguments; expected IMAGE...'),
    ('SOURCE DATA_DIR', ['a b'], "got 'a b'; expected SOURCE DATA_DIR"),
    ('SOURCE DATA_DIR', ['a', 'b', 'c'], 'got a b c; expected SOURCE DATA_DIR')])
def test_a_wrong_command_line_is_one_line(run, positional, words, line):
    code, out, error = run(nothing, *words, positional=positional)
    assert (code, out) == (1, '')
    assert error.startswith('script.py: ') and error.endswith(' (see --help)\n')
    assert error.count('\n') == 1 and line in error


def test_a_folder_that_cannot_be_created(run):
    """The line names no place: nobody's code is wrong."""
    _, _, error = run(lambda: session.opened('/proc/nowhere/run').__enter__())
    assert error == "script.py: No such file or directory: '/proc/nowhere'\n"


def test_positional_arguments_and_flags_in_any_order(run, monkeypatch):
    """A path may begin with `~`."""
    monkeypatch.setenv('HOME', '/home/me')
    seen = []
    code, _, _ = run(
        lambda words: seen.append((words, FLAGS.rate, FLAGS.there_dir, FLAGS.keep_dir)), 'a-b',
        '--rate=2', 'b c', '--there_dir=~/data-1', '--nokeep-dir', positional='IMAGE...')
    assert (code, seen) == (None, [(['a-b', 'b c'], 2.0, '/home/me/data-1', False)])


def test_dashes_and_hints(run):
    """As most Python programs have them."""
    assert run(lambda: print(FLAGS.batch_size), '--batch-size=3')[1] == '3\n'
    assert run(lambda: print(FLAGS.batch_size), '--batch-size', '4')[1] == '4\n'
    assert 'Did you mean: batch_size' in run(nothing, '--batch_sise=3')[2]


@pytest.mark.parametrize('words', [['-r8'], ['-r', '8'], ['-r=8'], ['--rate=8']])
def test_a_short_flag_and_its_value_in_one_word(run, words):
    assert run(lambda: print(FLAGS.rate), *words)[1] == '8.0\n'


@pytest.mark.parametrize('word, folder', [('-t/a-b', '/a-b'), ('-tdata', 'data')])
def test_a_short_alias_and_a_path_in_one_word(run, word, folder):
    aliases = {'t': 'there_dir'}
    assert run(lambda: print(FLAGS.there_dir), word, aliases=aliases)[1] == f'{folder}\n'
    assert "flag 'ther_dir'" in run(nothing, '-ther_dir=a', aliases=aliases)[2]


# ---- How a script ends


def _raise(error):
    raise error


@pytest.mark.parametrize('main, line', [
    (lambda: _raise(errors.UserError('what to do')), 'what to do'),
    (lambda: os.listdir('missing/x'), "No such file or directory: 'missing/x'"),
    (lambda: _raise(FloatingPointError('two\nlines')), 'two lines'),
    (lambda: _raise(TimeoutError()), 'TimeoutError'),
    (lambda: _raise(tf.errors.AbortedError(None, None, 'Stale file handle')), 'Stale file handle'),
    # TensorFlow's text; a real one comes after 20 seconds of retries.
    (lambda: _raise(tf.errors.ResourceExhaustedError(
        None, None, "Graph execution error:\n\nNode: 'Fill'\nOOM when allocating tensor with "
        'shape[9] by allocator GPU_0_bfc\n\t [[{{node Fill}}]]')),
     '(Fill): OOM when allocating tensor with shape[9] by allocator GPU_0_bfc. CIFAR10_TRACEBACK=1 '
     'shows all')])
def test_errors_of_the_user_or_the_machine_are_one_line(run, monkeypatch, tmp_path, main, line):
    """If the user's own code has raised one, with its place."""
    monkeypatch.chdir(tmp_path)
    code, out, error = run(main)
    assert (code, out) == (1, '')
    assert re.fullmatch(rf'script\.py: (test_script\.py:\d+: )?{re.escape(line)}\n', error), error
    monkeypatch.setenv('CIFAR10_TRACEBACK', '1')
    code, _, error = run(main)
    assert code == 1 and error.startswith('Traceback ')


def test_bugs_keep_their_traceback(run):
    with pytest.raises(ZeroDivisionError):
        run(lambda: 1 // 0)


# ---- Real scripts


@pytest.mark.slow
def test_an_unknown_flag_is_refused_and_nothing_is_written(tmp_path):
    done = spawn.fork_script('cifar10_train.py', '--nothing=1', cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, '')
    assert done.stderr == "cifar10_train.py: Unknown command line flag 'nothing' (see --help)\n"
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_help_of_a_script():
    """The flags of the project, not those of absl."""
    done = spawn.fork_script('cifar10_train.py', '-h')
    assert (done.returncode, done.stderr) == (0, '')
    assert 'python cifar10_train.py' in done.stdout
    shown = set(re.findall(r'--(?:\[no\])?(\w+):', done.stdout))
    assert shown == {'batch_size', 'data_dir', 'use_fp16', 'use_bf16', 'train_dir', 'max_steps',
                     'log_device_placement', 'log_frequency', 'restart'}


def _close_all():
    os.closerange(0, 3)


@pytest.mark.slow
def test_without_standard_output(trained):
    """As in `>&-`, in `| true`, where no second error comes at exit, and on a full disk."""
    command = ['cifar10_eval.py', '--run_once', *(
        f'--{name}={FLAGS[name].value}' for name in ('data_dir', 'checkpoint_dir', 'eval_dir'))]
    done = spawn.run_script(*command, stdout=None, preexec_fn=lambda: os.close(1))
    assert (done.returncode, done.stderr) == (0, '')
    done = spawn.run_script(*command, stdout=None, stderr=None, preexec_fn=_close_all)
    assert done.returncode == 0
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, 'w') as pipe:
        done = spawn.run_script(*command, stdout=pipe)
    assert (done.returncode, done.stderr) == (1, '')
    with open('/dev/full', 'w') as full:
        done = spawn.run_script(*command, stdout=full)
    assert done.returncode != 0 and 'No space left on device' in done.stderr


IMPORTS = '''
import gc, importlib, os, signal, sys, threading
import tensorflow.compat.v1 as tf  # What TensorFlow's own start changes.
tf.disable_v2_behavior()
if os.environ.get('RESOURCES'):  # A program may switch something on again.
    tf.enable_resource_variables()

def state():
    with tf.Graph().as_default():
        own = tf.Variable(0.0)
    return {
        'hooks': (sys.excepthook, threading.excepthook), 'arguments': list(sys.argv),
        'environment': dict(os.environ), 'files': (os.listdir('/proc/self/fd'), os.stat(2).st_ino),
        'signals': [signal.getsignal(each) for each in sorted(signal.valid_signals())],
        'collector': (gc.isenabled(), gc.get_freeze_count(), gc.get_threshold()),
        'switches': (tf.executing_eagerly(), tf.control_flow_v2_enabled(), own.op.type,
                     tf.resource_variables_enabled(), type(tf.TensorShape([2])[0]),
                     tf.logging.get_verbosity()),
        **{name: (each, dict(vars(each))) for name, each in vars(tf).items()
           if isinstance(each, type)}}

before = state()
for name in sys.argv[1:]:
    importlib.import_module(name)
after = state()
print([name for name in after if after[name] != before.get(name)])
'''


@pytest.mark.slow
@pytest.mark.parametrize('script, variables', [
    ('cifar10_eval', {}), ('cifar10_train', {'TF_CPP_MIN_LOG_LEVEL': '0'}),
    ('cifar10_multi_gpu_train', {'RESOURCES': '1'})])
def test_an_import_changes_nothing_in_the_process(script, variables):
    """Of a host program: its environment, signal handlers, exception hooks, descriptors, garbage
    collector, TensorFlow's switches, whichever it has chosen, and TensorFlow's classes."""
    done = spawn.run(['-c', IMPORTS, script], cwd=spawn.ROOT, env=quiet(**variables))
    assert done.stdout == '[]\n', (done.stdout, done.stderr)


def quiet(**variables):
    """The environment without a log level and oneDNN's switch, and with these variables."""
    environment = spawn.environment(**variables)
    for name in {'TF_CPP_MIN_LOG_LEVEL', 'TF_ENABLE_ONEDNN_OPTS'} - set(variables):
        environment.pop(name, None)
    return environment


@pytest.mark.slow
def test_tensorflows_lines_are_shown_only_to_those_who_ask():
    """The messages of Python's own errors are shown in both cases."""
    program = ('from cifar10_lib import quiet\nimport tensorflow.compat.v1 as tf\n'
               'tf.Session(); raise KeyError("mine")')
    done = spawn.run(['-c', program], cwd=spawn.ROOT, env=quiet())
    assert done.stderr.startswith('Traceback ') and done.stderr.endswith("KeyError: 'mine'\n")
    assert done.stderr.count('\n') == 3
    done = spawn.run(['-c', program], cwd=spawn.ROOT, env=quiet(TF_CPP_MIN_LOG_LEVEL='0'))
    before, _, after = done.stderr.partition('Traceback ')
    assert 'tensorflow' in before.lower() and after.endswith("KeyError: 'mine'\n")


@pytest.mark.skipif(os.uname().machine != 'x86_64', reason='oneDNN is for x86 processors')
@pytest.mark.parametrize('given', ['1', '0'])
def test_one_dnn_is_used_unless_the_user_says_no(tmp_path, given):
    """In place of TensorFlow, a module that cannot be imported."""
    (tmp_path / 'tensorflow.py').write_text(
        'import os; raise ImportError(os.environ["TF_ENABLE_ONEDNN_OPTS"])')
    variables = {'TF_ENABLE_ONEDNN_OPTS': given} if given == '0' else {}
    done = spawn.run(['-c', 'from cifar10_lib import quiet'], cwd=spawn.ROOT,
                     env=quiet(PYTHONPATH=str(tmp_path), **variables))
    spawn.expect_one_line(done, f'cannot be imported: {given}.', 'requirements.txt')


def test_ctrl_c_while_tensorflow_loads_is_one_line(tmp_path):
    """In place of TensorFlow, a module that is interrupted."""
    (tmp_path / 'tensorflow.py').write_text('raise KeyboardInterrupt')
    done = spawn.run_script('cifar10_train.py', env=quiet(PYTHONPATH=str(tmp_path)))
    assert (done.returncode, done.stderr) == (-signal.SIGINT, 'cifar10_train.py: interrupted\n')


@pytest.mark.parametrize('error', ['AttributeError("no such dtype")', 'Error("a version")'])
def test_what_keeps_tensorflow_from_starting_is_one_line(tmp_path, error):
    """Of any class. An import raises an ImportError, and does not end the process."""
    (tmp_path / 'tensorflow.py').write_text(f'class Error(Exception): pass\nraise {error}')
    environment = quiet(PYTHONPATH=str(tmp_path))
    done = spawn.run_script('cifar10_train.py', env=environment)
    spawn.expect_one_line(done, 'cifar10_train.py: TensorFlow cannot be imported: ', 'requirements')
    program = 'try:\n    import cifar10\nexcept ImportError:\n    print("goes on")'
    done = spawn.run(['-c', program], cwd=spawn.ROOT, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, 'goes on\n', '')


def test_devices(capsys):
    if tf.config.list_physical_devices('GPU'):
        pytest.skip('this machine has a GPU')
    script.show_devices()
    script.show_devices(tf.float16, towers=3)
    assert capsys.readouterr().out == (
        'Training on the CPU.\nTraining 3 towers on the CPU.\n'
        'Warning: on a CPU, --use_fp16 takes 20 times as long as float32.\n')
