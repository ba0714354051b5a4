"""What is said about a file of TensorFlow that is not what it should be."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...._protobuf import MessageError
from ....errors import CheckpointError, DamagedCheckpointError
from ...folders._locations import is_damage

_MOST = 120  # characters of a key in a message


def damaged(file: Any, what: str) -> DamagedCheckpointError:
    """Return the error that says what is wrong with a file."""
    return DamagedCheckpointError(f"{file} is damaged: {what}.")


def require(holds: bool, file: Any, what: str) -> None:
    """Check that something holds in a file.

    Raises:
        DamagedCheckpointError: If it does not.
    """
    if not holds:
        raise damaged(file, what)


def shown(key: str | bytes) -> str:
    """Return a key as a message shows it: quoted, and the middle of a long one left out."""
    text = repr(key.decode("utf-8", "surrogateescape") if isinstance(key, bytes) else key)
    return text if len(text) <= _MOST else f"{text[: _MOST // 2]}...{text[-_MOST // 2 :]}"


@contextmanager
def reading(file: Any, of: str = "") -> Iterator[None]:
    """Turn errors of the operating system, an object store and the wire format into a CheckpointError that names the file.

    Args:
        file: The file.
        of: What is read of it, as ``" of 'key'"``.

    Raises:
        CheckpointError: If there is such an error: a DamagedCheckpointError if it is the fault of the file.
    """
    try:
        yield
    except MessageError as error:
        raise damaged(file, f"the record{of} cannot be parsed, {error}") from error
    except OSError as error:
        kind = DamagedCheckpointError if is_damage(error) else CheckpointError
        raise kind(f"{file}: the bytes{of} could not be read ({error}).") from error
    except MemoryError as error:
        raise CheckpointError(f"{file}: there is not enough memory{of and f' for what it holds{of}'}.") from error
