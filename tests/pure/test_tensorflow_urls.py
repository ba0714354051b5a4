"""TensorFlow's checkpoints at URLs: the same values as on a disk, and only the bytes that are asked for."""

import shutil
from pathlib import Path

import fsspec
import numpy as np
import pytest

import replicant
from replicant import errors
from replicant.checkpoint.tensorflow import checkpoint_state, open_checkpoint

from . import _tensorflow_files as tf

URL = "memory://models/run"
FILES = Path(__file__).parents[1] / "tensorflow_files" / "bundles"


@pytest.fixture
def system():
    system = fsspec.filesystem("memory")
    yield system
    if system.exists("/models"):
        system.rm("/models", recursive=True)


def upload(system, folder):
    for file in sorted(Path(folder).rglob("*")):
        if file.is_file():
            system.pipe(f"/models/run/{file.relative_to(folder)}", file.read_bytes())


@pytest.fixture
def fetched(system, monkeypatch):
    """The names and sizes of all ranges that were fetched."""
    found, whole = [], type(system).cat_file

    def cat_file(self, path, *args, **kwargs):
        data = whole(self, path, *args, **kwargs)
        found.append((path.rpartition("/")[2], len(data)))
        return data

    monkeypatch.setattr(type(system), "cat_file", cat_file)
    return found


def told(array):
    return array.dtype, array.shape, repr(array.tolist())


@pytest.mark.parametrize("folder", ["state/absolute", "v1/plain", "v1/format_v1", "dist/ps", "saved/module/sm", "variables/dtypes"])
def test_values_are_those_of_the_disk(system, folder):
    upload(system, FILES / folder)
    prefix = {"dist/ps": "/dense-1", "variables/dtypes": "/all"}.get(folder, "")
    here, there = open_checkpoint(f"{FILES / folder}{prefix}"), open_checkpoint(f"{URL}{prefix}")
    assert there.keys() == here.keys()
    assert there.path.removeprefix(URL) == here.path.removeprefix(str(FILES / folder))
    for key in here.keys():  # noqa: SIM118
        assert told(there.read(key)) == told(here.read(key))
        part = tuple(slice(0, size // 2) for size in here.shape(key))
        assert told(there.read_part(key, part)) == told(here.read_part(key, part))


def test_one_of_many_tensors_takes_its_bytes_alone(system, tmp_path, fetched):
    large = np.arange(6 << 18, dtype=np.float64)  # 12 MiB
    values = {"a": large, "b": np.arange(10), "c": large, "d": np.arange(20)}
    tf.write_bundle(tmp_path / "ckpt", values)
    upload(system, tmp_path)
    del fetched[:]
    assert replicant.load_variable(f"{URL}/ckpt", "d").tolist() == list(range(20))
    assert sum(size for _, size in fetched) < 2 << 20
    del fetched[:]
    reader = replicant.load_checkpoint(f"{URL}/ckpt")
    assert reader.get_variable_to_shape_map()["c"] == [6 << 18]
    assert {name for name, _ in fetched} == {"ckpt.index"}
    del fetched[:]
    assert reader.get_tensor("a").tobytes() == large.tobytes()
    assert sum(size for _, size in fetched) == large.nbytes


def test_a_file_of_the_first_saver_is_read_in_blocks(system, tmp_path, fetched):
    arrays = {name: np.full(1 << 19, i, np.float32) for i, name in enumerate("abcdef")}  # 2 MiB each, 12 in all
    metas = [(name, 1, array.shape, [((0, None),)]) for name, array in arrays.items()]
    records = [tf.saver_slice(name, ((0, None),), tf.message((5, array.tobytes()))) for name, array in arrays.items()]
    (tmp_path / "model.ckpt").write_bytes(tf.table(sorted([(b"", tf.saver_meta(*metas)), *records]), per_block=1))
    upload(system, tmp_path)
    del fetched[:]
    assert replicant.load_variable(f"{URL}/model.ckpt", "e").tolist() == [4.0] * (1 << 19)
    assert sum(size for _, size in fetched) < 6 << 20


def test_what_is_missing_and_a_store_that_does_not_answer(system, tmp_path, monkeypatch):
    tf.write_bundle(tmp_path / "ckpt", {"x": np.arange(4)})
    upload(system, tmp_path)
    assert open_checkpoint(f"{URL}/other") is None
    assert open_checkpoint("memory://models") is None
    with pytest.raises(
        errors.CheckpointError, match=r"There is no checkpoint at memory://models/run/other\. .* memory://models/run/ckpt\."
    ):
        replicant.load_checkpoint(f"{URL}/other")
    bundle = open_checkpoint(f"{URL}/ckpt")
    system.rm("/models/run/ckpt.data-00000-of-00001")
    with pytest.raises(errors.DamagedCheckpointError, match=r"memory://.*data-00000-of-00001: the bytes of 'x' could not be read"):
        bundle.read("x")
    monkeypatch.setenv("REPLICANT_REMOTE_DEADLINE", "0.2")

    def failing(*_, **__):
        raise ConnectionError("the store is away")

    monkeypatch.setattr(type(system), "info", failing)
    for look in (open_checkpoint, replicant.list_variables):
        with pytest.raises(errors.CheckpointError, match="the store is away") as raised:
            look(f"{URL}/ckpt")
        assert not isinstance(raised.value, errors.DamagedCheckpointError)


def test_a_state_at_a_url_names_urls(system, tmp_path):
    shutil.copytree(FILES / "state/absolute", tmp_path / "a")
    upload(system, tmp_path / "a")
    assert checkpoint_state(replicant.checkpoint.folders._locations.place_of("", URL)).newest == f"{URL}/ck pt-2"
    system.pipe("/models/run/checkpoint", f'model_checkpoint_path: "{URL}/ck pt-1"'.encode())
    assert open_checkpoint(URL).path == f"{URL}/ck pt-1"
