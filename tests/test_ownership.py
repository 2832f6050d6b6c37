import os

import pytest

from program import ownership


def test_our_own_folder_and_one_to_be_made_will_do(tmp_path):
    ownership.check(tmp_path)
    ownership.check(tmp_path / 'not' / 'there')
    (tmp_path / 'group').mkdir()
    (tmp_path / 'group').chmod(0o775)
    ownership.check(tmp_path / 'group')


@pytest.mark.parametrize('below', ['', 'run'])
def test_a_folder_that_everybody_can_change(tmp_path, below):
    shared = tmp_path / 'shared'
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(PermissionError, match=f'{shared} can be changed by everybody.*chmod o-w'):
        ownership.check(shared / below)
    shared.chmod(0o1777)  # As /tmp is.
    ownership.check(shared / below)


@pytest.mark.skipif(os.geteuid() != 0, reason='takes root to give a folder away')
def test_a_folder_of_another_user(tmp_path):
    (tmp_path / 'run').mkdir()
    os.chown(tmp_path / 'run', 65534, -1)
    with pytest.raises(PermissionError, match='run belongs to user 65534, not to you'):
        ownership.check(tmp_path / 'run')
    ownership.check(tmp_path / 'run' / 'ours')  # As root may work below somebody's home.


@pytest.mark.skipif(os.geteuid() != 0, reason='takes root to give a folder away')
@pytest.mark.parametrize('mode', [0o755, 0o1777])
def test_below_a_folder_of_another_user_in_a_shared_one(tmp_path, mode):
    """Its owner could put a link to another run of ours there, or exchange what we write."""
    theirs = tmp_path / 'shared' / 'theirs'
    theirs.mkdir(parents=True)
    (theirs / 'run').symlink_to(tmp_path)
    (theirs / 'ours').mkdir()
    theirs.chmod(mode)
    os.chown(theirs, 65534, -1)
    (tmp_path / 'shared').chmod(0o1777)
    for below in ('run', 'ours', 'ours/run', 'new'):
        with pytest.raises(PermissionError, match='run is a link|theirs belongs to user 65534'):
            ownership.check(theirs / below)


@pytest.mark.parametrize('below', ['', 'run'])
def test_a_link_in_a_shared_folder(tmp_path, below):
    """It leads to a folder of ours; in a folder of ours the link would do."""
    (tmp_path / 'ours').mkdir()
    (tmp_path / 'shared').mkdir()
    for folder in (tmp_path, tmp_path / 'shared'):
        (folder / 'link').symlink_to(tmp_path / 'ours')
    (tmp_path / 'shared').chmod(0o1777)
    ownership.check(tmp_path / 'link' / below)
    with pytest.raises(PermissionError, match='link is a link in a folder that everybody can'):
        ownership.check(tmp_path / 'shared' / 'link' / below)
