"""The numbers of TensorFlow's dtypes, and what holds such values here."""

from typing import Any

import numpy as np

from ....errors import CheckpointError
from ._damage import shown

STRING, RESOURCE, VARIANT = 7, 20, 21
# Quantized integers (11, 12, 13, 15, 16 as qint8, quint8, qint32, qint16, quint16) are the integers that they are stored as.
_NAMES = {
    1: "float32",
    2: "float64",
    3: "int32",
    4: "uint8",
    5: "int16",
    6: "int8",
    STRING: "object",
    8: "complex64",
    9: "int64",
    10: "bool",
    11: "int8",
    12: "uint8",
    13: "int32",
    14: "bfloat16",
    15: "int16",
    16: "uint16",
    17: "uint16",
    18: "complex128",
    19: "float16",
    22: "uint32",
    23: "uint64",
    24: "float8_e5m2",
    25: "float8_e4m3fn",
    26: "float8_e4m3fnuz",
    27: "float8_e4m3b11fnuz",
    28: "float8_e5m2fnuz",
    29: "int4",
    30: "uint4",
    31: "int2",
    32: "uint2",
}
_WITHOUT_VALUE = {RESOURCE: "a handle of a resource", VARIANT: "a variant, such as the position of an iterator"}


def dtype_of(file: Any, key: str, number: int) -> np.dtype:
    """Return the dtype of a number: ``object`` for strings.

    Raises:
        CheckpointError: If nothing here can hold such values. The message names the file and the key.
    """
    if number in _WITHOUT_VALUE:
        raise CheckpointError(
            f"{file}: {shown(key)} is {_WITHOUT_VALUE[number]}, which only TensorFlow can use. Read the other keys; "
            "replicant.list_variables names them."
        )
    if number not in _NAMES:
        raise CheckpointError(
            f"{file}: {shown(key)} has the dtype number {number}, but the dtypes that are known here have the numbers 1 to "
            f"{max(_NAMES)}. A newer version of Replicant may know it."
        )
    try:
        return np.dtype(_NAMES[number])
    except TypeError as error:
        raise CheckpointError(
            f"{file}: {shown(key)} has the dtype {_NAMES[number]}, which this NumPy and ml_dtypes do not know; upgrade them."
        ) from error
