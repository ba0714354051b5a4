"""The cutting rule, as a function of small integers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicant.errors import ArgumentError
from replicant.input.sharding._rebatch import chunk_sizes, static_chunk_size, worker_chunk
from replicant.replicas._topology import Topology


@pytest.mark.parametrize(
    ("batch_size", "num_replicas", "expected"),
    [
        (0, 1, (0,)),
        (0, 3, (0, 0, 0)),
        (1, 3, (1, 0, 0)),
        (3, 3, (1, 1, 1)),
        (4, 3, (2, 2, 0)),
        (4, 5, (1, 1, 1, 1, 0)),
        (5, 2, (3, 2)),
        (5, 3, (2, 2, 1)),
        (5, 4, (2, 2, 1, 0)),
        (7, 3, (3, 3, 1)),
        (8, 3, (3, 3, 2)),
        (9, 8, (2, 2, 2, 2, 1, 0, 0, 0)),
        (16, 4, (4, 4, 4, 4)),
    ],
)
def test_chunk_sizes(batch_size, num_replicas, expected):
    assert chunk_sizes(batch_size, num_replicas) == expected


@given(st.integers(0, 10_000), st.integers(1, 64))
def test_every_row_is_in_one_chunk_and_late_replicas_have_no_more_than_early_ones(batch_size, num_replicas):
    sizes = chunk_sizes(batch_size, num_replicas)
    assert sum(sizes) == batch_size
    assert len(sizes) == num_replicas
    assert list(sizes) == sorted(sizes, reverse=True)
    assert max(sizes) * num_replicas < batch_size + num_replicas  # the largest is ceil(b / n), no more


@pytest.mark.parametrize(
    ("batch_size", "expected"),  # one row per worker: first row of the batch, sizes of the worker's two replicas
    [
        (8, [(0, (2, 2)), (4, (2, 2))]),
        (7, [(0, (2, 2)), (4, (2, 1))]),
        (5, [(0, (2, 2)), (4, (1, 0))]),
        (2, [(0, (1, 1)), (2, (0, 0))]),
        (0, [(0, (0, 0)), (0, (0, 0))]),
    ],
)
def test_worker_chunks(batch_size, expected):
    assert [worker_chunk(batch_size, Topology(2, worker, 2)) for worker in (0, 1)] == expected


@given(st.integers(0, 500), st.integers(1, 4), st.integers(1, 8))
def test_workers_together_have_what_one_worker_with_all_replicas_has(batch_size, num_workers, replicas_per_worker):
    parts = [worker_chunk(batch_size, Topology(num_workers, w, replicas_per_worker)) for w in range(num_workers)]
    _, whole = worker_chunk(batch_size, Topology(replicas_per_worker=num_workers * replicas_per_worker))
    assert sum((sizes for _, sizes in parts), ()) == whole
    ends = [start + sum(sizes) for start, sizes in parts]
    assert [start for start, _ in parts[1:]] == ends[:-1]


@pytest.mark.parametrize(
    ("batch_size", "num_replicas", "expected"), [(6, 2, 3), (6, 4, None), (None, 2, None), (0, 2, 0), (5, 1, 5)]
)
def test_static_chunk_size(batch_size, num_replicas, expected):
    assert static_chunk_size(batch_size, num_replicas) == expected


def test_topology_derives_replica_ids_worker_by_worker():
    topologies = [Topology(num_workers=3, worker_index=w, replicas_per_worker=2) for w in range(3)]
    assert [t.local_replica_ids for t in topologies] == [(0, 1), (2, 3), (4, 5)]
    assert {t.num_replicas for t in topologies} == {6}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_workers": 0}, "num_workers must be at least 1. Received: 0"),
        ({"replicas_per_worker": -1}, "replicas_per_worker must be at least 1. Received: -1"),
        ({"num_workers": 2, "worker_index": 2}, r"worker_index must be from 0 to 1 with 2 worker\(s\). Received: 2"),
    ],
)
def test_topology_refuses_what_cannot_be(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        Topology(**arguments)
