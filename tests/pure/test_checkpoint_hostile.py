"""Checkpoints that somebody wrote by hand: a valid checksum, and anything else. They are refused, and nothing else happens."""

import contextlib
import copy
import json
import os
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import replicant
from replicant.checkpoint.format import _storage
from replicant.checkpoint.format._json_values import pack, unpack
from replicant.errors import CheckpointError, DamagedCheckpointError


class Position:
    """Gives and takes its own state."""

    def __init__(self) -> None:
        self.at = 0

    def state(self) -> dict[str, int]:
        return {"at": self.at}

    def restore(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def checkpoint() -> replicant.Checkpoint:
    copies = replicant.Variable(jnp.zeros(2), synchronization="ON_READ", aggregation="SUM")
    values = {
        "w": np.arange(6.0).reshape(2, 3),
        "flags": np.array([True, False]),
        "step": 7,
        "done": False,
        "none": np.zeros((0, 3)),
    }
    return replicant.Checkpoint(v=replicant.Variable([1.0, 2.0]), copies=copies, state=values, key=jax.random.key(3), at=Position())


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    strategy = replicant.MirroredStrategy(["cpu:0"])
    with strategy.scope():
        return Path(checkpoint().save(tmp_path_factory.mktemp("hostile") / "ckpt"))


@pytest.fixture
def planted(saved: Path, tmp_path: Path) -> Callable[[Any], Path]:
    """A copy of the checkpoint with another manifest, which has a checksum that fits."""
    return lambda manifest: plant(saved, tmp_path / "ckpt-1", manifest)


def plant(saved: Path, folder: Path, manifest: Any, arrays: bytes | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "arrays.bin").write_bytes((saved / "arrays.bin").read_bytes() if arrays is None else arrays)
    body = {key: value for key, value in manifest.items() if key != "checksum"}
    (folder / "manifest.json").write_bytes(_storage._dump({**body, "checksum": _storage._checksum(body)}))
    return folder


def manifest_of(saved: Path) -> dict[str, Any]:
    return json.loads((saved / "manifest.json").read_text())


def record(manifest: dict[str, Any], key: str) -> dict[str, Any]:
    return next(each for each in manifest["arrays"] if each["key"] == key)


def changed(key: str, /, **changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: record(manifest, key).update(changes)


def in_meta(*path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        place = manifest["meta"]
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value

    return change


def negative_and_too_many(manifest: dict[str, Any]) -> None:
    first, second = manifest["arrays"][:2]
    first["num_bytes"], second["num_bytes"] = first["num_bytes"] + second["num_bytes"] + 8, -8


def swapped(manifest: dict[str, Any]) -> None:
    first, second = manifest["arrays"][:2]
    first["offset"], second["offset"] = second["offset"], first["offset"]


HOSTILE: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "objects": (changed("state/w", dtype="object"), r"'state/w' has the dtype 'object', which no array in a checkpoint has"),
    "text": (changed("state/w", dtype="str64"), r"'state/w' has the dtype 'str64', which"),
    "a short name": (changed("state/w", dtype="f8"), r"'state/w' has the dtype 'f8', which no array in a checkpoint has"),
    "fields": (changed("state/w", dtype="i4,i4"), r"'state/w' has the dtype 'i4,i4', which"),
    "no text": (
        changed("state/w", dtype=8),
        r"array \d+ cannot be right: it is not described by crc32, dtype, key, num_bytes, offset, shape",
    ),
    "negative sizes": (negative_and_too_many, r"array 1 cannot be right: .* has sizes that are not integers of at least 0"),
    "a negative dimension": (changed("state/w", shape=[-2, -3]), r"'state/w' has sizes that are not integers of at least 0"),
    "NaN": (changed("state/w", shape=[float("nan"), 3]), r"'state/w' has sizes that are not integers of at least 0"),
    "a fraction": (changed("state/w", num_bytes=48.0), r"'state/w' has sizes that are not integers of at least 0"),
    "a truth value": (changed("state/w", crc32=True), r"'state/w' has sizes that are not integers of at least 0"),
    "too many dimensions": (changed("state/w", shape=[1] * 99), r"or more than 64 dimensions"),
    "a huge size": (changed("state/w", num_bytes=1 << 60), r"cannot be right: .* begins at byte|should have \d{19}"),
    "a huge dimension": (
        changed("state/w", shape=[1 << 60, 3]),
        r"cannot be float64\[1152921504606846976, 3\]: that has \d+ bytes, but",
    ),
    "beyond the end": (changed("state/w", offset=10**6), r"'state/w' begins at byte 1000000, but the arrays before it end at \d+"),
    "overlapping": (swapped, r"begins at byte \d+, but the arrays before it end at 0"),
    "huge beside nothing": (changed("state/none", shape=[0, 1 << 62, 1 << 62]), r"'state/none' cannot have the shape"),
    "two of one name": (changed("state/w", key="v"), r"there are two with the name 'v'"),
    "no arrays": (lambda m: m.update(arrays={}), r"it has no list of arrays"),
    "no meta": (lambda m: m.update(meta=[]), r"its meta is a list"),
    "an endless counter": (
        in_meta("save_counter", value=float("inf")),
        r"'save_counter' in its meta is inf, not a number of checkp",
    ),
    "no time": (in_meta("saved_at", value=float("nan")), r"'saved_at' in its meta is nan, not a time"),
    "many extras": (in_meta("num_extra_arrays", value=1 << 60), r"says that there are 1152921504606846976 extra arrays, but has 0"),
    "no number": (
        in_meta("numbers", "state/step", value={"type": "int", "value": "7_0"}),
        r"'numbers' in its meta is .*not a JSON",
    ),
    "another type": (in_meta("numbers", "state/step", value={"type": "eval", "value": "7"}), r"'numbers' in its meta is"),
    "a long number": (in_meta("numbers", "state/step", value={"type": "int", "value": "9" * 9999}), r"'numbers' in its meta is"),
    "a number and an array": (
        in_meta("numbers", "v", value={"type": "int", "value": "7"}),
        r"it has two values with the same name",
    ),
    "an unknown generator": (
        in_meta("random_keys", "key", value="none"),
        r"'key' is damaged: uint32\[2\] is not a random key of the kind",
    ),
    "a key without array": (in_meta("random_keys", "gone", value="threefry2x32"), r"the random key 'gone' has no array"),
    "copies of nothing": (in_meta("copies", "gone", value="SUM"), r"the copies of 'gone' \('SUM'\) are not a stack of its shape"),
    "descriptions": (in_meta("objects", value={"v": 3}), r"'objects' in its meta is \{'v': 3\}, not a JSON object of JSON objects"),
    "no state": (in_meta("states", "at", value=[1]), r"'at' \(Position\) did not accept its state from the checkpoint: TypeError"),
    "no base64": (
        in_meta("states", "at", value={"base64": 3}),
        r"'at' \(Position\) did not accept its state from the checkpoint: ",
    ),
}


@pytest.mark.parametrize(("change", "message"), HOSTILE.values(), ids=HOSTILE)
def test_what_no_checkpoint_says_is_refused(
    saved: Path, planted: Callable[[Any], Path], change: Callable[[Any], None], message: str
) -> None:
    manifest = manifest_of(saved)
    change(manifest)
    with pytest.raises(CheckpointError, match=message):
        checkpoint().restore(planted(manifest))


def test_a_truth_value_is_0_or_1(saved: Path, tmp_path: Path) -> None:
    manifest = manifest_of(saved)
    flags = record(manifest, "state/flags")
    arrays = bytearray((saved / "arrays.bin").read_bytes())
    arrays[flags["offset"] : flags["offset"] + 2] = b"\x01\x02"
    flags["crc32"] = zlib.crc32(b"\x01\x02")
    with pytest.raises(DamagedCheckpointError, match=r"'state/flags' is of dtype bool, but has a byte that is neither 0 nor 1"):
        checkpoint().restore(plant(saved, tmp_path / "ckpt", manifest, bytes(arrays)))


@pytest.mark.parametrize("depth", [300, 900, 100_000])
@pytest.mark.parametrize("brackets", ["[]", '{"a":}'])
def test_deep_nesting_is_refused(saved: Path, tmp_path: Path, depth: int, brackets: str) -> None:
    folder = tmp_path / "ckpt-1"
    folder.mkdir()
    (folder / "arrays.bin").write_bytes(b"")
    opening, closing = (brackets[0], brackets[1]) if brackets == "[]" else ('{"a":', "}")
    (folder / "manifest.json").write_text('{"checksum": 1, "meta": ' + opening * depth + "1" + closing * depth + "}")
    for look in (replicant.list_variables, checkpoint().restore, _storage.verify):
        with pytest.raises(
            DamagedCheckpointError, match=r"manifest\.json is damaged: (its values are nested too deeply|its checksum|it is)"
        ):
            look(folder)
    with pytest.warns(UserWarning, match="Skipped the checkpoint"):
        assert replicant.latest_checkpoint(tmp_path) is None


@pytest.mark.parametrize("name", ["manifest.json", "arrays.bin"])
def test_a_pipe_in_the_place_of_a_file_does_not_hang(saved: Path, planted: Callable[[Any], Path], name: str) -> None:
    folder = planted(manifest_of(saved))
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(DamagedCheckpointError, match=r"not a regular file|arrays\.bin is damaged: it has 0 bytes"):
        checkpoint().restore(folder)


def test_a_manifest_that_is_too_large_is_not_read(saved: Path, planted: Callable[[Any], Path]) -> None:
    folder = planted(manifest_of(saved))
    os.truncate(folder / "manifest.json", 1 << 40)  # without taking a byte of the disk
    with pytest.raises(DamagedCheckpointError, match=r"it has 1099511627776 bytes, but a manifest has at most"):
        checkpoint().restore(folder)


def test_a_number_with_zeros_before_it_is_no_checkpoint_of_the_manager(saved: Path, tmp_path: Path) -> None:
    plant(saved, tmp_path / "ckpt-007", manifest_of(saved))
    with replicant.CheckpointManager(checkpoint(), tmp_path, 1) as manager:
        assert manager.checkpoints == []
        assert manager.restore_or_initialize() is None
        manager.save()
    assert (tmp_path / "ckpt-007" / "manifest.json").exists()


@pytest.mark.parametrize("change", [HOSTILE[name][0] for name in ("negative sizes", "NaN", "no time", "many extras", "no meta")])
def test_a_manager_passes_over_what_was_planted(saved: Path, tmp_path: Path, change: Callable[[Any], None]) -> None:
    with replicant.CheckpointManager(checkpoint(), tmp_path, 3) as manager:
        whole = manager.save()
    manifest = manifest_of(saved)
    change(manifest)
    plant(saved, tmp_path / "ckpt-2", manifest)
    with replicant.CheckpointManager(checkpoint(), tmp_path, 3) as manager:
        with pytest.warns(UserWarning, match=r"Skipped the checkpoint .*ckpt-2"):
            assert manager.restore_or_initialize() == whole
        with pytest.warns(UserWarning, match=r"Skipped the checkpoint .*ckpt-2"):
            assert replicant.latest_checkpoint(tmp_path) == whole


def overcommit() -> bool:
    """Whether this system promises memory that it does not have."""
    file = Path("/proc/sys/vm/overcommit_memory")
    return not file.exists() or file.read_text().strip() == "1"


@pytest.mark.skipif(overcommit(), reason="the system would let us have the memory, and then read for hours")
def test_more_than_the_memory_is_an_error(saved: Path, tmp_path: Path) -> None:
    size = 1 << 43
    manifest = manifest_of(saved)
    manifest["arrays"] = [{"key": "v", "dtype": "uint8", "shape": [size], "offset": 0, "num_bytes": size, "crc32": 0}]
    manifest["meta"] |= {"copies": {}, "random_keys": {}}
    folder = plant(saved, tmp_path / "ckpt-1", manifest, b"")
    os.truncate(folder / "arrays.bin", size)  # without taking a byte of the disk
    with pytest.raises(CheckpointError, match=rf"there is not enough memory for 'v', which has {size} bytes"):
        replicant.load_variable(folder, "v")
    with pytest.raises(CheckpointError, match=rf"v: stored uint8\[{size}\], found float32\[2\]"):
        checkpoint().restore(folder)


@pytest.mark.parametrize(
    ("kind", "description", "message"),
    [
        ("model", {"num_weights": "2", "build_config": None}, r"'model' has '2' weights, which is not a number"),
        ("optimizer", {"trainable_variables": 3}, r"'optimizer' was saved for 3, which is not a list of names"),
        ("optimizer", {"trainable_variables": [3]}, r"'optimizer' was saved for \[3\], which is not a list of names"),
    ],
)
def test_what_is_said_about_kerass_objects_is_checked(tmp_path: Path, kind: str, description: Any, message: str) -> None:
    def objects() -> dict[str, Any]:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD()
        optimizer.build(model.trainable_variables)
        return {"model": model, "optimizer": optimizer}

    whole = Path(replicant.Checkpoint(**objects()).save(tmp_path / "ckpt"))
    manifest = manifest_of(whole)
    manifest["meta"]["objects"][kind] = description
    with pytest.raises(CheckpointError, match=message):
        replicant.Checkpoint(**objects()).restore(plant(whole, tmp_path / "forged", manifest))


def test_the_number_of_calls_is_a_number(tmp_path: Path) -> None:
    config = replicant.TerminationConfig(exit_fn=lambda: None)
    with replicant.PreemptionCheckpointHandler(replicant.Checkpoint(x=1), str(tmp_path), config) as handler:
        path = Path(handler._manager.checkpoint.save(tmp_path / "whole"))
        manifest = manifest_of(path)
        manifest["meta"]["states"]["preemption_handler"] = -1
        with pytest.raises(
            CheckpointError, match=r"did not accept its state from the checkpoint: ArgumentError: -1 is not a number of calls"
        ):
            handler._manager.checkpoint.restore(plant(path, tmp_path / "forged", manifest))


# Anything, anywhere

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([-1, 0, 1, 2, 8, 1 << 31, 1 << 62, 1 << 63, 1 << 200, -(1 << 63)]),
    st.sampled_from([float("nan"), float("inf"), -0.5, 1e308]),
    st.sampled_from(["", "v", "state/w", "object", "O", "float32", "V8", "../../x", "/etc/passwd", "\udcff", "\x00", "9" * 5000]),
    st.lists(st.integers(-2, 1 << 40), max_size=3),
    st.sampled_from([{}, {"a": {}}, {"base64": "AA=="}, {"type": "int", "value": "1"}, [[[]]]]),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to everything in a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inside for place in places(item, (*path, key)))]


@settings(max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.long
def test_whatever_a_manifest_says_it_is_restored_as_it_was_or_refused(saved: Path, tmp_path: Path, data: st.DataObject) -> None:
    manifest = manifest_of(saved)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from([place for place in places(manifest) if place]))
        target: Any = manifest
        for key in place[:-1]:
            target = target[key]
        what = data.draw(st.sampled_from(["replace", "delete", "rename", "repeat"]))
        if what == "replace":
            target[place[-1]] = data.draw(VALUES)
        elif what == "delete":
            del target[place[-1]]
        elif what == "rename" and isinstance(target, dict):
            target[data.draw(st.sampled_from(["v", "state/w", "state/w/.copies", ".extra/0", "objects"]))] = target.pop(place[-1])
        elif isinstance(target, list):
            target.append(copy.deepcopy(target[place[-1]]))
    look_at(plant(saved, tmp_path / "ckpt-1", manifest))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.long
def test_whatever_the_bytes_are_it_is_restored_as_it_was_or_refused(saved: Path, tmp_path: Path, data: st.DataObject) -> None:
    folder = plant(saved, tmp_path / "ckpt-1", manifest_of(saved))
    file = folder / data.draw(st.sampled_from(["manifest.json", "arrays.bin"]))
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(content) - 1))
        content[position : position + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    file.write_bytes(content)
    look_at(folder)


def look_at(folder: Path) -> None:
    """Everything that reads a checkpoint gives what fits the objects, or refuses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for look in (
            replicant.list_variables,
            lambda path: replicant.load_variable(path, "v"),
            _storage.verify,
            lambda path: replicant.CheckpointManager(checkpoint(), path.parent, 1, best_metric="loss").restore_or_initialize(),
        ):
            with contextlib.suppress(CheckpointError):
                look(folder)
        with contextlib.suppress(CheckpointError):
            assert replicant.latest_checkpoint(folder.parent) in (None, str(folder))
        mine = checkpoint()
        try:
            mine.restore(folder).expect_partial()
        except CheckpointError:
            return
    assert mine.v.dtype == jnp.float32
    assert mine.v.shape == (2,)
    assert [(name, type(value)) for name, value in mine.state.items()] == [
        (name, type(value)) for name, value in checkpoint().state.items()
    ]
    assert (mine.state["w"].dtype, mine.state["w"].shape) == (np.float64, (2, 3))


@settings(max_examples=200)
@given(
    st.recursive(
        st.one_of(VALUES, st.sampled_from(["array", "scalar", "dict", "list", "tuple"])),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["array", "scalar", "dict", "list", "tuple", "x"]), inner)
        ),
        max_leaves=6,
    )
)
def test_whatever_was_packed_is_unpacked_or_refused(packed: Any) -> None:
    try:
        value = unpack(packed, [np.ones(2)])
    except DamagedCheckpointError:
        return
    pack(value, [])  # it is something that could have been packed
