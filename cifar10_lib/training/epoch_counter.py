"""How many epochs a number of steps is, and after which steps one ends."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class EpochCounter:
    """Counts the images of a run. `steps` is the number of steps done, over all starts.

    Attributes:
        first_step: number of steps of earlier starts.
        changes: list of (first step, number of images per step from there on, over all towers and
            workers), from step 0 to the present.
        images_per_epoch: number of training images.
        max_steps: number of steps of the run.
        validate_every: number of epochs between validations; 0 means never.
    """

    first_step: int
    changes: list
    images_per_epoch: int
    max_steps: int = 0
    validate_every: int = 0

    @property
    def images_per_step(self):
        return self.changes[-1][1]

    def images(self, steps):
        """Number of images in this many steps."""
        ends = [first for first, _ in self.changes[1:]] + [steps]
        return sum(max(0, min(end, steps) - first) * images
                   for (first, images), end in zip(self.changes, ends))

    def seen(self, steps):
        """Number of epochs in this many steps, a float."""
        return self.images(steps) / self.images_per_epoch

    def last_step(self, epochs):
        """The step closest to the end of this many epochs; at least 1, except for 0."""
        changed, images = self.changes[-1]
        left = epochs * self.images_per_epoch - self.images(changed)
        return max(1, round(changed + left / images)) if epochs else 0

    def ends(self, steps, every=1):
        """Whether the latest step completed an epoch, or a multiple of `every` epochs."""
        before, now = (self.images(done) // (every * self.images_per_epoch)
                       for done in (steps - 1, steps))
        return now > before

    def validates(self, steps):
        """Whether to validate now: after every `validate_every` epochs, and after the last step.

        All workers agree on it: worker 0 validates, and the others wait for it.
        """
        return self.validate_every > 0 and (
            steps >= self.max_steps or self.ends(steps, self.validate_every))
