"""The folder `best/`: the checkpoint with the lowest validation error so far."""
import contextlib
import json
import os
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10_lib.program import files, json_files
from cifar10_lib.runs import checkpoints, names


def read(train_dir: str, images: str = 'test') -> tuple[float, int | None]:
    """Error and step of a run's best checkpoint; (infinity, None) if there is no intact one."""
    folder = os.path.join(train_dir, names.BEST)
    try:
        found = json_files.read(os.path.join(folder, names.BEST_ERROR))
        error, step = float(found['averaged_error']), int(found['step'])
        if found['validated_on'] == images:
            checkpoints.read(checkpoints.at_step(folder, step))  # A ValueError if it is damaged.
            return error, step
    except (OSError, ValueError, TypeError, KeyError):  # Missing or damaged.
        pass
    return np.inf, None


class Best:
    """The best checkpoint of a run by the error of its moving averages.

    The averages decide, because `--best` evaluates, predicts with and exports them by default.
    `error.json` holds the step and the errors, `params.h5` the variables, and `run.json` is a copy.

    Attributes:
        error: the lowest error so far; infinity before the first.
        step: its step, or None.
    """

    def __init__(self, train_dir: str, variables: Sequence[tf.Variable],
                 images: str = 'test', resumes: bool = True) -> None:
        """Reads the result of earlier starts if the run `resumes`; a new run has none.

        `variables` are those in a checkpoint; `images` is 'test' or 'held_out', the images of the
        errors.
        """
        self._images, self._train_dir = images, train_dir
        self._folder = os.path.join(train_dir, names.BEST)
        self._trainable = {variable.op.name for variable in variables if variable.trainable}
        self._saver = tf.train.Saver(  # `offer` removes old checkpoints itself.
            variables, max_to_keep=None, save_relative_paths=True)
        self.error, self.step = np.inf, None
        if resumes:
            self.error, self.step = read(train_dir, images)

    def offer(self, session: tf.Session, step: int, values: Mapping[str, np.ndarray],
              error: float, averaged_error: float) -> None:
        """Saves the variables if the error of their averages is the lowest so far.

        `error.json` names the new checkpoint once it is complete, and only then the old one is
        removed: if the process is killed, the file still names a checkpoint that exists.

        The session holds the variables, whose `values` are by their names. `error` and
        `averaged_error`, 0 to 1, are those of the raw weights and the moving averages.
        """
        if averaged_error >= self.error or not all(np.isfinite(v).all() for v in values.values()):
            return  # The loss finds values that are not finite only in the next step.
        files.own_folder(self._folder)
        self._saver.save(session, os.path.join(self._folder, names.CHECKPOINT), global_step=step,
                         write_meta_graph=False)
        checkpoints.write_parameters(
            os.path.join(self._folder, names.PARAMETERS), values, self._trainable)
        with open(os.path.join(self._train_dir, names.RUN), 'rb') as run, \
                files.new_file(os.path.join(self._folder, names.RUN)) as stream:
            stream.write(run.read())
        found = {'step': step, 'error': error, 'averaged_error': averaged_error,
                 'validated_on': self._images, 'checkpoint': f'{names.CHECKPOINT}-{step}'}
        with files.new_file(os.path.join(self._folder, names.BEST_ERROR)) as stream:
            stream.write((json.dumps(found) + '\n').encode())
        self.error, self.step = averaged_error, step
        for entry in os.scandir(self._folder):
            match = names.CHECKPOINT_FILE.fullmatch(entry.name)
            if match and int(match.group(1)) != step:
                with contextlib.suppress(PermissionError):  # On Windows, an evaluation reads it.
                    os.remove(entry.path)
