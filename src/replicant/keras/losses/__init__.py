"""Keras's losses as sums over rows, so that parts of a batch add up to the whole."""
