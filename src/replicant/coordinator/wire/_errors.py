"""Errors that are told to another process."""

import pickle
import traceback

from ...errors import ParameterServerError


def pack_error(error: Exception, where: str) -> bytes:
    """An exception as bytes, with its traceback as a note; one that cannot be made again becomes a ParameterServerError."""
    error.add_note(f"On {where}:\n" + "".join(traceback.format_exception(error)).rstrip())
    told = ParameterServerError(f"{type(error).__name__}: {error}")
    told.__notes__ = error.__notes__
    error.__cause__ = error.__context__ = error.__traceback__ = None
    try:
        data = pickle.dumps(error)
        unpack_error(data)
    except Exception:  # noqa: BLE001 - exceptions with arguments of their own often cannot be made again
        return pickle.dumps(told)
    return data


def unpack_error(data: bytes) -> Exception:
    """The inverse of `pack_error`."""
    return pickle.loads(data)  # noqa: S301 - from a process that this program started
