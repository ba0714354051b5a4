"""A key-value store that may fail for a while. How long it has failed is known, and nothing waits for it without a deadline."""

import contextlib
import math
import time
from collections.abc import Iterator
from typing import Protocol

_PAUSE_SECONDS = 0.1  # before asking a store again that has failed
_READ_SECONDS = 0.5  # for one try to read what is there


class Store(Protocol):
    """A key-value store that all workers share.

    Its methods raise `TimeoutError`, `ConnectionError` if the store cannot be reached, `ConnectionResetError` once it is gone for
    good, and `ConnectionAbortedError` once this process has left it.
    """

    def put(self, key: str, text: str, *, overwrite: bool = False) -> None: ...
    def get(self, key: str, timeout_seconds: float) -> str: ...
    def list(self, prefix: str) -> dict[str, str]: ...
    def delete(self, key: str) -> None: ...  # with everything below it
    def increment(self, key: str) -> int: ...  # by one; returns the new value
    def close(self) -> None: ...


class SteadyStore:
    """A store in which one group of workers has the keys that begin with a prefix.

    Args:
        store: The store.
        prefix: The beginning of the keys.
        patience: The seconds for which the store may fail before it counts as lost.
    """

    def __init__(self, store: Store, prefix: str, patience: float):
        self.patience = patience
        self._store, self._prefix = store, prefix
        self._error: Exception | None = None  # of the last call; None if it was answered
        self._since = 0.0  # when the first of the calls began that have failed in a row

    @property
    def trouble(self) -> str:
        """How the last call has failed; empty if it was answered."""
        return "" if self._error is None else str(self._error)

    @property
    def is_gone(self) -> bool:
        """Whether no call will be answered any more."""
        return isinstance(self._error, ConnectionResetError)

    @property
    def is_lost(self) -> bool:
        """Whether the store has failed for too long."""
        return self.fails_for() > self.patience

    def fails_for(self) -> float:
        """The seconds since the first of the calls that have failed in a row, infinite if all calls will fail, or 0 if none has."""
        if self.is_gone:
            return math.inf
        return 0.0 if self._error is None else time.monotonic() - self._since

    def at(self, key: str) -> str:
        """The whole key."""
        return f"{self._prefix}/{key}"

    def put(self, key: str, text: str) -> None:
        """Store a text, and try until that has succeeded.

        Raises:
            ConnectionError, TimeoutError: If the store is lost, or this process has left it.
        """
        while not self.try_put(key, text):
            self._bear()

    def try_put(self, key: str, text: str) -> bool:
        """Store a text. Returns whether that has succeeded."""
        with self._noted():
            self._store.put(self.at(key), text, overwrite=True)  # it may be there already: answers can get lost
            return True
        return False

    def read(self, key: str) -> str:
        """Read a text that is known to be there. Raises as `put`."""
        while True:
            with self._noted():
                return self._store.get(self.at(key), _READ_SECONDS)
            self._bear()

    def get(self, key: str, timeout_seconds: float) -> str | None:
        """The text, as soon as it is there; None if it is not there in time, or the store fails. Raises as `put`."""
        began = time.monotonic()
        try:
            return self._store.get(self.at(key), timeout_seconds)
        except TimeoutError:  # it is not there yet, or the store does not answer: the next request finds out
            return None
        except ConnectionError as error:
            self._note(error, began)
            self._bear()
            return None

    def list(self, folder: str) -> dict[str, str] | None:
        """The texts in a folder, or None if the store fails."""
        start = self.at(folder)
        with self._noted():
            return {key.removeprefix(start): text for key, text in self._store.list(start).items()}
        return None

    def increment(self, key: str) -> int | None:
        """Count one more. Returns how many there are, or None if the store fails: it may have been counted then."""
        with self._noted():
            return self._store.increment(self.at(key))
        return None

    def delete(self, key: str) -> None:
        """Delete a text, and everything below it, if the store does not fail."""
        with self._noted():
            self._store.delete(self.at(key))

    def _bear(self) -> None:
        """Wait a little after a call that has failed, if there is a next try."""
        error = self._error
        if error is not None and (isinstance(error, ConnectionAbortedError) or self.is_lost):
            raise error
        time.sleep(_PAUSE_SECONDS)

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        """Go on after a call to the store that fails, which is noted."""
        began = time.monotonic()
        try:
            yield
        except (ConnectionError, TimeoutError) as error:
            self._note(error, began)
        else:
            self._note(None, began)

    def _note(self, error: Exception | None, began: float) -> None:
        """Note how a call has failed that began then, or that it was answered."""
        if self._error is None:
            self._since = began
        if not self.is_gone:
            self._error = error
