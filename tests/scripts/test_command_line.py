import pytest
from absl import flags


def parse(argument):
    """Parses `--train_dir=ARGUMENT`; returns the flag's value."""
    flags.FLAGS(['script', f'--train_dir={argument}'])
    return flags.FLAGS.train_dir


def test_a_tilde_is_the_home_folder(monkeypatch):
    monkeypatch.setenv('HOME', '/home/me')
    assert parse('~/run') == '/home/me/run'
    assert parse('./~') == './~'


def test_urls_are_rejected():
    with pytest.raises(flags.Error, match='--train_dir=.*: gs://b is a URL; expected the path'):
        parse('gs://b')
    assert parse('a:b//c') == 'a:b//c'
