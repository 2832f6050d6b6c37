"""How the steps of a run relate to images and epochs, and after which steps something is due."""
import dataclasses

SUMMARY_STEPS = 100


def steps_in(epochs, steps_per_epoch):
    """The whole number of steps that is closest to a number of epochs; at least 1, except for 0."""
    return max(1, round(epochs * steps_per_epoch)) if epochs else 0


@dataclasses.dataclass(frozen=True)
class Pace:
    """Answers questions about the number of steps done, which counts from 1 after the first step.

    Workers must agree on the answers: worker 0 validates, and the others wait for it.

    Attributes:
        examples_per_step: number of images per step, over all towers and workers.
        examples_per_epoch: number of training images.
        max_steps: number of steps of the run.
        validate_every: number of epochs between validations; 0 means never.
        log_frequency: number of steps between printed lines.
        profile: number of the step to trace, counted from 0; None for none.
        first_step: number of steps of earlier starts, and
        images_before: number of images in them; only worker 0 knows both.
    """

    examples_per_step: int
    examples_per_epoch: int
    max_steps: int
    validate_every: int = 0
    log_frequency: int = 10
    profile: int | None = None
    first_step: int = 0
    images_before: int = 0

    def images(self, steps):
        """Number of images in this many steps; earlier starts may have had others per step."""
        return self.images_before + (steps - self.first_step) * self.examples_per_step

    def epochs(self, steps):
        """Number of epochs in this many steps, a float."""
        return self.images(steps) / self.examples_per_epoch

    def ends_epoch(self, steps, every=1):
        """Whether the latest step completed an epoch, or a multiple of `every` epochs.

        As if all steps had the present number of images, which all workers know.
        """
        before, now = (done * self.examples_per_step // (every * self.examples_per_epoch)
                       for done in (steps - 1, steps))
        return now > before

    def validates(self, steps):
        """Whether to validate now: after every `validate_every` epochs, and after the last step."""
        return self.validate_every > 0 and (
            steps >= self.max_steps or self.ends_epoch(steps, self.validate_every))

    def ends_interval(self, steps):
        """Whether the latest step completed a hundred."""
        return steps % SUMMARY_STEPS == 0

    def records(self, steps):
        """Whether a row of `metrics.csv` is due."""
        return self.ends_interval(steps) or self.validates(steps)

    # The latest step has the number steps - 1: lines and summaries begin with step 0.

    def prints(self, steps):
        """Whether to print the latest step's loss."""
        return (steps - 1) % self.log_frequency == 0

    def summarises(self, steps):
        """Whether the latest step has summaries."""
        return (steps - 1) % SUMMARY_STEPS == 0

    def traces(self, steps):
        """Whether the latest step is the one to trace."""
        return steps - 1 == self.profile
