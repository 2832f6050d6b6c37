import os

import pytest
from absl import flags


def parse(*arguments):
    """Parses arguments; returns the values of a path flag and of a list of paths."""
    flags.FLAGS(['script', *arguments])
    return flags.FLAGS.train_dir, flags.FLAGS.runs


def test_a_tilde_is_the_home_folder(monkeypatch):
    monkeypatch.setenv('HOME', '/home/me')
    assert parse() == ('/tmp/cifar10_train', ['/tmp/cifar10_train'])
    assert parse('--train_dir=~/run', '--runs=~/a,~,b~') == (
        '/home/me/run', ['/home/me/a', '/home/me', 'b~'])
    assert parse('--train_dir=./~') == ('./~', ['/home/me/a', '/home/me', 'b~'])
    with pytest.raises(flags.Error, match='--train_dir=~nobody0/x: user nobody0 does not exist'):
        parse('--train_dir=~nobody0/x')


@pytest.mark.parametrize('word', ['--train_dir=/x\udcff', '--runs=a,b\udcff'])
def test_paths_that_tensorflow_cannot_open_are_rejected(word):
    with pytest.raises(flags.Error, match='TensorFlow opens only .* whose path is UTF-8'):
        parse(word)


@pytest.mark.parametrize('flag, url', [('train_dir', 'gs://bucket/run'), ('runs', 'file:///b')])
def test_urls_are_rejected(flag, url):
    with pytest.raises(flags.Error, match=f'--{flag}=.*: {url} is a URL; expected the path of a'):
        parse(f'--{flag}={url}')
    assert parse('--train_dir=a:b//c')[0] == 'a:b//c'


def test_a_relative_path_in_a_folder_that_tensorflow_cannot_open(tmp_path, monkeypatch):
    folder = os.fsencode(tmp_path) + b'/\xff'
    os.mkdir(folder)
    monkeypatch.chdir(folder)
    with pytest.raises(flags.Error, match='TensorFlow opens only'):
        parse('--train_dir=run')
    assert parse('--train_dir=/run')[0] == '/run'


def test_defaults_need_no_current_folder(tmp_path, monkeypatch):
    """Even if it was removed; a given relative path does need it."""
    (tmp_path / 'gone').mkdir()
    monkeypatch.chdir(tmp_path / 'gone')
    (tmp_path / 'gone').rmdir()
    assert parse('--train_dir=/run')[0] == '/run' and flags.FLAGS.dataset == 'cifar10'
    assert parse('--dataset=cifar10') and flags.FLAGS.dataset == 'cifar10'
    with pytest.raises(flags.Error, match='current folder was removed'):
        parse('--train_dir=run')


def test_empty_values_are_left_to_startup():
    assert parse('--train_dir=')[0] == ''


def test_flags_belong_to_the_module_that_defines_them():
    found = flags.FLAGS.get_key_flags_for_module('cifar10_lib.training.session')
    assert 'train_dir' in {flag.name for flag in found}
    assert not flags.FLAGS.get_key_flags_for_module('cifar10_lib.program.paths')
