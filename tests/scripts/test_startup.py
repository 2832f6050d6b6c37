import os
import re
import resource
import signal
import subprocess
import sys

import image_files
import pytest
import spawn
import tensorflow.compat.v1 as tf
from absl import flags

from cifar10_lib.runs import checkpoints, events

FLAGS = flags.FLAGS

SCRIPTS = ['cifar10_train.py', 'cifar10_multi_gpu_train.py', 'cifar10_eval.py']
ALL_SCRIPTS = [f'cifar10_{name}.py' for name in (
    'train', 'multi_gpu_train', 'distributed_train', 'eval', 'predict', 'export', 'convert',
    'plot')]


def _refused(script, *arguments, **options):
    """Runs a script that must exit 1 with one line on standard error; returns the line."""
    done = spawn.run_script(script, *arguments, **options)
    assert done.returncode == 1, done
    assert done.stdout == ''
    assert done.stderr.startswith(script + ': ')
    assert done.stderr.count('\n') == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize('arguments, words', [
    (['--batch_siz=1'], "'batch_siz'"), (['--batch_size=0'], '--batch_size=0: '),
    (['--restart=maybe'], "'maybe'"), (['stray'], 'got stray; expected --name=value (see --help)'),
    (['--save_checkpoint_secs=600', '--save_checkpoint_steps=9'],
     'save_checkpoint_secs=600, save_checkpoint_steps=9: both set when to save a checkpoint; '
     'expected only one of them: remove the other'),
    (['--epochs=2', '--max_steps=9'], 'epochs=2.0, max_steps=9: both set the length of the '
     'training; expected only one of them: remove the other'),
    (['--use_fp16', '--use_bf16'], 'use_fp16=True, use_bf16=True: both set the type in which '
     'layers compute; expected at most one of them: remove the other'),
    (['-n', 'cifar10_resnet23'], 'flag --net=cifar10_resnet23: expected one of tutorial, '),
    (['--device=x?y'], 'flag --device=x?y: value should be one of <auto|cpu|gpu>'),
    (['--dataset=s3://bucket/images'], 's3://bucket/images is a URL; expected the path of a file'),
    (['--train_dir='], '--train_dir= has no value'),
    (['--epochs=nan', '--net=resnet23'], '--epochs=nan has no value')])
def test_wrong_flags_are_rejected(arguments, words):
    assert words in _refused('cifar10_train.py', *arguments)


@pytest.mark.parametrize('script', ALL_SCRIPTS)
def test_an_unknown_flag_is_refused_and_nothing_is_written(script, tmp_path):
    assert "'nothing'" in _refused(script, '--nothing=1', cwd=tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize('script', SCRIPTS)
def test_a_missing_gpu_is_reported_in_one_line(script, tmp_path):
    if tf.config.list_physical_devices('GPU'):
        pytest.skip('this machine has a GPU')
    message = _refused(script, '--device=gpu', f'--data_dir={tmp_path}/new')
    assert 'TensorFlow sees no GPU: set TF_CPP_MIN_LOG_LEVEL=0 to see why' in message
    assert not (tmp_path / 'new').exists()


@pytest.mark.parametrize('script, own, others', [
    ('train', ['batch_size', 'train_dir', 'max_steps', 'restart', 'device'], ['checkpoint_dir']),
    ('multi_gpu_train', ['num_gpus', 'batch_size', 'train_dir', 'device'], []),
    ('eval', ['eval_dir', 'run_once', 'batch_size', 'use_moving_averages', 'device',
              'use_bf16'], ['learning_rate', 'warmup_epochs', 'validate_on']),
    ('predict', ['saved_model', 'top_k', 'json', 'checkpoint_dir', 'best', 'net', 'batch_size'],
     ['train_dir', 'learning_rate', 'data_dir']),
    ('export', ['export_dir', 'checkpoint_dir', 'use_moving_averages', 'dataset'],
     ['train_dir', 'learning_rate', 'batch_size', 'data_dir'])])
def test_help_lists_the_scripts_flags(script, own, others):
    done = spawn.run_script(f'cifar10_{script}.py', '--help')
    assert (done.returncode, done.stderr) == (0, '')
    assert f'python cifar10_{script}.py' in done.stdout
    shown = set(re.findall(r'--(?:\[no\])?(\w+):', done.stdout))
    assert shown >= set(own)
    assert shown.isdisjoint([*others, 'logtostderr'])
    if 'train' in script:
        default = '1000000' if 'multi' in script else '100000'
        assert f"(default: '{default}')" in done.stdout
        assert all(words in ' '.join(done.stdout.split()) for words in (
            'resnet23 (300 epochs in batches of 64', 'Default: true for resnet23',
            'the default except for resnet23 (1)'))


def test_a_flag_without_effect_is_reported_and_does_no_harm(tmp_path):
    done = spawn.run_script('cifar10_eval.py', '--run_once', f'--checkpoint_dir={tmp_path}/none',
                            '--batch_size=8', '-l', '0.5', '--validate_on=held_out')
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        'cifar10_eval.py: no effect in this script: --learning_rate, --validate_on',
        f'cifar10_eval.py: No checkpoint in {tmp_path}/none: train first, or choose another '
        '--checkpoint_dir']


@pytest.mark.parametrize('script, arguments, words', [
    ('cifar10_predict.py', [], 'got no arguments; expected IMAGE... (see --help)'),
    ('cifar10_convert.py', ['a'], 'got a; expected SOURCE DATA_DIR (see --help)'),
    ('cifar10_convert.py', ['a', 'b', 'c'], 'got a b c; expected SOURCE DATA_DIR (see --help)')])
def test_a_wrong_number_of_positional_arguments(script, arguments, words):
    assert _refused(script, *arguments) == f'{script}: {words}\n'


QUIET = 'from cifar10_lib.program import quiet; quiet.import_tensorflow()'


def _python(program, prepare=None, **env):
    quiet = {name: value for name, value in os.environ.items() if name != 'TF_CPP_MIN_LOG_LEVEL'}
    return subprocess.run([sys.executable, '-c', program], capture_output=True, text=True,
                          cwd=spawn.ROOT, env={**quiet, **env}, timeout=spawn.PATIENCE,
                          preexec_fn=prepare)


@pytest.mark.slow
def test_the_import_is_quiet_and_writes_no_file():
    """As in a container whose folders are all read-only, even the home folder."""
    def forbid_writing():
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    program = f'{QUIET}; import tensorflow.compat.v1 as tf; tf.Session(); print("done")'
    done = _python(program, forbid_writing, PYTHONDONTWRITEBYTECODE='1', HOME='/proc')
    assert (done.stdout, done.stderr) == ('done\n', '')
    assert 'tensorflow' in _python(program, TF_CPP_MIN_LOG_LEVEL='0').stderr.lower()


@pytest.mark.skipif(os.uname().machine != 'x86_64', reason='oneDNN is for x86 processors')
@pytest.mark.parametrize('given', ['1', '0'])
def test_one_dnn_is_used_unless_the_user_says_no(tmp_path, monkeypatch, given):
    monkeypatch.delenv('TF_ENABLE_ONEDNN_OPTS', raising=False)
    (tmp_path / 'tensorflow.py').write_text(
        'import os; raise ImportError(os.environ["TF_ENABLE_ONEDNN_OPTS"])')
    done = _python(QUIET, PYTHONPATH=str(tmp_path),
                   **{'TF_ENABLE_ONEDNN_OPTS': given} if given == '0' else {})
    assert done.stderr.endswith(f'ImportError: {given}\n')


def test_an_import_that_fails_shows_the_held_text(tmp_path):
    (tmp_path / 'tensorflow').mkdir()
    (tmp_path / 'tensorflow' / '__init__.py').write_text(
        'import os; os.write(2, b"E0000 00:00:2 a.cc:2] held\\n"); raise ImportError("no luck")')
    done = _python(QUIET, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith('E0000 00:00:2 a.cc:2] held\n')
    assert done.stderr.endswith('ImportError: no luck\n')


def test_ctrl_c_while_tensorflow_is_imported_is_one_line(tmp_path):
    (tmp_path / 'tensorflow.py').write_text('import os, signal, time\n'
                                            'os.kill(os.getpid(), signal.SIGINT); time.sleep(60)')
    done = _python(QUIET, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (-signal.SIGINT, '-c: interrupted\n')


def test_a_missing_package_is_reported_with_the_remedy(tmp_path):
    """With -S, Python has no packages but its own."""
    for script in ALL_SCRIPTS:
        done = subprocess.run([sys.executable, '-S', spawn.ROOT / script], cwd=tmp_path,
                              capture_output=True, text=True, timeout=spawn.PATIENCE)
        assert (done.returncode, done.stdout) == (1, '')
        assert done.stderr == (
            f'{script}: the Python package tensorflow is not installed: activate the virtual '
            'environment that has it, or run: pip install -r requirements.txt\n')


@pytest.mark.parametrize('statement, words', [
    ('import fo', "ModuleNotFoundError: No module named 'fo'"),
    ('from cifar10_lib.program import consol', "ImportError: cannot import name 'consol'"),
    ('import cifar10_lib.program.consol', "No module named 'cifar10_lib.program.consol'"),
    ('import h5py.fo', "No module named 'h5py.fo'")])
def test_a_misspelled_import_keeps_its_traceback(statement, words):
    """That of a contributor: no package to install would help."""
    done = spawn.run(['-c', f'{QUIET}\n{statement}'], cwd=spawn.ROOT, capture_output=True)
    assert done.returncode == 1
    assert done.stderr.startswith('Traceback (most recent call last):\n')
    assert words in done.stderr.splitlines()[-1]


IMPORTS = '''
import importlib, os, pkgutil, sys, threading
import h5py, numpy, PIL.Image, six, tensorboard, tensorflow.compat.v1 as tf
tf.keras  # TensorFlow imports this part when it is first used.

def state():
    return (sys.excepthook, threading.excepthook, dict(os.environ), os.listdir('/proc/self/fd'),
            'matplotlib' in sys.modules)

before = state()
import cifar10_lib
for module in pkgutil.walk_packages(cifar10_lib.__path__, 'cifar10_lib.'):
    importlib.import_module(module.name)
assert state() == before, (state(), before)
print(len([name for name in sys.modules if name.startswith('cifar10_lib.')]) > 40)
'''


@pytest.mark.slow
def test_importing_the_library_changes_nothing_in_the_process():
    """Beyond what TensorFlow's own import changes."""
    assert _python(IMPORTS).stdout == 'True\n'


def test_output_that_cannot_be_written(trained):
    """As in `--help | true`, and results on a full disk."""
    no_room = 'cannot write to standard output: No space left on device\n'
    own = [f'--{name}={FLAGS[name].value}' for name in ('data_dir', 'checkpoint_dir', 'eval_dir')]
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, 'w') as pipe, open('/dev/full', 'w') as full:
        for words, stream, code, message in (
                (['cifar10_train.py', '--help'], pipe, 128 + signal.SIGPIPE, ''),
                (['cifar10_predict.py', 'docs/hero.png', '--checkpoint_dir=models/airbench94'],
                 full, 1, 'cifar10_predict.py: ' + no_room),
                (['cifar10_eval.py', '--run_once', *own], full, 1, 'cifar10_eval.py: ' + no_room)):
            done = spawn.run(words, cwd=spawn.ROOT, stdout=stream, stderr=subprocess.PIPE)
            assert (done.returncode, done.stderr) == (code, message)


def _close_all():
    for number in range(3):
        os.close(number)


@pytest.mark.slow
def test_scripts_run_with_closed_streams(tmp_path):
    """Otherwise a data file gets descriptor 2, and log lines are written into it."""
    def run(script, *flags_):
        done = subprocess.run([sys.executable, spawn.ROOT / script, *flags_], cwd=tmp_path,
                              env=spawn.environment(), preexec_fn=_close_all,
                              timeout=spawn.PATIENCE)
        assert done.returncode == 0, script

    image_files.write_sorted(tmp_path / 'images')
    data, runs = f'--dataset={tmp_path}/data', tmp_path / 'runs'
    run('cifar10_convert.py', tmp_path / 'images', tmp_path / 'data')
    for steps, (script, *own) in enumerate(
            [['cifar10_train.py'],
             ['cifar10_distributed_train.py', '--num_workers=2', '--step_timeout=300']], 1):
        run(script, data, f'--train_dir={runs}', '--batch_size=2', f'--max_steps={steps}', *own)
        assert checkpoints.latest(runs) == f'{runs}/model.ckpt-{steps}'
    run('cifar10_eval.py', data, f'--checkpoint_dir={runs}', '--batch_size=2', '--run_once',
        f'--eval_dir={tmp_path}/eval')
    assert events.read_curves(tmp_path / 'eval').get('Precision @ 1', {})


def _run_main(statement, **options):
    """Runs a program whose function `main` is one statement."""
    program = f'''
import tensorflow.compat.v1 as tf
from absl import app
from cifar10_lib.program import startup
tf.disable_v2_behavior()
def main():
    {statement}
startup.run(main)'''
    return spawn.run(['-c', program], cwd=spawn.ROOT, capture_output=True, **options)


@pytest.mark.parametrize('statement, words', [
    ('raise app.UsageError("what to do")', 'what to do'),
    ('open("/nowhere/x")', "No such file or directory: '/nowhere/x'"),
    ('raise FloatingPointError("two\\nlines")', 'two lines'),
    ('tf.Session().run(tf.read_file("/nowhere"))',
     '/nowhere; No such file or directory (CIFAR10_TRACEBACK=1 shows where)'),
    ('tf.Session(tf.train.Server.create_local_server().target).run(tf.read_file("/nowhere"))',
     '/nowhere; No such file or directory (CIFAR10_TRACEBACK=1 shows where)'),
    ('raise tf.errors.AbortedError(None, None, "Stale file handle")',
     'Stale file handle (CIFAR10_TRACEBACK=1 shows where)'),
    # TensorFlow's text; a real one comes after 20 seconds of retries.
    ('raise tf.errors.ResourceExhaustedError(None, None, "Graph execution error:\\n\\n'
     "Node: 'Fill'\\nOOM when allocating tensor with shape[9] and type float by allocator "
     'GPU_0_bfc\\n\\t [[{{node Fill}}]]")',
     'OOM when allocating tensor with shape[9] and type float by allocator GPU_0_bfc: use a '
     'smaller --batch_size or --device=cpu, or set TF_CPP_MIN_LOG_LEVEL=0 to see more')])
def test_errors_of_the_user_or_the_machine_are_one_line(statement, words):
    done = _run_main(statement)
    assert (done.returncode, done.stderr) == (1, f'-c: {words}\n')


def test_the_traceback_behind_such_a_line():
    done = _run_main('open("/nowhere/x")', env={**spawn.environment(), 'CIFAR10_TRACEBACK': '1'})
    assert done.returncode == 1
    assert re.search(r'^Traceback(.*\n)*  File "<string>", line 7, in main\n', done.stderr)


@pytest.mark.parametrize('bug', [
    '1 // 0', 'startup.tf.Session().run(startup.tf.py_func(lambda: 1 // 0, [], "int64"))'])
def test_bugs_keep_their_traceback(bug):
    program = f'from cifar10_lib.program import startup; startup.run(lambda: {bug})'
    done = spawn.run(['-c', program], cwd=spawn.ROOT, capture_output=True)
    assert done.returncode == 1 and re.search('Traceback(.*\n)*.*ZeroDivisionError', done.stderr)
