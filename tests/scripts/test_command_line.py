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
    for url in ('gs://bucket/run', 'file:///b'):
        with pytest.raises(flags.Error, match=f'--train_dir=.*: {url} is a URL; expected the path'):
            parse(url)
    for path in ('a:b//c', 'C:\\run', 'C:/run', 'C://run'):  # Windows' drives are not schemes.
        assert parse(path) == path
