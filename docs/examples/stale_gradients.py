"""Gradient descent on w^2 / 2 with gradients that are up to three updates old."""


def descend(staleness, steps=24, rate=0.5):
    """The weight after each step, starting at 1."""
    weights = [1.0]
    for step in range(steps):
        gradient = weights[max(0, step - staleness)]  # The derivative of w^2 / 2 is w.
        weights.append(weights[-1] - rate * gradient)
    return weights


for staleness in (0, 1, 2, 3):
    print(f'stale by {staleness}:', *(f'{weight:7.3f}' for weight in descend(staleness)[::4]))
