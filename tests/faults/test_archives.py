"""Unpacks malicious archives.

Each is unpacked in a process of its own, without the SHA-256 check, which would refuse all but the
published ones. Expected: the data set's files, or one line; nothing else in the data folder;
nothing changed outside it; less than 150 MB of memory; no file of more than a megabyte.
"""
import gzip
import os
import stat
import subprocess
import sys
import tarfile

import pytest
import spawn
from downloads import ARCHIVE, CONTENTS, GOOD, member, tar

import running

_MEMORY_MB = 150

# Unpacks an archive: prints its peak memory in kB; exits with 3 and one line if it is refused.
_EXTRACT = """
import resource, sys
sys.path[:0] = sys.argv[3:]
import downloads
from cifar10_lib.datasets import download
from cifar10_lib.program import errors
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    download.extract(sys.argv[1], sys.argv[2], downloads.row())
except errors.DataError as error:
    print(error, file=sys.stderr)
    sys.exit(3)
finally:
    with open('/proc/self/status') as stream:
        print(next(line.split()[1] for line in stream if line.startswith('VmHWM')))
"""


def _instead(**fields):
    """An archive in which the test file is something else, such as a link to a file of the right
    size, under a header that claims that size."""
    info, _ = member('small/test_batch.bin', **{'linkname': 'OUTSIDE', **fields})
    info.size = len(CONTENTS['test_batch.bin'])
    first, data = GOOD[0]
    padding = bytes(-len(data) % tarfile.BLOCKSIZE)
    return gzip.compress(first.tobuf() + data + padding + info.tobuf(), mtime=0)


def _sparse():
    """A file that claims to be 8 GB of holes, in GNU tar's header: the size in octal digits."""
    info = tarfile.TarInfo('small/test_batch.bin')
    info.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[483:495] = b'77777777777\0'
    return gzip.compress(bytes(header) + bytes(1024))


def _archives():
    """Dictionary from what is wrong to (bytes, whether the data set can be unpacked from it; None:
    both unpacking and refusing are right)."""
    size = len(CONTENTS['test_batch.bin'])
    path = {'path': '../../outside'}
    return {
        'a name with ..': (tar([member('../outside', b'x'), *GOOD]), True),
        'an absolute name': (tar([member('/tmp/drill-outside', b'x'), *GOOD]), True),
        '.. after the folder': (tar([member('small/../../outside', b'x'), *GOOD]), True),
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
        'a link in place of the folder': (tar([member('small', type=tarfile.SYMTYPE, linkname='..'),
                                       *GOOD]), True),
        '8 GB of a sparse file': (_sparse(), False),
        'a file too short': (tar([GOOD[0], member('small/test_batch.bin', bytes(size - 1))]),
                             False),
        'a file too long': (tar([GOOD[0], member('small/test_batch.bin', bytes(size + 1))]),
                            False),
        'an empty file': (tar([GOOD[0], member('small/test_batch.bin')]), False),
        'a name twice': (tar([GOOD[0], member('small/data_batch_1.bin', bytes(
            len(CONTENTS['data_batch_1.bin']))), GOOD[1]]), True),
        'a name twice, the wrong file first': (
            tar([member('small/test_batch.bin', b'x'), *GOOD]), True),
        'cut in the middle': (ARCHIVE[:len(ARCHIVE) // 2], False),
        'a wrong checksum of gzip': (ARCHIVE[:-8] + bytes(4) + ARCHIVE[-4:], None),
        'not an archive': (b'<html>Log in first</html>', False),
        'nothing': (b'', False)}


_ARCHIVES = _archives()


@pytest.mark.slow
@pytest.mark.drill('Archives', short=22)
@pytest.mark.parametrize('name', _ARCHIVES)
def test_a_hostile_archive(tmp_path, tally, name):
    tally(_unpack(*_ARCHIVES[name], str(tmp_path)))


def _unpack(archive, is_good, folder):
    data_dir = os.path.join(folder, 'data')
    os.mkdir(data_dir)
    for name, data in (('archive.tar.gz', archive), ('OUTSIDE', CONTENTS['test_batch.bin'])):
        with open(os.path.join(folder, name), 'wb') as stream:
            stream.write(data)
    before = _outside(folder)
    code, error, memory_mb = _in_a_process(os.path.join(folder, 'archive.tar.gz'), data_dir)
    assert _outside(folder) == before, 'files outside the data folder changed'
    assert not os.path.lexists('/tmp/drill-outside')
    assert memory_mb <= _MEMORY_MB
    found = {path[len(data_dir) + 1:]: data for path, data in running.contents(data_dir).items()}
    is_folder = stat.S_ISDIR(found.pop('small', 0))
    expected = {f'small/{name}': data for name, data in CONTENTS.items()}
    if code == 0 and is_folder and found == expected and is_good is not False:
        return 'unpacked to the expected files alone'
    assert code == 3 and error.count('\n') == 1 and not os.listdir(data_dir) and not is_good, (
        f'exit code {code}, data folder {list(found)}, {error[-2000:]}')
    return 'refused in one line'


def _outside(folder):
    """Contents of a folder except for the data folder."""
    return {path: data for path, data in running.contents(folder).items()
            if os.path.join(folder, 'data') not in path}


def _in_a_process(archive, data_dir):
    """Exit code, standard error, and peak memory in MB."""
    done = subprocess.run(
        [sys.executable, '-c', _EXTRACT, archive, data_dir, str(spawn.ROOT),
         str(spawn.HELPERS)], text=True, check=False, capture_output=True)
    return done.returncode, done.stderr, float(done.stdout or 'inf') / 1024
