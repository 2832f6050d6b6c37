"""Copies of the project that a user has edited."""
import shutil

import spawn


def copy_with(folder, edits):
    """Copies the project to `folder` and replaces texts: {name of a file: {old text: new one}}."""
    shutil.copytree(spawn.ROOT, folder, ignore=shutil.ignore_patterns(
        'tests', 'docs', 'benchmarks', '.*', '__pycache__'))
    for name, texts in edits.items():
        text = (folder / name).read_text()
        for old, new in texts.items():
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        (folder / name).write_text(text)
    return folder
