"""The head of a ``.npy`` file, which is read without evaluating it."""

import dataclasses
import math
import re
from collections.abc import Mapping

import numpy as np

from ....runtime._usable_arrays import NUMBERS

MAGIC = b"\x93NUMPY"
MOST_HEAD = 1 << 16  # bytes; NumPy's own heads have some hundred
_ENTRY = re.compile(
    r"""\s*(['"])(?P<name>descr|fortran_order|shape)\1\s*:\s*"""
    r"""(?:(?:(['"])(?P<text>[^'"\\]{1,40})\3|(?P<truth>True|False)|\((?P<sizes>[\d\sL,]{0,400})\))\s*(?:,|(?=\}))|(?P<fields>\[))"""
)
_SIZE = re.compile(r"\d{1,19}L?")  # Python 2 has written an L


class NotArrayError(ValueError):
    """Bytes are not array that can be read. The message is the end of a sentence that begins with their name."""


@dataclasses.dataclass(frozen=True)
class Head:
    """What the head of an array says: its dtype, shape and order, and the number of bytes of the head itself."""

    dtype: np.dtype
    shape: tuple[int, ...]
    in_columns: bool  # Fortran's order, which makes a difference for more than one dimension
    size: int

    @property
    def num_bytes(self) -> int:
        """The number of bytes of the numbers."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_head(data: bytes) -> Head:
    """Return what the head of an array says, which these bytes begin with. There are `MOST_HEAD` or all.

    Raises:
        NotArrayError: If they begin with something else, or with an array that devices cannot take.
    """
    if not data.startswith(MAGIC):
        raise NotArrayError(f"begins with {data[:6]!r} instead of {MAGIC!r}")
    version, width = data[6:8], 2 if data[6:7] == b"\x01" else 4
    if version not in (b"\x01\x00", b"\x02\x00", b"\x03\x00"):
        raise NotArrayError(f"has the version {version!r} of the format, and 1.0, 2.0 and 3.0 are read")
    end = 8 + width + int.from_bytes(data[8 : 8 + width], "little")
    if end > MOST_HEAD or len(data) < end:
        raise NotArrayError(f"has a head of {end} bytes, and {min(len(data), MOST_HEAD)} at most can be there")
    return _described(data[8 + width : end].decode("latin-1"), end)


def check_has_rows(head: Head) -> None:
    """Check that an array has rows with something in them, or none.

    Raises:
        NotArrayError: If it is a scalar, or its rows are empty.
    """
    if not head.shape:
        raise NotArrayError("is a scalar and has no rows")
    if head.shape[0] and 0 in head.shape[1:]:
        raise NotArrayError(f"has the shape {head.shape}, so its rows are empty")


def _described(text: str, size: int) -> Head:
    """What the text of a head says, a dict as Python shows it."""
    found: dict[str, re.Match[str]] = {}
    body = text.rstrip()
    if body.startswith("{") and body.endswith("}"):
        at = 1
        while (entry := _ENTRY.match(body, at)) is not None:
            found[entry["name"]] = entry
            if entry["fields"]:
                raise NotArrayError(
                    "holds records, which no device computes with. Write one array for each field, in one file: "
                    "`np.savez(path, **{name: array[name] for name in array.dtype.names})`"
                )
            at = entry.end()
        if at == len(body) - 1 or not body[at:-1].strip():
            return _checked(found, body, size)
    raise NotArrayError(f"has a head that NumPy does not write: {body[:120]!r}")


def _checked(found: Mapping[str, re.Match[str]], body: str, size: int) -> Head:
    descr, truth, sizes = (found[name][key] if name in found else None for name, key in _VALUES)
    if descr is None or truth is None or sizes is None:
        raise NotArrayError(f"has a head that NumPy does not write: {body[:120]!r}")
    texts = [part.strip() for part in sizes.split(",")]
    texts = texts[:-1] if not texts[-1] else texts
    if not all(_SIZE.fullmatch(part) for part in texts) or len(texts) > 64:
        raise NotArrayError(f"has the shape ({sizes[:80]}), which is none")
    dtype = usable_dtype(descr)
    shape = tuple(int(part.rstrip("L")) for part in texts)
    return Head(dtype, shape, truth == "True" and len(shape) > 1, size)


_VALUES = (("descr", "text"), ("fortran_order", "truth"), ("shape", "sizes"))


def usable_dtype(descr: str) -> np.dtype:
    """Return the dtype of an array that devices can take, or of texts.

    Raises:
        NotArrayError: If it is another one.
    """
    try:
        dtype = np.dtype(descr)
    except (TypeError, ValueError) as error:
        raise NotArrayError(f"has the dtype {descr!r}, which NumPy does not know") from error
    if dtype.hasobject:
        raise NotArrayError(
            "holds Python objects, which are pickled: to read them would run whatever code the file contains. Write numbers or "
            "texts: `np.save(path, array.astype(str))`, say"
        )
    if dtype.kind in "mM":
        raise NotArrayError(f"holds dates or times, of dtype {dtype}. Write numbers: `np.save(path, dates.astype('int64'))`")
    if dtype.kind == "V":
        raise NotArrayError(
            f"holds raw bytes, of dtype {dtype}, as np.save makes of bfloat16 and the like. Write numbers: "
            "`np.save(path, array.astype(np.float32))`"
        )
    if dtype.newbyteorder("=") not in NUMBERS and (dtype.kind not in "US" or not dtype.itemsize):
        raise NotArrayError(f"is of dtype {dtype}, which no device computes with. Write another: `array.astype(np.float64)`")
    return dtype
