"""The key-value store of JAX's coordination service, with a deadline for each call and with Python's own errors."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from ._deadline_calls import Patience
from ._relay import Relay

_CALL_SECONDS = 2.0  # for an answer
_LOOK_SECONDS = 0.5  # between two looks at whether the service has gone


class JaxStore:
    """The key-value store of JAX's coordination service.

    Only asking for one key has a deadline in JAX: where a link is cut, the other calls wait for as long as TCP tries. Everything is
    read as bytes, because others can write there, too, and JAX's calls for texts fail where there is one that is not UTF-8.

    Args:
        client: of JAX's, connected.
        relay: over which it is; then calls are ConnectionResetErrors as soon as the service has gone.
    """

    def __init__(self, client: Any, relay: Relay | None = None):
        self._client, self._relay = client, relay
        self._patience = Patience(_CALL_SECONDS, "the coordination service", self.gone)

    def gone(self) -> str:
        """What has become of the service; empty as long as it may be there."""
        return "" if self._relay is None else self._relay.gone

    def put(self, key: str, text: str, *, overwrite: bool = False) -> None:
        """Store a text."""
        with _translated():
            self._patience.call(self._client.key_value_set_bytes, key, text.encode(errors="surrogatepass"), overwrite)

    def get(self, key: str, timeout_seconds: float) -> str:
        """The text, as soon as it is there."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            if self.gone():
                raise ConnectionResetError(self.gone())
            left = deadline - time.monotonic()
            try:
                with _translated():
                    return _text(self._client.blocking_key_value_get_bytes(key, max(1, int(min(left, _LOOK_SECONDS) * 1000))))
            except TimeoutError:
                if left <= _LOOK_SECONDS:
                    raise

    def list(self, prefix: str) -> dict[str, str]:
        """Everything whose key begins so."""
        with _translated():
            found = self._patience.call(self._client.key_value_dir_get_bytes, prefix)
        return {key: _text(data) for key, data in found}

    def increment(self, key: str) -> int:
        """Count one more, at once for all who do; how many there are then."""
        with _translated():
            return self._patience.call(self._client.key_value_increment, key, 1)

    def delete(self, key: str) -> None:
        """Forget a text, and all whose keys begin with this one and a slash."""
        with _translated():
            self._patience.call(self._client.key_value_delete, key)

    def close(self) -> None:
        """Leave the service; what it is told afterwards is a ConnectionAbortedError."""
        client, self._client = self._client, _Closed()
        self._patience.close()
        is_left = False
        with contextlib.suppress(RuntimeError):  # it may be gone already
            client.shutdown()
            is_left = True
        if self._relay is not None:
            self._relay.close(keep_silent=not is_left)


class _Closed:
    def shutdown(self) -> None:
        """Nothing is left to leave."""

    def __getattr__(self, name: str) -> Any:
        raise ConnectionAbortedError("this process has left the coordination service")


def _text(data: bytes) -> str:
    """The text that `put` has stored. What nobody of this job can have stored becomes another text, which no seal fits."""
    try:
        return data.decode(errors="surrogatepass")
    except UnicodeDecodeError:
        return data.decode(errors="replace")


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # JaxRuntimeError
        text = str(error).splitlines()[0]  # the rest is about gRPC
        if text.startswith(("DEADLINE_EXCEEDED", "NOT_FOUND")):
            raise TimeoutError(text) from None
        raise ConnectionError(text) from None
    except UnicodeDecodeError as error:  # the service's message repeats what somebody else has stored
        raise ConnectionError(f"the coordination service's answer is not text: {error.object[:200]!r}") from None
