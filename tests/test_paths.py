import os

import pytest
from absl import flags

from cifar10_lib.program import paths


@pytest.fixture
def parsed():
    """A function that parses arguments with two path flags and returns their values."""
    values = flags.FlagValues()
    paths.define('folder', '/default', 'A folder.', values)
    paths.define_list('folders', '/default', 'Folders.', values)

    def parse(*arguments):
        values(['script', *arguments])
        return values.folder, values.folders
    return parse


def test_a_tilde_is_the_home_folder(parsed, monkeypatch):
    monkeypatch.setenv('HOME', '/home/me')
    assert parsed() == ('/default', ['/default'])
    assert parsed('--folder=~/run', '--folders=~/a,~,b~') == (
        '/home/me/run', ['/home/me/a', '/home/me', 'b~'])
    assert parsed('--folder=./~') == ('./~', ['/home/me/a', '/home/me', 'b~'])
    with pytest.raises(flags.Error, match='--folder=~nobody0/x: user nobody0 does not exist'):
        parsed('--folder=~nobody0/x')


@pytest.mark.parametrize('word', ['--folder=/x\udcff', '--folders=a,b\udcff'])
def test_paths_that_tensorflow_cannot_open_are_rejected(parsed, word):
    with pytest.raises(flags.Error, match='TensorFlow opens only .* whose path is UTF-8'):
        parsed(word)


@pytest.mark.parametrize('flag, url', [('folder', 'gs://bucket/run'), ('folders', 'file:///b')])
def test_urls_are_rejected(parsed, flag, url):
    with pytest.raises(flags.Error, match=f'--{flag}=.*: {url} is a URL; expected the path of a'):
        parsed(f'--{flag}={url}')
    assert parsed('--folder=a:b//c')[0] == 'a:b//c'


def test_a_relative_path_in_a_folder_that_tensorflow_cannot_open(parsed, tmp_path, monkeypatch):
    folder = os.fsencode(tmp_path) + b'/\xff'
    os.mkdir(folder)
    monkeypatch.chdir(folder)
    with pytest.raises(flags.Error, match='TensorFlow opens only'):
        parsed('--folder=run')
    assert parsed('--folder=/run')[0] == '/run'


def test_defaults_need_no_current_folder(tmp_path, monkeypatch):
    """Even if it was removed; a given relative path does need it."""
    values = flags.FlagValues()
    (tmp_path / 'gone').mkdir()
    monkeypatch.chdir(tmp_path / 'gone')
    (tmp_path / 'gone').rmdir()
    paths.define('set', 'cifar10', 'A name or a folder.', values)
    assert values(['script', '--set=/run']) and values.set == '/run'
    with pytest.raises(flags.Error, match='current folder was removed'):
        values(['script', '--set=run'])


def test_empty_values_are_left_to_startup(parsed):
    assert parsed('--folder=')[0] == ''


def test_flags_belong_to_the_module_that_defines_them():
    names = {flag.name for flag in flags.FLAGS.get_key_flags_for_module('training.session')}
    assert 'train_dir' in names
    assert not flags.FLAGS.get_key_flags_for_module('cifar10_lib.program.paths')
