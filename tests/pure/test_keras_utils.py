"""Datasets of folders and of time series: messages, positions, sharing, damaged files. tests/conformance compares the results."""

import concurrent.futures
import io
import json
import os
import re
import struct
import sys
import wave
import zlib
from pathlib import Path

import keras
import numpy as np
import pytest
from PIL import Image, PngImagePlugin

import replicant
from replicant.data import AutoShardPolicy, Dataset, DistributedDataset, Options
from replicant.errors import ArgumentError, ArgumentTypeError, ConfigurationError, DatasetError
from replicant.keras.utils import (
    audio_dataset_from_directory,
    image_dataset_from_directory,
    split_dataset,
    text_dataset_from_directory,
    timeseries_dataset_from_array,
)
from replicant.keras.utils._folders import Folder
from replicant.replicas._topology import Topology


@pytest.fixture
def plant(tmp_path):
    """plant({name: text or bytes}): a folder with these files."""

    def make(files):
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return tmp_path

    return make


@pytest.fixture
def twelve(plant):
    return plant({f"{kind}/{i}.txt": f"{kind}{i}" for kind in ("good", "bad") for i in range(6)})


@pytest.fixture
def pets(plant):
    return plant({f"{kind}/{i}.png": picture(i + 10 * (kind == "dog")) for kind in ("cat", "dog") for i in range(4)})


def picture(level, mode="RGB", form="PNG", size=(4, 3)):
    file = io.BytesIO()
    Image.new(mode, size, (level,) * len(mode) if len(mode) > 1 else level).save(file, form)
    return file.getvalue()


def sound(samples, rate=8000):
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(samples.shape[1])
        writer.setsampwidth(2)
        writer.setframerate(rate)
        writer.writeframes((samples * 32767).astype("<i2").tobytes())
    return file.getvalue()


def small(folder, **arguments):
    return image_dataset_from_directory(folder, image_size=(2, 2), verbose=False, **arguments)


def texts(folder, **arguments):
    return text_dataset_from_directory(folder, **{"verbose": False, "shuffle": False, **arguments})


def of(dataset):
    return [text for batch, _ in dataset for text in batch.tolist()]


ARGUMENTS = [
    ({"label_mode": "x"}, 'label_mode must be "int", "categorical", "binary" or None. Received: \'x\'.'),
    ({"labels": "x"}, "labels must be \"inferred\", None, or a list of numbers, one for each file. Received: 'x'."),
    ({"labels": [0] * 12, "class_names": ["good"]}, 'class_names can only be given with labels="inferred".'),
    ({"labels": None, "class_names": ["good"]}, "without labels, class_names cannot be given. Received: ['good']."),
    ({"label_mode": None, "class_names": ["good"]}, "without labels, class_names cannot be given. Received: ['good']."),
    ({"class_names": "good"}, "class_names must be a list of names of folders. Received: 'good'."),
    ({"class_names": {"good"}}, "class_names must be a list of names of folders. Received: {'good'}."),
    ({"class_names": 5}, "class_names must be a list of names of folders. Received: 5."),
    ({"class_names": [["good"]]}, "class_names must be a list of names of folders. Received: [['good']]."),
    ({"class_names": []}, "class_names must be a list of names of folders. Received: []."),
    ({"labels": [0] * 12, "class_names": np.array(["good", "bad"])}, 'class_names can only be given with labels="inferred".'),
    ({"label_mode": np.array(["int", "x"])}, 'label_mode must be "int", "categorical", "binary" or None. Received: array('),
    ({"class_names": ["fine"]}, "each once. They are: ['bad', 'good']. Received: ['fine']."),
    ({"class_names": ["good", "good"]}, "each once. They are: ['bad', 'good']. Received: ['good', 'good']."),
    ({"class_names": ["good"], "label_mode": "binary"}, "needs exactly 2 classes. Found 1: ['good']."),
    ({"labels": [0] * 11}, "There are 12 files in"),
    ({"labels": [0] * 11}, "Received 11 labels."),
    ({"labels": [0, 3] * 6, "label_mode": "categorical"}, "must be whole numbers from 0 to 1. Received: [0, 3]."),
    ({"labels": [0, 0.5] * 6, "label_mode": "binary"}, "must be whole numbers from 0 to 1. Received: [0, 0.5]."),
    ({"validation_split": 1.0, "subset": "both"}, "validation_split must be between 0 and 1. Received: 1.0."),
    ({"validation_split": 0.5}, "give both validation_split and subset, or neither. Received: 0.5 and None."),
    ({"subset": "both"}, "give both validation_split and subset, or neither. Received: None and 'both'."),
    ({"validation_split": 0.5, "subset": "test"}, 'subset must be "training", "validation" or "both". Received: \'test\'.'),
    ({"validation_split": 0.5, "subset": "both", "shuffle": True}, "would be drawn independently, and overlap."),
    ({"validation_split": 0.01, "subset": "validation"}, "there are no validation texts in"),
    ({"validation_split": 0.01, "subset": "both"}, "where 12 files end in .txt."),
    ({"validation_split": 0.99, "subset": "training"}, None),
    ({"seed": -1, "shuffle": True}, "seed must be from 0 to 2**32 - 1. Received: -1."),
    ({"batch_size": 0}, "batch_size must be at least 1. Received: 0."),
    ({"max_length": -1}, "max_length must be at least 0. Received: -1."),
    ({"format": "grain"}, "Datasets of Grain come from keras.utils.text_dataset_from_directory."),
    ({"labels": ["a"] * 12}, "labels must be numbers. Received: 'a'."),
    ({"validation_split": "half", "subset": "both"}, "validation_split must be a number. Received: 'half'."),
]


@pytest.mark.parametrize(("arguments", "message"), ARGUMENTS)
def test_arguments_of_folders(twelve, arguments, message):
    if message is None:
        assert len(texts(twelve, **arguments).file_paths) == 1
        return
    with pytest.raises((ArgumentError, ArgumentTypeError, DatasetError), match=re.escape(message)) as caught:
        texts(twelve, **arguments)
    assert str(caught.value).startswith("text_dataset_from_directory: ")


IMAGES = [
    ({"color_mode": "bgr"}, 'color_mode must be "rgb", "rgba" or "grayscale". Received: \'bgr\'.'),
    ({"color_mode": ["rgb"]}, 'color_mode must be "rgb", "rgba" or "grayscale". Received: [\'rgb\'].'),
    ({"interpolation": "cubic"}, "interpolation must be one of nearest, bilinear, bicubic,"),
    (
        {"interpolation": "gaussian", "crop_to_aspect_ratio": True},
        "interpolation with crop_to_aspect_ratio must be one of bilinear,",
    ),
    ({"crop_to_aspect_ratio": True, "pad_to_aspect_ratio": True}, "only one of crop_to_aspect_ratio and pad_to_aspect_ratio"),
    ({"data_format": "first"}, 'data_format must be "channels_last" or "channels_first". Received: \'first\'.'),
    ({"image_size": (2, 2, 3)}, "image_size must be the height and the width. Received: (2, 2, 3)."),
    ({"image_size": (0, 2)}, "each of image_size must be at least 1. Received: 0."),
    ({"format": "numpy"}, "Received: 'numpy'. Datasets of Grain come from keras.utils.image_dataset_from_directory."),
]


@pytest.mark.parametrize(("arguments", "message"), IMAGES)
def test_arguments_of_pictures(pets, arguments, message):
    with pytest.raises(ArgumentError, match=re.escape(message)):
        image_dataset_from_directory(pets, **arguments)


SOUNDS = [
    ({"ragged": True}, "ragged must be False, because JAX has no ragged tensors. Set output_sequence_length."),
    ({"sampling_rate": 0}, "sampling_rate must be a positive integer. Received: 0."),
    ({"sampling_rate": 8000.0}, "sampling_rate must be a positive integer. Received: 8000.0."),
    ({"output_sequence_length": 0}, "output_sequence_length must be at least 1. Received: 0."),
]


@pytest.mark.parametrize(("arguments", "message"), SOUNDS)
def test_arguments_of_sounds(tmp_path, arguments, message):
    with pytest.raises(ArgumentError, match=re.escape(message)):
        audio_dataset_from_directory(tmp_path, **arguments)


SERIES = [
    ({"data": 3}, ArgumentTypeError, "data must be an array with one row per time. Received: 3."),
    ({"targets": 3}, ArgumentTypeError, "targets must be an array with one row per time. Received: 3."),
    ({"sequence_length": 0}, ArgumentError, "sequence_length must be at least 1. Received: 0."),
    ({"sequence_stride": 9}, ArgumentError, "sequence_stride must be lower than the number of rows, 9. Received: 9."),
    ({"sampling_rate": 0}, ArgumentError, "sampling_rate must be at least 1. Received: 0."),
    ({"start_index": 5, "end_index": 5}, ArgumentError, "end_index must be higher than start_index. Received: 5 and 5."),
    ({"end_index": 9}, ArgumentError, "end_index must be lower than the number of rows, 9. Received: 9."),
    ({"targets": np.arange(4), "start_index": 2}, ArgumentError, "for each of the 4 windows, from start_index on. There are 2."),
    ({"batch_size": 0}, ArgumentError, "batch_size must be at least 1. Received: 0."),
    ({"format": "grain"}, ArgumentError, "come from keras.utils.timeseries_dataset_from_array."),
]


@pytest.mark.parametrize(("arguments", "error", "message"), SERIES)
def test_arguments_of_time_series(arguments, error, message):
    with pytest.raises(error, match=re.escape(message)):
        timeseries_dataset_from_array(**{"data": np.arange(9), "targets": None, "sequence_length": 3, **arguments})


# Folders


def test_a_folder_that_is_not_there_or_is_a_file_or_elsewhere(plant):
    folder = plant({"a.txt": "a"})
    for name in (folder / "no", folder / "a.txt", "gs://bucket/texts"):
        with pytest.raises(DatasetError, match="is not a folder on this machine"):
            texts(name)


@pytest.mark.parametrize("directory", [None, 3, b"folder", ["folder"]])
def test_a_folder_that_is_no_path(directory):
    with pytest.raises(ArgumentTypeError, match=re.escape(f"directory must be the path of a folder. Received: {directory!r}.")):
        texts(directory)


def test_a_folder_that_cannot_be_read():
    folder = Folder("f", "texts", (), "", None, None, None, 1, False, None, None, None, False, False)
    with pytest.raises(DatasetError, match="f: cannot read the folder '/locked'"):
        folder._not_readable(PermissionError(13, "Permission denied", "/locked"))


def test_a_link_to_a_folder_that_it_is_in(plant):
    folder = plant({"a/1.txt": "one"})
    (folder / "a" / "loop").symlink_to(folder / "a")
    assert of(texts(folder)) == ["one"]
    with pytest.raises(DatasetError, match=r"a/loop' is a link to a folder that contains it"):
        texts(folder, follow_links=True)


def test_a_link_that_leads_nowhere_is_a_missing_file(plant):
    folder = plant({"a/1.txt": "one"})
    (folder / "a" / "2.txt").symlink_to(folder / "nowhere")
    with pytest.raises(DatasetError, match=r"cannot read '.*a/2.txt'"):
        list(texts(folder))


@pytest.mark.parametrize("names", [["good", "bad"], ("good", "bad"), np.array(["good", "bad"])])
def test_the_order_of_the_classes(twelve, names):
    dataset = texts(twelve, class_names=names, batch_size=1)
    assert dataset.class_names == ["good", "bad"]
    assert [(text[0][:-1], int(label[0])) for text, label in dataset][5:7] == [("good", 0), ("bad", 1)]


def test_files_that_are_in_no_class(plant):
    folder = plant({"a.txt": "a", "empty/b.md": "b"})
    message = r'where 0 files end in \.txt\. With labels="inferred", .* \'.*/a\.txt\' is in none: move it .* or set labels=None'
    with pytest.raises(DatasetError, match=message):
        texts(folder)
    assert [list(batch) for batch in texts(folder, labels=None)] == [["a"]]
    with pytest.raises(DatasetError, match=r"where 0 files end in \.txt\.$"):
        texts(folder / "empty")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_not_waited_for(plant):
    folder = plant({"a/1.txt": "one"})
    os.mkfifo(folder / "a" / "2.txt")
    with pytest.raises(DatasetError, match=r"a/2.txt' is a pipe, a device or a socket. Move it out of the folder."):
        list(texts(folder))


def test_what_is_printed(twelve, capsys):
    text_dataset_from_directory(twelve, shuffle=False)
    text_dataset_from_directory(twelve, labels=None, validation_split=0.25, subset="both", seed=1)
    texts(twelve)
    assert capsys.readouterr().out.splitlines() == [
        "Found 12 files belonging to 2 classes.",
        "Found 12 files.",
        "Using 9 files for training.",
        "Using 3 files for validation.",
    ]


def test_it_is_logged_where_keras_does_not_print(twelve, caplog):
    keras.config.disable_interactive_logging()
    try:
        with caplog.at_level("INFO", "replicant.keras"):
            text_dataset_from_directory(twelve, shuffle=False)
    finally:
        keras.config.enable_interactive_logging()
    assert caplog.messages == ["Found 12 files belonging to 2 classes."]


def test_labels_that_are_given_stay_as_they_are(twelve):
    labels = list(range(12))
    dataset = text_dataset_from_directory(twelve, labels=labels, seed=3, verbose=False)
    assert labels == list(range(12))
    pairs = {text: int(label) for batch, its in dataset for text, label in zip(batch, its, strict=True)}
    assert pairs == {f"{kind}{i}": i + 6 * (kind == "good") for kind in ("bad", "good") for i in range(6)}


def test_without_a_seed_a_position_holds_the_order(twelve):
    def dataset():
        return texts(twelve, shuffle=True, batch_size=5)

    assert dataset().file_paths == texts(twelve).file_paths
    iterator = iter(dataset())
    read = [next(iterator)[0].tolist()]
    again = iter(dataset())
    again.restore(json.loads(json.dumps(iterator.state())))
    rest = [batch.tolist() for batch, _ in iterator]
    assert [batch.tolist() for batch, _ in again] == rest
    assert sorted(sum(read + rest, [])) == sorted(of(texts(twelve)))
    assert len({tuple(of(dataset())) for _ in range(5)}) > 1


def test_the_generators_that_keras_seeds_fix_the_order(twelve):
    orders = []
    for _ in range(2):
        keras.utils.set_random_seed(5)
        orders.append(of(texts(twelve, shuffle=True)))
    assert orders[0] == orders[1]


def test_each_pass_has_another_order_and_validation_has_none(twelve):
    training, validation = texts(twelve, shuffle=True, seed=1, validation_split=0.25, subset="both")
    passes = [of(training) for _ in range(3)]
    assert len(set(map(tuple, passes))) > 1
    assert len({tuple(sorted(each)) for each in passes}) == 1
    assert of(validation) == of(validation) == [Path(path).read_text() for path in validation.file_paths]
    assert not {*passes[0]} & {*of(validation)}
    assert len(passes[0]) + len(of(validation)) == 12


def test_nothing_is_read_before_the_first_element(plant):
    dataset = small(plant({"a/1.png": b"", "b/1.png": b""}), label_mode="categorical")
    assert str(dataset.element_spec) == (
        "(TensorSpec(shape=(None, 2, 2, 3), dtype=float32), TensorSpec(shape=(None, 2), dtype=float32))"
    )
    assert (len(dataset), dataset.class_names) == (1, ["a", "b"])


def test_attributes_belong_to_the_dataset_alone(twelve):
    dataset = texts(twelve)
    assert dataset.file_paths[:2] == [f"{twelve}/bad/0.txt", f"{twelve}/bad/1.txt"]
    assert not hasattr(dataset.take(1), "class_names")
    assert repr(dataset) == ("<Dataset: text_dataset_from_directory(12 files) > read_text() > batch(32) > prefetch(-1)>")


# Files


def test_a_text_that_is_not_utf_8(plant):
    with pytest.raises(DatasetError, match=r"a/2.txt' is not UTF-8 text: invalid start byte at byte 1 \(0xff\)"):
        list(texts(plant({"a/1.txt": "good", "a/2.txt": b"a\xff"})))


def test_a_text_is_never_cut_inside_a_character(plant):
    folder = plant({"a/1.txt": "aé☃"})
    assert [of(texts(folder, max_length=n))[0] for n in range(8)] == ["", "a", "a", "aé", "aé", "aé", "aé☃", "aé☃"]


DAMAGED = {
    "empty": b"",
    "text": b"no picture",
    "cut PNG": picture(1, size=(64, 64))[:60],
    "cut JPEG": picture(1, form="JPEG", size=(64, 64))[:-100],
    "cut GIF": picture(1, "L", form="GIF")[:-8],
    "cut BMP": picture(1, form="BMP")[:-20],
    "TIFF": picture(1, form="TIFF"),
    "wrong checksum": picture(1)[:40] + b"xxxx" + picture(1)[44:],
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_picture_is_named_and_can_be_left_out(plant, name):
    folder = plant({"a/1.png": picture(7), "a/2.png": DAMAGED[name], "a/3.png": picture(9)})
    with pytest.raises(DatasetError, match=r"a/2.png' is not a BMP, GIF, JPEG, PNG or WebP picture, or it is damaged"):
        list(small(folder, shuffle=False))
    whole = small(folder, shuffle=False, batch_size=None).ignore_errors().batch(8)
    (batch,) = [images for images, _ in whole]
    assert batch[:, 0, 0, 0].tolist() == [7, 9]


def pixels_of(plant, image, mode, form="PNG", **settings):
    """The pixels in a picture of one colour, which Pillow writes."""
    with io.BytesIO() as file:
        image.save(file, form, **settings)
        folder = plant({"a/1.png": file.getvalue()})
    (pixels,) = image_dataset_from_directory(
        folder, None, color_mode=mode, image_size=(1, 1), interpolation="nearest", verbose=False
    )
    return pixels[0, 0, 0].tolist()


# What TensorFlow 2.21 decodes of these.
@pytest.mark.parametrize(
    ("colour", "gamma", "grey"),
    [
        ((2, 108, 79), None, 73),
        ((158, 104, 15), None, 109),
        ((104, 60, 6), None, 66),
        ((255, 255, 255), None, 255),
        ((255, 0, 0), 0.45455, 147),
        ((10, 20, 200), 0.45455, 76),
        ((9, 9, 9), 0.45455, 9),
        ((255, 0, 0), 0.98, 76),
    ],
)
def test_grey_of_the_colours_of_a_png_picture_is_that_of_libpng(plant, colour, gamma, grey):
    chunks = PngImagePlugin.PngInfo()
    if gamma is not None:
        chunks.add(b"gAMA", int(gamma * 100_000).to_bytes(4, "big"))
    assert pixels_of(plant, Image.new("RGB", (1, 1), colour), "grayscale", pnginfo=chunks) == [grey]


def test_inks_are_multiplied(plant):
    inks = Image.new("CMYK", (8, 8), (23, 9, 9, 19))
    assert pixels_of(plant, inks, "rgb", "JPEG", quality=100) == [214, 227, 227]
    assert pixels_of(plant, inks, "rgba", "JPEG", quality=100) == [214, 227, 227, 255]


def deep(kind, *values, gamma=None):
    """A PNG picture of one pixel with 16 bits in each channel."""
    data = zlib.compress(b"\0" + b"".join(value.to_bytes(2, "big") for value in values))
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 16, kind, 0, 0, 0)), (b"IDAT", data), (b"IEND", b"")]
    if gamma is not None:
        chunks.insert(1, (b"gAMA", struct.pack(">I", gamma)))
    made = [struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(made)


def test_the_grey_of_colours_of_16_bits(plant):
    def read(data, mode):
        folder = plant({"a/1.png": data})
        made = image_dataset_from_directory(
            folder, None, color_mode=mode, image_size=(1, 1), interpolation="nearest", verbose=False
        )
        return next(iter(made))[0, 0, 0].tolist()

    assert read(deep(2, 0x0A10, 0x14FF, 0x1E80), "rgb") == [0x0A, 0x14, 0x1E]
    assert read(deep(4, 0x14FF, 0x8000), "grayscale") == [0x14]
    assert read(deep(0, 0x14FF), "grayscale") == [0x14]
    assert read(deep(2, 0x0A10, 0x14FF, 0x1E80), "grayscale") == [18]
    assert read(deep(4, 0x14FF, 0x8000, gamma=45455), "grayscale") == [0x14]
    with pytest.raises(DatasetError, match="it has a gamma, and colours of 16 bits, of which Pillow gives 8: too few for grey"):
        read(deep(2, 0x0A10, 0x14FF, 0x1E80, gamma=45455), "grayscale")


def test_a_picture_too_thin_to_be_padded_is_named(plant):
    folder = plant({"a/1.png": picture(1, size=(40, 1))})
    with pytest.raises(DatasetError, match=r"a/1.png': a picture of 1 x 40 is too thin to be padded to 2 x 2"):
        list(small(folder, pad_to_aspect_ratio=True))


def test_without_pillow(pets, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ConfigurationError, match=re.escape("Run: pip install 'replicant-jax[images]'.")):
        small(pets)


GUID = bytes.fromhex("000000001000800000aa00389b71")


def extensible(data, kind, rest=GUID):
    """A sound whose format is written as ffmpeg does it for many channels: by a GUID."""
    head = b"\xfe\xff" + data[22:36] + struct.pack("<HHI", 22, 16, 4) + struct.pack("<H", kind) + rest
    return data[:16] + struct.pack("<I", len(head)) + head + data[36:]


def test_a_sound_whose_format_is_a_guid(plant):
    plain = sound(np.array([[0.5, -0.25], [0.0, 1.0]]))
    folder = plant({"a/1.wav": plain, "a/2.wav": extensible(plain, 1)})
    ((sounds, _),) = audio_dataset_from_directory(folder, shuffle=False, verbose=False)
    assert sounds[0].tolist() == sounds[1].tolist() == [[16383 / 32768, -8191 / 32768], [0.0, 32767 / 32768]]


NOT_WAV = {
    "empty": (b"", "it is damaged, or not a WAV file"),
    "text": (b"hello, this is no sound at all", "it is damaged, or not a WAV file"),
    "cut": (sound(np.zeros((9, 1)))[:-3], "it is damaged, or not a WAV file"),
    "8 bits": (
        sound(np.zeros((9, 1))).replace(b"\x02\x00\x10\x00data", b"\x01\x00\x08\x00data"),
        "it has 8 bits per sample in format 1",
    ),
    "floats, extensible": (extensible(sound(np.zeros((9, 1))), 3), "it has 16 bits per sample in format 3"),
    "another GUID": (extensible(sound(np.zeros((9, 1))), 1, bytes(14)), "it has 16 bits per sample in format 65534"),
    "no channels": (sound(np.zeros((9, 1))).replace(b"\x01\x00\x01\x00", b"\x01\x00\x00\x00"), "it has 0 channels"),
}


@pytest.mark.parametrize("name", NOT_WAV)
def test_a_damaged_sound_is_named(plant, name):
    content, reason = NOT_WAV[name]
    with pytest.raises(DatasetError, match=rf"cannot read '.*a/1.wav': {reason}"):
        list(audio_dataset_from_directory(plant({"a/1.wav": content}), verbose=False))


def test_rates_and_channels(plant):
    tone = np.sin(np.arange(800) * 2 * np.pi * 200 / 8000)[:, None] * 0.5
    folder = plant(
        {"a/8000.wav": sound(tone), "b/16000.wav": sound(np.repeat(tone[::1], 2, axis=1), 16000), "c/0.wav": sound(tone[:0])}
    )
    ((sounds, labels),) = audio_dataset_from_directory(folder, sampling_rate=16000, shuffle=False, verbose=False)
    assert sounds.shape == (3, 1600, 2)
    assert sounds.dtype == np.float32
    assert labels.tolist() == [0, 1, 2]
    expected = np.sin(np.arange(1600) * 2 * np.pi * 200 / 16000) * 0.5
    assert np.allclose(sounds[0, 40:-40, 0], expected[40:-40], atol=2e-3)
    assert np.allclose(sounds[1, :800], np.repeat(tone, 2, axis=1), atol=1e-4)
    assert not sounds[1, 800:].any()
    assert not sounds[2].any()
    cut = audio_dataset_from_directory(
        folder, sampling_rate=4000, output_sequence_length=300, batch_size=None, shuffle=False, verbose=False
    )
    assert [sound.shape for sound, _ in cut] == [(300, 1), (300, 2), (300, 1)]


# Positions, threads and strategies


def test_positions_are_exact(pets):
    dataset = small(pets, seed=2, batch_size=3)
    whole = [[x.tolist() for x in batch] for batch in dataset]
    for number in range(4):
        iterator = iter(small(pets, seed=2, batch_size=3))
        read = [[x.tolist() for x in next(iterator)] for _ in range(min(number, 3))]
        state = json.loads(json.dumps(iterator.state()))
        again = iter(small(pets, seed=2, batch_size=3))
        again.restore(state)
        assert read + [[x.tolist() for x in batch] for batch in again] == whole


def test_two_threads_read_one_dataset(pets):
    dataset = small(pets, shuffle=False, batch_size=None)

    def read():
        return [(image[0, 0, 0], label) for image, label in dataset]

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: read(), range(2))
    assert one == other == read()


def test_who_reads_what(twelve):
    dataset = texts(twelve, batch_size=4)
    assert str(dataset.explain(num_workers=2)).splitlines()[1:4] == [
        "  policy: DATA, because each file is one example, and examples are shared by batches",
        "  global batches: of 4",
        "  worker 0: replica 0; reads everything; rows per batch: 2",
    ]
    plan = dataset.explain(num_workers=2, policy=AutoShardPolicy.FILE)
    assert plan.workers[1].files == tuple(dataset.file_paths[1::2])


def cut(rows, sizes):
    ends = np.cumsum(sizes)
    return [rows[end - size : end].tolist() for end, size in zip(ends, sizes, strict=True)]


@pytest.mark.parametrize(("policy", "seed"), [("AUTO", 1), ("AUTO", None), ("FILE", 1)])
def test_workers_share_a_folder(twelve, run_workers, policy, seed):
    def read(worker, exchange):
        options = Options()
        options.experimental_distribute.auto_shard_policy = AutoShardPolicy[policy]
        dataset = texts(twelve, shuffle=True, seed=seed, batch_size=4).with_options(options)
        shared = DistributedDataset(dataset, Topology(2, worker, 1), cut, exchange=exchange)
        return [(text, label) for words, labels in shared for text, label in zip(words[0], labels[0], strict=True)]

    one, other = run_workers(2, read)
    everything = sorted(one + other)
    assert everything == sorted((f"{kind}{i}", int(kind == "good")) for kind in ("bad", "good") for i in range(6))
    if policy == "FILE":
        order = [path.split("/")[-2] + path.split("/")[-1][0] for path in texts(twelve, shuffle=True, seed=1).file_paths]
        assert {text for text, _ in other} == {*order[1::2]}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder, worker: texts(folder, shuffle=True, seed=worker), "different lists of files"),
        (lambda folder, worker: texts(folder, labels=[0] * 11 + [worker]), "the values of text_dataset_from_directory"),
        (lambda folder, worker: texts(folder, max_length=2 + worker), r"read_text\(2\).*read_text\(3\)"),
    ],
)
def test_workers_that_read_different_things_say_so(twelve, run_workers, make, message):
    def said(worker, exchange):
        with pytest.raises(DatasetError, match=message) as caught:
            list(DistributedDataset(make(twelve, worker), Topology(2, worker, 1), cut, exchange=exchange))
        return str(caught.value)

    assert "functions that shuffle them the same seed" in " ".join(run_workers(2, said)) or "lists" not in message


def test_a_strategy_distributes_and_continues(twelve):
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])

    def distributed():
        return iter(strategy.experimental_distribute_dataset(texts(twelve, shuffle=True, seed=1, batch_size=5)))

    def parts(step):
        words, labels = step
        return [*map(np.ndarray.tolist, strategy.experimental_local_results(words))], np.concatenate(
            [np.asarray(x) for x in strategy.experimental_local_results(labels)]
        ).tolist()

    with distributed() as iterator:
        first = parts(next(iterator))
        state = json.loads(json.dumps(iterator.state()))
        rest = [parts(step) for step in iterator]
    assert [[len(words) for words in step[0]] for step in [first, *rest]] == [[3, 2], [3, 2], [1, 1]]
    seen = sorted(word for step in [first, *rest] for words in step[0] for word in words)
    assert seen == sorted(of(texts(twelve)))
    with distributed() as again:
        again.restore(state)
        assert [parts(step) for step in again] == rest


def test_a_cache_file_notices_that_a_picture_changed(pets, tmp_path):
    cached = lambda: small(pets, shuffle=False).cache(tmp_path / "cache")  # noqa: E731
    assert len(list(cached())) == len(list(cached())) == 1
    (pets / "cat" / "0.png").write_bytes(picture(99, size=(5, 5)))
    with pytest.raises(DatasetError, match=r"the files that .* names, their sizes or their times"):
        list(cached())


@pytest.mark.long
def test_fit_evaluate_and_predict_equal_one_device(pets):
    def trained(strategy):
        keras.utils.set_random_seed(1)
        training, validation = small(pets, seed=4, batch_size=3, validation_split=0.25, subset="both")
        with strategy.scope():
            model = keras.Sequential([keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(2)])
            model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.fit(training, epochs=2, validation_data=validation, verbose=0)
        return model.evaluate(validation, verbose=0), model.predict(validation, verbose=0), model.get_weights()

    one = trained(replicant.MirroredStrategy(["cpu:0"]))
    two = trained(replicant.MirroredStrategy(["cpu:0", "cpu:1"]))
    assert np.allclose(one[0], two[0], atol=1e-5)
    assert all(np.allclose(a, b, atol=1e-5) for a, b in zip([one[1], *one[2]], [two[1], *two[2]], strict=True))


# Time series


def test_windows_are_not_copied_and_shared_by_element():
    data = np.arange(1000.0)
    dataset = timeseries_dataset_from_array(data, data, sequence_length=300, batch_size=100)
    windows = dataset.node.input.input.tables[0]
    assert windows.shape == (701, 300)
    assert np.shares_memory(windows, data)
    assert dataset.explain(num_workers=2).policy is AutoShardPolicy.DATA
    (x, y), *_ = dataset
    assert np.array_equal(x, data[:300] + np.arange(100)[:, None])
    assert np.array_equal(y, data[:100])


def test_windows_are_shuffled_anew_in_each_pass():
    dataset = timeseries_dataset_from_array(np.arange(40), None, 3, batch_size=None, shuffle=True, seed=2)
    passes = [[int(window[0]) for window in dataset] for _ in range(2)]
    assert passes[0] != passes[1]
    assert sorted(passes[0]) == sorted(passes[1]) == list(range(38))


def test_rows_of_arrays_that_are_not_contiguous():
    table = np.arange(12).reshape(3, 4).T
    assert [x.tolist() for x in Dataset.from_tensor_slices(table).shuffle(4, seed=1).batch(4).map(np.sort)]
    assert next(iter(Dataset.from_tensor_slices(table).batch(4))).tolist() == table.tolist()


# Splits


def halves(*arguments, **options):
    return [[np.asarray(x).tolist() for x in part] for part in split_dataset(*arguments, **options)]


def test_split():
    assert halves(np.arange(5), 0.6) == [[0, 1, 2], [3, 4]]
    assert halves(np.arange(5), right_size=1) == [[0, 1, 2, 3], [4]]
    assert halves(np.arange(9), left_size=2, right_size=0.3) == [[0, 1], [6, 7, 8]]
    assert halves([np.arange(3), np.arange(3) * 2.0], 1) == [[[0, 0]], [[1, 2], [2, 4]]]
    assert halves(Dataset.range(5).batch(2), 0.6) == [[[0, 1], [2]], [[3, 4]]]
    assert halves(Dataset.range(5).batch(2).prefetch(1), 3) == [[[0, 1], [2]], [[3, 4]]]
    shuffled = halves(np.arange(6), 3, shuffle=True, seed=7)
    assert shuffled == halves(np.arange(6), 3, shuffle=True, seed=7) != halves(np.arange(6), 3)
    left, right = split_dataset(Dataset.from_tensor_slices({"x": ["a", "b"], "y": [1, 2]}), 1)
    assert (list(left), list(right)) == ([{"x": "a", "y": 1}], [{"x": "b", "y": 2}])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((np.arange(3),), ArgumentError, "give left_size, right_size or both."),
        (
            (np.arange(3), 3),
            ArgumentError,
            "left_size must be a whole number from 1 to 2, or a float between 0 and 1. Received: 3.",
        ),
        ((np.arange(3), None, 1.0), ArgumentError, "right_size must be a whole number from 1 to 2, or a float between 0 and 1."),
        ((np.arange(3), "1"), ArgumentTypeError, "left_size must be an int or a float. Received: '1'."),
        ((np.arange(3), 2, 2), ArgumentError, "add up to more than all 3. Received: 2 and 2."),
        ((np.arange(3), 0.1), ArgumentError, "of 3 examples, none would be in the left part. Received: 0.1 and None."),
        ((Dataset.range(3).repeat(), 1), ArgumentError, "the dataset is infinite. Limit it with `take`."),
        ((Dataset.range(0), 1), ArgumentError, "the dataset is empty."),
        (([np.arange(3), np.arange(2)], 1), ArgumentError, "the same number of rows, at least one. They have [2, 3]."),
        (([], 1), ArgumentError, "the same number of rows, at least one. They have []."),
        (("abc", 1), ArgumentTypeError, "dataset must be a replicant.data.Dataset, an array of NumPy, or a list or tuple"),
        ((Dataset.range(3).map(lambda x: ()), 1), ArgumentError, "the elements of the dataset have no components."),
        ((np.arange(3), 1, 1, True, [7]), ArgumentTypeError, "seed must be a whole number or None. Received: [7]."),
        ((np.arange(3), 1, 1, False, None, "torch"), ArgumentError, 'preferred_backend must not be "torch"'),
    ],
)
def test_arguments_of_split(arguments, error, message):
    with pytest.raises(error, match=re.escape(message)):
        split_dataset(*arguments)
