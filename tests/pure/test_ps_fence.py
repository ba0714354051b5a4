"""What a processor that reorders loads and stores must not reorder: the books and the values that they are about."""

import platform

import numpy as np
import pytest

from replicant.coordinator.processes._transport import Processes
from replicant.coordinator.servers import _store
from replicant.coordinator.servers._apply import Applier
from replicant.coordinator.servers._ledger import NBYTES, PushName
from replicant.coordinator.servers._placing import Shard
from replicant.coordinator.servers._push import Change, Operation, Push
from replicant.coordinator.servers._store import ServerMemory
from replicant.coordinator.wire import _fence
from replicant.coordinator.wire._memory import pages
from replicant.errors import ConfigurationError

SHARD = Shard(0, 0, pages(NBYTES), 0, 4, (4,))
FLOAT = np.dtype("float64")


@pytest.fixture
def memory():
    memory = ServerMemory.create()
    memory.values.grow(pages(NBYTES) + 2 * pages(32))
    yield memory
    memory.close()


class Cells:
    """Stands in for cells of the books; notes each load or store."""

    def __init__(self, cells, name, note):
        self._cells, self._name, self._note = cells, name, note

    def __getitem__(self, key):
        self._note(f"load {self._name}")
        return self._cells[key]

    def __setitem__(self, key, value):
        self._note(f"store {self._name}")
        self._cells[key] = value


def watched(memory, monkeypatch, names, *, look_at_values):
    """What happens to the books, where the fences are, and between which of these the values change."""
    events, view, seen = [], memory.view(SHARD, FLOAT), []

    def note(event):
        now = [buffer.tolist() for buffer in view.buffers]
        if look_at_values and seen and seen[-1] != now:
            events.append("values")
        seen.append(now)
        events.append(event)

    for name in names:
        monkeypatch.setattr(memory.ledger, name, Cells(getattr(memory.ledger, name), name, note))
    monkeypatch.setattr(_fence, "fence", lambda: note("fence"))
    return events


def neighbours(events, inner):
    """What comes before and after `inner` among fences and stores; loads do not count."""
    kept = [event for event in events if not event.startswith("load")]
    return [(kept[i - 1], kept[i + 1]) for i, event in enumerate(kept) if event == inner]


@pytest.mark.parametrize("rows", [None, np.array([1, 3])], ids=["dense", "rows"])
def test_a_server_keeps_what_it_writes_apart_from_its_books(memory, monkeypatch, rows):
    applier = Applier(memory)
    applier.add_shard(SHARD, FLOAT)
    events = watched(memory, monkeypatch, ("started", "done", "in_place", "_cells"), look_at_values=True)
    values = np.ones(4 if rows is None else 2)
    applier.apply(Push(PushName(1, 1, 1), 0, 0, 0, 0, []), [Operation("add", [Change(0, values, rows)])])
    assert neighbours(events, "values") == [("fence", "fence")]
    before = [event for event in events[: events.index("values")] if event.startswith("store")]
    assert before[-1] == ("store started" if rows is None else "store in_place")


def test_a_reader_keeps_its_copy_apart_from_the_books(memory, monkeypatch):
    events = watched(memory, monkeypatch, ("started", "done", "in_place"), look_at_values=False)
    copy = np.copyto
    monkeypatch.setattr(_store.np, "copyto", lambda *args, **kwargs: (events.append("copy"), copy(*args, **kwargs)))
    memory.view(SHARD, FLOAT).read_into(np.empty(4))
    assert [event.removeprefix("load ") for event in events] == [
        "done",
        "in_place",
        "fence",
        "copy",
        "fence",
        "in_place",
        "started",
    ]


@pytest.mark.parametrize(
    ("machine", "name"),
    [("x86_64", "_no_fence"), ("AMD64", "_no_fence"), ("aarch64", "_lock_fence"), ("arm64", "_lock_fence"), ("riscv64", None)],
)
def test_each_machine_has_its_fence_or_none(machine, name):
    found = _fence.fence_for(machine)
    assert (found and found.__name__) == name
    if found is not None:
        found()
        found()


def test_a_machine_without_order_is_refused(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(ConfigurationError, match=r"processor is 'riscv64'.*safe on x86_64, aarch64, arm64 only.*transport='ray'"):
        Processes().open(1, 1)
