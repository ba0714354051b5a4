"""Reads damaged files of every format that Replicant reads. Run: ``python mutations.py SEED COUNT [FORMAT ...]``.

Each file is a sound one that was changed at random: bits, bytes and numbers are overwritten, pieces are cut out, doubled or moved,
and the end is cut off. It must be an error of ours, or give the right values: those of the sound file where the format has
checksums, and what a few lines of Python read where they are as strict. It prints a line of JSON for each format.
"""

import contextlib
import gzip
import io
import json
import os
import random
import shutil
import signal
import struct
import sys
import tarfile
import time
import traceback
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from PIL import Image

import replicant
from replicant import data as rd
from replicant.checkpoint.weights import open_weights, write_safetensors
from replicant.launch.engines._hosts import read_hosts_file
from replicant.launch.record._events import Events
from replicant.launch.record._goodput import read_job

RECORDED = Path(__file__).resolve().parents[1] / "tensorflow_files"
SECONDS, HANGS = 5, 60  # of the processor for a file, and of the clock: other programs may keep it waiting
SAME = object()  # the values must be those of the sound file
SOME = object()  # each value must be one of the sound file, which does not say how many there are
ANY = object()  # nobody else says what they must be

INSERTED = (b"[" * 3000, b"9" * 5000, b'{"a":' * 200, b"\\ud800", b"NaN", b"1e999", b"-", b"\0" * 600, b"\xff")

Read = Callable[[], Any]


def plain(value: Any) -> Any:
    """What two readings are compared by."""
    return repr(value)


def changed(data: bytes, rng: random.Random) -> bytes:
    """The bytes, damaged in one place or a few."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(out) or 1)
        end = min(len(out), at + rng.choice((1, 4, 8, rng.randrange(1, 200))))
        kind = rng.randrange(8)
        if not out:
            break
        if kind == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at] = rng.choice((0, 0xFF, 0x7F, 0x80, ord('"'), ord("["), ord("\n"), ord("9")))
        elif kind == 2:
            number = rng.choice((0, 1, -1, 1 << 31, (1 << 31) - 1, (1 << 63) - 1, 1 << 40, len(data), len(data) + 1))
            size = rng.choice((2, 4, 8))
            out[at : at + size] = (number & (1 << 8 * size) - 1).to_bytes(size, rng.choice(("little", "big")))
        elif kind == 3:
            del out[at:end]
        elif kind == 4:
            out[at:at] = out[at:end]
        elif kind == 5:
            out[at:at] = rng.choice(
                (b"[" * 3000, b"9" * 5000, b'{"a":' * 200, b"\\ud800", b"NaN", b"1e999", b"-", b"\0" * 600, b"\xff")
            )
        elif kind == 6:
            to = rng.randrange(len(out))
            out[to:to] = out[at:end]
        else:
            del out[at:]
    return bytes(out)


def records(path: Path, compression: str = "") -> tuple[Path, Read, Any]:
    with rd.TFRecordWriter(path, compression or None) as writer:
        for i in range(50):
            writer.write(bytes([i]) * i)
    return path, lambda: list(rd.TFRecordDataset(path, compression or None)), SOME


def text(path: Path) -> tuple[Path, Read, Any]:
    path.write_text("".join(f"line {i} of ä text\n" for i in range(60)))

    def expected() -> list[str]:
        lines = path.read_bytes().split(b"\n")
        return [line.removesuffix(b"\r").decode() for line in lines[: -1 if not lines[-1] else None]]

    return path, lambda: list(rd.TextLineDataset(path)), expected


def text_gz(path: Path) -> tuple[Path, Read, Any]:
    path.write_bytes(gzip.compress("".join(f"line {i} of ä text\n" for i in range(60)).encode()))
    return path, lambda: list(rd.TextLineDataset(path, "GZIP")), ANY  # gzip's name and time may be anything


def fixed(path: Path) -> tuple[Path, Read, Any]:
    path.write_bytes(bytes(range(250)))

    def expected() -> list[bytes]:
        data = path.read_bytes()
        return [data[i : i + 5] for i in range(0, len(data), 5)]

    return path, lambda: list(rd.FixedLengthRecordDataset(path, 5)), expected


def csv(path: Path) -> tuple[Path, Read, Any]:
    path.write_text("a,b,c\n" + "".join(f'{i},{i / 3},"text, ""{i}""\nmore"\n' for i in range(40)))
    return path, lambda: list(rd.CsvDataset(path, [0, 0.0, ""], header=True)), ANY


def csv_batches(path: Path) -> tuple[Path, Read, Any]:
    path.write_text("a,b,c\n" + "".join(f"{i},{i / 3},text {i}\n" for i in range(40)))
    return path, lambda: list(rd.make_csv_dataset(str(path), 8, num_epochs=1, shuffle=False)), ANY


def json_text() -> bytes:
    rows = [{"i": i, "x": i / 3, "t": f"text ü {i}", "l": [1, 2, i], "d": {"b": True, "n": [[1.5, i]]}} for i in range(30)]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def json_lines(path: Path) -> tuple[Path, Read, Any]:
    path.write_bytes(json_text())
    return path, lambda: list(rd.JsonLinesDataset(path)), ANY


def json_gz(path: Path) -> tuple[Path, Read, Any]:
    path.with_suffix(".gz").write_bytes(gzip.compress(json_text()))
    return path.with_suffix(".gz"), lambda: list(rd.JsonLinesDataset(path.with_suffix(".gz"))), ANY


def json_zst(path: Path) -> tuple[Path, Read, Any]:
    path.with_suffix(".zst").write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(json_text()))
    return path.with_suffix(".zst"), lambda: list(rd.JsonLinesDataset(path.with_suffix(".zst"))), ANY


def tar(path: Path, layout: int = tarfile.GNU_FORMAT, compression: str = "") -> tuple[Path, Read, Any]:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=layout) as file:
        for i in range(12):
            for ending in ("jpg", "cls"):
                member = tarfile.TarInfo(f"{'folder/' * (20 if i == 3 else 1)}{i}é.{ending}")
                member.size = 10 * i
                file.addfile(member, io.BytesIO(bytes([i]) * member.size))
    path.write_bytes(gzip.compress(stream.getvalue()) if compression else stream.getvalue())
    return path, lambda: list(rd.TarDataset(path, compression or None)), ANY


def tar_by_number(path: Path) -> tuple[Path, Read, Any]:
    tar(path)
    return path, lambda: list(rd.TarDataset(path).global_shuffle(seed=1)), ANY


def mds(path: Path, change: str = "0.mds", compression: str = "") -> tuple[Path, Read, Any]:
    path.mkdir()
    arrays = [b"\x22\x04" + bytes([2]) + struct.pack("<ff", i, -i) for i in range(20)]  # float32 of shape (2,)
    samples = []
    for i in range(20):
        values = [str(i).encode(), json.dumps({"a": [i, 2], "b": "x"}).encode(), f"text {i}".encode(), arrays[i]]
        samples.append(b"".join(len(each).to_bytes(4, "little") for each in values) + b"".join(values) + struct.pack("<q", i))
    begin = 4 * (len(samples) + 2)
    ends = np.cumsum([begin, *map(len, samples)])
    raw = np.array([len(samples), *ends], "<u4").tobytes() + b"".join(samples)
    packed = zstandard.compress(raw) if compression == "zstd" else gzip.compress(raw) if compression == "gz" else raw
    shard: dict[str, Any] = {"format": "mds", "version": 2, "samples": len(samples), "compression": compression or None}
    shard |= {"column_names": ["i", "j", "t", "a", "n"], "column_encodings": ["str_int", "json", "str", "ndarray", "int64"]}
    shard |= {"column_sizes": [None, None, None, None, 8], "raw_data": {"basename": "0.mds", "bytes": len(raw), "hashes": {}}}
    shard["zip_data"] = {"basename": "0.mds.z", "bytes": len(packed), "hashes": {}} if compression else None
    (path / ("0.mds.z" if compression else "0.mds")).write_bytes(packed)
    (path / "index.json").write_text(json.dumps({"version": 2, "shards": [shard]}))
    return path / change, lambda: list(rd.MDSDataset(path)), ANY


def litdata(path: Path, change: str = "0.bin", compression: str = "") -> tuple[Path, Read, Any]:
    path.mkdir()
    items = []
    for i in range(20):
        values = [struct.pack("<q", i), f"text ü {i}".encode(), struct.pack("<3I2f", 9, 1, 2, i, -i), bytes([i]) * i, bytes(2 * i)]
        items.append(struct.pack("<5I", *map(len, values)) + b"".join(values))
    raw = np.array([20, *np.cumsum([4 * 22, *map(len, items)])], "<u4").tobytes() + b"".join(items)
    packed = zstandard.compress(raw) if compression else raw
    leaf = {"type": None, "context": None, "children_spec": []}
    spec = {"type": "builtins.dict", "context": '["i", "t", "a", "b", "v"]', "children_spec": [leaf] * 5}
    config = {"data_format": ["int", "str", "numpy", "bytes", "no_header_tensor:13"], "data_spec": json.dumps([1, spec])}
    config |= {"item_loader": "PyTreeLoader", "compression": compression or None}
    (path / "0.bin").write_bytes(packed)
    chunk = {"filename": "0.bin", "chunk_size": 20, "chunk_bytes": len(raw), "dim": None}
    (path / "index.json").write_text(json.dumps({"chunks": [chunk], "config": config}))
    return path / change, lambda: list(rd.LitDataDataset(path)), ANY


def litdata_frames(path: Path) -> tuple[Path, Read, Any]:
    shutil.copytree(RECORDED.parent / "pure" / "litdata" / "batch", path)
    return path / "chunk-0-0.bin", lambda: list(rd.LitDataDataset(path)), ANY


def numpy_file(path: Path) -> tuple[Path, Read, Any]:
    """There are no checksums, so values may be any."""
    with path.open("wb") as file:
        np.save(file, np.arange(60, dtype=np.int16).reshape(20, 3))
    return path, lambda: list(rd.NumpyDataset(path)), ANY


def numpy_archive(path: Path, save: Callable[..., None] = np.savez) -> tuple[Path, Read, Any]:
    with path.open("wb") as file:
        save(file, x=np.arange(20), name=np.array([f"ü{i}" for i in range(20)]), y=np.asfortranarray(np.ones((20, 2), np.float32)))
    return path, lambda: list(rd.NumpyDataset(path)), ANY


def token_file(path: Path) -> tuple[Path, Read, Any]:
    path.write_bytes(np.array([20240520, 1, 500, *[0] * 253], "<i4").tobytes() + np.arange(500, dtype="<u2").tobytes())
    return path, lambda: list(rd.TokenDataset(path, 8, dtype="uint16")), ANY


def megatron(path: Path, change: str = ".idx") -> tuple[Path, Read, Any]:
    sizes = np.arange(20, dtype="<i4")
    begins = 2 * np.cumsum([0, *sizes[:-1]]).astype("<i8")
    head = b"MMIDIDX" + bytes(2) + struct.pack("<QBQQ", 1, 8, 20, 21)
    path.with_suffix(".idx").write_bytes(head + sizes.tobytes() + begins.tobytes() + np.arange(21, dtype="<i8").tobytes())
    path.with_suffix(".bin").write_bytes(np.arange(sizes.sum(), dtype="<u2").tobytes())
    return path.with_suffix(change), lambda: list(rd.MegatronDataset(path)), ANY


def tfds(path: Path, change: str = "few-train.tfrecord-00000-of-00001", expected: Any = SAME) -> tuple[Path, Read, Any]:
    path.mkdir()

    def feature(name: str, **content: Any) -> dict[str, Any]:
        return {"pythonClassName": f"tensorflow_datasets.core.features.{name}", **content}

    whole = feature("Tensor", tensor={"dtype": "int64", "shape": {}, "encoding": "none"})
    free = feature("Tensor", tensor={"dtype": "int16", "shape": {"dimensions": ["-1", "-1"]}, "encoding": "zlib"})
    shape = {"dimensions": ["-1", "-1", "3"]}
    features = {
        "n": whole,
        "t": feature("Text", text={}),
        "r": feature(
            "Sequence", sequence={"feature": feature("Sequence", sequence={"feature": whole, "length": "-1"}), "length": "-1"}
        ),
        "z": free,
        "p": feature("Image", image={"dtype": "uint8", "shape": shape, "encodingFormat": "png"}),
    }
    png = io.BytesIO()
    Image.new("RGB", (4, 3), (10, 20, 30)).save(png, "PNG")
    with rd.TFRecordWriter(path / "few-train.tfrecord-00000-of-00001") as writer:
        for i in range(20):
            lists = {"r/ragged_flat_values": [1, 2, i], "r/ragged_row_lengths_0": [2, 1]}
            arrays = {"z/value": zlib.compress(bytes(2 * i)), "z/shape": [1, i]}
            writer.write(rd.encode_example({"n": i, "t": f"text {i}", "p": png.getvalue(), **lists, **arrays}))
    split = {"name": "train", "shardLengths": ["20"], "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"}
    keys = {"tuple": {"items": [{"featureKey": "p"}, {"featureKey": "n"}]}}
    info = {"name": "few", "version": "1.0.0", "fileFormat": "tfrecord", "splits": [split], "supervisedKeys": keys}
    (path / "dataset_info.json").write_text(json.dumps(info))
    (path / "features.json").write_text(json.dumps(feature("FeaturesDict", featuresDict={"features": features})))
    return path / change, lambda: list(rd.tfds_folder(path, "train")), expected


def tfdata(path: Path, change: str = "*/*/*", compression: str = "") -> tuple[Path, Read, Any]:
    """A folder that TensorFlow has saved."""
    recorded = Path(__file__).resolve().parents[1] / "tensorflow_files" / "tfdata"
    shutil.copytree(recorded / ("gzip" if compression else "kinds"), path)
    file = next(path.glob(change))
    return (
        file,
        lambda: list(rd.Dataset.load(path, compression=compression or None)),
        ANY if compression or "*" not in change else SAME,
    )


def table() -> Any:
    rows = range(30)
    texts = [f"text ü {i}" for i in rows]
    return pa.table({"i": list(rows), "x": [i / 3 for i in rows], "t": texts, "l": [[1] * (i % 4) for i in rows]})


def parquet(path: Path) -> tuple[Path, Read, Any]:
    pq.write_table(table(), path, row_group_size=7, write_page_checksum=True)
    return path, lambda: list(rd.ParquetDataset(path)), ANY


def arrow(path: Path, new: Callable[..., Any] = pa.ipc.new_file) -> tuple[Path, Read, Any]:
    with pa.OSFile(str(path), "wb") as sink, new(sink, table().schema) as writer:
        writer.write_table(table(), max_chunksize=7)
    return path, lambda: list(rd.ArrowDataset(path)), ANY


def saved(path: Path, change: str = "shard-00000", compression: str | None = None) -> tuple[Path, Read, Any]:
    rows = {"i": np.arange(600), "t": np.array([f"text {i}" for i in range(600)], object)}
    rd.Dataset.from_tensor_slices(rows).save(path, compression=compression)
    (file,) = path.rglob(change)
    return file, lambda: list(rd.Dataset.load(path, compression=compression)), ANY if change == "snapshot.json" else SAME


def cached(path: Path) -> tuple[Path, Read, Any]:
    rows = {"i": np.arange(600), "t": np.array([f"text {i}" for i in range(600)], object)}
    dataset = rd.Dataset.from_tensor_slices(rows).cache(path)
    list(dataset)
    return path, lambda: list(rd.Dataset.from_tensor_slices(rows).cache(path)), SAME


def cached_forged(path: Path) -> tuple[Path, Read, Any]:
    """Damage below the checksums, which are made anew: see `forged`."""
    file, read, _ = cached(path)
    return file, read, ANY


def saved_forged(path: Path) -> tuple[Path, Read, Any]:
    file, read, _ = saved(path)
    return file, read, ANY


def examples(path: Path) -> tuple[Path, Read, Any]:
    path.write_bytes(rd.encode_example({"i": 3, "x": [1.5, 2.5], "t": b"text"}))
    features = {"i": rd.FixedLenFeature((), "int64"), "x": rd.VarLenFeature("float32"), "t": rd.FixedLenFeature((), str)}

    def read() -> Any:
        record = path.read_bytes()
        return rd.parse_single_example(record, features), rd.parse_example([record, record], features)

    return path, read, ANY


def picture(path: Path, kind: str = "png") -> tuple[Path, Read, Any]:
    (path / "a").mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 255, (24, 20, 3), np.uint8)
    file = path / "a" / "0.png"  # whatever it is: the name does not count
    Image.fromarray(pixels).save(file, format=kind)
    read = replicant.keras.utils.image_dataset_from_directory
    return file, lambda: list(read(path, image_size=(8, 8), verbose=False)), ANY


def sound(path: Path) -> tuple[Path, Read, Any]:
    (path / "a").mkdir(parents=True)
    samples = np.arange(800, dtype="<i2").tobytes()
    head = b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 2, 8000, 32000, 4, 16) + b"data" + struct.pack("<I", len(samples))
    (path / "a" / "0.wav").write_bytes(b"RIFF" + struct.pack("<I", len(head) + len(samples)) + head + samples)
    read = replicant.keras.utils.audio_dataset_from_directory
    return path / "a" / "0.wav", lambda: list(read(path, sampling_rate=16000, output_sequence_length=900, verbose=False)), ANY


def checkpoint(path: Path, change: str = "arrays") -> tuple[Path, Read, Any]:
    variable = replicant.Variable(np.arange(50, dtype=np.float32))
    written = replicant.Checkpoint(w=variable).write(path)
    (file,) = [each for each in Path(str(written)).iterdir() if change in each.name]

    def read() -> Any:
        replicant.Checkpoint(w=variable).restore(str(written))
        return np.asarray(variable.numpy()).tolist()

    return file, read, SAME


def tensorflow(path: Path, folder: str = "crafted", name: str = "small_blocks", change: str = ".index") -> tuple[Path, Read, Any]:
    shutil.copytree(RECORDED / "bundles" / folder, path)
    file = next(each for each in sorted(path.iterdir()) if each.name.startswith(name + change))

    def read() -> Any:
        reader = replicant.load_checkpoint(path / name)
        return [(key, reader.get_tensor(key)) for key in reader.get_variable_to_shape_map()]

    return file, read, SAME


def run_log(path: Path) -> tuple[Path, Read, Any]:
    lines = [{"t": 1.0, "job": "a", "kind": "job", "command": ["a.py"], "workers": 2, "host": "h", "pid": 1}]
    lines += [{"t": 2.0 + i, "job": "a", "kind": "steps", "workers": {"0": [i, 0.0, "step"]}} for i in range(20)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def read() -> Any:
        with path.open(encoding="utf-8", errors="replace") as file:
            return str(read_job(Events(file), None))

    return path, read, ANY


def hosts(path: Path) -> tuple[Path, Read, Any]:
    path.write_text("# hosts\n" + "".join(f"host{i} slots={i + 1}\n" for i in range(8)))
    return path, lambda: read_hosts_file(path), ANY


def vocabulary(path: Path) -> tuple[Path, Read, Any]:
    path.write_text("".join(f"token{i}\n" for i in range(40)))
    return path, lambda: replicant.keras.layers.StringLookup(vocabulary=str(path)).get_vocabulary(), ANY


def weights(path: Path, data: bytes) -> tuple[Path, Read, Any]:
    """HDF5 and safetensors have no checksums, so values may be any."""
    path.write_bytes(data)

    def read() -> Any:
        with open_weights("path", path) as file:
            return [(entry.name, file.read(entry.name).tolist()) for entry in file.entries.values()]

    return path, read, ANY


def tensors(path: Path) -> tuple[Path, Read, Any]:
    write_safetensors(path, {"a": np.arange(20.0), "b/c": np.ones((3, 4), np.float32)})
    return weights(path, path.read_bytes())


def event_file(path: Path) -> tuple[Path, Read, Any]:
    path.write_bytes((RECORDED / "events" / "events.out.tfevents.tensorflow2").read_bytes())

    def read() -> Any:
        tags = replicant.summary.read_scalars(path).get(".", {})
        return [(tag, *point) for tag, points in tags.items() for point in points]

    return path, read, SOME  # after the last record, nothing says that there were more


FORMATS: dict[str, Callable[[Path], tuple[Path, Read, Any]]] = {
    "TFRecord": records,
    "TFRecord, GZIP": lambda path: (*records(path, "GZIP")[:2], ANY),
    "TFRecord, ZLIB": lambda path: records(path, "ZLIB"),
    "text": text,
    "text, GZIP": text_gz,
    "records of fixed length": fixed,
    "CSV": csv,
    "CSV in batches": csv_batches,
    "JSON Lines": json_lines,
    "JSON Lines, gz": json_gz,
    "JSON Lines, zst": json_zst,
    "tar": tar,
    "tar, pax": lambda path: tar(path, tarfile.PAX_FORMAT),
    "tar, GZIP": lambda path: tar(path, compression="GZIP"),
    "tar, by number": tar_by_number,
    "MDS": mds,
    "MDS, index": lambda path: mds(path, "index.json"),
    "MDS, zstd": lambda path: mds(path, "0.mds.z", "zstd"),
    "MDS, gz": lambda path: mds(path, "0.mds.z", "gz"),
    "LitData": litdata,
    "LitData, index": lambda path: litdata(path, "index.json"),
    "LitData, zstd": lambda path: litdata(path, compression="zstd"),
    "LitData, frames": litdata_frames,
    "NumPy": numpy_file,
    "NumPy, archive": numpy_archive,
    "NumPy, compressed": lambda path: numpy_archive(path, np.savez_compressed),
    "token ids": token_file,
    "Megatron": megatron,
    "Megatron, token ids": lambda path: megatron(path, ".bin"),
    "TFDS": tfds,
    "TFDS, splits": lambda path: tfds(path, "dataset_info.json", ANY),
    "TFDS, features": lambda path: tfds(path, "features.json", ANY),
    "tf.data": tfdata,
    "tf.data, GZIP": lambda path: tfdata(path, compression="GZIP"),
    "tf.data, metadata": lambda path: tfdata(path, "snapshot.metadata"),
    "tf.data, spec": lambda path: tfdata(path, "dataset_spec.pb"),
    "Parquet": parquet,
    "Arrow": arrow,
    "Arrow, stream": lambda path: arrow(path, pa.ipc.new_stream),
    "saved dataset": saved,
    "saved dataset, GZIP": lambda path: saved(path, compression="GZIP"),
    "saved dataset, index": lambda path: saved(path, "snapshot.json"),
    "saved dataset, forged": saved_forged,
    "cache": cached,
    "cache, forged": cached_forged,
    "tf.train.Example": examples,
    "PNG": picture,
    "JPEG": lambda path: picture(path, "jpeg"),
    "GIF": lambda path: picture(path, "gif"),
    "BMP": lambda path: picture(path, "bmp"),
    "WebP": lambda path: picture(path, "webp"),
    "WAV": sound,
    "checkpoint": checkpoint,
    "checkpoint, manifest": lambda path: checkpoint(path, "manifest"),
    "checkpoint of TensorFlow": lambda path: tensorflow(path, change=".data"),
    "checkpoint of TensorFlow, index": tensorflow,
    "checkpoint of TensorFlow, Snappy": lambda path: tensorflow(path, name="snappy"),
    "checkpoint of TensorFlow, one file": lambda path: tensorflow(path, "saver_v1", "int64", ""),
    "run log": run_log,
    "hosts file": hosts,
    "vocabulary": vocabulary,
    "weights, HDF5": lambda path: weights(path, (RECORDED / "weights" / "nested.h5").read_bytes()),
    "weights, .keras": lambda path: weights(path, (RECORDED / "weights" / "sequential.keras").read_bytes()),
    "weights, safetensors": tensors,
    "event file": event_file,
}


def forged(data: bytes, rng: random.Random) -> bytes:
    """Records with damage in them, but with the right checksums, each behind the one before, as a stranger can write them."""
    from replicant.input.files.records._tfrecord import read_record, record_parts

    stream, parts = io.BytesIO(data), []
    while (record := read_record(stream)) is not None:
        parts.append(record)
    tail = data[sum(len(part) + 16 for part in parts) :]
    number = rng.randrange(len(parts))
    parts[number] = changed(parts[number], rng)
    framed = [b"".join(record_parts(part)) for part in parts]
    if tail:  # of a cache, which says where its index begins
        tail = struct.pack("<Q", sum(map(len, framed[:-1]))) + tail[8:]
    return b"".join(framed) + tail


def peak_mb() -> float:
    """The most memory since `reset_peak`, in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0.0


def reset_peak() -> None:
    """Let the peak be what is in use now."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


class TooLongError(BaseException):
    """Reading takes too long."""


def _too_long(*_: object) -> None:
    raise TooLongError


def try_format(name: str, folder: Path, seed: int, count: int) -> dict[str, Any]:
    """Read so many damaged files of a format. Returns what went wrong, and the most seconds and MB that one has taken."""
    file, read, expected = FORMATS[name](folder)
    sound_bytes, sound_values = file.read_bytes(), plain(read())
    found: dict[str, Any] = {"format": name, "files": count, "errors": 0, "seconds": 0.0, "mb": 0.0, "wrong": []}
    signal.signal(signal.SIGALRM, _too_long)
    for number in range(count):
        rng = random.Random(f"{seed} {name} {number}")
        file.write_bytes(forged(sound_bytes, rng) if "forged" in name else changed(sound_bytes, rng))
        print(json.dumps({"format": name, "number": number}), file=sys.stderr, flush=True) if os.environ.get("SAY") else None
        reset_peak()
        before, began, wrong = peak_mb(), time.process_time(), None
        signal.setitimer(signal.ITIMER_REAL, HANGS)
        try:
            made = read()
            values = plain(made)
            signal.setitimer(signal.ITIMER_REAL, 0)
            if expected is SAME and values != sound_values:
                wrong = f"other values: {values[:200]}"
            if expected is SOME and not all(plain(each) in sound_values for each in made):
                wrong = f"other values: {values[:200]}"
            if callable(expected) and values != plain(expected()):
                wrong = f"{values[:200]} instead of {plain(expected())[:200]}"
        except replicant.errors.ReplicantError:
            found["errors"] += 1
        except BaseException as error:  # noqa: BLE001 - which is what is looked for
            wrong = "".join(traceback.format_exception_only(error))[:300] + "".join(traceback.format_tb(error.__traceback__)[-3:])
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        seconds, mb = time.process_time() - began, peak_mb() - before
        found["seconds"], found["mb"] = max(found["seconds"], seconds), max(found["mb"], mb)
        if seconds > SECONDS or mb > 200:
            wrong = f"{seconds:.1f} s, {mb:.0f} MB {wrong or ''}"
        if wrong is not None:
            found["wrong"].append([number, wrong])
    file.write_bytes(sound_bytes)
    return found


def main() -> None:
    """Print a line of JSON for each format."""
    import tempfile

    seed, count, *chosen = sys.argv[1:]
    warnings.simplefilter("ignore")
    for name in chosen or FORMATS:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(try_format(name, Path(folder) / "a", int(seed), int(count))), flush=True)


if __name__ == "__main__":
    main()
