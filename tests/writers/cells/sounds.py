"""Sounds of Python's wave, SciPy and soundfile: their samples are compared with those of `tf.audio.decode_wav`."""

import functools
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _cells import Cell

FORM = "Sounds"
_RATE = 8000
_NOT_16 = "not 16 bits in format 1 (PCM)"


def cells() -> Iterator[Cell]:
    for channels in (1, 2, 6):
        yield Cell(FORM, "Python", f"wave, {channels} channels", functools.partial(_wave, channels))
    yield Cell(FORM, "Python", "wave, no samples", functools.partial(_wave, 1, samples=0))
    yield Cell(FORM, "Python", "wave, 8 bits", functools.partial(_wave, 1, width=1), _NOT_16)
    yield Cell(FORM, "Python", "wave, 24 bits", functools.partial(_wave, 1, width=3), _NOT_16)
    for name, refused in (("int16", None), ("uint8", _NOT_16), ("int32", _NOT_16), ("float32", _NOT_16), ("float64", _NOT_16)):
        yield Cell(FORM, "scipy", f"wavfile.write, {name}", functools.partial(_scipy, name), refused)
    for kind, subtype, refused in (
        ("WAV", "PCM_16", None),
        ("WAV", "PCM_24", _NOT_16),
        ("WAV", "FLOAT", _NOT_16),
        ("WAV", "ULAW", _NOT_16),
        ("WAVEX", "PCM_16", None),
        ("RF64", "PCM_16", "it is damaged, or no WAV file"),
        ("FLAC", "PCM_16", "it is damaged, or no WAV file"),
        ("OGG", "VORBIS", "it is damaged, or no WAV file"),
    ):
        yield Cell(FORM, "soundfile", f"{kind}, {subtype}", functools.partial(_soundfile, kind, subtype), refused)
    yield Cell(FORM, "soundfile", "WAV with a title", _titled)


def _samples(channels: int, samples: int = 50) -> np.ndarray:
    return np.random.default_rng(channels).integers(-(1 << 15), 1 << 15, (samples, channels), np.int16)


def _read(folder: Path) -> list[np.ndarray]:
    from replicant.keras.utils import audio_dataset_from_directory

    return list(audio_dataset_from_directory(folder, labels=None, batch_size=None, shuffle=False, verbose=False))


def _by_tensorflow(folder: Path) -> tuple[Callable[[], Any], Any]:
    import tensorflow as tf

    data = (folder / "0.wav").read_bytes()
    try:
        return lambda: _read(folder), [tf.audio.decode_wav(data).audio.numpy()]
    except tf.errors.InvalidArgumentError:
        return lambda: _read(folder), None


def _wave(channels: int, folder: Path, width: int = 2, samples: int = 50) -> Any:
    with wave.open(str(folder / "0.wav"), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(_RATE)
        file.writeframes(_samples(channels, samples).tobytes() if width == 2 else bytes(60 * width))
    if not samples:
        return lambda: _read(folder), [np.zeros((0, channels), np.float32)]
    return _by_tensorflow(folder)


def _scipy(name: str, folder: Path) -> Any:
    from scipy.io import wavfile

    wavfile.write(folder / "0.wav", _RATE, (_samples(2) // 256 + 128).astype(name) if name != "int16" else _samples(2))
    return _by_tensorflow(folder)


def _soundfile(kind: str, subtype: str, folder: Path) -> Any:
    import soundfile

    path = folder / "0.wav"
    soundfile.write(path, _samples(2), _RATE, format=kind, subtype=subtype)
    return lambda: _read(folder), [soundfile.read(path, dtype="float32", always_2d=True)[0]]


def _titled(folder: Path) -> Any:
    import soundfile

    with soundfile.SoundFile(folder / "0.wav", "w", _RATE, 2, "PCM_16") as file:
        file.title = "a title of odd length"
        file.write(_samples(2))
    return _by_tensorflow(folder)
