"""Checkpoints on disk: what comes back, what is found damaged, and that nothing half-written is ever left or taken."""

import json
import os
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import replicant
from replicant.checkpoint.format import _storage
from replicant.errors import CheckpointError, DamagedCheckpointError

DTYPES = [
    "bool", "int8", "uint8", "int16", "int32", "int64", "uint64", "float16", "float32", "float64", "complex64", "bfloat16",
    "float8_e4m3fn", "float8_e5m2", "int4",
]  # fmt: skip
SHAPES = [(), (0,), (3,), (2, 0, 4), (2, 3, 4)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_every_dtype_and_shape_come_back(tmp_path: Path, dtype: str) -> None:
    arrays = {str(shape): np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(jnp.dtype(dtype)) for shape in SHAPES}
    _storage.write(tmp_path / "ckpt", {"a": [1, None]}, arrays)
    meta, found = _storage.read(tmp_path / "ckpt")
    assert meta == {"a": [1, None]}
    assert list(found) == list(arrays)
    for key, array in arrays.items():
        assert found[key].dtype == array.dtype
        assert found[key].shape == array.shape
        assert found[key].tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4).T,
        np.arange(12.0)[::-3],
        np.asfortranarray(np.eye(3)),
        np.arange(5).astype(">i4"),
        np.array([np.nan, np.inf, -0.0, 5e-324]),
    ],
    ids=["transposed", "strided", "fortran", "big endian", "special numbers"],
)
def test_the_layout_in_memory_does_not_matter(tmp_path: Path, array: np.ndarray) -> None:
    _storage.write(tmp_path / "ckpt", {}, {"x": array})
    found = _storage.read(tmp_path / "ckpt")[1]["x"]
    np.testing.assert_array_equal(found, array)
    assert found.tobytes() == array.astype(array.dtype.newbyteorder("=")).tobytes()


def test_what_is_read_is_writable_memory_of_its_own(tmp_path: Path) -> None:
    _storage.write(tmp_path / "ckpt", {}, {"x": np.ones(3)})
    first, second = (_storage.read(tmp_path / "ckpt")[1]["x"] for _ in range(2))
    first[:] = 7
    assert second.tolist() == [1, 1, 1]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    arrays = {"a": np.arange(10, dtype=np.float32), "b": np.arange(5, dtype=np.int64)}
    _storage.write(tmp_path / "ckpt", {"step": 3}, arrays)
    return tmp_path / "ckpt"


def edit_manifest(path: Path, *, signed: bool = False, **changes: Any) -> None:
    """Change what the manifest says; `signed`: with a checksum that fits, as another version would write it."""
    file = path / "manifest.json"
    body = {**json.loads(file.read_text()), **changes}
    if signed:
        del body["checksum"]
        body["checksum"] = _storage._checksum(body)
    file.write_bytes(_storage._dump(body))


def flip(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 0x10
    file.write_bytes(data)


DAMAGE = {
    "no arrays": (lambda p: (p / "arrays.bin").unlink(), r"arrays\.bin is missing .*it should have 80 bytes"),
    "short arrays": (lambda p: os.truncate(p / "arrays.bin", 79), r"arrays\.bin is damaged: it has 79 bytes, but should have 80\."),
    "long arrays": (lambda p: os.truncate(p / "arrays.bin", 81), r"arrays\.bin is damaged: it has 81 bytes, but should have 80\."),
    "flipped bit in a": (lambda p: flip(p / "arrays.bin", 39), r"arrays\.bin is damaged: 'a' \(bytes 0 to 40\) has the checksum"),
    "flipped bit in b": (lambda p: flip(p / "arrays.bin", 40), r"arrays\.bin is damaged: 'b' \(bytes 40 to 80\) has the checksum"),
    "no manifest": (lambda p: (p / "manifest.json").unlink(), r"There is no readable checkpoint at .*ckpt: "),
    "empty manifest": (lambda p: os.truncate(p / "manifest.json", 0), r"manifest\.json is damaged: it is not JSON"),
    "short manifest": (lambda p: os.truncate(p / "manifest.json", 100), r"manifest\.json is damaged: it is not JSON"),
    "no UTF-8": (lambda p: (p / "manifest.json").write_bytes(b'{"\xff": 1}'), r"manifest\.json is damaged: it is not JSON"),
    "a list": (lambda p: (p / "manifest.json").write_text("[]"), r"should be a JSON object, but is a list"),
    "changed meta": (
        lambda p: edit_manifest(p, meta={"step": 4}),
        r"manifest\.json is damaged: its checksum is \d+, but it says \d+",
    ),
    "no checksum": (lambda p: edit_manifest(p, checksum=None), r"manifest\.json is damaged: its checksum is \d+, but it says None"),
    "other white space": (
        lambda p: (p / "manifest.json").write_text(json.dumps(json.loads((p / "manifest.json").read_text()))),
        r"manifest\.json is damaged: its contents are right, but it is not written in the usual way",
    ),
    "newer version": (
        lambda p: edit_manifest(p, version=5, signed=True),
        r"has version 5 of the checkpoint format; .* reads versions 2 to 4",
    ),
    "another program's": (
        lambda p: (p / "manifest.json").write_text('{"format": "x"}'),
        r"its format is 'x', not 'replicant-checkpoint'",
    ),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_found_and_named(saved: Path, damage: Any, message: str) -> None:
    damage(saved)
    with pytest.raises(CheckpointError, match=message):
        _storage.read(saved)


def test_every_flipped_byte_is_found(saved: Path) -> None:
    for name in ("manifest.json", "arrays.bin"):
        whole = (saved / name).read_bytes()
        for position in range(len(whole)):
            flip(saved / name, position)
            for read in (_storage.read, _storage.verify):
                with pytest.raises(DamagedCheckpointError, match=r"manifest\.json is |arrays\.bin is damaged"):
                    read(saved)
            (saved / name).write_bytes(whole)
    assert _storage.verify(saved) == {"step": 3}


def test_every_length_is_found(saved: Path) -> None:
    for name in ("manifest.json", "arrays.bin"):
        whole = (saved / name).read_bytes()
        for length in range(len(whole)):
            (saved / name).write_bytes(whole[:length])
            with pytest.raises(DamagedCheckpointError, match=r"manifest\.json is damaged|arrays\.bin is damaged"):
                _storage.read(saved)
        (saved / name).write_bytes(whole)
    assert _storage.verify(saved) == {"step": 3}


def test_a_path_that_does_not_exist_says_what_is_there(saved: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no readable checkpoint at .*ckpt-7: .*No such file.* In .* there are: ckpt\."):
        _storage.read(saved.with_name("ckpt-7"))


def test_an_unknown_dtype_is_named(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = json.loads((saved / "manifest.json").read_text())
    manifest["arrays"][1]["dtype"] = "float3"
    edit_manifest(saved, arrays=manifest["arrays"], signed=True)
    with pytest.raises(CheckpointError, match=r"'b' has the dtype 'float3', which this NumPy and JAX do not know"):
        _storage.read(saved)


def test_an_existing_path_is_never_overwritten(saved: Path) -> None:
    before = (saved / "arrays.bin").read_bytes()
    with pytest.raises(CheckpointError, match=r"ckpt already exists, and a checkpoint is never overwritten"):
        _storage.write(saved, {}, {})
    assert (saved / "arrays.bin").read_bytes() == before


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        _storage.write(tmp_path / "ckpt", {"no JSON": object()}, {"x": np.ones(3)})
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CheckpointError, match=r"file/ckpt could not be written \(.*\)\. None of it is used\."):
        _storage.write(tmp_path / "file" / "ckpt", {}, {})
    assert (tmp_path / "file").read_text() == "mine"


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="limits on the size of files are a matter of Unix")
    signal = pytest.importorskip("signal")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        with pytest.raises(CheckpointError, match=r"ckpt could not be written \(.*File too large"):
            _storage.write(tmp_path / "ckpt", {}, {"x": np.ones(1000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == []


# Numbered checkpoints


def counter(**values: Any) -> replicant.Checkpoint:
    return replicant.Checkpoint(**(values or {"state": {"step": 1}}))


def test_saves_are_numbered_and_the_counter_continues_after_restore(tmp_path: Path) -> None:
    checkpoint = counter()
    assert [checkpoint.save(tmp_path / "run" / "ckpt") for _ in range(2)] == [f"{tmp_path}/run/ckpt-{i}" for i in (1, 2)]
    assert checkpoint.save_counter == 2
    again = counter()
    again.restore(tmp_path / "run" / "ckpt-2")
    assert again.save_counter == 2
    assert again.save(tmp_path / "run" / "ckpt") == f"{tmp_path}/run/ckpt-3"


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ([], 1),
        (["ckpt-1", "ckpt-2"], 3),
        (["ckpt-10", "ckpt-9"], 11),
        (["other-7", "ckpt-x", "my-ckpt-5", ".ckpt-4.1-ab.partial"], 1),
    ],
)
def test_a_new_program_continues_after_what_is_there(tmp_path: Path, there: list[str], expected: int) -> None:
    for name in there:
        (tmp_path / name).mkdir()
    assert counter().save(tmp_path / "ckpt") == f"{tmp_path}/ckpt-{expected}"


def test_a_rolled_back_run_does_not_overwrite(tmp_path: Path) -> None:
    checkpoint = counter()
    for _ in range(3):
        checkpoint.save(tmp_path / "ckpt")
    checkpoint.restore(tmp_path / "ckpt-1")
    assert checkpoint.save(tmp_path / "ckpt") == f"{tmp_path}/ckpt-4"


def test_write_takes_the_path_as_it_is_and_does_not_count(tmp_path: Path) -> None:
    checkpoint = counter()
    assert checkpoint.write(tmp_path / "final") == f"{tmp_path}/final"
    assert checkpoint.save_counter == 0
    with pytest.raises(CheckpointError, match="final already exists"):
        checkpoint.write(tmp_path / "final")


def test_no_checkpoint_is_the_latest_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "file").write_text("mine")
    assert [replicant.latest_checkpoint(tmp_path / name) for name in (".", "logs", "file", "nowhere")] == [None] * 4


def test_the_latest_has_the_highest_number(tmp_path: Path) -> None:
    checkpoint = counter()
    for _ in range(11):
        checkpoint.save(tmp_path / "ckpt")
    assert replicant.latest_checkpoint(tmp_path) == f"{tmp_path}/ckpt-11"


def test_of_two_prefixes_the_latest_is_the_one_written_last(tmp_path: Path) -> None:
    first, second = counter(), counter()
    first.save(tmp_path / "b")
    first.save(tmp_path / "b")
    second.save(tmp_path / "a")
    assert replicant.latest_checkpoint(tmp_path) == f"{tmp_path}/a-1"
    second.write(tmp_path / "final")
    assert replicant.latest_checkpoint(tmp_path) == f"{tmp_path}/final"


def test_manifests_of_other_programs_do_not_matter(tmp_path: Path) -> None:
    counter().save(tmp_path / "ckpt")
    for name in ("static", "ckpt-7"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text('{"name": "a web page", "icons": []}')
    assert replicant.latest_checkpoint(tmp_path) == f"{tmp_path}/ckpt-1"


def test_the_latest_is_not_passed_over_because_it_is_newer_than_this_program(tmp_path: Path) -> None:
    checkpoint = counter()
    for _ in range(2):
        checkpoint.save(tmp_path / "ckpt")
    edit_manifest(tmp_path / "ckpt-2", version=5, signed=True)
    with pytest.raises(CheckpointError, match=r"ckpt-2/manifest\.json has version 5 of the checkpoint format"):
        replicant.latest_checkpoint(tmp_path)


@pytest.mark.parametrize("damage", ["no arrays", "short arrays", "no manifest", "short manifest", "changed meta"])
def test_the_latest_is_complete(tmp_path: Path, damage: str) -> None:
    checkpoint = counter(x=np.arange(20.0).reshape(2, 10))
    for _ in range(3):
        checkpoint.save(tmp_path / "ckpt")
    DAMAGE[damage][0](tmp_path / "ckpt-3")
    (tmp_path / ".ckpt-4.99-abcd.partial").mkdir()
    (tmp_path / ".ckpt-4.99-abcd.partial" / "arrays.bin").write_bytes(b"half")
    with pytest.warns(UserWarning, match=r"Skipped the checkpoint .*ckpt-3: .*ckpt-3"):
        assert replicant.latest_checkpoint(tmp_path) == f"{tmp_path}/ckpt-2"
