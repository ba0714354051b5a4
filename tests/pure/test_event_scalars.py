"""Scalars of event files that TensorFlow, tensorboardX and Replicant have written, damage to them, and their picture."""

import math
import re
import shutil
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tensorboardX import SummaryWriter
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event

from replicant import summary
from replicant._crc32c import crc32c, masked
from replicant.cli import main
from replicant.errors import SummaryError
from replicant.storage._path import RemotePath
from replicant.summary._scalar_tensor import scalar_of

RECORDED = Path(__file__).parents[1] / "tensorflow_files" / "events"
TWO, ONE = RECORDED / "events.out.tfevents.tensorflow2", RECORDED / "events.out.tfevents.tensorflow1"


def points(path, tag, run="."):
    return [(point.step, point.value) for point in summary.read_scalars(path)[run][tag]]


def single(number):
    """The number as a float of 32 bits."""
    return struct.unpack("<f", struct.pack("<f", number))[0]


def write(path, *events):
    """Write messages as an event file, after the one that says what it is."""
    raw = [each if isinstance(each, bytes) else each.SerializeToString() for each in (Event(file_version="brain.Event:2"), *events)]
    path.write_bytes(b"".join(record(each) for each in raw))
    return path


def record(data):
    length = struct.pack("<Q", len(data))
    return b"".join((length, struct.pack("<I", masked(crc32c(length))), data, struct.pack("<I", masked(crc32c(data)))))


def tensor_event(dtype, step=1, plugin="scalars", shape=(), **values):
    event = Event(step=step, wall_time=5.0)
    value = event.summary.value.add(tag="x", metadata={"plugin_data": {"plugin_name": plugin}})
    value.tensor.MergeFrom(type(value.tensor)(dtype=dtype, tensor_shape={"dim": [{"size": size} for size in shape]}, **values))
    return event


def test_what_tensorflow_has_recorded():
    """Tags and values of the recording's truth; histograms, pictures, texts, sounds and parameters are no scalars."""
    found = summary.read_scalars(TWO)
    assert {run: list(tags) for run, tags in found.items()} == {".": ["loss", "scope/acc"]}
    assert found["."]["loss"] == [
        (1795867239.135001, 0, single(1.7494547367095947)),
        (1795867239.137159, 10, single(-0.2860729992389679)),
        (1795867239.171034, 20, single(-0.4845651388168335)),
        (1795867239.172527, 30, single(-2.6533186435699463)),
    ]
    assert found["."]["scope/acc"] == [(1795867239.186781, 1, 0.5)]
    assert summary.read_scalars(ONE) == {".": {"loss": [(1795867243.3145614, 3, 1.25)]}}


def test_runs_are_folders(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    shutil.copy(ONE, tmp_path / "a" / "b")
    shutil.copy(TWO, tmp_path / "a")
    shutil.copy(TWO, tmp_path / "a" / "a.txt")
    assert {run: list(tags) for run, tags in summary.read_scalars(tmp_path).items()} == {
        "a": ["loss", "scope/acc"],
        "a/b": ["loss"],
    }


def test_what_tensorboardx_and_replicant_write(tmp_path):
    with SummaryWriter(str(tmp_path / "x")) as writer:
        for step, value in enumerate([0.1, math.nan, math.inf, -2.0]):
            writer.add_scalar("loss", value, step)
    own = summary.create_file_writer(tmp_path / "own")
    with own.as_default():
        summary.scalar("loss", 0.1, step=7)
        summary.text("loss words", "none", step=7)
        summary.histogram("weights", np.ones(3), step=7)
    own.close()
    found = points(tmp_path, "loss", "x")
    assert [step for step, _ in found] == [0, 1, 2, 3]
    assert math.isnan(found[1][1])
    assert [found[i][1] for i in (0, 2, 3)] == [single(0.1), math.inf, -2.0]
    assert list(summary.read_scalars(tmp_path / "own")["."]) == ["loss"]
    assert points(tmp_path / "own", "loss") == [(7, single(0.1))]


@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        (1, {"float_val": [1.5]}, 1.5),
        (1, {"tensor_content": struct.pack("<f", -2.5)}, -2.5),
        (1, {}, 0.0),
        (2, {"double_val": [0.1]}, 0.1),
        (3, {"int_val": [-3]}, -3.0),
        (9, {"int64_val": [-(2**40)]}, -(2.0**40)),
        (10, {"bool_val": [True]}, 1.0),
        (14, {"half_val": [int(np.array(0.375, ml_dtypes.bfloat16).view(np.uint16))]}, 0.375),
        (19, {"half_val": [int(np.array(0.375, np.float16).view(np.uint16))]}, 0.375),
        (19, {"tensor_content": np.array(0.375, np.float16).tobytes()}, 0.375),
        (4, {"int_val": [200]}, 200.0),
        (2, {"tensor_content": struct.pack("<d", 0.1)}, 0.1),
    ],
)
def test_dtypes_of_scalars(tmp_path, dtype, values, expected):
    path = write(tmp_path / "events.out.tfevents.1", tensor_event(dtype, **values))
    assert summary.read_scalars(path) == {".": {"x": [(5.0, 1, expected)]}}


def test_the_plugin_is_told_once(tmp_path):
    first, second = tensor_event(1, 1, float_val=[1.0]), tensor_event(1, 2, float_val=[2.0])
    second.summary.value[0].ClearField("metadata")
    assert points(write(tmp_path / "tfevents", first, second), "x") == [(1, 1.0), (2, 2.0)]
    assert summary.read_scalars(write(tmp_path / "tfevents", second)) == {".": {}}


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (tensor_event(7, string_val=[b"a"]), "a scalar has the dtype number 7, which is not a number"),
        (tensor_event(1, shape=(2,), float_val=[1, 2]), r"a scalar has the shape \(2,\)"),
        (tensor_event(1, tensor_content=b"12345"), "a scalar has 5 values or bytes in place of one float32"),
        (tensor_event(1, float_val=[1, 2]), "a scalar has 2 values or bytes in place of one float32"),
        (bytes([9, 1, 2]), "a field of 8 bytes begins at byte 1 of 3"),
        (bytes([13, 0, 0, 0, 0]), "a number has 4 bytes"),
        (bytes([16]), "a number has no end"),
    ],
)
def test_messages_that_are_wrong(tmp_path, event, message):
    path = write(tmp_path / "events.out.tfevents.1", event)
    with pytest.raises(SummaryError, match=rf"events\.out\.tfevents\.1 is damaged in the record at byte 31: {message}"):
        summary.read_scalars(path)


def test_a_list_that_ends_within_a_number():
    with pytest.raises(ValueError, match="a list of float32 has 3 bytes"):
        scalar_of(memoryview(bytes([8, 1, 42, 3, 0, 0, 0])))


def test_every_flipped_byte_is_noticed(tmp_path):
    data, path = ONE.read_bytes(), tmp_path / "events.out.tfevents.1"
    for at in range(0, len(data), 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        with pytest.raises(
            SummaryError, match=r"is damaged in the record at byte \d+: the checksum of its (length|data) should be"
        ):
            summary.read_scalars(path)


def test_a_file_that_is_cut_off(tmp_path):
    data, path = ONE.read_bytes(), tmp_path / "events.out.tfevents.1"
    path.write_bytes(data[:-1])
    with pytest.raises(SummaryError, match=r"is cut off: the record at byte \d+ needs \d+ bytes, but only \d+ follow"):
        summary.read_scalars(path)
    assert summary.read_scalars(path, may_be_cut_off=True)["."]["loss"][0].value == 1.25
    path.write_bytes(data + b"1234")
    with pytest.raises(SummaryError, match="needs at least 12 bytes, but only 4 follow"):
        summary.read_scalars(path)
    huge = struct.pack("<Q", 2**60)
    path.write_bytes(data + huge + struct.pack("<I", masked(crc32c(huge))))
    with pytest.raises(SummaryError, match=f"needs {2**60 + 16} bytes, but only 12 follow"):
        summary.read_scalars(path)


def test_what_is_no_event_file(tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(SummaryError, match="has no event files" if path.exists() else "does not exist"):
            summary.read_scalars(path)
    path = tmp_path / "tfevents"
    path.write_bytes(record(b""))
    with pytest.raises(
        SummaryError, match=r"is not a TensorBoard event file: it does not begin with an event that says 'brain.Event:'"
    ):
        summary.read_scalars(path)
    path.unlink()
    (tmp_path / "tfevents").mkdir()
    with pytest.raises(SummaryError, match="has no event files"):
        summary.read_scalars(tmp_path)


def test_event_files_at_a_url(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    with fsspec.open("memory://event-scalars/logs/train/events.out.tfevents.1", "wb") as file:
        file.write(ONE.read_bytes())
    assert points("memory://event-scalars/logs", "loss", "train") == [(3, 1.25)]
    assert RemotePath("memory://event-scalars/logs").exists()


def test_curves_before_and_after_are_in_one_picture(tmp_path, capsys):
    (tmp_path / "old").mkdir()
    shutil.copy(TWO, tmp_path / "old" / TWO.name)
    writer = EventsWriter(str(tmp_path / "new.tfevents"))
    for step in range(3):
        event = Event(step=10 * step)
        event.summary.value.add(tag="loss", simple_value=float("nan") if step == 1 else step)
        writer.write_event(event)
    writer.close()
    page = tmp_path / "page.html"
    (new,) = tmp_path.glob("new.tfevents*")
    assert main(["report", "--events", str(tmp_path / "old"), str(new), "--html", str(page)]) == 0
    printed, html = capsys.readouterr().out, page.read_text()
    assert re.search(r"loss +\S*old +4 +0 to 30 +1\.74945 +-2\.65332 +-2\.65332 +1\.74945", printed)
    assert re.search(r"loss +\S*new\.tfevents\S* +3 +0 to 20 +0 +2 +0 +2", printed)
    assert html.count("<svg") == 2  # loss and scope/acc
    (loss,) = re.findall(r"<svg[^>]*aria-label='loss by step'>(.*?)</svg>", html)
    lines = [("90.0,20.5 393.3,122.0 696.7,131.9 1000.0,240.0", "#4e79a7"), ("90.0,107.7", "#f28e2b"), ("696.7,8.0", "#f28e2b")]
    assert re.findall(r"<polyline points='([^']*)'[^>]*stroke='(#\w+)'", loss) == lines  # NaN is a gap
    assert re.findall(r"<circle cx='([^']*)' cy='([^']*)'", loss) == [("90.0", "107.7"), ("696.7", "8.0")]
    data = (tmp_path / "old" / TWO.name).read_bytes()
    (tmp_path / "old" / TWO.name).write_bytes(data[:-1])
    assert main(["report", "--events", str(tmp_path / "old")]) == 0
    assert re.search(r"is cut off: the record at byte \d+ needs .* That record is left out\.$", capsys.readouterr().err.strip())
    assert main(["report", "--events", str(tmp_path / "none")]) == 1
    assert "none' does not exist" in capsys.readouterr().err
    assert main(["report"]) == 1
    assert "Name the --log-dir of a job, or folders with event files" in capsys.readouterr().err
