"""Reading a file takes time in proportion to its size, whichever of its dimensions grows."""

import sys
import threading
from pathlib import Path

import pytest

from replicant.input.files._file_format import FileReader

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from file_growth import CASES, growth

MOST = 2.6  # times as long for twice as much; 4 if it were quadratic
TRIES = 4
OF_BYTES = {name for name in CASES if "bytes of" in name or "long names" in name}  # whose work is copying, which no call shows
SMALLEST = 40
OFTEN = {
    "csv: columns",
    "parquet: chosen columns",
    "arrow: chosen columns",
    "cache: columns",
    "csv: open quotes",
    "tar: pax records",
}


def calls(read) -> int:
    """The number of calls of functions, and steps of generators, on all threads."""
    count = [0]
    lock = threading.Lock()

    def seen(_frame, event, _argument):
        if event in ("call", "c_call"):
            with lock:
                count[0] += 1

    threading.setprofile(seen)
    sys.setprofile(seen)
    try:
        read()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return count[0]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in OFTEN else pytest.mark.long) for name in CASES if name not in OF_BYTES]
)
def test_twice_as_much_takes_twice_as_many_calls(tmp_path, name):
    size, make = CASES[name]
    size = 15 if "depth" in name else max(SMALLEST, size // 100)  # 64 is the deepest that is read
    reads = [make(tmp_path / str(number), size << number) for number in range(3)]
    reads[0]()  # what is made once
    first, second, third = map(calls, reads)
    assert third - second < 1.3 * 2 * (second - first) + 50, (first, second, third)  # what does not grow is left out


@pytest.mark.parametrize("name", sorted(OF_BYTES))
def test_bytes_are_looked_at_a_few_times(tmp_path, monkeypatch, name):
    size, make = CASES[name]
    looked = 0
    split = FileReader._split

    def counted(self, offset, data, last):
        nonlocal looked
        looked += len(data)
        return split(self, offset, data, last)

    monkeypatch.setattr(FileReader, "_split", counted)
    for kind in FileReader.__subclasses__():
        if "_split" in vars(kind):
            own = vars(kind)["_split"]

            def of_kind(self, offset, data, last, own=own):
                nonlocal looked
                looked += len(data)
                return own(self, offset, data, last)

            monkeypatch.setattr(kind, "_split", of_kind)
    size = min(size, 3 << 20)
    make(tmp_path / "a", size)()
    passes = 2 if name.startswith("json") else 1  # whose first line says the spec
    assert size <= looked <= 5 * passes * (size + (1 << 18))


@pytest.mark.long
@pytest.mark.parametrize("name", sorted({*CASES} - OF_BYTES))  # of which the system's memory takes most of the time
def test_twice_as_much_takes_twice_as_long(tmp_path, name):
    times = []
    while not times or (times[-1] >= MOST and len(times) < TRIES):
        (folder := tmp_path / str(len(times))).mkdir()
        times.append(growth(name, folder, rounds=3 if not times else 7)[1])
    assert times[-1] < MOST, times
