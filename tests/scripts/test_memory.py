import io
import resource
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from cifar10_lib.datasets import images
from cifar10_lib.program import memory


def peak_mb(work):
    """Returns by how many megabytes the process's memory grows during the work."""
    def value(name):
        with open('/proc/self/status') as stream:
            return next(int(line.split()[1]) for line in stream if line.startswith(name)) >> 10

    before = value('VmRSS:')
    with open('/proc/self/clear_refs', 'w') as stream:
        stream.write('5')  # Resets the peak to the current value.
    work()
    return value('VmHWM:') - before


def test_a_block_cannot_exceed_its_limit():
    before = resource.getrlimit(resource.RLIMIT_AS)
    with memory.limit(1 << 29):
        np.empty(1 << 28, np.uint8)
        with pytest.raises(MemoryError):
            np.empty(1 << 30, np.uint8)
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    with pytest.raises(MemoryError), memory.limit(1 << 29):
        np.empty(1 << 30, np.uint8)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_a_lower_limit_of_the_user_stays():
    before = soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    lower = memory.used() + (1 << 29)
    resource.setrlimit(resource.RLIMIT_AS, (lower, hard))
    try:
        with memory.limit(1 << 40):
            assert resource.getrlimit(resource.RLIMIT_AS) == (lower, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def repeated_entries(path):
    """A TIFF of 4 MB with 20,000 entries that refer to the same 4 MB: 80 GB in all."""
    size, count = 4 << 20, 20000
    entries = b''.join(struct.pack('<HHII', tag, 7, size, 8) for tag in range(40000, 40000 + count))
    path.write_bytes(b'II*\0' + struct.pack('<I', 8 + size) + bytes(size) +
                     struct.pack('<H', count) + entries + bytes(4))


def large_text(path):
    """A PNG of 260 kB whose text and colour profile take 128 MB each."""
    whole = io.BytesIO()
    Image.new('RGB', [32, 32]).save(whole, 'PNG')
    body = b'name\0\0' + zlib.compress(bytes(1 << 27), 1)
    chunks = b''.join(struct.pack('>I', len(body)) + kind + body + struct.pack(
        '>I', zlib.crc32(kind + body)) for kind in (b'zTXt', b'iCCP'))
    path.write_bytes(whole.getvalue()[:33] + chunks + whole.getvalue()[33:])


@pytest.mark.parametrize('write, megabytes', [
    (repeated_entries, 2200), (large_text, 100)])
def test_images_that_would_exhaust_memory(tmp_path, write, megabytes):
    write(tmp_path / 'image')

    def read():
        with pytest.raises(images.ImageError) as error:
            images.read(tmp_path / 'image')
        assert '\n' not in str(error.value)

    assert peak_mb(read) < megabytes
