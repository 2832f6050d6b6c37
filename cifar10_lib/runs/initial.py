"""The weights of another run with which a new run starts: `--initial_checkpoint`."""
import dataclasses
import os
from collections.abc import Sequence

import numpy as np
import tensorflow.compat.v1 as tf
from absl import app

from cifar10_lib.runs import checkpoints, names, run_folder

_ADVICE = 'choose another --initial_checkpoint'


def find(given: str, train_dir: str, restart: bool) -> checkpoints.Found:
    """The checkpoint that --initial_checkpoint names; the arguments are the values of the flags.

    Raises `app.UsageError` if there isn't one, or `--restart` would remove it.
    """
    named, folder = checkpoints.named(given), os.path.realpath(train_dir)
    if named:
        found = checkpoints.Found(named, checkpoints.read(named))
    elif newest := checkpoints.newest(given):
        found = newest
    else:
        raise app.UsageError(f'No checkpoint in --initial_checkpoint={given}; expected the folder '
                             'of another run: choose one')
    if restart and os.path.dirname(os.path.realpath(found.path)) in (
            folder, os.path.join(folder, names.BEST)):
        raise app.UsageError(f'--restart would remove --initial_checkpoint={given}: choose another '
                             '--train_dir')
    return found


@dataclasses.dataclass(frozen=True)
class Initial:
    """The weights in a checkpoint, for a new run.

    Weights and their averages start with its averages. Layers of another shape, the last one if its
    run had other classes, the step and the state of the optimizer start anew.

    Attributes:
        found: the checkpoint.
        net, classes, validate_on: of the new run.
    """

    found: checkpoints.Found
    net: str
    classes: tuple[str, ...]
    validate_on: str

    def values_for(self, variables: Sequence[tf.Variable]) -> dict[str, np.ndarray]:
        """The values that fit the variables of the new run's graph.

        Raises `app.UsageError` if no weights fit, or values are not finite.
        """
        trained = _trained(variables)
        new_layer = self._new_layer(trained)
        found = {}
        for variable in variables:
            value = self._value(variable, trained, new_layer)
            if value is not None:
                found[variable.op.name] = value
        if not all(np.isfinite(value).all() for value in found.values()):
            raise app.UsageError(f'{self.found.path} has values that are not finite: {_ADVICE}')
        if not trained.keys() & found.keys():
            self._refuse(trained)
        return found

    def lines(self, variables: Sequence[tf.Variable]) -> list[str]:
        """Lines that say which layers fit, and warn of held-out images."""
        trained = _trained(variables)
        found = self.values_for(variables)
        kept = sorted({name.split('/')[0] for name in trained.keys() & found.keys()})
        new = sorted(trained.keys() - found.keys())
        lines = [f'Starting with {", ".join(kept)} of {self.found.path}; new: '
                 f'{", ".join(new) or "none"}.']
        run = self._run()
        if run and self.validate_on not in ('test', run['settings'].get('validate_on')):
            lines.append('Warning: that run did not hold out images. If it had the same ones, '
                         'validations of this run look better than they are.')
        return lines

    def _run(self):
        return run_folder.read_run(os.path.dirname(self.found.path), _ADVICE)

    def _new_layer(self, trained):
        """The scope of the last layer if that run had other classes, or None."""
        run = self._run()
        if not run or run['classes'] == list(self.classes):
            return None
        return list(trained)[-1].rpartition('/')[0]

    def _value(self, variable, trained, new_layer):
        """The value of a variable, or None if it starts anew."""
        base = variable.op.name.removesuffix(names.AVERAGE)
        if names.is_state(base, trained) or base.rpartition('/')[0] == new_layer:
            return None
        value = self.found.values.get(base + names.AVERAGE, self.found.values.get(base))
        if value is None or list(value.shape) != variable.shape.as_list():
            return None
        return value.astype(variable.dtype.base_dtype.as_numpy_dtype)

    def _refuse(self, trained):
        """Raises `app.UsageError` that names the weights that do not fit."""
        wanted = trained
        if not self.found.values.keys() & trained.keys():
            wanted = {name + names.AVERAGE: each for name, each in trained.items()}
        checkpoints.values_for(
            self.found.path, wanted, f'--net={self.net} expects these for {len(self.classes)} '
            f'classes: {_ADVICE}', self.found.values)


def _trained(variables):
    """The variables that learn, {name: variable}, in the order of the network."""
    return {each.op.name: each for each in variables if each.trainable}
