"""MDS shards of MosaicML's streaming, which writes and reads them in an environment of its own."""

import functools
import io
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _cells import FOLDER, Cell, rows

FORM, WRITER = "MDS", "mosaicml-streaming"
_PYTHON = FOLDER.parents[1] / "build" / "writers-streaming" / "bin" / "python"
_INTEGERS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
_FLOATS = ("float16", "float32", "float64")
_PICKLE = "to read it would run whatever code the file contains. Write it as json or ndarray"
_PIXELS = "it holds pixels of many layouts. Write it as jpeg, png or ndarray"
_ENCODINGS: dict[str, str | None] = {
    **dict.fromkeys(("int", *_INTEGERS, *_FLOATS)),
    **dict.fromkeys(("str", "bytes", "str_int", "str_float", "str_decimal", "json")),
    **dict.fromkeys(f"ndarray:{name}:2,3" for name in (*_INTEGERS, *_FLOATS)),
    **dict.fromkeys(("ndarray", "ndarray:int16", "ndarray:float32", "ndarray:uint8:5")),
    **dict.fromkeys(("jpeg", "png")),
    "pkl": _PICKLE,
    "pil": _PIXELS,
    "list[jpeg]": "Encodings that are read are",
    "list[png]": "Encodings that are read are",
    "list[pil]": _PIXELS,
    "jpeg_array": "Encodings that are read are",
}
_SETTINGS: dict[str, tuple[dict[str, Any], str | None]] = {
    "zstd": ({"compression": "zstd"}, None),
    "zstd, level 7": ({"compression": "zstd:7"}, None),
    "gz": ({"compression": "gz"}, None),
    "gz, level 1": ({"compression": "gz:1"}, None),
    "bz2": ({"compression": "bz2"}, None),
    "br": ({"compression": "br"}, "is compressed by 'br'. Only zstd, gz and bz2 are read"),
    "br, level 3": ({"compression": "br:3"}, "is compressed by 'br'. Only zstd, gz and bz2 are read"),
    "snappy": ({"compression": "snappy"}, "is compressed by 'snappy'. Only zstd, gz and bz2 are read"),
    "hashes": ({"hashes": ["sha1", "xxh64"]}, None),
    "hashes of compressed shards": ({"hashes": ["sha256", "xxh3_128"], "compression": "zstd"}, None),
    "small shards": ({"size_limit": 200}, None),
    "small shards, compressed": ({"size_limit": 200, "compression": "gz"}, None),
}


def cells() -> Iterator[Cell]:
    for encoding, refused in _ENCODINGS.items():
        yield Cell(FORM, WRITER, encoding, functools.partial(_encoding, encoding), refused)
    for what, (settings, refused) in _SETTINGS.items():
        yield Cell(FORM, WRITER, what, functools.partial(_several, settings), refused)
    yield Cell(FORM, WRITER, "several folders", _folders)
    yield Cell(FORM, WRITER, "merge_index of several folders", _merged)
    yield Cell(FORM, WRITER, "no samples", _empty)
    yield Cell(FORM, WRITER, "json of several structures", _other_json, "does not fit the first sample")
    yield Cell(FORM, WRITER, "texts of no bytes", _no_bytes)
    yield Cell("JSON Lines", WRITER, "JSONWriter", functools.partial(_lines, "JSONWriter"))
    yield Cell("CSV", WRITER, "CSVWriter", functools.partial(_lines, "CSVWriter"))


@functools.cache
def _server() -> subprocess.Popen[str]:
    """One process for all cells: its imports take seconds."""
    command = [str(_PYTHON), str(FOLDER / "_streaming.py")]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # which ends with its input


def _written(folder: Path, **asked: Any) -> Any:
    """Have streaming write folders, and return what it reads back."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    print(json.dumps({**asked, "folder": str(folder)}), file=server.stdin, flush=True)
    answer = server.stdout.readline()
    assert answer, f"streaming's process has ended: {server.poll()}"
    found = json.loads(answer)
    assert "error" not in found, found["error"]
    return _plain(found["samples"])


def _plain(value: Any) -> Any:
    """What was written as JSON: arrays and bytes as dicts."""
    if isinstance(value, dict):
        if "bytes" in value:
            return bytes.fromhex(value["bytes"])
        if "dtype" in value:
            return np.frombuffer(bytes.fromhex(value["data"]), value["dtype"]).reshape(value["shape"])[()]
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _read(folders: Any) -> list[Any]:
    from replicant.data import MDSDataset

    return rows(MDSDataset(folders))


def _encoding(encoding: str, folder: Path) -> Any:
    theirs = _written(folder, column=encoding)
    if encoding in ("jpeg", "png"):
        return lambda: [{"x": _pixels(row["x"])} for row in _read(folder / "0")], theirs
    return lambda: _read(folder / "0"), theirs


def _pixels(data: bytes) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(data)))


def _several(settings: dict[str, Any], folder: Path) -> Any:
    theirs = _written(folder, settings=settings)
    return lambda: _read(folder / "0"), theirs


def _folders(folder: Path) -> Any:
    theirs = _written(folder, folders=3)
    return lambda: _read([folder / str(i) for i in range(3)]), theirs


def _merged(folder: Path) -> Any:
    theirs = _written(folder, folders=3, merge=True)
    return lambda: _read(folder), theirs


def _empty(folder: Path) -> Any:
    theirs = _written(folder, samples=0)
    return lambda: [_read(folder / "0")], [theirs]


def _other_json(folder: Path) -> Any:
    _written(folder, column="json", other=True)
    return lambda: _read(folder / "0"), None


def _no_bytes(folder: Path) -> Any:
    theirs = _written(folder, column="str", values=["", "a", ""])
    return lambda: _read(folder / "0"), theirs


def _lines(writer: str, folder: Path) -> Any:
    from replicant.data import CsvDataset, JsonLinesDataset, TensorSpec

    theirs = _written(folder, writer=writer)
    if writer == "JSONWriter":
        files, spec = sorted((folder / "0").glob("shard.*.json")), {"x": TensorSpec((), "int64"), "text": TensorSpec((), object)}
        return lambda: rows(JsonLinesDataset(files, output_signature=spec)), theirs
    files = sorted((folder / "0").glob("shard.*.csv"))
    return lambda: [{"x": int(x), "text": text} for text, x in rows(CsvDataset(files, [str, "int64"], header=True))], theirs
