"""Sounds in WAV files."""

import math
import struct

import numpy as np
from numpy.typing import NDArray

from ...errors import DatasetError

_PCM = 1
# A file of this format names another one by a GUID, which goes on so after the two bytes of the number. ffmpeg and others write
# sounds of more than two channels in it.
_EXTENSIBLE, _GUID_AT, _GUID_END = 0xFFFE, 24, bytes.fromhex("000000001000800000aa00389b71")
_MOST_TAPS = 1 << 22  # of the filter that converts a rate
_MANY = 1 << 24  # numbers, which a sound may have only if its file has many, too
_MOST_TIMES = 64  # as many numbers as the file has
_USUAL_CHANNELS = 8
_FORMAT = struct.Struct("<HHIIHH")


def decoded(name: str, path: str, data: bytes) -> tuple[NDArray[np.float32], int]:
    """Return the samples of 16-bit PCM, between -1 and 1, as ``float32[samples, channels]``, and the samples per second.

    Raises:
        DatasetError: If the file is damaged, or in another format.
    """
    chunks = _chunks(data)
    if chunks is None or len(chunks.get(b"fmt ", b"")) < _FORMAT.size or b"data" not in chunks:
        raise _error(name, path, "it is damaged, or not a WAV file")
    kind, channels, rate, _, _, bits = _FORMAT.unpack_from(chunks[b"fmt "])
    fmt = chunks[b"fmt "]
    if kind == _EXTENSIBLE and fmt[_GUID_AT + 2 : _GUID_AT + 16] == _GUID_END:
        kind = int.from_bytes(fmt[_GUID_AT : _GUID_AT + 2], "little")
    if kind != _PCM or bits != 16:
        raise _error(name, path, f"it has {bits} bits per sample in format {kind}, not 16 bits in format 1 (PCM)")
    samples = np.frombuffer(chunks[b"data"], "<i2", count=len(chunks[b"data"]) // 2)
    if not channels or not rate:
        raise _error(name, path, f"it has {channels} channels and {rate} samples per second")
    whole = len(samples) // channels
    return samples[: whole * channels].reshape(whole, channels).astype(np.float32) / np.float32(1 << 15), rate


def resampled(name: str, path: str, sound: NDArray[np.float32], rate: int, new_rate: int) -> NDArray[np.float32]:
    """Return a sound with another number of samples per second.

    Raises:
        DatasetError: If the filter or the sound would be huge, because of what the file says about its rate.
    """
    from scipy import signal

    if not len(sound):
        return sound
    common = math.gcd(rate, new_rate)
    taps, samples = 20 * max(rate, new_rate) // common, sound.size * new_rate // rate
    if taps > _MOST_TAPS or (samples > _MANY and samples > _MOST_TIMES * sound.size):
        raise _error(
            name,
            path,
            f"it has {rate} samples per second, so converting it to {new_rate} would take a filter of {taps:,} numbers, of which "
            f"{_MOST_TAPS:,} are the most, and make {samples:,} numbers of {sound.size:,}",
        )
    return signal.resample_poly(sound, new_rate // common, rate // common, axis=0).astype(np.float32)


def check_padded(name: str, path: str, sound: NDArray[np.float32], length: int) -> None:
    """Check that a sound does not become huge only because its file says that it has many channels.

    Raises:
        DatasetError: If it does.
    """
    channels = sound.shape[1]
    if channels > _USUAL_CHANNELS and channels * length > _MANY:
        what = f"it has {channels} channels, which {length:,} samples make {channels * length:,} numbers"
        raise _error(name, path, f"{what}; {_MANY:,} are the most for more than {_USUAL_CHANNELS} channels")


def _chunks(data: bytes) -> dict[bytes, bytes] | None:
    """The chunks of a RIFF file, or None if it is none or ends too early. The first of each kind counts."""
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        return None
    found: dict[bytes, bytes] = {}
    at = 12
    while at + 8 <= len(data):
        kind, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        if at + 8 + size > len(data):
            return None
        found.setdefault(kind, data[at + 8 : at + 8 + size])
        at += 8 + size + size % 2
    return found


def _error(name: str, path: str, reason: str) -> DatasetError:
    return DatasetError(
        f"{name}: cannot read {path!r}: {reason}. Copy the file again, convert it to WAV of 16-bit PCM, or move it out of "
        "the folder."
    )
