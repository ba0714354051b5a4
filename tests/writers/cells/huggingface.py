"""Datasets of Hugging Face: every feature, indices mappings, and what is saved on disk."""

import datetime as dt
import decimal
import functools
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _arrow_types import DECIMALS, OTHERS, RAGGED, TIMES
from _cells import Cell, rows

FORM, WRITER = "Hugging Face", "datasets"
_NUMBERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")
_NOW = dt.datetime(2026, 11, 30, 1, 2, 3)  # noqa: DTZ001 - without a zone
_MISSING = "has no value (null) in row 1"


def _hf() -> Any:
    import datasets

    return datasets


def _value(name: str, values: list[Any]) -> Callable[[], Any]:
    return lambda: (_hf().Value(name), values)


_FEATURES: dict[str, tuple[Callable[[], Any], str | None]] = {
    **{f"Value('{name}')": (_value(name, [0, 1, 2, 100]), None) for name in _NUMBERS},
    "Value('bool')": (_value("bool", [True, False, True, True]), None),
    **{f"Value('{name}')": (_value(name, ["a", "ä", "", "b\0"]), None) for name in ("string", "large_string", "string_view")},
    **{
        f"Value('{name}')": (_value(name, [b"a", b"\xff", b"", b"b\0"]), None) for name in ("binary", "large_binary", "binary_view")
    },
    "Value('null')": (_value("null", [None] * 4), OTHERS),
    "Value('date32')": (_value("date32", [_NOW.date()] * 4), TIMES),
    "Value('timestamp[us]')": (_value("timestamp[us]", [_NOW] * 4), TIMES),
    "Value('duration[s]')": (_value("duration[s]", [dt.timedelta(seconds=1)] * 4), TIMES),
    "Value('time64[us]')": (_value("time64[us]", [_NOW.time()] * 4), TIMES),
    "Value('decimal128(10, 2)')": (_value("decimal128(10, 2)", [decimal.Decimal("1.25")] * 4), DECIMALS),
    "Value('int64'), a missing value": (_value("int64", [1, None, 3, 4]), _MISSING),
    "ClassLabel": (lambda: (_hf().ClassLabel(names=["no", "yes"]), [0, 1, 1, 0]), None),
    "ClassLabel, given as texts": (lambda: (_hf().ClassLabel(names=["no", "yes"]), ["no", "yes", "yes", "no"]), None),
    "List": (lambda: (_hf().List(_hf().Value("int64")), [[1, 2], [], [3], [4]]), None),
    "List of one length": (lambda: (_hf().List(_hf().Value("float32"), length=2), [[i, 0.5] for i in range(4)]), None),
    "List of texts": (lambda: (_hf().List(_hf().Value("string")), [["a"], [], ["b", "c"], [""]]), None),
    "List of ClassLabel": (lambda: (_hf().List(_hf().ClassLabel(names=["O", "B"])), [[0, 1], [], [1], [0]]), None),
    "List of List": (lambda: (_hf().List(_hf().List(_hf().Value("int64"))), [[[1], [2, 3]], [], [[4]], []]), RAGGED),
    "LargeList": (lambda: (_hf().LargeList(_hf().Value("int32")), [[1, 2], [], [3], [4]]), None),
    "Sequence": (lambda: (_hf().Sequence(_hf().Value("int64")), [[1, 2], [], [3], [4]]), None),
    "Sequence of a dict": (
        lambda: (
            _hf().Sequence({"a": _hf().Value("int64"), "b": _hf().Value("string")}),
            [{"a": [1] * i, "b": ["x"] * i} for i in range(4)],
        ),
        None,
    ),
    "List of a dict": (
        lambda: (
            _hf().List({"role": _hf().Value("string"), "n": _hf().Value("int64")}),
            [[{"role": "user", "n": i}] * (i + 1) for i in range(4)],
        ),
        None,
    ),
    "dict": (
        lambda: ({"a": _hf().Value("int64"), "b": {"c": _hf().Value("string")}}, [{"a": i, "b": {"c": "x"}} for i in range(4)]),
        None,
    ),
    "Array2D": (lambda: (_hf().Array2D((2, 3), "float32"), [np.full((2, 3), i, np.float32) for i in range(4)]), None),
    "Array2D of any height": (lambda: (_hf().Array2D((None, 2), "int64"), [np.full((i + 1, 2), i) for i in range(4)]), None),
    "Array3D": (lambda: (_hf().Array3D((2, 3, 2), "uint8"), [np.full((2, 3, 2), i, np.uint8) for i in range(4)]), None),
    "Array4D": (lambda: (_hf().Array4D((1, 2, 1, 2), "int16"), [np.full((1, 2, 1, 2), i, np.int16) for i in range(4)]), None),
    "Array5D": (lambda: (_hf().Array5D((1, 2, 1, 2, 1), "int64"), [np.full((1, 2, 1, 2, 1), i) for i in range(4)]), None),
    "Translation": (lambda: (_hf().Translation(["de", "en"]), [{"de": f"ä{i}", "en": "a"} for i in range(4)]), None),
    "TranslationVariableLanguages": (
        lambda: (_hf().TranslationVariableLanguages(["de", "en"]), [{"en": "a", "de": ["ä", "b"]}] * 4),
        None,
    ),
    "Json, as its text": (lambda: (_hf().Json(), [{"a": 1}, [1, 2], "text", {"b": None}]), None),
    "List of Json, as its texts": (lambda: (_hf().List(_hf().Json()), [[{"a": 1}], [], [[1, 2], "text"], [{"b": None}]]), None),
}
_PICTURES = ("L", "RGB", "RGBA")


def cells() -> Iterator[Cell]:
    for what, (make, refused) in _FEATURES.items():
        yield Cell(FORM, WRITER, what, functools.partial(_feature, make), refused)
        if refused is None:
            yield Cell(FORM, WRITER, f"{what}, as a stream", functools.partial(_feature, make, stream=True))
    for mode in _PICTURES:
        yield Cell(FORM, WRITER, f"Image, mode {mode}", functools.partial(_pictures, mode, None))
    yield Cell(FORM, WRITER, "Image without a mode, of RGB", functools.partial(_pictures, "RGB", "any"))
    yield Cell(FORM, WRITER, "Image(decode=False)", functools.partial(_pictures, "RGB", "bytes"))
    yield Cell(FORM, WRITER, "Image, mode CMYK", functools.partial(_pictures, "CMYK", None), "have the mode 'CMYK'")
    yield Cell(FORM, WRITER, "Audio(decode=False)", _audio)
    for what, change in _CHANGES.items():
        yield Cell(FORM, WRITER, what, functools.partial(_changed, change))
    yield Cell(FORM, WRITER, "save_to_disk, load_from_disk", functools.partial(_saved, 1))
    yield Cell(FORM, WRITER, "save_to_disk in several shards", functools.partial(_saved, 3))
    yield Cell(FORM, WRITER, "save_to_disk, its files by ArrowDataset", _saved_files)
    yield Cell(FORM, WRITER, "save_to_disk of an indices mapping", _saved_mapping)
    yield Cell("Parquet", WRITER, "to_parquet", _parquet)
    yield Cell("Parquet", WRITER, "to_parquet, Array2D", _parquet_arrays)
    yield Cell("CSV", WRITER, "to_csv", _csv)
    yield Cell(FORM, WRITER, "load_dataset('parquet')", functools.partial(_loaded, "parquet", False))
    yield Cell(FORM, WRITER, "load_dataset('parquet', streaming=True)", functools.partial(_loaded, "parquet", True))
    yield Cell(FORM, WRITER, "load_dataset('csv')", functools.partial(_loaded, "csv", False))
    yield Cell(FORM, WRITER, "load_dataset('imagefolder')", _imagefolder)
    yield Cell(FORM, WRITER, "DatasetDict", _splits, "Choose a split")


_CHANGES: dict[str, Callable[[Any], Any]] = {
    "select": lambda its: its.select([5, 1, 1, 3]),
    "select of a range": lambda its: its.select(range(3, 8)),
    "shuffle": lambda its: its.shuffle(seed=1),
    "shuffle, flatten_indices": lambda its: its.shuffle(seed=1).flatten_indices(),
    "sort": lambda its: its.sort("y", reverse=True),
    "filter": lambda its: its.filter(lambda row: row["x"] % 2 == 0),
    "map": lambda its: its.map(lambda row: {"z": row["x"] * 2}),
    "shard": lambda its: its.shard(3, 1),
    "train_test_split": lambda its: its.train_test_split(0.3, seed=1)["train"],
    "concatenate_datasets": lambda its: _hf().concatenate_datasets([its, its.select([0, 2])]),
    "interleave_datasets": lambda its: _hf().interleave_datasets([its, its.select([0, 2])]),
    "with_format('numpy')": lambda its: its.with_format("numpy"),
    "with_format(columns=)": lambda its: its.with_format(None, columns=["x"]),
    "set_transform": lambda its: its.with_transform(lambda batch: {"w": [x + 1 for x in batch["x"]]}),
    "rename_column, remove_columns": lambda its: its.rename_column("x", "w").remove_columns("list"),
    "cast": lambda its: its.cast_column("x", _hf().Value("int8")),
    "repeat, take, skip": lambda its: its.repeat(2).skip(3).take(9),
    "stream": lambda its: its.to_iterable_dataset(),
    "stream of several shards": lambda its: its.to_iterable_dataset(num_shards=3),
    "stream, shuffle": lambda its: its.to_iterable_dataset(num_shards=3).shuffle(seed=1, buffer_size=4),
    "stream, map and filter": lambda its: (
        its.remove_columns("y").to_iterable_dataset().map(lambda row: {"z": row["x"] * 2}).filter(lambda row: row["z"] > 6)
    ),
    "stream, batch": lambda its: its.remove_columns(["list", "text"]).to_iterable_dataset().batch(4, drop_last_batch=True),
    "stream, interleave_datasets": lambda its: _hf().interleave_datasets(
        [its.to_iterable_dataset(), its.select([0, 2]).to_iterable_dataset()]
    ),
}


def _ours(dataset: Any) -> list[Any]:
    from replicant.data import Dataset

    return rows(Dataset.from_huggingface(dataset))


def _expected(value: Any) -> Any:
    """A list of dicts as a dict of lists."""
    if isinstance(value, dict):
        return {key: _expected(each) for key, each in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return {key: [_expected(each[key]) for each in value] for key in value[0]}
    return value


def _feature(make: Any, folder: Path, stream: bool = False) -> Any:
    feature, values = make()
    made = _hf().Dataset.from_dict({"x": values}, features=_hf().Features({"x": feature}))
    made = made.to_iterable_dataset() if stream else made
    if "Json" in repr(feature):
        return lambda: [{"x": _from_json(row["x"])} for row in _ours(made)], list(made)
    return lambda: _ours(made), [_expected(row) for row in made]


def _from_json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else [json.loads(each) for each in value]


def _picture_bytes(mode: str, number: int) -> bytes:
    from PIL import Image

    pixels = np.random.default_rng(number).integers(0, 256, (5 + number, 7, 3), np.uint8)
    with io.BytesIO() as file:
        Image.fromarray(pixels).convert(mode).save(file, "TIFF" if mode == "CMYK" else "PNG")
        return file.getvalue()


def _pictures(mode: str, how: str | None, folder: Path) -> Any:
    feature = _hf().Image(mode=None if how else mode, decode=how != "bytes")
    values = [{"bytes": _picture_bytes(mode, i), "path": None} for i in range(3)]
    made = _hf().Dataset.from_dict({"x": values}, features=_hf().Features({"x": feature}))
    if how == "bytes":
        return lambda: _ours(made), [{"x": row["x"]["bytes"]} for row in made]
    shape = (lambda pixels: pixels[:, :, None]) if mode == "L" else (lambda pixels: pixels)
    return lambda: _ours(made), [{"x": shape(np.asarray(row["x"]))} for row in made]


def _audio(folder: Path) -> Any:
    import pyarrow as pa

    values = pa.array([{"bytes": b"RIFF" + bytes([i]), "path": None} for i in range(3)], _hf().Audio.pa_type)
    made = _hf().Dataset(pa.table({"x": values})).cast_column("x", _hf().Audio(decode=False))
    return lambda: _ours(made), [{"x": row["x"]["bytes"]} for row in made]


def _table() -> Any:
    return _hf().Dataset.from_dict(
        {
            "x": list(range(10)),
            "y": [i * 7 % 10 / 3 for i in range(10)],
            "text": ["ä" * i for i in range(10)],
            "list": [[i] * (i % 3) for i in range(10)],
        }
    )


def _changed(change: Any, folder: Path) -> Any:
    made = change(_table())
    return lambda: _ours(made), list(made)


def _saved(shards: int, folder: Path) -> Any:
    _table().save_to_disk(str(folder / "made"), num_shards=shards)
    made = _hf().load_from_disk(str(folder / "made"))
    return lambda: _ours(made), list(made)


def _saved_files(folder: Path) -> Any:
    from replicant.data import ArrowDataset

    _table().save_to_disk(str(folder / "made"), num_shards=3)
    files = sorted((folder / "made").glob("*.arrow"))
    return lambda: rows(ArrowDataset(files)), list(_hf().load_from_disk(str(folder / "made")))


def _saved_mapping(folder: Path) -> Any:
    _table().shuffle(seed=1).save_to_disk(str(folder / "made"))
    made = _hf().load_from_disk(str(folder / "made"))
    return lambda: _ours(made), list(made)


def _parquet(folder: Path) -> Any:
    from replicant.data import ParquetDataset

    path = str(folder / "file.parquet")
    _table().to_parquet(path)
    return lambda: rows(ParquetDataset(path)), list(_hf().Dataset.from_parquet(path, cache_dir=str(folder / "cache")))


def _parquet_arrays(folder: Path) -> Any:
    from replicant.data import ParquetDataset

    path, hf = str(folder / "file.parquet"), _hf()
    features = hf.Features({"x": hf.Array2D((2, 3), "float32")})
    hf.Dataset.from_dict({"x": [np.full((2, 3), i) for i in range(4)]}, features=features).to_parquet(path)
    return lambda: rows(ParquetDataset(path)), list(hf.Dataset.from_parquet(path, cache_dir=str(folder / "cache")))


def _csv(folder: Path) -> Any:
    from replicant.data import CsvDataset

    path = str(folder / "file.csv")
    _table().remove_columns("list").select(range(1, 10)).to_csv(path)
    back = _hf().Dataset.from_csv(path, cache_dir=str(folder / "cache"))
    return lambda: rows(CsvDataset(path, ["int64", "float64", str], header=True)), [tuple(row.values()) for row in back]


def _loaded(kind: str, streaming: bool, folder: Path) -> Any:
    hf, path = _hf(), str(folder / f"file.{kind}")
    table = _table().remove_columns("list").select(range(1, 10))
    table.to_parquet(path) if kind == "parquet" else table.to_csv(path)
    made = hf.load_dataset(kind, data_files=path, split="train", streaming=streaming, cache_dir=str(folder / "cache"))
    return lambda: _ours(made), list(made)


def _imagefolder(folder: Path) -> Any:
    for number, name in enumerate(("cat", "dog")):
        (folder / "made" / name).mkdir(parents=True)
        (folder / "made" / name / "0.png").write_bytes(_picture_bytes("RGB", number))
    made = _hf().load_dataset("imagefolder", data_dir=str(folder / "made"), split="train", cache_dir=str(folder / "cache"))
    return lambda: _ours(made), [{"image": np.asarray(row["image"].convert("RGB")), "label": row["label"]} for row in made]


def _splits(folder: Path) -> Any:
    return lambda: _ours(_hf().DatasetDict({"train": _table()})), None
