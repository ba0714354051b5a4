"""Local SGD of a linear regression in NumPy, and its data."""

import numpy as np

_random = np.random.default_rng(0)
X, Y = _random.normal(size=(26, 4)).astype(np.float32), _random.normal(size=(26, 1)).astype(np.float32)
BATCHES = [[slice(i * size, (i + 1) * size) for i in range(number)] for size, number in ((2, 7), (3, 4))]  # of each worker


def weights_after(batches, local_steps, learning_rate, momentum):
    """Return the weights, which begin as ones, and the number of rounds, in double precision."""
    anchor, speed, num_rounds = np.ones((4, 1)), np.zeros((4, 1)), 0
    for first in range(0, max(map(len, batches)), local_steps):
        change, total = np.zeros((4, 1)), 0
        for mine in batches:
            w, rows = anchor.copy(), 0
            for batch in mine[first : first + local_steps]:
                x, y = X[batch].astype(float), Y[batch].astype(float)
                w, rows = w - 0.1 * 2 * x.T @ (x @ w - y) / len(x), rows + len(x)
            change, total = change + rows * (w - anchor), total + rows
        change, num_rounds = change / total, num_rounds + 1
        speed = momentum * speed + change
        anchor = anchor + learning_rate * (change + momentum * speed)
    return anchor, num_rounds
