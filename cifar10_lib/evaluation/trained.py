"""A trained model: a checkpoint, and the network and classes with which it was trained."""
import dataclasses
import os
from typing import Any

from absl import app

import cifar10
from cifar10_lib import recipes, settings
from cifar10_lib.datasets import image_source, table
from cifar10_lib.datasets.image_source import Source
from cifar10_lib.program import errors
from cifar10_lib.runs import checkpoints, names, run_folder

_ADVICE = 'leave out --net and --dataset, or choose another run'


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained model.

    Attributes:
        run: content of the run's `run.json`, {} if it is missing.
        data_set: that of --dataset or the run's own. It has all of the network's classes or some
            of them, in any order.
    """

    run: dict[str, Any]
    recipe: recipes.Recipe
    data_set: table.DataSet

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the network's classes."""
        return tuple(self.run.get('classes', self.data_set.classes))

    @property
    def class_numbers(self) -> list[int]:
        """The network's number of each class of the data set."""
        return [self.classes.index(name) for name in self.data_set.classes]

    def source(self, eval_data: str = 'test') -> Source:
        """The `Source` of images to evaluate: 'test'; or undistorted training images: 'train_eval'
        for all, 'held_out' for the tenth that `--validate_on=held_out` excludes from training."""
        subset = 'all'
        if eval_data == 'held_out':
            subset = 'held_out'
        return cifar10.default_source(eval_data == 'test', subset,
                                      settings.batch_size(self.recipe), self.data_set)

    @property
    def held_out(self) -> bool:
        """Whether the run excluded images from training, for its validation."""
        return self.run.get('settings', {}).get('validate_on') == 'held_out'

    def check_same(self, earlier: 'Trained', path: str) -> None:
        """Raises `app.UsageError` if an `earlier` checkpoint of the folder had another network.

        That is, if another run has begun in the folder. `path` is that of the checkpoint.
        """
        if (self.recipe.name, self.classes) != (earlier.recipe.name, earlier.classes):
            raise app.UsageError(f'{path} is of another run, with --net={self.recipe.name} '
                                 f'--dataset={self.data_set.flag}: start the evaluation again')

    @property
    def is_of_own_images(self) -> bool:
        """Whether the data set is the one with which the model was trained."""
        own = self.run.get('settings', {}).get('dataset', self.data_set.flag)
        if os.path.realpath(own) == os.path.realpath(self.data_set.flag):
            return True
        has_moved = os.path.isabs(own) and not os.path.exists(own)
        return has_moved and self.run.get('dataset') == self.data_set.name


def folder(flags_given: settings.Checkpoint) -> str:
    """The folder whose latest checkpoint the flags name, or a certain checkpoint."""
    if flags_given.best:
        return os.path.join(flags_given.checkpoint_dir, names.BEST)
    return flags_given.checkpoint_dir


def checkpoint(flags_given: settings.Checkpoint) -> str:
    """Path of the checkpoint that the flags name; raises `app.UsageError` if there isn't one."""
    place = folder(flags_given)
    found = checkpoints.named(place) or checkpoints.latest(place)
    if found is None:
        advice = 'train first, or choose another --checkpoint_dir'
        if flags_given.best:
            advice = 'train with --validate_every, or leave out --best'
        raise app.UsageError(f'No checkpoint in {place}: {advice}')
    return found


def say_owner(checkpoint: str) -> None:
    """Writes a line to standard error if a checkpoint is in another user's folder."""
    owner = run_folder.owner(os.path.dirname(checkpoint))
    if owner:
        errors.say(f'using {checkpoint}{owner}')


def read(place: str, reads_images: bool = True) -> Trained:
    """The model of a run's folder: --net and --dataset, where they are not given, are the run's.

    If `reads_images` is false, only the names of the classes are needed, so the data set may have
    moved. Raises `app.UsageError` if given flags, or the data set on disk, do not fit the run.
    """
    run = run_folder.read_run(place, 'choose another run')
    if run is None:
        recipe, data_set = recipes.chosen(), cifar10.default_source().data_set
        errors.say(f'{place} has no {names.RUN}: using it with --net={recipe.name} '
                   f'--dataset={data_set.flag}')
        return Trained({}, recipe, data_set)
    net = settings.given('net') or run['net']
    if net not in recipes.TABLE:
        raise app.UsageError(f'{place} was trained with --net={net}; expected one of '
                             f'{", ".join(recipes.TABLE)}: pass --net')
    data_set = _data_set(place, run, reads_images)
    run_folder.check_net(place, run, net, _ADVICE)
    for name in data_set.classes:
        if name not in run['classes']:
            raise app.UsageError(
                f'{place} holds a run of --dataset={run["dataset"]}, which has no class {name}, as '
                f'--dataset={data_set.flag} has: {_ADVICE}')
    return Trained(run, recipes.chosen(net), data_set)


def _data_set(place, run, reads_images):
    if settings.given('dataset'):
        return cifar10.default_source().data_set
    dataset = run['settings']['dataset']  # A user's own is given by its folder.
    if not reads_images and dataset not in table.TABLE:
        return table.DataSet(
            run['dataset'], run['dataset'], dataset, {}, {}, tuple(run['classes']))
    try:
        return image_source.find(dataset, cifar10.NUM_CLASSES, cifar10.DATA_URL)
    except errors.DataError as error:
        raise app.UsageError(f'{place} was trained with --dataset={dataset}: {error}; pass '
                             '--dataset') from error
