"""Runs programs in forks of a process that has imported TensorFlow, which takes seconds.

As a script, it is that process: it takes requests from the socket that is its standard input, one
at a time, and answers each with an exit code.
"""
import json
import os
import runpy
import socket
import sys


def _serve(connection):
    while True:
        request, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        if not request:  # The tests have ended.
            return
        if not os.fork():
            _run(streams, **json.loads(request))
            return
        for stream in streams:
            os.close(stream)
        _, status = os.wait()
        connection.send(b'%d' % os.waitstatus_to_exitcode(status))


def _run(streams, words, folder, variables):
    """What Python does with the words of a command line, in a folder."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    if words[0] == '-c':
        _, program, *words = words
        sys.argv, sys.path[0] = ['-c', *words], folder
        exec(program, vars(sys.modules['__main__']))
    else:
        sys.argv, sys.path[0] = words, os.path.dirname(words[0])
        runpy.run_path(words[0], run_name='__main__')


if __name__ == '__main__':
    sys.path.insert(1, sys.argv[1])
    from cifar10_lib import quiet  # noqa: F401, imports TensorFlow quietly.
    sys.path.remove(sys.argv[1])
    for module in [module for module in sys.modules if module.startswith('cifar10_lib')]:
        del sys.modules[module]  # A script imports its own.
    with socket.socket(fileno=os.dup(0)) as connection_:
        _serve(connection_)
