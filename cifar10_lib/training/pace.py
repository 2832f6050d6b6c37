"""How the steps of a run relate to images and epochs: when an epoch ends, and when to validate."""
import dataclasses


def steps_in(epochs, steps_per_epoch):
    """The whole number of steps that is closest to a number of epochs.

    Args:
        epochs: float; may have a fraction.
        steps_per_epoch: float, number of steps in which the network sees each image once.

    Returns:
        int; at least 1, unless there are 0 epochs.
    """
    return max(1, round(epochs * steps_per_epoch)) if epochs else 0


@dataclasses.dataclass(frozen=True)
class Pace:
    """Answers these questions for all hooks and all workers.

    Workers must agree on the answers: worker 0 validates, and the others wait for it.

    Attributes:
        examples_per_step: number of images per step, over all towers and workers.
        examples_per_epoch: number of training images.
        max_steps: number of steps of the run.
        validate_every: number of epochs between validations; 0 means never.
    """

    examples_per_step: int
    examples_per_epoch: int
    max_steps: int
    validate_every: int = 0

    def epochs(self, steps):
        """Number of epochs in this many steps, a float."""
        return steps * self.examples_per_step / self.examples_per_epoch

    def ends_epoch(self, step, every=1):
        """Whether a step, counted from 1, completes an epoch, or a multiple of `every` epochs."""
        before, now = (made * self.examples_per_step // (every * self.examples_per_epoch)
                       for made in (step - 1, step))
        return now > before

    def validates(self, step):
        """Whether to validate after a step, counted from 1."""
        return self.validate_every > 0 and (
            step >= self.max_steps or self.ends_epoch(step, self.validate_every))
