"""Two networks on this machine with a link between them, for two workers; takes root and iproute2.

    with link.networks() as (names, addresses):
        subprocess.Popen(['ip', 'netns', 'exec', names[0], ...])
"""
import contextlib
import os
import subprocess

DEVICE = 'link'


@contextlib.contextmanager
def networks():
    """Makes two network namespaces, joined by a link; removes them in the end.

    Yields:
        names: of the namespaces.
        addresses: IPv4, of each end of the link.
    """
    names = [f'cifar10-{os.getpid()}-{end}' for end in 'ab']
    addresses = ['10.99.0.1', '10.99.0.2']
    made = []
    try:
        for name in names:
            _ip('netns', 'add', name)
            made.append(name)
        _ip('link', 'add', 'name', DEVICE, 'netns', names[0], 'type', 'veth',
            'peer', 'name', DEVICE, 'netns', names[1])
        for name, address in zip(names, addresses):
            _ip('-n', name, 'addr', 'add', f'{address}/24', 'dev', DEVICE)
            for device in ('lo', DEVICE):
                _ip('-n', name, 'link', 'set', 'dev', device, 'up')
        yield names, addresses
    finally:
        for name in made:
            _ip('netns', 'del', name)


def cut(name):
    """Cuts the link at the end that is in a namespace."""
    _ip('-n', name, 'link', 'set', 'dev', DEVICE, 'down')


def shape(name):
    """Lets 1 Gbit/s out of a namespace, 0.25 ms late where the kernel can (netem).

    Returns:
        What the link is then, in words.
    """
    tc = ['ip', 'netns', 'exec', name, 'tc', 'qdisc', 'add', 'dev', DEVICE]
    subprocess.run([*tc, 'root', 'handle', '1:', 'tbf', 'rate', '1gbit', 'burst', '256kb',
                    'latency', '50ms'], check=True)
    delayed = subprocess.run([*tc, 'parent', '1:', 'netem', 'delay', '0.25ms'],
                             stderr=subprocess.DEVNULL, check=False)
    return 'a link of 1 Gbit/s, ' + (
        'no delay: the kernel has no netem' if delayed.returncode else '0.5 ms there and back')


def _ip(*arguments):
    subprocess.run(['ip', *arguments], check=True)
