"""How many epochs a number of steps is, and after which steps one ends."""
import dataclasses


def steps_in(epochs, steps_per_epoch):
    """The whole number of steps that is closest to a number of epochs; at least 1, except for 0."""
    return max(1, round(epochs * steps_per_epoch)) if epochs else 0


@dataclasses.dataclass(frozen=True)
class EpochCounter:
    """Counts the images of a run. `steps` is the number of steps done, over all starts.

    Attributes:
        images_per_step: number of images per step, over all towers and workers.
        images_per_epoch: number of training images.
        max_steps: number of steps of the run.
        validate_every: number of epochs between validations; 0 means never.
        first_step: number of steps of earlier starts, and
        images_before: number of images in them; only worker 0 knows both.
    """

    images_per_step: int
    images_per_epoch: int
    max_steps: int
    validate_every: int = 0
    first_step: int = 0
    images_before: int = 0

    def images(self, steps):
        """Number of images in this many steps; earlier starts may have had others per step."""
        return self.images_before + (steps - self.first_step) * self.images_per_step

    def seen(self, steps):
        """Number of epochs in this many steps, a float."""
        return self.images(steps) / self.images_per_epoch

    def ends(self, steps, every=1):
        """Whether the latest step completed an epoch, or a multiple of `every` epochs.

        As if all steps had the present number of images, which all workers know.
        """
        before, now = (done * self.images_per_step // (every * self.images_per_epoch)
                       for done in (steps - 1, steps))
        return now > before

    def validates(self, steps):
        """Whether to validate now: after every `validate_every` epochs, and after the last step.

        All workers agree on it: worker 0 validates, and the others wait for it.
        """
        return self.validate_every > 0 and (
            steps >= self.max_steps or self.ends(steps, self.validate_every))
