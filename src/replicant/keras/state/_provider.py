"""What ``variables/`` asks of Keras: its scope around a trace, what a program depends on, and values that are set aside."""

from collections.abc import Iterator
from contextlib import contextmanager

from .. import _internals
from ._global_generator import following
from ._guarded_attributes import reached, settings
from ._pending_assignments import Aside
from ._recording_scope import RecordingScope

__all__ = ["Aside", "following", "reached", "settings", "tracing"]  # the functions that every provider has


@contextmanager
def tracing() -> Iterator[None]:
    """Enter this around every trace. At the end of the outermost one, Keras fills in the variables that were made in it."""
    if isinstance(_internals.get_stateless_scope(), RecordingScope):
        yield
        return
    with RecordingScope():
        yield
