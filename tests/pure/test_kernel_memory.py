"""When the memory of temporaries is kept: what programs did before, one number for each two looks; and how much memory there is."""

import sys

import pytest

from replicant.kernels.xla import _heap

MB = 1 << 20


class Allocator:
    """Tells what it is told to tell, and remembers what it is asked for."""

    def __init__(self, left: int, of: int):
        self.fresh, self.left, self.of = 0, left, of
        self.done: list[object] = []

    def fresh_bytes(self) -> int:
        return self.fresh

    def memory(self) -> tuple[int, int]:
        return self.left, self.of

    def keep(self, num_bytes: int) -> None:
        self.done.append(num_bytes)

    def give_back(self) -> None:
        self.done.append("given back")


def states(allocator: Allocator, keeper: _heap.Keeper, megabytes: list[int]) -> list[str]:
    """The state after each window of programs that took so many megabytes of fresh pages each."""
    found = []
    for each in megabytes:
        allocator.fresh += 8 * each * MB
        for _ in range(8):
            keeper.note()
        found.append(keeper.state)
    return found


@pytest.mark.parametrize(
    ("megabytes", "found", "done"),
    [
        ([0, 1, 15, 15, 15], ["watching"] * 5, []),
        ([300, 2, 300, 2, 0], ["watching"] * 5, []),  # compiling, for instance
        ([300, 300, 320, 0, 0], ["watching", "watching", "keeping", "keeping", "keeping"], [960 * MB]),
        ([2, 16, 16, 16], ["watching", "watching", "watching", "keeping"], [48 * MB]),
        ([64, 0, 0, 0, 64, 0, 0, 0, 64, 0], ["watching"] * 8 + ["keeping"] * 2, [192 * MB]),  # epochs of 32 steps
        ([64, 0, 0, 0, 0, 0] * 4, ["watching"] * 24, []),  # twice in 12 windows
        ([2000, 2000, 2000], ["watching"] * 3, []),  # 8 times 2,000 MB are not there
    ],
)
def test_what_programs_take_decides(megabytes, found, done):
    allocator = Allocator(left=8000 * MB, of=16000 * MB)
    keeper = _heap.Keeper(allocator)
    assert states(allocator, keeper, megabytes) == found
    assert allocator.done == done


def test_what_was_taken_before_does_not_count():
    allocator = Allocator(left=8000 * MB, of=16000 * MB)
    allocator.fresh = 5000 * MB
    keeper = _heap.Keeper(allocator)
    assert states(allocator, keeper, [1, 1, 1]) == ["watching"] * 3


def test_nothing_is_kept_any_more_once_memory_is_scarce():
    allocator = Allocator(left=8000 * MB, of=16000 * MB)
    keeper = _heap.Keeper(allocator)
    states(allocator, keeper, [100, 100, 100])
    allocator.left = 1599 * MB
    assert states(allocator, keeper, [0, 100]) == ["keeping", "given up"]  # it looks when programs need fresh pages again
    assert states(allocator, keeper, [500, 500, 500]) == ["given up"] * 3
    assert allocator.done == [300 * MB, "given back"]


def test_it_looks_at_the_memory_now_and_then_in_any_case():
    allocator = Allocator(left=8000 * MB, of=16000 * MB)
    keeper = _heap.Keeper(allocator)
    states(allocator, keeper, [100, 100, 100])
    allocator.left = 1599 * MB
    assert states(allocator, keeper, [0] * 61) == ["keeping"] * 60 + ["given up"]  # the 64th window


@pytest.mark.parametrize(
    ("megabytes", "found"),
    [
        ([500, 300, 40, 40, 0], ["watching"] * 3 + ["keeping"] * 2),
        ([500, 300, 400, 40, 0], ["watching"] * 3 + ["keeping"] * 2),
        ([500, 300, 40, 31, 40, 40], ["watching"] * 6),  # glibc takes pieces of less than 32 MB from the heap anyway
        ([500, 300, 400, 0, 400], ["watching"] * 5),  # compiled for other inputs
        ([0, 0, 1001, 1001, 1001], ["watching"] * 5),  # 8 times 1,001 MB are not there
    ],
)
def test_the_third_and_fourth_run_of_a_program_decide(megabytes, found, monkeypatch):
    allocator = Allocator(left=8000 * MB, of=16000 * MB)
    keeper = _heap.Keeper(allocator)
    monkeypatch.setattr(_heap, "keeper", keeper)
    running, states = [], []

    def start(each: int) -> list[int]:
        assert not running, "one after the other"
        running.append(each)
        return running

    def wait(started: list[int]) -> None:
        allocator.fresh += MB * started.pop()

    runs = _heap.FirstRuns(wait, lambda *_: 0)
    for each in megabytes:
        assert runs.run(start, each) is running
        running.clear()
        states.append(keeper.state)
    assert states == found
    assert allocator.done == ([3 * 40 * MB] if "keeping" in found else [])


@pytest.mark.parametrize(
    ("left", "megabytes", "found", "done"),
    [
        (8000, 32, ["watching", "keeping", "keeping"], [3 * 32 * MB]),
        (8000, 31, ["watching"] * 3, []),  # glibc takes it from the heap anyway
        (8000, 1000, ["watching", "keeping", "keeping"], [3000 * MB]),
        (7999, 1000, ["watching"] * 3, []),  # 8 times as much is not there
    ],
)
def test_the_size_of_what_a_run_takes_decides_when_a_program_begins_its_second_run(left, megabytes, found, done, monkeypatch):
    allocator = Allocator(left=left * MB, of=16000 * MB)
    keeper = _heap.Keeper(allocator)
    monkeypatch.setattr(_heap, "keeper", keeper)
    asked, states = [], []

    def size(*args: object) -> int:
        asked.append(args)
        return megabytes * MB

    runs = _heap.FirstRuns(lambda _: None, size)
    for number in range(3):
        runs.run(lambda *args, bounded: states.append(keeper.state), "program", number, bounded=False)
    assert states == found
    assert allocator.done == done
    assert asked == [("program", 1)]


def test_where_nobody_may_wait_only_the_size_decides(monkeypatch):
    allocator = Allocator(left=8000 * MB, of=16000 * MB)
    monkeypatch.setattr(_heap, "keeper", _heap.Keeper(allocator))
    asked = []

    def start(each: int) -> int:
        allocator.fresh += 100 * MB
        return each

    def size(*args: object) -> int:
        asked.append(args)
        return 31 * MB

    runs = _heap.FirstRuns(None, size)
    assert [runs.run(start, each) for each in range(9)] == [*range(9)]
    assert asked == [(1,)]
    assert _heap.keeper.state == "watching"


@pytest.mark.parametrize("given_up", [False, True])
def test_nobody_waits_for_a_program_if_nobody_watches(given_up, monkeypatch):
    keeper = _heap.Keeper(Allocator(left=8000 * MB, of=16000 * MB)) if given_up else None
    if keeper:
        keeper.state = "given up"
    monkeypatch.setattr(_heap, "keeper", keeper)
    runs = _heap.FirstRuns(raising(AssertionError("waited")), raising(AssertionError("asked")))
    assert [runs.run(str, number) for number in range(9)] == [*"012345678"]


MEMINFO = "MemTotal:       16000 kB\nMemFree:  100 kB\nMemAvailable:   8000 kB\nHugePages_Total:       0\n"


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ({}, (8000, 16000)),
        ({"memory.max": "max\n", "memory.current": "1024\n", "memory.stat": "inactive_file 0\n"}, (8000, 16000)),
        (
            {"memory.max": "4096000\n", "memory.current": "2048000\n", "memory.stat": "anon 5\ninactive_file 1024000\n"},
            (3000, 4000),
        ),
        ({"memory.max": "40960000\n", "memory.current": "2048000\n", "memory.stat": "anon 5\n"}, (8000, 16000)),
    ],
)
def test_memory_that_there_is(tmp_path, group, expected):
    (tmp_path / "meminfo").write_text(MEMINFO)
    for name, text in group.items():
        (tmp_path / name).write_text(text)
    assert _heap.available(tmp_path / "meminfo", tmp_path) == tuple(1024 * kilobytes for kilobytes in expected)


@pytest.mark.parametrize(
    ("wanted", "environ", "reason"),
    [
        (False, {}, "off: REPLICANT_KERNELS does not ask for it"),
        (True, {"MALLOC_ARENA_MAX": "2"}, "off: MALLOC_ARENA_MAX is already set"),
        (
            True,
            {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=4"},
            "off: GLIBC_TUNABLES already sets glibc.malloc.mmap_max",
        ),
    ],
)
def test_reasons_to_leave_the_allocator_alone(wanted, environ, reason):
    assert _heap.install(wanted, environ) == reason


def test_a_system_that_does_not_tell_how_much_memory_it_has(monkeypatch):
    nowhere = FileNotFoundError(2, "No such file or directory", "/proc/meminfo")
    monkeypatch.setattr(_heap.Glibc, "memory", staticmethod(raising(nowhere)))
    assert installed(monkeypatch) == (
        "off: the system does not tell how much memory there is ([Errno 2] No such file or directory: '/proc/meminfo')"
    )


def test_a_glibc_whose_threads_cannot_share_the_heap(monkeypatch):
    monkeypatch.setattr(_heap.Glibc, "share_heap", lambda self: False)
    assert installed(monkeypatch) == "off: glibc does not let threads share the heap"


def raising(error):
    """A function that raises an error."""

    def memory(*_):
        raise error

    return memory


def installed(monkeypatch) -> str:
    """What `install` says where nothing else is in its way."""
    if not sys.platform.startswith("linux"):
        pytest.skip("glibc is there on Linux only")
    monkeypatch.setattr(_heap, "jax_has_started", lambda: False)
    monkeypatch.setattr(_heap, "accelerator", lambda: None)
    return _heap.install(True, {})


def test_this_machine_tells_how_much_memory_it_has():
    if not sys.platform.startswith("linux"):
        pytest.skip("asked of Linux")
    left, of = _heap.Glibc.memory()
    assert 0 < left <= of
