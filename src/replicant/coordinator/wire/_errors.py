"""Errors that are sent to another process."""

import pickle
import traceback

from ...errors import ParameterServerError


def pack_error(error: Exception, where: str) -> bytes:
    """Pickle an exception, with its traceback as a note. One that cannot be unpickled becomes a ParameterServerError."""
    error.add_note(f"On {where}:\n" + "".join(traceback.format_exception(error)).rstrip())
    told = ParameterServerError(f"{type(error).__name__}: {error}")
    told.__notes__ = error.__notes__
    error.__cause__ = error.__context__ = error.__traceback__ = None
    try:
        data = pickle.dumps(error)
        unpack_error(data)
    except Exception:  # noqa: BLE001 - exceptions with constructors of their own often cannot be unpickled
        return pickle.dumps(told)
    return data


def unpack_error(data: bytes) -> Exception:
    """Unpickle what `pack_error` returned."""
    return pickle.loads(data)  # noqa: S301 - from a process that this program started
