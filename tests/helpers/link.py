"""Two network namespaces with a link between them, for two workers; requires root and iproute2.

    with link.networks() as (names, addresses):
        subprocess.Popen(['ip', 'netns', 'exec', names[0], ...])
"""
import contextlib
import os
import subprocess

DEVICE = 'link'


@contextlib.contextmanager
def networks():
    """Yields the names of two linked network namespaces, and their IPv4 addresses on the link."""
    names = [f'cifar10-{os.getpid()}-{end}' for end in 'ab']
    addresses = ['10.99.0.1', '10.99.0.2']
    with contextlib.ExitStack() as stack:
        for name in names:
            _ip('netns', 'add', name)
            stack.callback(_ip, 'netns', 'del', name)
        _ip('link', 'add', 'name', DEVICE, 'netns', names[0], 'type', 'veth',
            'peer', 'name', DEVICE, 'netns', names[1])
        for name, address in zip(names, addresses):
            _ip('-n', name, 'addr', 'add', f'{address}/24', 'dev', DEVICE)
            for device in ('lo', DEVICE):
                _ip('-n', name, 'link', 'set', 'dev', device, 'up')
        yield names, addresses


def cut(name):
    """Cuts the link at this namespace's end."""
    _ip('-n', name, 'link', 'set', 'dev', DEVICE, 'down')


def _ip(*arguments):
    subprocess.run(['ip', *arguments], check=True)
