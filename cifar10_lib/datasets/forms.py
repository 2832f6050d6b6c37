"""The forms of data that `cifar10_convert.py` reads, recognised by their content or ending."""
import collections
import os

from cifar10_lib.datasets import arrays, folders, images, parquet, svhn

# A form: its title on the console, a function from a path to whether it has this form, and one that
# reads it. Like `folders.read`, that returns the classes and the blocks of training and test
# records, and raises `errors.DataError` for invalid data or a missing package.
Form = collections.namedtuple('Form', 'title is_at read')


def _has_classes(path):
    """Whether a folder contains nothing but folders of images."""
    entries = list(os.scandir(path)) if os.path.isdir(path) else []
    return len(entries) > 1 and all(entry.is_dir() and images.find(entry.path) for entry in entries)


CLASS_FOLDERS = Form('a folder of images per class', _has_classes, folders.read)
FORMS = (
    Form('Street View House Numbers', svhn.is_at, svhn.read),
    Form('CIFAR as torchvision and Keras store it', arrays.find_pickles, arrays.read_pickles),
    Form('arrays of NumPy', lambda path: os.path.isfile(path) and (
        os.path.splitext(path)[1].lower() == '.npz'), arrays.read_npz),
    Form("Hugging Face's Parquet files", parquet.find, parquet.read),
    Form("Kaggle's images with trainLabels.csv",
         lambda path: os.path.exists(os.path.join(path, folders.LABELS_FILE)), folders.read),
    CLASS_FOLDERS)


def find(path, data_set=None):
    """Returns the `Form` of the data at a path, or None; not of pickles of another `data_set`."""
    pickles = data_set and arrays.find_pickles(path)
    if pickles and pickles[0][0].name != data_set:
        return None
    return next((form for form in FORMS if form.is_at(path)), None)
