"""Unpacks archives that were made to do harm.

    python -m drills.archives

Each is unpacked in a process of its own, past the check of its SHA-256, which would refuse all but
the published ones. Wanted: the files of the data set, or one line; nothing beside them in the data
folder, nothing changed outside it, less than 150 MB of memory, and no file of more than a
megabyte.
"""
import functools
import gzip
import hashlib
import io
import os
import resource
import stat
import subprocess
import sys
import tarfile

import numpy as np

from datasets import download
from datasets import table
from drills import trial
from program import errors

_FILES = {'data_batch_1.bin': 40, 'test_batch.bin': 10}
CONTENTS = {name: np.random.RandomState(count).randint(0, 10, 3073 * count).astype(np.uint8)
            .tobytes() for name, count in _FILES.items()}
_MEMORY_MB = 150
_FILE_BYTES = 1 << 20
_BOMB_BYTES = 100 * 10 ** 9


def tar(members, **options):
    """Bytes of a .tar.gz of (TarInfo, bytes) pairs."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode='w', **options) as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return gzip.compress(stream.getvalue(), mtime=0)  # The same bytes in every process.


def member(name, data=b'', **fields):
    """A (TarInfo, bytes) pair."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, data


GOOD = [member(f'small/{name}', data) for name, data in CONTENTS.items()]
ARCHIVE = tar(GOOD)


def row(url='http://nowhere.invalid/small.tar.gz', archive=ARCHIVE):
    """The row of a small data set whose archive is this one."""
    return table.DataSet(
        'small', 'small', 'small', {'data_batch_1.bin': 40}, {'test_batch.bin': 10},
        classes=table.CIFAR10.classes, url=url, archive_bytes=len(archive),
        sha256=hashlib.sha256(archive).hexdigest())


def _zeros(size, *members):
    """A gzip of members and of `size` zeros: a megabyte of it for a gigabyte of them."""
    block = gzip.compress(bytes(10 ** 8), mtime=0)
    return b''.join(members) + size // 10 ** 8 * block


def _header(info):
    return gzip.compress(info.tobuf(tarfile.GNU_FORMAT), mtime=0)


def _bomb(name, type_=tarfile.REGTYPE):
    """A member of 100 GB of zeros."""
    info = tarfile.TarInfo(name)
    info.size, info.type = _BOMB_BYTES, type_
    return _zeros(_BOMB_BYTES, _header(info))


def _instead(**fields):
    """An archive in which the test file is something else, that leads to a file of its size and is
    said to have it."""
    info, _ = member('small/test_batch.bin', **{'linkname': 'OUTSIDE', **fields})
    info.size = len(CONTENTS['test_batch.bin'])
    first, data = GOOD[0]
    padding = bytes(-len(data) % tarfile.BLOCKSIZE)
    return gzip.compress(first.tobuf() + data + padding + info.tobuf(), mtime=0)


def _sparse():
    """A file said to be 8 GB of nothing, as GNU tar stores it: its size in octal digits."""
    info = tarfile.TarInfo('small/test_batch.bin')
    info.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[483:495] = b'77777777777\0'
    return gzip.compress(bytes(header) + bytes(1024))


def archives():
    """Dictionary from what is wrong to (bytes or a function that makes them, whether the files
    wanted are in it; None: they are, and a reader may refuse them)."""
    size = len(CONTENTS['test_batch.bin'])
    path = {'path': '../../outside'}
    return {
        'a name with ..': (tar([member('../outside', b'x'), *GOOD]), True),
        'an absolute name': (tar([member('/tmp/drill-outside', b'x'), *GOOD]), True),
        '.. behind the folder': (tar([member('small/../../outside', b'x'), *GOOD]), True),
        '.. in a long name': (tar([member('small/' + 200 * '../x/' + 'outside', b'x'), *GOOD],
                                  format=tarfile.GNU_FORMAT), True),
        '.. in a PAX header': (tar([member('small/a', b'x', pax_headers=path), *GOOD],
                                   format=tarfile.PAX_FORMAT), True),
        'a symbolic link': (_instead(type=tarfile.SYMTYPE), False),
        'a hard link': (_instead(type=tarfile.LNKTYPE), False),
        'a character device': (_instead(type=tarfile.CHRTYPE, devmajor=1, devminor=5), False),
        'a block device': (_instead(type=tarfile.BLKTYPE), False),
        'a pipe': (_instead(type=tarfile.FIFOTYPE), False),
        'a folder': (_instead(type=tarfile.DIRTYPE), False),
        'a link for the folder': (tar([member('small', type=tarfile.SYMTYPE, linkname='..'),
                                       *GOOD]), True),
        '100 GB of zeros': (lambda: _bomb('zeros'), False),
        '100 GB for a file': (lambda: _bomb('small/test_batch.bin'), False),
        '100 GB of PAX header': (lambda: _bomb('zeros', tarfile.XHDTYPE), False),
        '100 GB of a long name': (
            lambda: _bomb('zeros', tarfile.GNUTYPE_LONGNAME), False),
        '8 GB of a sparse file': (_sparse(), False),
        '100 GB without a header': (lambda: _zeros(_BOMB_BYTES), False),
        'a file too short': (tar([GOOD[0], member('small/test_batch.bin', bytes(size - 1))]),
                             False),
        'a file too long': (tar([GOOD[0], member('small/test_batch.bin', bytes(size + 1))]),
                            False),
        'an empty file': (tar([GOOD[0], member('small/test_batch.bin')]), False),
        'a second of a name': (tar([GOOD[0], member('small/data_batch_1.bin', bytes(
            len(CONTENTS['data_batch_1.bin']))), GOOD[1]]), True),
        'the wrong one of a name first': (tar([member('small/test_batch.bin', b'x'), *GOOD]), True),
        'cut in the middle': (ARCHIVE[:len(ARCHIVE) // 2], False),
        'a wrong checksum of gzip': (ARCHIVE[:-8] + bytes(4) + ARCHIVE[-4:], None),
        'no archive': (b'<html>Log in first</html>', False),
        'nothing': (b'', False)}


def cases():
    for name, (archive, is_good) in archives().items():
        yield name, functools.partial(_unpack, archive, is_good)


def _unpack(archive, is_good, folder):
    data_dir = os.path.join(folder, 'data')
    os.mkdir(data_dir)
    archive = archive() if callable(archive) else archive
    for name, data in (('archive.tar.gz', archive), ('OUTSIDE', CONTENTS['test_batch.bin'])):
        with open(os.path.join(folder, name), 'wb') as stream:
            stream.write(data)
    before = _outside(folder)
    code, said, memory_mb = _in_a_process(os.path.join(folder, 'archive.tar.gz'), data_dir)
    if _outside(folder) != before or os.path.lexists('/tmp/drill-outside'):
        raise trial.Fault('something was written outside the data folder')
    if memory_mb > _MEMORY_MB:
        raise trial.Fault(f'it took {memory_mb:.0f} MB of memory')
    found = {path[len(data_dir) + 1:]: data for path, data in trial.contents(data_dir).items()}
    is_folder = stat.S_ISDIR(found.pop('small', 0))
    wanted = {f'small/{name}': data for name, data in CONTENTS.items()}
    if code == 0 and is_folder and found == wanted and is_good is not False:
        return 'unpacked to the files wanted alone'
    if code == 3 and said.count('\n') == 1 and not os.listdir(data_dir) and not is_good:
        return 'refused in one line'
    raise trial.Fault(f'code {code}, {said[-2000:]}, and in the data folder {list(found)}')


def _outside(folder):
    """What lies beside the data folder; its own times do not count."""
    return {path: data for path, data in trial.contents(folder).items()
            if os.path.join(folder, 'data') not in path}


def _in_a_process(archive, data_dir):
    """Exit code, what it said, and its peak memory in MB."""
    code = f'from drills import archives; archives.extract({archive!r}, {data_dir!r})'
    done = subprocess.run([sys.executable, '-c', code], cwd=trial.ROOT, text=True, check=False,
                          capture_output=True)
    return done.returncode, done.stderr, float(done.stdout or 'inf') / 1024


def extract(archive, data_dir):
    """What the process of a case does: prints its peak memory in kB, and what was refused, with
    exit code 3."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
    try:
        download.extract(archive, data_dir, row())
    except errors.DataError as error:
        print(error, file=sys.stderr)
        sys.exit(3)
    finally:
        with open('/proc/self/status') as stream:
            print(next(line.split()[1] for line in stream if line.startswith('VmHWM')))


def main():
    return trial.run('Archives', cases(), trial.parser('archives', __doc__).parse_args())


if __name__ == '__main__':
    sys.exit(main())
