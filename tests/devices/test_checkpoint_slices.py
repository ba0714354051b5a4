"""Checkpoints of variables in slices: each slice is written once, and any devices read what they need of it."""

import json
import math
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import jax
import keras
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import replicant
from replicant.checkpoint.format import _lazy_array, _storage
from replicant.checkpoint.format._lazy_array import stored_arrays
from replicant.checkpoint.format._parts import Parts
from replicant.checkpoint.values import _restore
from replicant.errors import CheckpointError, DamagedCheckpointError
from replicant.storage._path import RemotePath
from replicant.storage._write import WritableStore

WAYS = {
    "2 slices": lambda: replicant.FullyShardedStrategy(["cpu:0", "cpu:1"], min_size=8),
    "3 slices": lambda: replicant.FullyShardedStrategy([f"cpu:{i}" for i in range(3)], min_size=8),
    "4 slices": lambda: replicant.FullyShardedStrategy([f"cpu:{i}" for i in range(4)], min_size=8),
    "mirrored": lambda: replicant.MirroredStrategy(["cpu:0", "cpu:1"]),
    "sliced slots": lambda: replicant.MirroredStrategy([f"cpu:{i}" for i in range(4)], shard_optimizer_state=True),
    "one device": lambda: replicant.OneDeviceStrategy("cpu:0"),
}


def made(way: str) -> tuple[keras.Model, replicant.Checkpoint]:
    """Return a model with random weights and optimizer state, and its checkpoint."""
    draw = np.random.default_rng(1)
    with WAYS[way]().scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(12), keras.layers.Dense(4)])
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
    for variable in values_of(model):
        if variable.ndim:
            variable.assign(draw.normal(size=variable.shape).astype("float32"))
    return model, replicant.Checkpoint(model=model, optimizer=model.optimizer)


def values_of(model: Any) -> list[Any]:
    return [*model.variables, *model.optimizer.variables]


def zero(model: Any) -> None:
    for variable in values_of(model):
        variable.assign(np.zeros(variable.shape, variable.dtype))


def manifest_of(path: str) -> Any:
    return json.loads((Path(path) / "manifest.json").read_text())


def edit(path: str, change: Callable[[Any], None]) -> None:
    """Change what the manifest says, with a checksum that fits."""
    body = manifest_of(path)
    change(body)
    del body["checksum"]
    body["checksum"] = _storage._checksum(body)
    (Path(path) / "manifest.json").write_bytes(_storage._dump(body))


def flip(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 0x10
    file.write_bytes(data)


def test_each_slice_is_written_once_by_its_device(tmp_path: Path) -> None:
    model, checkpoint = made("4 slices")
    path = checkpoint.save(tmp_path / "ckpt")
    manifest = manifest_of(path)
    assert manifest["version"] == 3
    assert sorted(file.name for file in Path(path).iterdir()) == [
        "arrays.bin", "manifest.json", "slices-0.bin", "slices-1.bin", "slices-2.bin", "slices-3.bin",
    ]  # fmt: skip
    kernel = np.asarray(model.weights[0].value)
    first = manifest["sliced"][0]
    assert (first["key"], first["shape"]) == ("model/weights/0.kernel", [6, 12])
    for part, each in enumerate(first["slices"]):
        assert (each["start"], each["sizes"], each["part"], len(each["crc32"])) == ([0, 3 * part], [6, 3], part, 1)
        data = (Path(path) / f"slices-{part}.bin").read_bytes()[each["offset"] : each["offset"] + 6 * 3 * 4]
        assert data == kernel[:, 3 * part : 3 * part + 3].tobytes()
    in_slices = sum(math.prod(record["shape"]) * 4 for record in manifest["sliced"])
    assert sum(part["num_bytes"] for part in manifest["parts"]) == in_slices
    assert {record["key"] for record in manifest["sliced"]}.isdisjoint(record["key"] for record in manifest["arrays"])


def test_without_slices_the_format_is_that_of_before(tmp_path: Path) -> None:
    _, checkpoint = made("mirrored")
    path = checkpoint.save(tmp_path / "ckpt")
    assert manifest_of(path).keys() == {"format", "version", "meta", "arrays", "checksum"}
    assert manifest_of(path)["version"] == 2


@pytest.mark.parametrize("after", WAYS)
@pytest.mark.parametrize("before", ["4 slices", "sliced slots", "mirrored"])
@pytest.mark.cases("4 slices-2 slices", "4 slices-3 slices", "4 slices-one device", "mirrored-4 slices", "sliced slots-mirrored")
@pytest.mark.long_cases("4 slices-2 slices")
@pytest.mark.long_cases("4 slices-3 slices")
def test_any_devices_go_on(tmp_path: Path, before: str, after: str) -> None:
    model, checkpoint = made(before)
    path = checkpoint.save(tmp_path / "ckpt")
    expected = [np.asarray(variable.value) for variable in values_of(model)]
    other, again = made(after)
    zero(other)
    again.restore(path).assert_consumed()
    for variable, value in zip(values_of(other), expected, strict=True):
        np.testing.assert_array_equal(np.asarray(variable.value), value)
    rows = np.ones((8, 6), "float32")
    for each in (model, other):
        each.fit(rows, np.ones((8, 4), "float32"), 4, verbose=0)
    for variable, value in zip(values_of(other), values_of(model), strict=True):
        np.testing.assert_allclose(np.asarray(variable.value), np.asarray(value.value), rtol=1e-5, atol=1e-6)


def test_what_is_restored_lies_in_slices(tmp_path: Path) -> None:
    _, checkpoint = made("mirrored")
    path = checkpoint.save(tmp_path / "ckpt")
    model, again = made("4 slices")
    again.restore(path)
    assert [shard.data.shape for shard in model.weights[0].value.addressable_shards] == [(6, 3)] * 4


def test_a_checkpoint_in_the_background_holds_the_values_of_its_time(tmp_path: Path) -> None:
    model, checkpoint = made("4 slices")
    expected = [np.asarray(variable.value) for variable in values_of(model)]
    path = checkpoint.save(tmp_path / "ckpt", replicant.CheckpointOptions(enable_async=True))
    rows = np.ones((8, 6), "float32")
    model.fit(rows, np.ones((8, 4), "float32"), 4, epochs=2, verbose=0)
    checkpoint.restore(path).assert_consumed()
    for variable, value in zip(values_of(model), expected, strict=True):
        np.testing.assert_array_equal(np.asarray(variable.value), value)


def test_tools_look_inside(tmp_path: Path) -> None:
    model, checkpoint = made("4 slices")
    path = checkpoint.save(tmp_path / "ckpt")
    assert ("model/weights/0.kernel", (6, 12)) in replicant.list_variables(path)
    np.testing.assert_array_equal(replicant.load_variable(path, "model/weights/0.kernel"), np.asarray(model.weights[0].value))


def test_saving_needs_little_memory_on_the_host(tmp_path: Path) -> None:
    with WAYS["4 slices"]().scope():
        variables = [replicant.Variable(np.zeros((1024, 1024), "float32")) for _ in range(4)]  # 4 MiB each
    checkpoint = replicant.Checkpoint(variables=variables)
    tracemalloc.start()
    try:
        path = checkpoint.save(tmp_path / "ckpt")
        saved = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(part["num_bytes"] for part in manifest_of(path)["parts"]) == 16 << 20
    assert saved < 1 << 20


# Index ranges along several axes, some of which several devices have


def test_slices_along_several_axes(tmp_path: Path) -> None:
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 2, 2), ("replica", "model", "rest"))
    value = np.arange(6 * 8, dtype="float32").reshape(6, 8)
    arrays = {
        "both": jax.device_put(value, NamedSharding(mesh, PartitionSpec("model", "replica"))),
        "three": jax.device_put(value, NamedSharding(mesh, PartitionSpec("model", ("replica", "rest")))),
        "one": jax.device_put(value, NamedSharding(mesh, PartitionSpec(None, "model"))),
    }
    _storage.write(tmp_path / "ckpt", {}, {}, Parts(arrays, fetch=False))
    manifest = manifest_of(str(tmp_path / "ckpt"))
    assert [len(record["slices"]) for record in manifest["sliced"]] == [4, 8, 2]
    assert sum(part["num_bytes"] for part in manifest["parts"]) == 3 * value.nbytes
    for array in _storage.read(tmp_path / "ckpt")[1].values():
        np.testing.assert_array_equal(array, value)
    box = ((1, 5), (3, 7))
    for array in stored_arrays(tmp_path / "ckpt", _storage.read_manifest(tmp_path / "ckpt")).values():
        np.testing.assert_array_equal(array.read_boxes([box])[box], value[1:5, 3:7])


# Damage


def test_only_the_bytes_that_are_needed_are_read_and_checked(tmp_path: Path) -> None:
    with WAYS["2 slices"]().scope():
        variable = replicant.Variable(np.arange(1 << 20, dtype="float32").reshape(1 << 10, 1 << 10))  # slices of 2 MiB, in 2 blocks
    path = replicant.Checkpoint(x=variable).save(tmp_path / "ckpt")
    flip(Path(path) / "slices-1.bin", (1 << 20) + 5)  # in rows 768 to 1024
    stored = stored_arrays(Path(path), _storage.read_manifest(Path(path)))["x"]
    for first, last in ((0, 512), (512, 768), (100, 700)):
        box = ((first, last), (0, 1 << 10))
        np.testing.assert_array_equal(stored.read_boxes([box])[box], np.asarray(variable.value())[first:last])
    for box in (((700, 769), (0, 1)), stored.everything):
        with pytest.raises(
            DamagedCheckpointError, match=r"slices-1\.bin is damaged: 'x' \(bytes 1048576 to 2097152\) has the checksum"
        ):
            stored.read_boxes([box])


def test_blocks_side_by_side_take_one_request_to_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(4 << 20, dtype="float32").reshape(4 << 10, 1 << 10)  # slices of 8 MiB, in 8 blocks of 256 rows
    with WAYS["2 slices"]().scope():
        variable = replicant.Variable(values)
    path = RemotePath(replicant.Checkpoint(x=variable).write("memory://slices/ckpt"))
    stored = stored_arrays(path, _storage.read_manifest(path))["x"]
    got: list[tuple[int, int]] = []
    get = WritableStore.get

    def noting(self: Any, start: int, stop: int) -> bytes:
        got.append((start >> 20, stop >> 20))
        return get(self, start, stop)

    monkeypatch.setattr(WritableStore, "get", noting)
    np.testing.assert_array_equal(stored.read(), values)
    assert got == [(0, 8), (0, 8)]
    got.clear()
    parts = [((0, 270), (0, 1)), ((800, 1100), (5, 7))]  # blocks 0 and 1, and blocks 3 and 4
    for box, found in stored.read_boxes(parts).items():
        np.testing.assert_array_equal(found, values[tuple(slice(*part) for part in box)])
    assert got == [(0, 2), (3, 5)]
    monkeypatch.setattr(_lazy_array, "_RANGE_OF_STORE", 3 << 20)
    got.clear()
    np.testing.assert_array_equal(stored.read_boxes([((0, 2048), (0, 1))])[(0, 2048), (0, 1)], values[:2048, :1])
    assert got == [(0, 3), (3, 6), (6, 8)]
    fsspec.filesystem("memory").rm("/slices", recursive=True)


DAMAGE = {
    "a bit": (
        lambda path: flip(path / "slices-2.bin", 5),
        r"slices-2\.bin is damaged: 'model/weights/0\.kernel' \(bytes 0 to 72\)",
    ),
    "no part": (lambda path: (path / "slices-2.bin").unlink(), r"slices-2\.bin is missing .*; it should have 396 bytes"),
    "a short part": (
        lambda path: (path / "slices-2.bin").write_bytes(b"1"),
        r"slices-2\.bin is damaged: it has 1 bytes, but should have 396",
    ),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("after", ["4 slices", "one device"])
def test_damage_is_found_before_anything_changes(tmp_path: Path, damage: Any, message: str, after: str) -> None:
    _, checkpoint = made("4 slices")
    first, path = (checkpoint.save(tmp_path / "ckpt") for _ in range(2))
    damage(Path(path))
    other, again = made(after)
    zero(other)
    with pytest.raises(DamagedCheckpointError, match=message):
        again.restore(path)
    assert all(not np.asarray(variable.value).any() for variable in values_of(other))
    with pytest.warns(UserWarning, match=message):
        assert replicant.latest_checkpoint(tmp_path) == first
    with pytest.warns(UserWarning, match=message), replicant.CheckpointManager(again, tmp_path, 5) as manager:
        assert manager.restore_or_initialize() == first
    assert np.asarray(other.weights[0].value).all()


def vanish_before(number: int, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delete a checkpoint, as another program's manager might, when it was checked and `number` variables have their values."""
    assign_slices, count = _restore.assign_slices, iter(range(1000))

    def assign(*args: Any) -> None:
        if next(count) == number:
            shutil.rmtree(path)
        assign_slices(*args)

    monkeypatch.setattr(_restore, "assign_slices", assign)


def test_what_vanishes_while_it_is_assigned_is_no_damage_that_a_manager_passes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, checkpoint = made("4 slices")
    first, path = (checkpoint.save(tmp_path / "ckpt") for _ in range(2))
    expected = np.asarray(model.weights[2].value)
    zero(model)
    vanish_before(1, path, monkeypatch)
    manager = replicant.CheckpointManager(checkpoint, tmp_path, 5, init_fn=lambda: pytest.fail("init_fn was called"))
    told = (
        rf"The checkpoint {path} was restored only in part: 1 of \d+ values have changed\. Restore again, from this checkpoint or "
        r"another one, before you go on\. .*slices-\d\.bin could not be read"
    )
    with manager, pytest.raises(CheckpointError, match=told) as caught:
        manager.restore_or_initialize()
    assert not isinstance(caught.value, DamagedCheckpointError)
    assert [np.asarray(variable.value).any() for variable in model.weights[:3]] == [True, False, False]
    checkpoint.restore(first).assert_consumed()
    np.testing.assert_array_equal(np.asarray(model.weights[2].value), expected)


def test_what_vanishes_before_anything_changes_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, checkpoint = made("4 slices")
    first, path = (checkpoint.save(tmp_path / "ckpt") for _ in range(2))
    zero(model)
    vanish_before(0, path, monkeypatch)
    with pytest.warns(UserWarning, match="could not be read"), replicant.CheckpointManager(checkpoint, tmp_path, 5) as manager:
        assert manager.restore_or_initialize() == first
    assert np.asarray(model.weights[0].value).all()


@pytest.mark.parametrize("late", [False, True], ids=["while it is checked", "while it is assigned"])
def test_a_store_that_goes_away_is_an_error_of_the_checkpoint(monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    with WAYS["4 slices"]().scope():
        model = keras.Sequential([keras.Input((512,)), keras.layers.Dense(1024), keras.layers.Dense(512)])  # two of 2 MB
    checkpoint = replicant.Checkpoint(model=model)
    for variable in model.weights:
        variable.assign(np.ones(variable.shape))
    path = checkpoint.save("memory://away/ckpt")
    for variable in model.weights:
        variable.assign(np.zeros(variable.shape))
    first, allowed, get = 0, 8 if late else 1, MemoryFileSystem.cat_file

    def away_soon(self: Any, name: str, **options: Any) -> bytes:
        """Serve the first array's four slices once or twice, for the check and for the assignment, and then nothing more."""
        nonlocal first
        if "slices-" in name:
            if first >= allowed:
                raise ConnectionError("the store is away")
            first += options["start"] == 0
        return get(self, name, **options)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", away_soon)
    monkeypatch.setenv("REPLICANT_REMOTE_DEADLINE", "0.3")
    with pytest.raises(CheckpointError, match=r"slices-\d\.bin(?s:.*)ConnectionError: the store is away") as caught:
        checkpoint.restore(path)
    assert ("restored only in part" in str(caught.value)) == late
    assert any(np.asarray(variable.value).any() for variable in model.weights) == late
    fsspec.filesystem("memory").rm("/away", recursive=True)


def of_kernel(body: Any) -> Any:
    return body["sliced"][0]["slices"]


FORGED: dict[str, tuple[Callable[[Any], None], str]] = {
    "no parts": (lambda body: body.pop("parts"), "it has no list of parts or of arrays in slices"),
    "another file": (lambda body: body["parts"][0].update(number="../x"), "it has no list of parts or of arrays in slices"),
    "one number twice": (lambda body: body["parts"][1].update(number=0), "two parts have the same number"),
    "a key twice": (lambda body: body["arrays"][0].update(key="model/weights/0.kernel"), "there are two with the name"),
    "more fields": (lambda body: body["sliced"][0].update(more=1), "it is not described by dtype, key, shape, slices"),
    "no shape": (lambda body: body["sliced"][0].update(shape=[]), "has no shape that could be cut"),
    "huge shape": (lambda body: body["sliced"][0].update(shape=[6, 1 << 60]), "do not have each of its elements once"),
    "no slices": (lambda body: body["sliced"][0].update(slices=[]), "do not have each of its elements once"),
    "no records": (lambda body: body["sliced"][0].update(slices=[1]), "are not described by crc32, offset, part, sizes, start"),
    "a negative start": (lambda body: of_kernel(body)[0].update(start=[0, -3]), "sizes that are not integers of at least 0"),
    "another rank": (lambda body: of_kernel(body)[0].update(start=[0]), "has another number of axes than the array"),
    "no checksum": (lambda body: of_kernel(body)[0].update(crc32=[]), "has 0 checksums, but 1 blocks"),
    "an unknown part": (lambda body: of_kernel(body)[0].update(part=9), "is in no part"),
    "overlapping": (lambda body: of_kernel(body)[0].update(start=[0, 3]), "do not have each of its elements once"),
    "the same bytes": (lambda body: of_kernel(body)[0].update(part=1), "do not follow each other up to byte 396"),
    "beyond the end": (lambda body: of_kernel(body)[0].update(offset=1 << 40), "do not follow each other up to byte 396"),
    "an object": (lambda body: body["sliced"][0].update(dtype="object"), "has the dtype 'object', which no array in a checkpo"),
    "an extra array": (lambda body: body["sliced"][0].update(key=".extra/0"), "extra arrays"),
    "copies": (lambda body: body["sliced"][0].update(key="x/.copies"), "are not the copies of any variable"),
    "a random key": (
        lambda body: body["meta"]["random_keys"].update({"model/weights/0.kernel": "threefry2x32"}),
        "is in slices, but only variables with one value are",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes]:
    """A checkpoint and its manifest."""
    path = made("4 slices")[1].save(tmp_path_factory.mktemp("saved") / "ckpt")
    return path, (Path(path) / "manifest.json").read_bytes()


@pytest.mark.parametrize(("forge", "message"), FORGED.values(), ids=FORGED)
def test_what_cannot_be_true_is_refused(saved: tuple[str, bytes], forge: Callable[[Any], None], message: str) -> None:
    path, text = saved
    try:
        edit(path, forge)
        with pytest.raises(CheckpointError, match=message) as caught:
            replicant.list_variables(path)
        assert isinstance(caught.value, DamagedCheckpointError)
    finally:
        (Path(path) / "manifest.json").write_bytes(text)
