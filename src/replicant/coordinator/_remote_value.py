"""RemoteValue: the future result of a closure."""

import threading
from typing import Any

import jax

from ..errors import LostProcessError

_lock = threading.Lock()


class RemoteValue:
    """The result of a closure, which may not have run yet. Made by ``ClusterCoordinator.schedule``.

    You can pass it as an argument to another closure, which then runs after the one that computes the value.

    Semantics: tf.distribute.experimental.coordinator.RemoteValue.

    >>> import replicant
    >>> strategy = replicant.ParameterServerStrategy(transport="threads")
    >>> coordinator = replicant.coordinator.ClusterCoordinator(strategy)
    >>> first = coordinator.schedule(lambda: 2)
    >>> coordinator.schedule(lambda x: x + 1, args=(first,)).fetch()
    3
    >>> strategy.close()
    """

    def __init__(self, number: int):
        self._number = number
        self._has_ended = False
        self._waited_for: threading.Event | None = None  # made by the first waiter: nobody waits for most values
        self._value: Any = None
        self._error: Exception | None = None

    def fetch(self, timeout: float | None = None) -> Any:
        """Wait for the value and return it, with NumPy arrays.

        Args:
            timeout: the most seconds to wait; None sets no limit.

        Returns:
            What the closure returned.

        Raises:
            LostProcessError: if the closure has not ended after `timeout` seconds, or the cluster is lost or closed.
            CancelledError: if the closure never ran, because another one had failed.
            Exception: whatever the closure raised, at every call.
        """
        if not self._wait(timeout):
            raise LostProcessError(
                f"Closure {self._number} has not ended within {timeout} s. Wait longer, or call join(timeout): its error says what "
                "each worker is doing."
            )
        if self._error is not None:
            raise self._error
        return self._value

    def get(self, timeout: float | None = None) -> Any:
        """Like `fetch`, but with JAX arrays."""
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
