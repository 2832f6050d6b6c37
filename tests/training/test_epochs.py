import pytest

from cifar10_lib.runs import epochs


@pytest.mark.parametrize('first, changes, shift', [
    (0, [(0, 8)], 0), (10, [(0, 8)], 0),
    (10, [(0, 8), (10, 16)], -5),  # 80 images are 5 steps of 16,
    (10, [(0, 8), (10, 4)], 10),  # and 20 steps of 4.
    (12, [(0, 8), (10, 16)], -5),  # 112 images are 7 steps of 16.
    (3, [(0, 8), (3, 16)], -1), (4, [(0, 8), (3, 16)], -1)])  # 24 images are 1.5, or 2.
def test_the_steps_that_earlier_starts_would_have_taken(first, changes, shift):
    assert epochs.EpochCounter(first, changes, 80).shift == shift


@pytest.mark.parametrize('changes, every, due', [
    ([(0, 8)], 1, [10, 20, 25]),
    ([(0, 8)], 9, [25]),
    ([(0, 7)], 1, [12, 23, 25]),  # 84 and 161 images.
    ([(0, 120)], 2, [2, 3, 4, 6, 7, 8, 9]),  # 1.5 epochs each; after 1, 3, 4, 6, 7, 9, 10, 12, 13.
    ([(0, 7)], 63, [720, 1000]),  # In floating point, 720 * (7 / 80) is less than 63.
    ([(0, 8), (4, 16)], 1, [7, 12, 17, 20]),  # After 32 images: 80, 160 and 240.
])
def test_when_a_validation_is_due(changes, every, due):
    """With 80 images per epoch. The last step is always due."""
    first = changes[-1][0]
    counter = epochs.EpochCounter(first, changes, 80, due[-1], every)
    assert [step for step in range(first + 1, due[-1] + 1) if counter.validates(step)] == due
