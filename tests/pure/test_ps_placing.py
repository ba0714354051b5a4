"""Partitioners, rows of shards, servers in turn."""

import pytest

from replicant.coordinator import FixedShardsPartitioner, MaxSizePartitioner, MinSizePartitioner
from replicant.coordinator._partitioners import check_partitioner, num_shards
from replicant.coordinator.servers._placing import RoundRobin, cut_rows
from replicant.errors import ArgumentError, ArgumentTypeError


@pytest.mark.parametrize(
    ("rows", "shards", "expected"),
    [
        (7, 3, [(0, 3), (3, 5), (5, 7)]),
        (4, 2, [(0, 2), (2, 4)]),
        (3, 3, [(0, 1), (1, 2), (2, 3)]),
        (5, 1, [(0, 5)]),
        (0, 1, [(0, 0)]),
    ],
)
def test_rows_are_contiguous_and_the_first_shards_have_one_more(rows, shards, expected):
    assert cut_rows(rows, shards) == expected


def test_shards_are_dealt_to_servers_in_turn():
    turn = RoundRobin(2)
    assert [turn.deal(n) for n in (1, 3, 2, 1)] == [[0], [1, 0, 1], [0, 1], [0]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FixedShardsPartitioner(0), "num_shards must be a whole number >= 1. Received: 0."),
        (lambda: FixedShardsPartitioner(True), "num_shards must be a whole number >= 1. Received: True."),
        (lambda: MinSizePartitioner(0), "min_shard_bytes must be a whole number >= 1. Received: 0."),
        (lambda: MinSizePartitioner(16, 0), "max_shards must be a whole number >= 1. Received: 0."),
        (lambda: MaxSizePartitioner(-1), "max_shard_bytes must be a whole number >= 1. Received: -1."),
        (lambda: FixedShardsPartitioner(2)((), "float32"), "was asked to cut a scalar"),
        (
            lambda: FixedShardsPartitioner(2)((3, 4), "float32", axis=2),
            r"axis 2 is out of range for shape \(3, 4\): use -2 to 1.",
        ),
        (lambda: num_shards(lambda shape, dtype: [1, 2], (3, 4), "float32"), r"only the first axis is cut. Received: \[1, 2\]."),
        (lambda: num_shards(lambda shape, dtype: [0, 1], (3, 4), "float32"), r"Received: \[0, 1\]."),
        (lambda: num_shards(lambda shape, dtype: 2, (3, 4), "float32"), r"Received: 2."),
    ],
)
def test_nonsense_is_refused(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()


def test_a_partitioner_must_be_callable():
    with pytest.raises(ArgumentTypeError, match=r"variable_partitioner must be callable .* Received: 2."):
        check_partitioner(2)


@pytest.mark.parametrize(
    "make", [lambda: FixedShardsPartitioner(4), lambda: MinSizePartitioner(16, 4), lambda: MaxSizePartitioner(16)]
)
def test_shapes_without_elements_are_one_shard(make):
    assert make()((0, 3), "float32") == [1, 1]


def test_scalars_are_never_asked_about():
    assert num_shards(lambda shape, dtype: pytest.fail("asked"), (), "float32") == 1
