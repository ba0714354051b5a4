"""Files of weights by name: what each kind holds, and files that claim more than they have or lead elsewhere."""

import importlib
import shutil
import struct
import sys
import zipfile
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
import pytest

import replicant
from replicant.checkpoint.weights import open_weights, write_keras_weights, write_own, write_safetensors
from replicant.errors import CheckpointError, ConfigurationError, DamagedCheckpointError

FILES = Path(__file__).parents[1] / "tensorflow_files" / "weights"
ARRAYS = {"b/w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(3), "half": np.ones(2, ml_dtypes.bfloat16)}


def listed(path):
    with open_weights("path", path) as file:
        return {name: (entry.label, entry.shape, entry.dtype.name) for name, entry in file.entries.items()}


def test_what_files_of_keras_hold():
    assert listed(FILES / "nested.h5") == {
        "inner/dense_3/kernel:0": ("", (6, 5), "float32"),
        "inner/dense_3/bias:0": ("", (5,), "float32"),
        "inner/dense_4/kernel:0": ("", (5, 4), "float32"),
        "inner/dense_4/bias:0": ("", (4,), "float32"),
        "out/out/kernel:0": ("", (4, 2), "float32"),
        "out/out/bias:0": ("", (2,), "float32"),
    }
    layers = {
        name: entry for name, entry in listed(FILES / "sequential_keras3.weights.h5").items() if name.startswith("layers/dense/")
    }
    assert layers == {"layers/dense/vars/0": ("dense/0", (6, 8), "float32"), "layers/dense/vars/1": ("dense/1", (8,), "float32")}
    assert listed(FILES / "sequential.keras")["layers/dense_1/vars/0"] == ("", (8, 3), "float32")


def test_what_checkpoints_of_tensorflow_hold():
    assert listed(FILES / "export_tf_keras")["variables/6"] == ("dense_1/kernel", (8, 3), "float32")
    assert listed(FILES / "functional")["layer_with_weights-0/kernel"] == ("shared/kernel", (4, 5), "float32")
    assert listed(FILES / "v1" / "model_v1.ckpt") == {"dense/kernel": ("", (3, 2), "float32"), "n": ("", (), "int32")}


@pytest.mark.parametrize("kind", ["own", "safetensors", "h5"])
def test_what_is_written_is_read(tmp_path, kind):
    names = {"h5": {name: f"{name}/vars/0" for name in ARRAYS}}.get(kind, {name: name for name in ARRAYS})
    arrays = {names[name]: array for name, array in ARRAYS.items()}
    path = tmp_path / f"a.{kind}"
    {"own": write_own, "safetensors": write_safetensors, "h5": write_keras_weights}[kind](path, arrays)
    with open_weights("path", path) as file:
        for name, array in arrays.items():
            found = file.read(name)
            assert (found.shape, found.dtype) == (array.shape, array.dtype)
            np.testing.assert_array_equal(found, array)
        with pytest.raises(CheckpointError, match=r"no (array|value) 'b/v'"):
            file.read("b/v")


def test_values_of_a_checkpoint_of_objects(tmp_path):
    path = replicant.Checkpoint(w=replicant.Variable([1.0, 2.0]), step=7).save(str(tmp_path / "ckpt"))
    assert listed(path) == {"w": ("", (2,), "float32"), "step": ("", (), "int64")}
    with open_weights("path", path) as file:
        assert file.read("step") == 7


def test_orbax(tmp_path):
    orbax = pytest.importorskip("orbax.checkpoint")
    with orbax.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "a", {"w": {"k": ARRAYS["b/w"]}, "list": [ARRAYS["n"]]})
    assert listed(tmp_path / "a") == {"w/k": ("", (2, 3), "float32"), "list/0": ("", (), "int64")}
    with open_weights("path", tmp_path / "a") as file:
        np.testing.assert_array_equal(file.read("w/k"), ARRAYS["b/w"])
    for each in (tmp_path / "a").rglob("*"):
        if each.is_file() and each.name != "_CHECKPOINT_METADATA":
            each.unlink()
    with pytest.raises(CheckpointError, match="is damaged: Orbax does not find out what is in it"):
        open_weights("path", tmp_path / "a")
    (tmp_path / "a" / "_CHECKPOINT_METADATA").write_text('{"item_handlers": 7, "metrics": "no"}')
    with pytest.raises(CheckpointError, match="Orbax cannot read it"):
        open_weights("path", tmp_path / "a")


def test_names_that_orbax_does_not_tell_apart(tmp_path):
    """Orbax keeps the arrays of {"a": {"b": ...}, "a.b": ...} as one, and returns it twice."""
    orbax = pytest.importorskip("orbax.checkpoint")
    one, two = np.full(2, 1.0, np.float32), np.full(2, 2.0, np.float32)
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "dots", {"a": {"b": one}, "a.b": two, "c": two})
        checkpointer.save(tmp_path / "slashes", {"a": {"b": one}, "a/b": two})
    with open_weights("path", tmp_path / "dots") as file:
        np.testing.assert_array_equal(file.read("c"), two)
        for name in ("a/b", "a.b"):
            with pytest.raises(
                CheckpointError, match=r"'a/b' and 'a\.b' are one array there: Orbax keeps both under the same name"
            ):
                file.read(name)
    with pytest.raises(CheckpointError, match="has two arrays of the name 'a/b' if keys are joined by slashes"):
        open_weights("path", tmp_path / "slashes")


def test_packages_that_are_missing(tmp_path, monkeypatch):
    write_safetensors(tmp_path / "a.safetensors", {"x": np.ones(1)})
    (tmp_path / "orbax").mkdir()
    (tmp_path / "orbax" / "_CHECKPOINT_METADATA").touch()
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    with pytest.raises(ConfigurationError, match=r"need the package safetensors: run pip install 'replicant-jax\[export\]'"):
        open_weights("path", tmp_path / "a.safetensors")
    with pytest.raises(ConfigurationError, match=r"is a checkpoint of Orbax\. To read it, run pip install orbax-checkpoint; or"):
        open_weights("path", tmp_path / "orbax")


# -- HDF5


def made(path, fill):
    with h5py.File(path, "w") as file:
        fill(file)
    return path


def external(file):
    file.create_dataset("x", shape=(4,), dtype="u1", external=[("/etc/hostname", 0, 4)])


def virtual(file):
    layout = h5py.VirtualLayout(shape=(4,), dtype="f4")
    layout[:] = h5py.VirtualSource("other.h5", "x", shape=(4,))
    file.create_virtual_dataset("x", layout)


def deep(file):
    group = file
    for _ in range(70):
        group = group.create_group("g")


@pytest.mark.parametrize(
    ("fill", "message"),
    [
        (lambda file: file.__setitem__("x", h5py.ExternalLink("other.h5", "y")), "'x' is a link, possibly to another file"),
        (lambda file: file.__setitem__("x", h5py.SoftLink("/y")), "'x' is a link, possibly to another file"),
        (lambda file: file.__setitem__("x", file.create_group("y")), "is in the file under a second name as well"),
        (external, "the array 'x' lies in another file"),
        (virtual, "the array 'x' lies in another file"),
        (lambda file: file.create_dataset("x", data="text"), "'x' is not an array of numbers but has the dtype object"),
        (lambda file: file.create_dataset("x", data=h5py.Empty("f4")), "'x' has no values at all"),
        (deep, "groups are more than 64 deep"),
    ],
)
def test_hdf5_files_that_are_refused(tmp_path, fill, message):
    with pytest.raises(CheckpointError, match=message):
        open_weights("path", made(tmp_path / "a.h5", fill))


@pytest.mark.parametrize("options", [{}, {"chunks": (1024, 1024)}, {"chunks": (1024, 1024), "compression": "gzip"}])
def test_arrays_that_are_only_claimed(tmp_path, options):
    """A file of some kilobytes that claims 64 GiB: no memory is taken for them."""
    path = made(tmp_path / "a.h5", lambda file: file.create_dataset("x", shape=(1 << 17, 1 << 17), dtype="f4", **options))
    assert path.stat().st_size < 10_000
    with (
        open_weights("path", path) as file,
        pytest.raises(DamagedCheckpointError, match=r"so 68719476736 bytes, and only 0 are"),
    ):
        file.read("x")


def test_compressed_arrays(tmp_path):
    zeros = np.zeros((512, 512), np.float32)
    path = made(tmp_path / "a.h5", lambda file: file.create_dataset("x", data=zeros, compression="gzip"))
    with open_weights("path", path) as file:
        np.testing.assert_array_equal(file.read("x"), zeros)


def test_the_other_order_of_bytes(tmp_path):
    path = made(tmp_path / "a.h5", lambda file: file.create_dataset("x", data=np.array([1.5, 2.5], ">f4")))
    with open_weights("path", path) as file:
        assert file.entries["x"].dtype == file.read("x").dtype == np.dtype("f4")
        np.testing.assert_array_equal(file.read("x"), [1.5, 2.5])


def test_a_damaged_hdf5_file(tmp_path):
    data, path = (FILES / "nested.h5").read_bytes(), tmp_path / "a.h5"
    path.write_bytes(data[:5000])
    with pytest.raises(DamagedCheckpointError, match=r"a\.h5 is damaged, or is not an HDF5 file"):
        open_weights("path", path)


# -- archives


def archive(path, **members):
    with zipfile.ZipFile(path, "w") as file:
        for name, data in members.items():
            file.writestr(name.replace("_", "."), data)
    return path


def test_archives_that_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"is a zip file without 'model\.weights\.h5'"):
        open_weights("path", archive(tmp_path / "none.keras", config_json="{}"))
    with pytest.raises(DamagedCheckpointError, match="is damaged, or is not an HDF5 file"):
        open_weights("path", archive(tmp_path / "other.keras", model_weights_h5=b"no"))
    path = tmp_path / "cut.keras"
    path.write_bytes((FILES / "sequential.keras").read_bytes()[:-40])
    with pytest.raises(DamagedCheckpointError, match="is damaged, or is not a Keras archive"):
        open_weights("path", path)
    shutil.copy(FILES / "sequential.keras", path)
    data = bytearray(path.read_bytes())
    data[data.rindex(b"\x89HDF") + 2000] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedCheckpointError, match="Bad CRC-32"):
        open_weights("path", path)


def test_an_archive_that_claims_gigabytes(tmp_path):
    path = archive(tmp_path / "a.keras", model_weights_h5=b"small")
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\x01\x02")
    data[at + 24 : at + 28] = struct.pack("<I", 1 << 31)
    path.write_bytes(data)
    with pytest.raises(
        DamagedCheckpointError, match=r"has 2147483648 bytes by its header, and 5 in the archive: no compression is that"
    ):
        open_weights("path", path)


def test_a_bomb_in_an_archive_is_not_unpacked_beyond_its_head(tmp_path):
    path = tmp_path / "a.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("model.weights.h5", bytes(1 << 20))
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\x01\x02")
    data[at + 24 : at + 28] = struct.pack("<I", 1000)
    path.write_bytes(data)
    with pytest.raises(DamagedCheckpointError, match=r"damaged|more than the 1000 bytes"):
        open_weights("path", path)


# -- safetensors, and what is nothing


def test_safetensors_that_are_refused(tmp_path):
    importlib.import_module("safetensors")
    path = tmp_path / "a.safetensors"
    head = b'{"x":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}}'
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"\0")
    with pytest.raises(CheckpointError, match="'x' has the dtype F8_E4M3, which safetensors cannot read as a NumPy array"):
        open_weights("path", path)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(CheckpointError, match="is not a safetensors file, or it is damaged"):
        open_weights("path", path)
    path.write_bytes(struct.pack("<Q", 1 << 60) + b"{}")
    with pytest.raises(CheckpointError, match="is not a safetensors file, or it is damaged"):
        open_weights("path", path)


def test_what_is_nothing_of_all_this(tmp_path):
    (tmp_path / "text.txt").write_text("no weights")
    for path in (tmp_path, tmp_path / "none", tmp_path / "text.txt"):
        with pytest.raises(
            CheckpointError, match=r"There is no .* Weights can be in a checkpoint of Replicant, TensorFlow or Orbax"
        ):
            open_weights("path", path)


def test_what_cannot_be_written(tmp_path):
    with pytest.raises(CheckpointError, match=r"no array of a checkpoint of Replicant can have the name '\.x'"):
        write_own(tmp_path / "a", {".x": np.ones(1)})
    with pytest.raises(
        CheckpointError, match=r"names the arrays in \.weights\.h5 by the classes .* and 'dense/kernel' does not tell"
    ):
        write_keras_weights(tmp_path / "a.weights.h5", {"dense/kernel": np.ones(1)})
    with pytest.raises(
        CheckpointError, match=r"cannot be written: No such file or directory\. Name a file in a folder that exists"
    ):
        write_keras_weights(tmp_path / "none" / "a.weights.h5", {"vars/0": np.ones(1)})
    assert list(tmp_path.iterdir()) == []
