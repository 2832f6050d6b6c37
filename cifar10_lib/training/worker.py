"""Which of several workers a process is."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Worker:
    """One of several processes that train together; by default, the only one.

    Attributes:
        rank: int, the index of this worker, from 0.
        size: int, the number of workers.
        local_rank: int, the index of this worker among those on its machine, from 0.
    """
    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def leads(self):
        """Whether this is worker 0, which alone prints, validates and saves."""
        return self.rank == 0
