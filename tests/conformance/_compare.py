"""Turns results into plain values, as the figures have them, and compares the two."""

import functools
import math

import numpy as np
import pytest

import replicant


@functools.cache
def mirrored(n):
    """Return one MirroredStrategy per number of replicas for all tests, so that small programs are compiled once."""
    return replicant.MirroredStrategy([f"cpu:{i}" for i in range(n)])


def per_replica(strategy, values):
    """Make a PerReplica value of literal values."""
    return strategy.experimental_distribute_values_from_function(lambda context: values[context.replica_id_in_sync_group])


def ids(strategy, dtype=np.float32):
    """Make the PerReplica value 0, 1, 2, ..."""
    return per_replica(strategy, [dtype(i) for i in range(strategy.num_replicas_in_sync)])


def stairs(strategy):
    """Make the PerReplica value [0], [1, 1], [2, 2, 2], ..."""
    return per_replica(strategy, [np.full(i + 1, i, np.float32) for i in range(strategy.num_replicas_in_sync)])


def rows(strategy, value):
    """Return what each replica holds; one row for a value that is not distributed."""
    return [plain(x) for x in strategy.experimental_local_results(value)]


def plain(value):
    """Convert a result to plain Python values."""
    if isinstance(value, dict):
        return {key: plain(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [plain(x) for x in value]
    return value if value is None or isinstance(value, str) else np.asarray(value).tolist()


def same(actual, expected, tolerance=1e-6):
    """Whether two plain values agree. The figures write NaN as "nan"."""
    if isinstance(expected, dict):
        return (
            isinstance(actual, dict)
            and actual.keys() == expected.keys()
            and all(same(actual[key], expected[key], tolerance) for key in expected)
        )
    if isinstance(expected, list):
        return (
            isinstance(actual, list)
            and len(actual) == len(expected)
            and all(same(a, b, tolerance) for a, b in zip(actual, expected, strict=True))
        )
    if expected == "nan":
        return isinstance(actual, float) and math.isnan(actual)
    if isinstance(expected, float | int) and isinstance(actual, float | int):
        return math.isclose(actual, expected, rel_tol=tolerance, abs_tol=tolerance)
    return type(actual) is type(expected) and actual == expected


def is_error(recorded):
    """Whether TensorFlow raised an error."""
    return isinstance(recorded, dict) and "error" in recorded


class Checks:
    """Compares results with one group of recorded cases, and counts them."""

    def __init__(self, recorded, report, prefix):
        self.recorded, self.report, self.prefix = recorded, report, prefix

    def same(self, name, actual):
        assert same(plain(actual), self.recorded[name]), (name, plain(actual), self.recorded[name])
        self.passed(name)

    def raises(self, name, call, error, match):
        """Check that Replicant raises an error where TensorFlow did."""
        assert is_error(self.recorded[name]), name
        with pytest.raises(error, match=match):
            call()
        self.passed(name)

    def passed(self, name):
        """Count a case that the test has compared in its own way."""
        self.count(name, None)

    def different(self, name, reason):
        """Count a case for which the test has asserted Replicant's own answer."""
        self.count(name, reason)

    def count(self, name, reason):
        assert name in self.recorded
        self.report.count(f"{self.prefix} {name}", reason)
