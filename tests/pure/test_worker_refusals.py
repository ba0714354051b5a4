"""What workers refuse when the others' answers do not fit theirs; the answers are given here."""

import json
import types

import numpy as np
import pytest

from replicant.checkpoint.workers import _chief
from replicant.cluster import Membership
from replicant.cluster.exchange._world import World
from replicant.cluster.jax import _bootstrap
from replicant.data import Dataset, DistributedDataset, TextLineDataset
from replicant.errors import (
    AlreadyStartedError,
    ArgumentTypeError,
    CheckpointError,
    ClusterError,
    DamagedCheckpointError,
    DatasetError,
    DeviceError,
    WorkerLostError,
    WorkerMismatchError,
)
from replicant.replicas._topology import Topology
from replicant.strategies import _multi_worker
from replicant.strategies._communication import CommunicationOptions
from replicant.strategies._place_batches import WorkersPlaces
from replicant.variables import _chief as _values


class Answers(World):
    """A world in which worker 0's part of every exchange is its own, and worker 1's is given."""

    def __init__(self, *texts, process_id=0):
        super().__init__(store=None, membership=Membership(process_id, 2, "h:1"), who=["a", "b"])
        self.texts = list(texts)

    def exchange(self, label, text, timeout_seconds=None, *, before_next_step=False):
        return [text, self.texts.pop(0)]


def places(*texts):
    return WorkersPlaces(types.SimpleNamespace(world=Answers(*texts), local_ids=(0,)))


def test_datasets_of_other_structures():
    other = json.dumps([[["float32", [2]]], [["int32", [2]]]])
    message = r"different structures:\n  worker 0 \(a\)  1 component\(s\)\n  worker 1 \(b\)  2 component"
    with pytest.raises(DatasetError, match=message):
        places(other).together([[np.zeros(2, np.float32)]])


@pytest.mark.parametrize("other", [["int32", [2]], ["float32", [2, 1]]])
def test_batches_of_other_dtypes_or_ranks(other):
    with pytest.raises(DatasetError, match=r"different dtypes or ranks:\n  replica 0  float32\[2\]\n  replica 1  \w+\["):
        places(json.dumps([[other]])).together([[np.zeros(2, np.float32)]])


def test_values_that_cannot_be_told():
    with pytest.raises(ArgumentTypeError, match=r"A value of type object cannot be sent to the other workers\. Return arrays"):
        places("[1]").objects([object()])
    assert places("[2]").objects([1]).values == (1, 2)


def test_variables_of_other_shapes():
    placement = types.SimpleNamespace(world=Answers(json.dumps([[["w", "float32", [3]], ["b", "float32", [1]]], ""])))
    message = (
        r"2 variable\(s\) to place; differing: w float32\[2\]\n  worker 1 \(b\)  2 variable\(s\) .*; differing: w float32\[3\]$"
    )
    with pytest.raises(WorkerMismatchError, match=message):
        _values.chiefs_values([("w", np.zeros(2, np.float32)), ("b", np.zeros(1, np.float32))], placement)


def test_small_values_are_the_chiefs():
    mine = np.float32([1, 2])
    text = json.dumps([[["w", "float32", [2]]], ""])
    placement = types.SimpleNamespace(world=Answers(text))
    np.testing.assert_array_equal(_values.chiefs_values([("w", mine)], placement)[0], mine)


def test_positions_of_another_number_of_workers():
    dataset = DistributedDataset(Dataset.range(4).batch(2), Topology(), lambda rows, sizes: rows)
    message = (
        r"position was saved by 3 workers of 1 replica\(s\), each .* It cannot be continued by 1 of 1 in this pipeline: only they "
        r"know what it was\. Use as many workers as before, or AutoShardPolicy\.DATA throughout"
    )
    with iter(dataset) as iterator:
        first = next(iterator)
        with pytest.raises(DatasetError, match=message):
            iterator.restore(iterator.state() | {"position": {"step": 0, "workers": [{}, {}, {}]}})
        assert first.tolist() == [0, 1]
        assert next(iterator).tolist() == [2, 3]  # it goes on where it was


@pytest.mark.parametrize(
    ("drop", "passes", "why"),
    [
        (
            True,
            1,
            "each repeats its own part without end, and batch(2, drop_remainder=True) goes on from one pass to the next",
        ),
        (False, None, "an older version of Replicant saved it"),
    ],
)
def test_positions_of_data_that_all_read_for_workers_with_files_of_their_own(tmp_path, run_workers, drop, passes, why):
    for name in ("a", "b"):
        (tmp_path / name).write_text("1\n2\n")
    dataset = TextLineDataset([tmp_path / "a", tmp_path / "b"]).map(int).repeat().batch(2, drop)
    with iter(DistributedDataset(dataset, Topology(), lambda rows, sizes: rows)) as iterator:
        next(iterator)
        position = iterator.state()
    if passes is None:
        del position["position"]["share"]["passes"]

    def read(worker, exchange):
        shared = DistributedDataset(dataset, Topology(2, worker, 1), None, exchange=exchange, workers=types.SimpleNamespace())
        with iter(shared) as iterator, pytest.raises(DatasetError) as raised:
            iterator.restore(position)
        return str(raised.value)

    message = (
        "The position was saved where no worker read data of its own: by one worker, or under AutoShardPolicy.DATA. So it cannot "
        f"be continued by 2 workers, each of which reads its own part of the data: {why}. Use as many workers as before, or "
        "AutoShardPolicy.DATA throughout, with which the number does not matter."
    )
    assert run_workers(2, read) == [message, message]


def test_a_checkpoint_that_the_chief_could_not_write(monkeypatch):
    world = Answers(process_id=1)
    world.exchange = lambda label, text, **_: ["OSError: disk full", text]
    monkeypatch.setattr(_bootstrap, "world", lambda: world)
    assert not _chief.is_writer()
    with pytest.raises(CheckpointError, match=r"worker 0 \(a\) could not write the checkpoint: OSError: disk full"):
        _chief.write_once(lambda: pytest.fail("only the chief writes"))


def test_the_chief_raises_its_own_error(monkeypatch):
    monkeypatch.setattr(_bootstrap, "world", lambda: Answers(""))

    def write():
        raise CheckpointError("no space")

    with pytest.raises(CheckpointError, match=r"^no space$"):
        _chief.write_once(write)


def test_the_others_wait_as_long_as_the_chiefs_bytes_may_take(monkeypatch):
    """600 s, and 1 s for each MiB. Where the chief only begins to write, nobody waits longer."""
    waited = []
    world = Answers(process_id=1)
    world.exchange = lambda label, text, timeout_seconds=None, **_: [
        waited.append((label, timeout_seconds)) or (str(5 << 20) if label == "checkpoint size" else ""),
        text,
    ]
    monkeypatch.setattr(_bootstrap, "world", lambda: world)
    _chief.write_once(lambda: None, 0)
    _chief.write_once(lambda: None)
    expected = [("checkpoint size", None), ("checkpoint written", 605.0), ("checkpoint written", 600.0)]
    assert waited == expected


def test_reading_is_awaited_as_long_as_the_bytes_may_take(monkeypatch):
    waited = []
    world = Answers()
    world.exchange = lambda label, text, timeout_seconds=None, **_: waited.append((label, timeout_seconds)) or [text, "null"]
    monkeypatch.setattr(_bootstrap, "world", lambda: world)
    assert _chief.all_read("read", "ckpt", lambda: 3, num_bytes=7 << 20) == 3
    assert waited == [("checkpoint read", 607.0)]


def test_what_other_workers_have_assigned_is_not_passed_over(monkeypatch):
    """Worker 1 cannot read what it assigns, before anything has changed there. On worker 0, values have changed."""
    damaged = json.dumps([True, "slices-1.bin is missing"])
    monkeypatch.setattr(_bootstrap, "world", lambda: Answers(damaged, damaged))
    with pytest.raises(DamagedCheckpointError, match=r"^1 of 2 workers cannot read .*\. worker 1 \(b\): slices-1\.bin is missing$"):
        _chief.all_read("read", "ckpt", lambda: None)
    message = r"slices-1\.bin is missing On other workers, values may have changed\. Restore again, from this checkpoint or another"
    with pytest.raises(CheckpointError, match=message) as caught:
        _chief.all_read("assigned", "ckpt", lambda: None, changes=True)
    assert not isinstance(caught.value, DamagedCheckpointError)


def test_other_checkpoints(monkeypatch):
    monkeypatch.setattr(_bootstrap, "world", lambda: Answers("b/ckpt-1"))
    message = r"restore different checkpoints\.\n  worker 0 \(a\)  a/ckpt-1\n  worker 1 \(b\)  b/ckpt-1"
    with pytest.raises(WorkerMismatchError, match=message):
        _chief.meet_before_reading("a/ckpt-1")


def test_one_world_per_process(monkeypatch):
    monkeypatch.setattr(_bootstrap, "world", Answers)
    message = r"is already Membership\(process 0 of 2.*\) and cannot be Membership\(process 1 of 3"
    with pytest.raises(AlreadyStartedError, match=message):
        _multi_worker.the_world(Membership(1, 3, "h:1"), CommunicationOptions())
    world = _multi_worker.the_world(Membership(0, 2, "h:1"), CommunicationOptions(timeout_seconds=3.0))
    assert world.timeouts.exchange == 3.0
    monkeypatch.setitem(_bootstrap._state, "world", world)
    with pytest.raises(AlreadyStartedError, match="has already met the other workers, as Membership"):
        _bootstrap.start(Membership(0, 2, "h:1"))


def test_devices_that_are_missing():
    devices = [types.SimpleNamespace(process_index=i, id=i) for i in (1, 0, 2)]
    assert [device.id for device in _multi_worker._in_order(devices[:2], 1, Answers())] == [0, 1]
    with pytest.raises(DeviceError, match="2 workers have 1 devices each, but JAX shows 3 in all"):
        _multi_worker._in_order(devices, 1, Answers())


def test_broken_exchanges_are_told_from_other_errors():
    assert _bootstrap.is_broken_exchange(ValueError("UNKNOWN: Gloo all-reduce failed: Connection closed by peer"))
    assert _bootstrap.is_broken_exchange(RuntimeError("INTERNAL: NCCL operation ncclAllReduce failed"))
    assert not _bootstrap.is_broken_exchange(RuntimeError("INTERNAL: something of this device"))
    assert not _bootstrap.is_broken_exchange(ValueError("operands could not be broadcast together"))
    assert not _bootstrap.is_broken_exchange(WorkerLostError("Worker 1 ..."))


def test_a_jax_that_has_moved_its_parts(monkeypatch):
    from jax._src import xla_bridge

    monkeypatch.delattr(xla_bridge, "backends_are_initialized")
    with pytest.raises(
        ClusterError, match=r"has moved internals that Replicant uses to connect .* \(backends_are_initialized\)\. Use a version"
    ):
        _bootstrap._Private()
