"""The private parts of JAX's distributed runtime. In this folder, no other file uses them."""

import contextlib
import functools
import importlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import ClusterError, UnreachableError
from ..exchange._world import Timeouts
from ..resolvers._membership import Membership
from ..wire import _supervisor
from ._relay import Relay

_JAX_HEARTBEAT_SECONDS = 3600  # JAX aborts a worker that was silent and comes back; our own watch reports it earlier
_TRY_SECONDS = 1  # for one try to connect while the workers may form a new group; JAX takes a few seconds more
_UNTOLD = "std::bad_cast"  # what JAX makes of a reason that it cannot give to Python
_JAX_TIMEOUT_SECONDS = 10  # for JAX's own shutdown barrier, where workers that may come back do not wait


class Runtime:
    """The parts of JAX's distributed runtime that are used. Making one checks that they exist.

    Raises:
        ClusterError: If they do not.
    """

    def __init__(self) -> None:
        import jax

        try:
            from jax._src import distributed, xla_bridge

            _jax = importlib.import_module("jaxlib._jax")
            self._xla_bridge: Any = xla_bridge
            self._jax: Any = _jax
            self._state = distributed.global_state
            needed: Mapping[Any, tuple[str, ...]] = {
                _jax: ("get_distributed_runtime_client", "get_distributed_runtime_service", "make_gloo_tcp_collectives"),
                getattr(_jax, "DistributedRuntimeClient", None): (
                    "key_value_set_bytes",
                    "key_value_dir_get_bytes",
                    "blocking_key_value_get_bytes",
                ),
                xla_bridge: ("backends_are_initialized",),
                self._state: ("client", "service", "process_id", "num_processes", "coordinator_address"),
            }
            missing = [name for owner, names in needed.items() for name in names if not hasattr(owner, name)]
        except ImportError as error:
            missing = [str(error)]
        if missing:
            raise ClusterError(
                f"JAX {jax.__version__} has moved internals that Replicant uses to connect workers ({', '.join(missing)}). Use a "
                "version that this release was tested with (0.10 to 0.12), or a newer Replicant."
            )

    def backends_started(self) -> bool:
        """Whether JAX has started, so that it is too late to connect it."""
        return bool(self._xla_bridge.backends_are_initialized())

    def connected_by_program(self) -> str | None:
        """What the program has connected JAX to by ``jax.distributed.initialize``, or None. Ask before this package connects it.

        A call for one process counts, too: JAX cannot be connected once more.
        """
        state = self._state
        if state.client is None:
            return None
        return f"process {state.process_id} of {state.num_processes}, coordinator {state.coordinator_address}"

    def service(self, membership: Membership) -> Any:
        """Start the coordination service in this process. A worker that leaves does not end the others.

        Raises:
            ClusterError: If the service cannot start at the address.
        """
        address = str(membership.bind_address or membership.coordinator_address)
        try:
            return self._jax.get_distributed_runtime_service(
                address,
                membership.num_processes,
                heartbeat_timeout=_JAX_HEARTBEAT_SECONDS,
                shutdown_timeout=_JAX_TIMEOUT_SECONDS,
                recoverable=True,
            )
        except RuntimeError as error:
            raise ClusterError(f"Process 0 could not start JAX's coordination service at {address}: {error}.") from error

    def client(self, membership: Membership, timeouts: Timeouts, *, may_change: bool, relayed: bool) -> tuple[Any, Relay | None]:
        """Return a connected client, and its relay.

        Connecting waits for all workers and cannot be interrupted. So if `may_change` is true, it is tried for a short time again
        and again. A worker that was told that all are about to connect tries at least once, because the others wait for it.

        Args:
            membership: Which one of the workers this process is.
            timeouts: The deadlines of everything that waits.
            may_change: Whether the workers may be told to form a new group meanwhile.
            relayed: Whether to connect over a relay of this process.

        Raises:
            UnreachableError: If the service cannot be reached.
            WorkersChangedError: If the workers are to form a new group.
        """
        deadline = time.monotonic() + timeouts.start
        while True:
            relay = Relay(str(membership.coordinator_address)) if relayed else None
            client = self._jax.get_distributed_runtime_client(
                str(membership.coordinator_address) if relay is None else relay.address,
                membership.process_id,
                init_timeout=_TRY_SECONDS if may_change else max(10, int(timeouts.start)),
                shutdown_timeout=_JAX_TIMEOUT_SECONDS,
                heartbeat_timeout=_JAX_HEARTBEAT_SECONDS,
                missed_heartbeat_callback=_ignore,  # with one, failing to connect is an error; else it is an abort
                shutdown_on_destruction=False,
                use_compression=True,
            )
            try:
                client.connect()
            except RuntimeError as error:
                if relay is not None:
                    relay.close()
                _supervisor.check_order()
                if may_change and time.monotonic() < deadline:
                    continue
                reason = str(error).splitlines()[0]
                if reason == _UNTOLD:
                    reason = f"not all came within {max(10, int(timeouts.start))} s. One has ended meanwhile; see its log"
                raise UnreachableError(
                    f"Process {membership.process_id} could not connect to JAX's coordination service at "
                    f"{membership.coordinator_address}: {reason}."
                ) from error
            if relay is not None:
                relay.hold()
            return client, relay

    def adopt(self, client: Any, membership: Membership) -> None:
        """Note what ``jax.distributed.initialize`` would note, so that JAX's backends connect."""
        state = self._state
        state.client, state.service = client, None  # we end the service ourselves
        state.process_id, state.num_processes = membership.process_id, membership.num_processes
        state.coordinator_address = membership.coordinator_address

    def forget(self) -> None:
        """Undo `adopt`."""
        state = self._state
        state.client, state.service, state.coordinator_address = None, None, None
        state.process_id, state.num_processes = 0, 1

    @contextlib.contextmanager
    def gloo_at(self, address: str) -> Iterator[None]:
        """Make CPU workers listen at this address while backends start. Gloo would resolve the host's own name instead."""
        original = self._jax.make_gloo_tcp_collectives
        self._jax.make_gloo_tcp_collectives = functools.partial(original, hostname=address)
        try:
            yield
        finally:
            self._jax.make_gloo_tcp_collectives = original


def _ignore(*_: Any) -> None:
    """Ignore JAX's callback: a failure to connect also raises an error."""


@functools.cache
def runtime() -> Runtime:
    """The distributed runtime of this process's JAX."""
    return Runtime()
