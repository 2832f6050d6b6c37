"""What a step of classification.py costs, by counting: runs, what they fetch, and memory."""
import psutil
import pytest
from small_runs import ran
from tensorflow.python.client import session

pytestmark = pytest.mark.usefixtures('small_rows')


@pytest.fixture
def runs(monkeypatch):
    """A list to which each `session.run` adds the sizes of what it fetches, and the memory of the
    process after it, in bytes."""
    found, process, do_run = [], psutil.Process(), session.BaseSession._do_run

    def counted(*arguments, **options):
        fetched = do_run(*arguments, **options)
        found.append(([getattr(each, 'size', 1) for each in fetched], process.memory_info().rss))
        return fetched

    monkeypatch.setattr(session.BaseSession, '_do_run', counted)
    return found


def test_a_step_is_one_run_that_fetches_a_few_numbers(runs):
    """Thirty more steps are thirty more runs; nothing but numbers comes back."""
    ran(max_steps=10, validate_every=0)
    first = len(runs)
    ran(max_steps=40, validate_every=0, train_dir='longer')
    assert len(runs) - first == first + 30
    assert all(sizes == runs[-20][0] for sizes, _ in runs[-30:-10])
    assert len(runs[-20][0]) < 8 and set(runs[-20][0]) == {1}


def test_memory_does_not_grow(runs):
    """A batch of 49 kB that each step kept would be 49 MB more after a thousand steps."""
    ran(max_steps=1300, validate_every=0, log_frequency=50)
    assert runs[-20][1] - runs[-1020][1] < 20e6
