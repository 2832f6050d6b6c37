import os
import subprocess
import sys

import pytest
import records
import tensorflow.compat.v1 as tf
from absl import app
from absl.testing import flagsaver

from runtime import startup

SCRIPTS = ['cifar10_train.py', 'cifar10_multi_gpu_train.py', 'cifar10_eval.py']


def _refused(script, *arguments):
    """The one line on standard error with which a script exits 1."""
    done = records.run_script(script, *arguments)
    assert done.returncode == 1, done
    assert done.stdout == ''
    assert done.stderr.startswith(script + ': ')
    assert done.stderr.count('\n') == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize('arguments, words', [
    (['--batch_siz=1'], "Unknown command line flag 'batch_siz'. Did you mean: batch_size"),
    (['--batch_size=0'], '--batch_size=0: 0 is not an integer in the range [1, 65536]'),
    (['--max_steps=-1'], '--max_steps=-1'),
    (['stray'], '"stray" is no flag'),
    (['--train_dir='], '--train_dir= has no value'),
    (['--learning_rate=-1'], '--learning_rate=-1: -1.0 is not a number in the range [0.0, 1000000'),
    (['--warmup_epochs=nan'], '--warmup_epochs=nan is no number'),
    (['--data_url=ftp://x'], '"ftp://x" starts with neither http:, https: nor file:'),
    (['--dataset=imagenet'], 'none of cifar10, cifar100, synthetic')])
def test_wrong_flags_are_refused(arguments, words):
    assert words in _refused('cifar10_train.py', *arguments)


@pytest.mark.parametrize('script, flag', [
    ('cifar10_multi_gpu_train.py', '--num_gpus=0'), ('cifar10_multi_gpu_train.py', '--num_gpu=2'),
    ('cifar10_eval.py', '--num_examples=0'), ('cifar10_eval.py', '--run_one')])
def test_the_other_scripts_refuse_wrong_flags(script, flag):
    assert flag[2:].split('=')[0] in _refused(script, flag)


@pytest.mark.parametrize('script', SCRIPTS)
def test_no_gpu_is_one_line(script, tmp_path):
    if tf.config.list_physical_devices('GPU'):
        pytest.skip('this machine has a GPU')
    message = _refused(script, '--device=gpu', f'--data_dir={tmp_path}/new')
    assert 'TensorFlow sees no GPU' in message
    assert not (tmp_path / 'new').exists()


@pytest.mark.parametrize('script, own', [
    ('cifar10_train.py', ['batch_size', 'train_dir', 'max_steps', 'restart', 'device']),
    ('cifar10_multi_gpu_train.py', ['num_gpus', 'batch_size', 'train_dir', 'device']),
    ('cifar10_eval.py', ['eval_dir', 'run_once', 'batch_size', 'use_moving_averages', 'device'])])
def test_help_lists_the_scripts_flags(script, own):
    done = records.run_script(script, '--help')
    assert done.returncode == 0
    assert done.stderr == ''
    assert 'python ' + script in done.stdout
    for flag in own:
        assert f'--{flag}:' in done.stdout or f'--[no]{flag}:' in done.stdout
    assert 'logtostderr' not in done.stdout
    default = '1000000' if 'multi' in script else '100000'
    assert f"(default: '{default}')" in done.stdout or script == 'cifar10_eval.py'


@pytest.mark.parametrize('script, own', [
    ('cifar10_predict.py', ['saved_model', 'top_k', 'json', 'checkpoint_dir', 'best', 'net']),
    ('cifar10_export.py', ['export_dir', 'checkpoint_dir', 'use_moving_averages', 'dataset'])])
def test_help_of_those_that_use_a_network(script, own):
    done = records.run_script(script, '--help')
    assert (done.returncode, done.stderr) == (0, '')
    assert 'python ' + script in done.stdout
    for flag in own:
        assert f'--{flag}:' in done.stdout or f'--[no]{flag}:' in done.stdout
    assert '--train_dir:' not in done.stdout


def test_a_trainer_refuses_the_flags_that_name_a_trained_network():
    assert "Unknown command line flag 'checkpoint_dir'" in _refused(
        'cifar10_train.py', '--checkpoint_dir=x')


@pytest.mark.parametrize('words, given, code', [
    ('IMAGE...', ['a', '--device=cpu', 'b'], ['a', 'b']),
    ('IMAGE...', [], 'wanted IMAGE..., not nothing (--help tells more)'),
    ('FOLDER DATA_DIR', ['a', '--', '--b'], ['a', '--b']),
    ('FOLDER DATA_DIR', ['a'], 'wanted FOLDER DATA_DIR, not a (--help tells more)'),
    ('FOLDER DATA_DIR', ['a', 'b', 'c'], 'wanted FOLDER DATA_DIR, not a b c (--help tells more)'),
    ('IMAGE...', ['--devise=cpu'], "Unknown command line flag 'devise'. Did you mean: device")])
def test_words_before_between_and_behind_flags(words, given, code):
    try:
        if isinstance(code, list):
            assert startup._parse(words, ['x.py', *given]) == ['x.py', *code]
        else:
            with pytest.raises(SystemExit) as exit_:
                startup._parse(words, ['x.py', *given])
            assert code in exit_.value.code
    finally:
        startup.FLAGS.set_gnu_getopt(False)


def _python(program, **env):
    quiet = {name: value for name, value in os.environ.items() if name != 'TF_CPP_MIN_LOG_LEVEL'}
    return subprocess.run([sys.executable, '-c', program], capture_output=True, text=True,
                          cwd=records.ROOT, env={**quiet, **env}, timeout=records.PATIENCE)


def test_import_is_quiet_unless_asked():
    program = 'from runtime import startup; startup.tf.Session(); print("done")'
    done = _python(program)
    assert (done.stdout, done.stderr) == ('done\n', '')
    assert 'tensorflow' in _python(program, TF_CPP_MIN_LOG_LEVEL='0').stderr.lower()


def test_a_failing_import_shows_what_was_held_back(tmp_path):
    (tmp_path / 'tensorflow').mkdir()
    (tmp_path / 'tensorflow' / '__init__.py').write_text(
        'import os; os.write(2, b"library is broken"); raise ImportError("no luck")')
    done = _python('from runtime import startup', PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert 'library is broken' in done.stderr
    assert 'no luck' in done.stderr


@pytest.mark.parametrize('error, words', [
    (app.UsageError('what to do'), 'what to do'),
    (FileNotFoundError(2, 'No such file or directory', '/x'), "No such file or directory: '/x'"),
    (FloatingPointError('two\nlines'), 'two lines')])
def test_mistakes_are_one_line(error, words):
    def main():
        raise error
    with pytest.raises(SystemExit) as exit_:
        startup._without_traceback(main)
    assert str(exit_.value.code).endswith(words)


def test_an_operations_error_is_told_by_its_reason():
    with tf.Session() as session, pytest.raises(SystemExit) as exit_:
        startup._without_traceback(lambda: session.run(tf.read_file('/nonexistent')))
    assert str(exit_.value.code).endswith(': /nonexistent; No such file or directory')


def test_faults_of_ours_keep_their_traceback():
    with pytest.raises(ZeroDivisionError):
        startup._without_traceback(lambda: 1 // 0)


def test_session_config():
    with flagsaver.flagsaver(device='cpu'):
        config = startup.session_config()
        assert dict(config.device_count) == {'GPU': 0}
        assert startup.visible_gpus() == 0
    assert 'GPU' not in startup.session_config().device_count
    assert config.allow_soft_placement
    assert config.gpu_options.allow_growth
