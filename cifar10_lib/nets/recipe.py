"""The definition of a recipe: a network and how to train it."""
import dataclasses
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A row of the table in `recipes.py`.

    Attributes:
        name: value of `--net`.
        inference: function (images, training) -> logits, float32 [batch, classes]; `training` is a
            bool. None for `cifar10.inference`, which takes only images.
        augment: function from the pixels of records, uint8 [records, 3 * 32 * 32], to images for
            training, float32 [records, height, width, 3]. May draw random numbers.
        prepare: the same for evaluation, without random numbers.
        schedule: function (global_step, batches_per_step) -> learning rate, float32 []. Leaves out
            the linear scaling rule.
        optimizer: function from the learning rate to a `tf.train.Optimizer`.
        batch_size: default of `--batch_size`.
        epochs: default of `--epochs`; None for the default of `--max_steps`.
        validate_every: default of `--validate_every`, in epochs; 0 means never.
        linear_scaling: default of `--linear_scaling`: whether a step of k batches has k times the
            learning rate, see `nets/linear_scaling.py`.
        ends_with_run: whether the schedule depends on `--max_steps`.
    """

    name: str
    inference: Callable | None
    augment: Callable
    prepare: Callable
    schedule: Callable
    optimizer: Callable
    batch_size: int
    epochs: int | None = None
    validate_every: int = 0
    linear_scaling: bool = False
    ends_with_run: bool = False
