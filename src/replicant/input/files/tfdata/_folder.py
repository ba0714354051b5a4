"""What a folder of ``tf.data.Dataset.save`` says of itself: the files of its last save, and the spec of its elements.

`snapshot.metadata` is a SnapshotMetadataRecord, and `dataset_spec.pb` a StructuredValue: messages of TensorFlow. The files of a
save lie in a folder for each shard.
"""

import dataclasses
import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from ...._protobuf import MessageError, as_bytes, as_integer, as_text, fields, packed_integers
from ...._whole_file import open_regular
from ....errors import DatasetError
from ...graph._structure import STRING, TensorSpec, flatten
from ..records._tfrecord import begins_record

_METADATA, _SPEC = "snapshot.metadata", "dataset_spec.pb"
_RUN_ID, _VERSION, _DTYPES, _NUM_ELEMENTS, _FINALIZED = 2, 4, 5, 6, 1000  # fields of SnapshotMetadataRecord
_TENSOR_SPEC, _TUPLE, _DICT = 33, 52, 53  # kinds of StructuredValue
_SHARD, _CHUNK = re.compile(r"(\d{8})\.shard", re.ASCII), re.compile(r"(\d{8})\.snapshot", re.ASCII)
_MOST_BYTES = 1 << 26  # of each of the two files
_MOST_DEPTH = 64
_GZIP = b"\x1f\x8b"
_HEAD = 12  # bytes of a record: its length, and the checksum of that
DTYPES = {  # of TensorFlow, by their numbers
    **dict(enumerate(map(np.dtype, ("f4", "f8", "i4", "u1", "i2", "i1")), 1)),
    7: STRING,
    8: np.dtype("c8"),
    9: np.dtype("i8"),
    10: np.dtype("?"),
    14: np.dtype(jnp.bfloat16),
    17: np.dtype("u2"),
    18: np.dtype("c16"),
    19: np.dtype("f2"),
    22: np.dtype("u4"),
    23: np.dtype("u8"),
}


@dataclasses.dataclass(frozen=True)
class TfDataFolder:
    """The files of each shard in their order, the spec of the elements, and how many they are."""

    shards: tuple[tuple[str, ...], ...]
    spec: Any
    num_elements: int


def is_tfdata(path: Path) -> bool:
    """Return whether tf.data has saved a dataset here, or keeps snapshots."""
    return (path / _METADATA).exists() or any(path.glob(f"*/{_METADATA}"))


def read_folder(path: Path, compression: str) -> TfDataFolder:
    """Return what a folder holds.

    Raises:
        DatasetError: If it holds snapshots, is damaged or not complete, has elements that are not read, or another compression.
    """
    if not (path / _SPEC).exists():
        raise DatasetError(
            f"load: {str(path)!r} holds a snapshot of tf.data, which only the program that wrote it can read: call "
            "dataset.save(folder) in that program, and load that folder."
        )
    metadata = _metadata(path)
    spec = _message(path / _SPEC, _structure)
    if [leaf.dtype for leaf in flatten(spec)[0]] != metadata["dtypes"]:
        raise _wrong(path / _SPEC, "its dtypes are others than those in snapshot.metadata")
    shards = _shards(path / metadata["run"])
    _check_compression(path, shards, compression)
    return TfDataFolder(shards, spec, metadata["num_elements"])


def _wrong(path: Path, what: str) -> DatasetError:
    return DatasetError(
        f"load: {str(path)!r} is not what tf.data writes: {what}. Save the dataset again, or copy the folder again."
    )


def _message(path: Path, parse: Any) -> Any:
    """What a file holds, as a function of its bytes."""
    try:
        with open_regular(path) as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise _wrong(path, f"it has more than {_MOST_BYTES >> 20} MiB")
        return parse(memoryview(data))
    except OSError as error:
        raise DatasetError(f"load: cannot open {str(path)!r}: {error.strerror}. Copy the folder again.") from error
    except MessageError as error:
        raise _wrong(path, str(error)) from error


def _metadata(path: Path) -> dict[str, Any]:
    found = dict(_message(path / _METADATA, lambda data: list(fields(data))))
    try:
        run, version, number = as_text(found[_RUN_ID]), as_integer(found[_VERSION]), as_integer(found.get(_NUM_ELEMENTS, -1))
        kinds = packed_integers(found[_DTYPES]).tolist()
        finished = as_integer(found.get(_FINALIZED, 0))
    except (KeyError, MessageError) as error:
        raise _wrong(path / _METADATA, f"it lacks a field ({error})") from error
    if not finished:
        raise DatasetError(
            f"load: {str(path)!r} was not finished: the program that saved the dataset has ended before. Save it again."
        )
    if version != 2 or not re.fullmatch(r"\d+", run, re.ASCII):
        raise _wrong(path / _METADATA, f"its version is {version} and its run {run!r}; version 2 and a number are read")
    if others := [kind for kind in kinds if kind not in DTYPES]:
        raise _not_read(path, f"components of TensorFlow's type {others[0]}")
    return {"run": run, "num_elements": number, "dtypes": [DTYPES[kind] for kind in kinds]}


def _not_read(path: Path, what: str) -> DatasetError:
    return DatasetError(
        f"load: the elements in {str(path)!r} have {what}, which are not read: map them to tensors of numbers and strings in "
        "TensorFlow, in tuples and dicts, and save the dataset again."
    )


def _structure(data: memoryview, depth: int = 0) -> Any:
    """The structure of specs in a StructuredValue."""
    if depth > _MOST_DEPTH:
        raise MessageError(f"it is nested more than {_MOST_DEPTH} deep")
    (kind, value), *others = [*fields(data)] or [(0, 0)]
    if others:
        raise MessageError("a value has several kinds")
    if kind == _TENSOR_SPEC:
        return _tensor_spec(as_bytes(value))
    if kind == _TUPLE:
        return tuple(_structure(as_bytes(each), depth + 1) for number, each in fields(as_bytes(value)) if number == 1)
    if kind == _DICT:
        entries = [dict(fields(as_bytes(entry))) for number, entry in fields(as_bytes(value)) if number == 1]
        return {as_text(entry.get(1, memoryview(b""))): _structure(as_bytes(entry.get(2, 0)), depth + 1) for entry in entries}
    raise MessageError(f"a part of an element is a StructuredValue of kind {kind}, no tensor, tuple or dict; map it to such")


def _tensor_spec(data: memoryview) -> TensorSpec:
    found = dict(fields(data))
    kind = as_integer(found.get(3, 0))
    if kind not in DTYPES:
        raise MessageError(f"a component has TensorFlow's type {kind}")
    return TensorSpec(shape_of(as_bytes(found.get(2, memoryview(b"")))), DTYPES[kind])


def shape_of(data: memoryview) -> tuple[int | None, ...]:
    """Return the sizes in a TensorShapeProto.

    Raises:
        MessageError: If the number of dimensions is not known, or a size is below -1.
    """
    sizes: list[int | None] = []
    for number, value in fields(data):
        if number == 3 and value:
            raise MessageError("a component has a shape of unknown rank")
        if number == 2:
            size = as_integer(dict(fields(as_bytes(value))).get(1, 0))
            if size < -1:
                raise MessageError(f"a size is {size}")
            sizes.append(None if size == -1 else size)
    return tuple(sizes)


def _shards(run: Path) -> tuple[tuple[str, ...], ...]:
    """The files of each shard, by their numbers."""
    found: list[tuple[str, ...]] = []
    try:
        for folder in sorted(each for each in run.iterdir() if _SHARD.fullmatch(each.name)):
            names = sorted(each.name for each in folder.iterdir())
            if names != [f"{number:08}.snapshot" for number in range(len(names))]:
                raise _wrong(folder, f"its files are {names[:5]}, and they should be numbered from 0 on")
            found.append(tuple(str(folder / name) for name in names))
    except OSError as error:
        raise DatasetError(f"load: cannot open {str(run)!r}: {error.strerror}. Copy the folder again.") from error
    return tuple(found) or ((),)


def _check_compression(path: Path, shards: tuple[tuple[str, ...], ...], compression: str) -> None:
    """Check that files are compressed as the user says: nothing but their first bytes tells."""
    for name in next((files for files in shards if files), ())[:1]:
        with open_regular(name) as file:
            head = file.read(_HEAD)
        is_plain, is_gzip = begins_record(head) or not head, head.startswith(_GZIP)
        if (is_plain and compression) or (is_gzip and not is_plain and not compression):
            right = "None" if is_plain else "'GZIP'"
            raise DatasetError(
                f"load: {str(path)!r} was saved with compression={right}. Received: {compression or None!r}. Give `load` the same."
            )
