"""RemoteValue: what a scheduled function will have returned."""

import threading
from typing import Any

import jax

from ..errors import LostProcessError

_lock = threading.Lock()


class RemoteValue:
    """The result of a scheduled function, which may not have run yet. Made by ``ClusterCoordinator.schedule``.

    It may be an argument of another scheduled function, which then runs after the one that gives the value.
    Semantics: tf.distribute.experimental.coordinator.RemoteValue.
    """

    def __init__(self, number: int):
        self._number = number
        self._has_ended = False
        self._waited_for: threading.Event | None = None  # made by the first who waits: most values are never waited for
        self._value: Any = None
        self._error: Exception | None = None

    def fetch(self, timeout: float | None = None) -> Any:
        """The value, as NumPy arrays; waits for it.

        Args:
            timeout: seconds to wait at most; None waits as long as the workers work.

        Raises what the function raised, CancelledError if it was never run, LostProcessError after `timeout`. Again at every call.
        """
        if not self._wait(timeout):
            raise LostProcessError(f"A scheduled function has not ended within {timeout} s.")
        if self._error is not None:
            raise self._error
        return self._value

    def get(self, timeout: float | None = None) -> Any:
        """As `fetch`, with JAX arrays."""
        return jax.tree.map(lambda x: jax.numpy.asarray(x) if hasattr(x, "dtype") else x, self.fetch(timeout))

    def _wait(self, timeout: float | None) -> bool:
        with _lock:
            if self._has_ended:
                return True
            event = self._waited_for = self._waited_for or threading.Event()
        return event.wait(timeout)

    def _end(self, value: Any, error: Exception | None) -> None:
        with _lock:
            self._value, self._error, self._has_ended = value, error, True
        if self._waited_for is not None:
            self._waited_for.set()

    def __repr__(self) -> str:
        state = "pending" if not self._has_ended else "failed" if self._error is not None else "ended"
        return f"<RemoteValue of closure {self._number}, {state}>"
