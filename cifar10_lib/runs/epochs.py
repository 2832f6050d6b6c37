"""Counts the images and epochs of a run."""
import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class EpochCounter:
    """Counts the images of a run, over all towers and workers. `steps` is the number of steps done,
    over all starts."""

    first_step: int  # Number of steps of earlier starts.
    # First step, and images per step from there on, from step 0 to the present.
    changes: Sequence[Sequence[int]]
    images_per_epoch: int
    max_steps: int = 0
    validate_every: int = 0  # Number of epochs between validations; 0 means never.

    @property
    def images_per_step(self) -> int:
        """Number of images in a step of this start, over all towers and workers."""
        return self.changes[-1][1]

    @property
    def steps_per_epoch(self) -> float:
        """Number of steps of this start in which the network sees each image once."""
        return self.images_per_epoch / self.images_per_step

    @property
    def shift(self) -> int:
        """What to add to a step of this start so that it counts in steps of as many images as now.

        That is 0 unless the number of images per step has changed.
        """
        changed = self.changes[-1][0]
        return round(self.images(changed) / self.images_per_step) - changed

    def images(self, steps: int) -> int:
        """Number of images in this many steps."""
        ends = [first for first, _ in self.changes[1:]] + [steps]
        return sum(max(0, min(end, steps) - first) * images
                   for (first, images), end in zip(self.changes, ends))

    def seen(self, steps: int) -> float:
        """Number of epochs in this many steps."""
        return self.images(steps) / self.images_per_epoch

    def last_step(self, epochs: float) -> int:
        """The step closest to the end of this many epochs; at least 1, except for 0."""
        if not epochs:
            return 0
        changed, images = self.changes[-1]
        left = epochs * self.images_per_epoch - self.images(changed)
        return max(1, round(changed + left / images))

    def ends(self, steps: int, every: int = 1) -> bool:
        """Whether the latest step completed an epoch, or a multiple of `every` epochs."""
        images = every * self.images_per_epoch
        return self.images(steps) // images > self.images(steps - 1) // images

    def validates(self, steps: int) -> bool:
        """Whether to validate now, on all workers: at these epochs, and after the last step."""
        if not self.validate_every:
            return False
        return steps >= self.max_steps or self.ends(steps, self.validate_every)
