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


@pytest.mark.parametrize('word', ['--train_dir=/x\udcff', '--runs=a,b\udcff'])
def test_paths_that_tensorflow_cannot_open_are_rejected(word):
    with pytest.raises(flags.Error, match='TensorFlow opens only .* whose path is UTF-8'):
        parse(word)


@pytest.mark.parametrize('argument, words', [
    ('--runs=a,', '"a," has a comma without a path beside it: remove the comma'),
    ('--train_dir=~nobody-here/run', 'the home folder in ~nobody-here/run is not known')])
def test_words_that_are_not_paths_are_rejected(argument, words):
    with pytest.raises(flags.Error, match=words):
        parse(argument)


@pytest.mark.parametrize('flag, url', [('train_dir', 'gs://bucket/run'), ('runs', 'file:///b')])
def test_urls_are_rejected(flag, url):
    with pytest.raises(flags.Error, match=f'--{flag}=.*: {url} is a URL; expected the path of a'):
        parse(f'--{flag}={url}')
    assert parse('--train_dir=a:b//c')[0] == 'a:b//c'


def test_flags_belong_to_the_module_that_defines_them():
    found = flags.FLAGS.get_key_flags_for_module('cifar10_lib.training.session')
    assert 'train_dir' in {flag.name for flag in found}
    assert not flags.FLAGS.get_key_flags_for_module('cifar10_lib.program.paths')
