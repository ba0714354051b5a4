"""Reading results the way the figures write them, and comparing the two."""

import functools
import math

import numpy as np
import pytest

import replicant


@functools.cache
def mirrored(n):
    """One MirroredStrategy per number of replicas for all tests, so that small programs are compiled once."""
    return replicant.MirroredStrategy([f"cpu:{i}" for i in range(n)])


def per_replica(strategy, values):
    """A PerReplica of literal values."""
    return strategy.experimental_distribute_values_from_function(lambda context: values[context.replica_id_in_sync_group])


def ids(strategy, dtype=np.float32):
    """0, 1, 2, ... by replica."""
    return per_replica(strategy, [dtype(i) for i in range(strategy.num_replicas_in_sync)])


def stairs(strategy):
    """[0], [1, 1], [2, 2, 2], ... by replica."""
    return per_replica(strategy, [np.full(i + 1, i, np.float32) for i in range(strategy.num_replicas_in_sync)])


def rows(strategy, value):
    """What each replica holds; one row for what is not distributed."""
    return [plain(x) for x in strategy.experimental_local_results(value)]


def plain(value):
    """Plain Python values."""
    if isinstance(value, dict):
        return {key: plain(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [plain(x) for x in value]
    return value if value is None or isinstance(value, str) else np.asarray(value).tolist()


def same(actual, expected, tolerance=1e-6):
    """Whether two plain values agree; "nan" in the figures is a NaN."""
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
    """Whether TensorFlow raised."""
    return isinstance(recorded, dict) and "error" in recorded


class Checks:
    """Compares results with one group of recorded cases, and counts them."""

    def __init__(self, recorded, report, prefix):
        self.recorded, self.report, self.prefix = recorded, report, prefix

    def same(self, name, actual):
        assert same(plain(actual), self.recorded[name]), (name, plain(actual), self.recorded[name])
        self.passed(name)

    def raises(self, name, call, error, match):
        """An error here, as in TensorFlow."""
        assert is_error(self.recorded[name]), name
        with pytest.raises(error, match=match):
            call()
        self.passed(name)

    def passed(self, name):
        """To be said after the test has compared in its own way."""
        self.count(name, None)

    def different(self, name, reason):
        """To be said after the test has asserted our own answer."""
        self.count(name, reason)

    def count(self, name, reason):
        assert name in self.recorded
        self.report.count(f"{self.prefix} {name}", reason)
