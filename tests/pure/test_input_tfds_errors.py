"""Folders of TFDS that are damaged, or hold what is not read: errors that name the file and the numbers."""

import io
import json
import re
import struct
import sys
import zlib

import fsspec
import numpy as np
import pytest
from PIL import Image

from replicant.data import SkipDecoding, encode_example, tfds_folder, tfds_info
from replicant.errors import ArgumentError, ArgumentTypeError, ConfigurationError, DatasetError, ElementError
from replicant.input.files import _fast_jpeg
from replicant.input.files.tfds import _decode

from ._tfds_folders import PICTURE, RECORDED, TEXT, describe, feature, features_dict, file_of, ns, numbers, sequence, tensor, write


def change(path, fn):
    found = json.loads(path.read_text())
    changed = fn(found)
    path.write_text(json.dumps(found if changed is None else changed))


# Arguments


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"split": "nope"}, ArgumentError, r"tfds_folder: there is no split 'nope'\. The splits are \['train'\]"),
        ({"split": 3}, ArgumentTypeError, r"split must be text such as 'train\[:10%\]', or a list or dict of such\. Received: 3\."),
        ({"read_order": "random"}, ArgumentError, r'read_order must be "tfds" or "files"\. Received: \'random\'\.'),
        ({"dct_method": "FAST"}, ArgumentError, r'dct_method must be "INTEGER_ACCURATE" or "INTEGER_FAST"\. Received: \'FAST\'\.'),
        ({"shuffle_seed": 1}, ArgumentError, r"shuffle_seed=1 has no effect without shuffle_files=True"),
        ({"max_record_bytes": 0}, ArgumentError, r"max_record_bytes must be at least 1\. Received: 0\."),
        ({"decoders": {"n": None}}, ArgumentTypeError, r"decoders must be a dict of SkipDecoding\(\) by feature.*for 'n': None"),
        ({"decoders": {"x": SkipDecoding()}}, ArgumentError, r"decoders has 'x', but the features are \['n'\]\."),
        ({"decoders": {"n": {"x": SkipDecoding()}}}, ArgumentError, r"decoders has 'x', but the features of 'n' are not nested\."),
        ({"as_supervised": True}, ArgumentError, r"'made' does not name inputs and labels \('supervisedKeys'\)"),
    ],
)
def test_arguments(tmp_path, arguments, error, message):
    numbers(tmp_path, 2)
    with pytest.raises(error, match=message):
        tfds_folder(tmp_path, **arguments)


def test_an_order_that_is_to_be_kept(tmp_path):
    numbers(tmp_path, 2, disableShuffling=True)
    with pytest.raises(ArgumentError, match=r"shuffle_files=True, but the examples of 'made' lie in an order that is to be kept"):
        tfds_folder(tmp_path, "train", shuffle_files=True)


def test_a_dataset_is_decoded_step_by_step():
    with pytest.raises(ArgumentError, match=r"'dataset' is a dataset\. Name the features of its steps: decoders=\{'dataset': "):
        tfds_folder(RECORDED / "kind_dataset", "train", decoders={"dataset": SkipDecoding()})


# Folders


def test_folders_that_are_none(tmp_path):
    with pytest.raises(DatasetError, match=r"cannot open the folder .*nowhere': No such file.*prepare them once"):
        tfds_folder(tmp_path / "nowhere", "train")
    (tmp_path / "plain_text").mkdir()
    with pytest.raises(DatasetError, match=r"no dataset_info.json, and no folder of a version.* Its folders are \['plain_text'\]"):
        tfds_info(tmp_path)
    with pytest.raises(DatasetError, match=r"cannot open 'memory://nothing/dataset_info.json'"):
        tfds_folder("memory://nothing", "train")


def without(name):
    def changed(info):
        del info[name]

    return changed


def with_split(**settings):
    def changed(info):
        info["splits"][0].update(settings)

    return changed


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda info: [], "it is not an object"),
        (without("name"), "it has None as the name of the dataset, and 'tfrecord' as the format of its files"),
        (lambda info: {**info, "name": "../x"}, r"it has '\.\./x' as the name of the dataset"),
        (lambda info: {**info, "splits": 3}, "it has no list of splits"),
        (lambda info: {**info, "splits": [3]}, "it has a split without a name"),
        (lambda info: {**info, "splits": info["splits"] * 2}, "it has the split 'train' twice"),
        (
            with_split(shardLengths=None, numShards="2"),
            r"the split 'train' has no list of the lengths of its files",
        ),
        (with_split(shardLengths=["-1"]), "the split 'train' has a file of '-1' examples"),
        (with_split(shardLengths=["x"]), "the split 'train' has a file of 'x' examples"),
        (with_split(shardLengths=[True]), "the split 'train' has a file of True examples"),
        (with_split(filepathTemplate="{NAME}"), r"'\{NAME\}' has other variables than \['DATASET', 'FILEFORMAT', 'NUM_SHARDS', "),
        (with_split(filepathTemplate="../{SHARD_INDEX}"), r"a file is '\.\./00000', which is not below the folder"),
        (with_split(filepathTemplate="/etc/passwd"), "a file is '/etc/passwd', which is not below the folder"),
        (
            with_split(filepathTemplate="{SPLIT}"),
            r"'\{SPLIT\}', the names of the files of the split 'train', gives the same",
        ),
        (
            lambda info: {**info, "supervisedKeys": {"tuple": 3}},
            r"'supervisedKeys' has \{'tuple': 3\}, which is no",
        ),
    ],
)
def test_what_is_wrong_with_dataset_info(tmp_path, changed, message):
    numbers(tmp_path, 2, 2)
    change(tmp_path / "dataset_info.json", changed)
    with pytest.raises(DatasetError, match=f"dataset_info.json' does not describe a dataset: {message}"):
        tfds_folder(tmp_path, "train")


def test_json_that_is_none(tmp_path):
    numbers(tmp_path, 2)
    (tmp_path / "features.json").write_text("{" * 100_000)
    with pytest.raises(DatasetError, match=r"features.json' does not describe features: it is nested more than 64 deep"):
        tfds_folder(tmp_path, "train")
    (tmp_path / "features.json").write_text("{")
    with pytest.raises(DatasetError, match=r"features.json' does not describe features: it is not JSON"):
        tfds_folder(tmp_path, "train")
    (tmp_path / "features.json").unlink()
    with pytest.raises(DatasetError, match=r"cannot open .*features.json': No such file.* TFDS writes it since version 4"):
        tfds_folder(tmp_path, "train")
    (tmp_path / "dataset_info.json").write_bytes(b"\xff")
    with pytest.raises(DatasetError, match=r"dataset_info.json' does not describe a dataset: it is not UTF-8"):
        tfds_folder(tmp_path, "train")


def test_inputs_that_are_no_features(tmp_path):
    numbers(tmp_path, 2, supervisedKeys={"input": "n", "output": "label"})
    with pytest.raises(DatasetError, match=r"names 'label' as an input or label .*, and its features are \['n'\]"):
        tfds_folder(tmp_path, "train", as_supervised=True)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (
            "parquet",
            "have the format 'parquet', and .* are tfrecord and array_record. Read them by `ParquetDataset`",
        ),
        ("riegeli", "have the format 'riegeli', .*. Write the folder again in one of these"),
    ],
)
def test_other_formats(tmp_path, form, message):
    numbers(tmp_path, 2, fileFormat=form)
    with pytest.raises(DatasetError, match=message):
        tfds_folder(tmp_path, "train")


def test_array_record_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "array_record.python.array_record_module", None)
    numbers(tmp_path, 2, fileFormat="array_record")
    dataset = tfds_folder(tmp_path, "train")
    assert len(dataset) == 2
    with pytest.raises(ConfigurationError, match=r"with the package array_record, .*: pip install 'replicant-jax\[array-record\]'"):
        list(dataset)


def test_simplejpeg_is_not_installed(monkeypatch):
    monkeypatch.setattr(_fast_jpeg, "simplejpeg", lambda: None)
    dataset = tfds_folder(RECORDED / "kinds", "train", dct_method="INTEGER_FAST")
    with pytest.raises(ConfigurationError, match=r"JPEG pictures with simplejpeg.*Run: pip install 'replicant-jax\[jpeg\]'"):
        list(dataset)


def test_array_record_files(tmp_path):
    module = pytest.importorskip("array_record.python.array_record_module")
    describe(tmp_path, {"train": [3, 2]}, {"n": tensor()}, fileFormat="array_record")
    for number, rows in enumerate([[0, 1, 2], [3]]):
        writer = module.ArrayRecordWriter(str(tmp_path / f"made-train.array_record-{number:05}-of-00002"), "group_size:1")
        for n in rows:
            writer.write(encode_example({"n": n}))
        writer.close()
    dataset = tfds_folder(tmp_path, "train[:4]")
    assert ns(dataset) == [0, 1, 2, 3]
    iterator = iter(dataset)
    next(iterator)
    again = iter(dataset)
    again.restore(json.loads(json.dumps(iterator.state())))
    assert ns(again) == [1, 2, 3]
    with pytest.raises(DatasetError, match=r"00001-of-00002' has 1 examples, and dataset_info.json says 2"):
        list(tfds_folder(tmp_path, "train"))
    with pytest.raises(DatasetError, match=r"the record at byte 0 of .* has 14 bytes, more than 5"):
        list(tfds_folder(tmp_path, "train", max_record_bytes=5))
    path = tmp_path / "made-train.array_record-00000-of-00002"
    data = bytearray(path.read_bytes())
    data[140] ^= 255
    path.write_bytes(data)
    with pytest.raises(DatasetError, match=r"made-train.array_record-00000-of-00002' (is damaged|has 0 examples)"):
        list(dataset)
    path.unlink()
    with pytest.raises(DatasetError, match=r"00000-of-00002' is missing, which should have 3 examples of made/1\.0\.0"):
        list(dataset)
    path.mkdir()
    with pytest.raises(DatasetError, match=r"tfds_folder: cannot open .*00000-of-00002': Is a directory"):
        list(dataset)
    fsspec.filesystem("memory").put(f"{tmp_path}/dataset_info.json", "/tfds-array/dataset_info.json")
    fsspec.filesystem("memory").put(f"{tmp_path}/features.json", "/tfds-array/features.json")
    with pytest.raises(
        DatasetError, match=r"is an ArrayRecord file, which can only be read from a disk of this machine\. Copy it to one\."
    ):
        list(tfds_folder("memory://tfds-array", "train"))


def test_jpeg_pictures_of_other_colours(tmp_path):
    """Pillow reads them, and the fast transform is for the usual ones only."""
    pytest.importorskip("simplejpeg")
    file = io.BytesIO()
    Image.fromarray(PIXELS).convert("CMYK").save(file, "JPEG")
    folder = write(tmp_path, [[{"x": file.getvalue()}]], {"x": PICTURE})
    assert next(iter(tfds_folder(folder, "train")))["x"].shape == (2, 3, 3)
    with pytest.raises(ElementError, match=r"cannot be decoded: its colours are .*, but only grey and YCbCr can be read"):
        list(tfds_folder(folder, "train", dct_method="INTEGER_FAST"))


# Features


def image(**settings):
    return feature("Image", image=settings)


def dataset(inner):
    return feature("Dataset", sequence={"feature": inner, "length": "-1"})


OLD_TEXT = {"type": "tensorflow_datasets.core.features.text_feature.Text", "content": {"use_encoder": True}}
MINE = {"pythonClassName": "my.features.Mine"}
FEATURES = {
    "a class": (MINE, r"'x' is of the class 'my\.features\.Mine', which is not known\. Those that are read are Audio, BBox"),
    "a class of TFDS": (feature("Graph"), r"the feature 'x' is of the class '.*\.Graph', which is not known"),
    "no class": ({}, "the feature 'x' is of the class None"),
    "no object": (3, "the feature 'x' is not an object"),
    "no content": (feature("Tensor", tensor=3), "the feature 'x' has no object as its 'tensor'"),
    "no features": (features_dict({}), "the feature 'x' has no features"),
    "a dtype": (tensor("int4"), r"the feature 'x' has the dtype 'int4'; those that are read are bool, int8, "),
    "complex numbers": (tensor("complex64"), "the feature 'x' has the dtype 'complex64'"),
    "an encoding": (tensor(encoding="gzip"), "is encoded as 'gzip'; those that are read are 'none', 'bytes' and 'zlib'"),
    "encoded strings": (tensor("string", encoding="zlib"), "has strings that are encoded as 'zlib'"),
    "a shape": (tensor(shape=(None, None)), r"has the shape \(None, None\), of which nothing in an example says how its values"),
    "sequences": (sequence(tensor(shape=(None,))), r"has the shape \(None, None\)"),
    "no sizes": (feature("Tensor", tensor={"dtype": "int64", "shape": 3}), "has the shape 3, which is not a list of sizes"),
    "a size": (tensor(shape=(-2,)), "has '-2' as a size, which must be a whole number from -1 to 2147483647"),
    "a huge size": (tensor(shape=(1 << 40,)), f"has '{1 << 40}' as a size"),
    "a length": (sequence(tensor(), "many"), "has 'many' as a size"),
    "classes": (feature("ClassLabel", classLabel={"numClasses": "-3"}), "has '-3' as numClasses, which must be a whole number"),
    "the rank of pictures": (image(dtype="uint8", shape=[2, 2]), r"has pictures of the shape \(2, 2\)"),
    "the channels of pictures": (image(dtype="uint8", shape=[2, 2, 2]), r"has pictures of the shape \(2, 2, 2\)"),
    "the dtype of pictures": (image(dtype="int64"), r"has pictures of int64 and shape \(None, None, 3\); TFDS knows uint8"),
    "no languages": (feature("Translation", translation={}), "is a translation without languages"),
    "encoded text": (OLD_TEXT, "is text that an encoder of TFDS has made into numbers"),
    "datasets in a sequence": (sequence(dataset(tensor())), "is a dataset in a sequence or another dataset"),
    "datasets in a dataset": (dataset(features_dict({"y": dataset(tensor())})), "is a dataset of datasets"),
}


@pytest.mark.parametrize("name", FEATURES)
def test_features_that_are_not_read(tmp_path, name):
    its, message = FEATURES[name]
    describe(tmp_path, {"train": [1]}, {"x": its})
    with pytest.raises(DatasetError, match=f"in .*features.json', .*{message}"):
        tfds_folder(tmp_path, "train")


def test_two_features_of_one_name(tmp_path):
    describe(tmp_path, {"train": [1]}, {"x": features_dict({"y": tensor()}), "x/y": tensor()})
    with pytest.raises(DatasetError, match=r"features.json', it has two features that are both stored as 'x/y'"):
        tfds_folder(tmp_path, "train")


def test_features_that_are_no_dict(tmp_path):
    describe(tmp_path, {"train": [1]}, {})
    (tmp_path / "features.json").write_text(json.dumps(tensor()))
    with pytest.raises(DatasetError, match=r"features.json', it is not a dict of features"):
        tfds_folder(tmp_path, "train")


def test_sound_that_is_not_decoded(tmp_path):
    sound = feature("Audio", audio={"dtype": "int64", "shape": {"dimensions": ["-1"]}, "lazyDecode": True, "encoding": "NONE"})
    write(tmp_path, [[{"x": b"RIFF"}]], {"x": sound})
    with pytest.raises(DatasetError, match=r"the feature 'x' is stored as files of sound.*decoders=\{'x': SkipDecoding\(\)\}"):
        tfds_folder(tmp_path, "train")
    assert list(tfds_folder(tmp_path, "train", decoders={"x": SkipDecoding()})) == [{"x": b"RIFF"}]


# Examples


def packed(array):
    return zlib.compress(np.asarray(array).tobytes())


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def deep_png():
    """Two pixels of red, green and blue in 16 bits each, as Pillow does not write them."""
    parts = [(b"IHDR", struct.pack(">IIBBBBB", 2, 1, 16, 2, 0, 0, 0)), (b"IDAT", zlib.compress(bytes(13))), (b"IEND", b"")]
    chunks = [struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


PIXELS = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
PNG, WIDE, DEEP = png(PIXELS), png(np.zeros((2, 4, 3), np.uint8)), deep_png()
SMALL = feature("Image", image={"dtype": "uint8", "shape": {"dimensions": ["2", "3", "3"]}})


RAGGED = sequence(sequence(tensor()))
LISTS = {"x/ragged_flat_values": [1, 2], "x/ragged_row_lengths_0": [1, 1]}
FREE = tensor("int16", (None, 2, None), encoding="zlib")
SHAPED = {"x/value": packed(np.zeros(2, np.int16)), "x/shape": [1, 2, 1]}
STEPS = dataset(features_dict({"a": tensor(), "b": TEXT}))
ZIPPED = tensor(encoding="zlib")
# A feature, what a sound example has of it and what a wrong one has, and what is said of that.
WRONG = {
    "no example": (tensor(), {"x": 1}, b"\xff\xff", "it is not a serialized tf.train.Example"),
    "another type": (tensor(), {"x": 1}, {"x": 1.5}, "its feature 'x' is a list of floats, and features.json says whole numbers"),
    "text for numbers": (tensor("float32"), {"x": 0.5}, {"x": "1"}, "'x' is a list of byte strings, and features.json says floats"),
    "missing": (tensor(), {"x": 1}, {"y": 1}, "its feature 'x' is missing"),
    "missing text": (TEXT, {"x": "a"}, {}, "its feature 'x' is missing"),
    "missing bytes": (ZIPPED, {"x": packed([1])}, {}, "its feature 'x' is missing"),
    "two values": (ZIPPED, {"x": packed([1])}, {"x": [b"a", b"b"]}, "its feature 'x' has 2 values instead of one"),
    "too many": (tensor(shape=(2,)), {"x": [1, 2]}, {"x": [1, 2, 3]}, r"'x' has 3 values, and its shape \(2,\) needs 2"),
    "not full": (tensor(shape=(None, 2)), {"x": [1, 2]}, {"x": [1, 2, 3]}, r"its shape \(None, 2\) needs a multiple of 2"),
    "in the middle": (tensor(shape=(2, None)), {"x": [1, 2]}, {"x": [1, 2, 3]}, r"its shape \(2, None\) needs a multiple of 2"),
    "nothing in a row": (tensor(shape=(None, 0)), {"y": 1}, {"x": [1]}, r"its shape \(None, 0\) needs a multiple of 0"),
    "too long": (sequence(tensor(), 2), {"x": [1, 2]}, {"x": [1, 2, 3]}, r"'x' has 3 values, and its shape \(2,\) needs 2"),
    "too short": (sequence(ZIPPED, 1), {"x": [packed([1])]}, {"y": 1}, r"'x' has 0 values, and its shape \(1,\) needs 1"),
    "no picture": (
        PICTURE,
        {"x": PNG},
        {"x": b"GIF89a"},
        "'x' cannot be decoded: it is not a BMP, JPEG or PNG picture, or it is d",
    ),
    "other pictures": (
        sequence(PICTURE),
        {"x": [PNG]},
        {"x": [PNG, WIDE]},
        r"shapes \(2, 3, 3\) and \(2, 4, 3\), which do not",
    ),
    "another size": (SMALL, {"x": PNG}, {"x": WIDE}, r"the picture has the shape \(2, 4, 3\), and \(2, 3, 3\) is expected"),
    "not compressed": (ZIPPED, {"x": packed([1])}, {"x": b"12345678"}, "'x' cannot be decoded: it is not compressed by zlib"),
    "cut off": (ZIPPED, {"x": packed([1])}, {"x": packed([1])[:-3]}, "'x' cannot be decoded: its compressed bytes are cut off"),
    "other bytes": (
        tensor("int8", (2,), encoding="bytes"),
        {"x": b"12"},
        {"x": b"1"},
        r"1 bytes, and int8 of shape \(2,\) needs",
    ),
    "half an item": (
        tensor("int16", (None,), encoding="bytes"),
        {"x": b""},
        {"x": b"1"},
        "1 bytes, and int16 of .* needs 2",
    ),
    "other shape": (FREE, SHAPED, {**SHAPED, "x/shape": [1, 3, 1]}, r"its shape \(1, 3, 1\) does not fit \(None, 2, None\)"),
    "a negative shape": (FREE, SHAPED, {**SHAPED, "x/shape": [-1, 2, -1]}, r"its shape \(-1, 2, -1\) has a size below 0"),
    "too few sizes": (FREE, SHAPED, {**SHAPED, "x/shape": [1, 2]}, "has 2 values, and its shape .* needs 3 sizes of each item"),
    "lists": (RAGGED, LISTS, {**LISTS, "x/ragged_row_lengths_0": [3]}, r"has lists of the lengths \[3\] for 2 items"),
    "lists below 0": (
        RAGGED,
        LISTS,
        {**LISTS, "x/ragged_row_lengths_0": [3, -1]},
        r"the lengths \[3, -1\] for 2",
    ),
    "other lists": (
        sequence(sequence(tensor(), 1)),
        LISTS,
        {**LISTS, "x/ragged_row_lengths_0": [2]},
        r"\[2\] instead of 1 each",
    ),
    "too few lists": (sequence(sequence(tensor()), 2), LISTS, {**LISTS, "x/ragged_row_lengths_0": [2]}, "has 1 lists instead of 2"),
    "steps": (STEPS, {"x/a": [1], "x/b": ["a"]}, {"x/a": [1, 2], "x/b": ["a"]}, "its feature 'x/b' has 1 steps instead of 2"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_example_that_is_wrong(tmp_path, name):
    """The examples before it are read, and `ignore_errors` leaves it out."""
    its, sound, wrong, message = WRONG[name]
    examples = [{**sound, "n": i} for i in range(3)]
    examples.insert(1, wrong if isinstance(wrong, bytes) else {**wrong, "n": 9})
    folder = write(tmp_path, [examples], {"x": its, "n": tensor()})
    iterator = iter(tfds_folder(folder, "train"))
    assert ns([next(iterator)]) == [0]
    for _ in range(2):
        with pytest.raises(ElementError, match=rf"example 1 of '{re.escape(str(file_of(folder)))}' is wrong: .*{message}"):
            next(iterator)
    assert ns(tfds_folder(folder, "train").ignore_errors()) == [0, 1, 2]
    assert ns(tfds_folder(folder, "train[2:]")) == [1, 2]  # which does not look into those before
    assert ns(tfds_folder(folder, "train[:3]").ignore_errors()) == [0, 1]  # and not at those behind


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ({"a": tensor(shape=(2,))}, "'x/a' has 3 values in all steps, and each step needs 2"),
        ({"a": sequence(tensor())}, r"'x/a' has 3 values, which its 1 steps do not share"),
        ({"a": sequence(sequence(tensor()))}, r"'x/a' has lists of the lengths \[9\]"),
    ],
)
def test_steps_that_are_wrong(tmp_path, steps, message):
    values = {
        "x/a": [1, 2, 3],
        "x/a/ragged_flat_values": [1, 2, 3],
        "x/a/ragged_row_lengths_0": [2],
        "x/a/ragged_row_lengths_1": [9],
    }
    its = dataset(features_dict(steps))
    with pytest.raises(ElementError, match=f"example 0 of .* is wrong: its feature {message}"):
        list(tfds_folder(write(tmp_path, [[values]], {"x": its}), "train"))


def test_a_step_that_is_wrong(tmp_path):
    its = dataset(features_dict({"a": PICTURE}))
    (element,) = tfds_folder(write(tmp_path, [[{"x/a": [PNG, b"x", PNG]}]], {"x": its}), "train")
    with pytest.raises(ElementError, match=r"example 0 of .* is wrong: its feature 'x/a' cannot be decoded: it is not a BMP"):
        list(element["x"])
    assert len(list(element["x"].ignore_errors())) == 2


def test_more_bytes_than_an_array_may_have(tmp_path, monkeypatch):
    monkeypatch.setattr(_decode, "MAX_RECORD_BYTES", 100)
    folder = write(tmp_path, [[{"x": packed(np.zeros(100, np.int64))}]], {"x": tensor(shape=(100,), encoding="zlib")})
    with pytest.raises(ElementError, match="it has more than 100 bytes once decompressed"):
        list(tfds_folder(folder, "train"))


def test_colours_of_16_bits(tmp_path):
    colours = feature("Image", image={"dtype": "uint16", "shape": {"dimensions": ["-1", "-1", "3"]}})
    folder = write(tmp_path / "a", [[{"x": PNG}]], {"x": colours})
    (element,) = tfds_folder(folder, "train")
    assert element["x"].dtype == np.uint16
    assert np.array_equal(element["x"], np.asarray(PIXELS, np.uint16) * 257)
    jpeg = io.BytesIO()
    Image.fromarray(PIXELS).save(jpeg, "JPEG")
    folder = write(tmp_path / "b", [[{"x": jpeg.getvalue()}]], {"x": colours})
    with pytest.raises(ElementError, match="JPEG pictures have 8 bits, and uint16 is expected"):
        list(tfds_folder(folder, "train"))
    folder = write(tmp_path / "c", [[{"x": DEEP}]], {"x": colours})
    with pytest.raises(ElementError, match=r"it has colours of 16 bits, of which Pillow gives only 8\. Pass SkipDecoding\(\)"):
        list(tfds_folder(folder, "train"))


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("1", 1), ("RGB", 3), ("P", 3), ("RGBA", 4)])
def test_the_channels_of_the_file(tmp_path, mode, channels):
    any_channels = feature("Image", image={"dtype": "uint8", "shape": {"dimensions": ["-1", "-1", "-1"]}})
    file = io.BytesIO()
    Image.fromarray(PIXELS).convert(mode).save(file, "PNG")
    (element,) = tfds_folder(write(tmp_path, [[{"x": file.getvalue()}]], {"x": any_channels}), "train")
    assert element["x"].shape == (2, 3, channels)
    file = io.BytesIO()
    Image.fromarray(PIXELS).convert("LA").save(file, "PNG")
    folder = write(tmp_path / "b", [[{"x": file.getvalue()}]], {"x": any_channels})
    with pytest.raises(ElementError, match="its pixels are 'LA', but only grey, RGB and RGBA can be read"):
        list(tfds_folder(folder, "train"))


# Files


def test_a_file_that_is_missing(tmp_path):
    folder = numbers(tmp_path, 2, 3)
    file_of(folder, 1, 2).unlink()
    assert ns(tfds_folder(folder, "train[:2]")) == [0, 1]
    with pytest.raises(DatasetError, match=r"00001-of-00002' is missing, which should have 3 examples of made/1\.0\.0\. Copy"):
        list(tfds_folder(folder, "train"))


@pytest.mark.parametrize(("said", "found"), [(5, "3"), (2, "more than 2")])
def test_another_number_of_examples(tmp_path, said, found):
    folder = numbers(tmp_path, 3, 2)
    change(folder / "dataset_info.json", lambda info: info["splits"][0].update(shardLengths=[said, 2]))
    message = f"00000-of-00002' has {found} examples, and dataset_info.json says {said} "
    for split in ("train", f"train[{said - 1} :]".replace(" ", "")):
        iterator = iter(tfds_folder(folder, split, read_order="files"))
        for _ in range(2):
            with pytest.raises(DatasetError, match=message):
                list(iterator)
    assert ns(tfds_folder(folder, "train[:1]")) == [0] or said == 2


def test_a_file_that_is_damaged(tmp_path):
    folder = numbers(tmp_path, 3, 2)
    path = file_of(folder, 0, 2)
    data = bytearray(path.read_bytes())
    data[-6] ^= 1
    path.write_bytes(data)
    with pytest.raises(DatasetError, match=r"tfds_folder: .*00000-of-00002' is damaged in the record at byte \d+: the checksum"):
        list(tfds_folder(folder, "train"))
    path.write_bytes(data[:-4])
    with pytest.raises(DatasetError, match=r"tfds_folder: .*00000-of-00002' is cut off: the record at byte"):
        list(tfds_folder(folder, "train"))
    with pytest.raises(DatasetError, match=r"tfds_folder: the record at byte 0 of .* has more than 10 bytes, the most"):
        list(tfds_folder(numbers(tmp_path / "b", 3), "train", max_record_bytes=10))
