"""Connects the processes of one job through JAX's distributed runtime. No other file uses the private parts of that runtime.

``start`` meets the other workers (``meeting/_member.py``), connects JAX to them and makes the `World` (``exchange/_world.py``).
Process 0 runs the coordination service, unless REPLICANT_COORDINATOR=outside says that a supervisor does. With a supervisor,
workers may die and come back, and after ``leave`` the same process can ``start`` in a new world. ``stop`` runs by itself at the end
of the program. A program that ends with an error tells the others why and leaves at once, instead of waiting for minutes in JAX's
own barrier.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import importlib.metadata
import json
import os
import platform
import re
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import AlreadyStartedError, ClusterError, UnreachableError
from .._addresses import is_loopback, split_address
from ..exchange._world import Timeouts, World, describe_error, this_process
from ..meeting import _member
from ..meeting._claims import Claim, problem_of
from ..meeting._job import job_key, job_of
from ..meeting._own_address import LOOPBACK, seen_by_others, source_towards
from ..meeting._reachable import check_proxies, check_reachable
from ..resolvers._environ import Environ, number
from ..resolvers._membership import Membership
from ..wire import _seal, _supervisor
from . import _devices, _gloo_sockets
from ._program_cache import share_programs
from ._relay import Relay
from ._service_sockets import outlast_cuts
from ._store import JaxStore

OUTSIDE = "outside"
# How XLA describes an exchange that a peer has broken off. NCCL reports its own failures as INTERNAL.
_STATUS = re.compile("(UNKNOWN|UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED): |INTERNAL: .*(NCCL|Gloo)", re.DOTALL)
_FAILURE_GRACE_SECONDS = 15.0  # process 0 stays for so long after its own error, so that the others can read it
_JAX_HEARTBEAT_SECONDS = 3600  # JAX aborts a worker that was silent and comes back; our own watch reports it earlier
_TRY_SECONDS = 1  # for one try to connect while the workers may form a new group; JAX takes a few seconds more
_UNTOLD = "std::bad_cast"  # what JAX makes of a reason that it cannot give to Python
_JAX_TIMEOUT_SECONDS = 10  # for JAX's own shutdown barrier, where workers that may come back do not wait

_state: dict[str, Any] = {"world": None, "service": None, "failure": None, "hooked": False, "gloo": None}


def world() -> World | None:
    """The workers that this process has met, or None if it is on its own."""
    return _state["world"]


def timeouts_of(environ: Environ) -> Timeouts:
    """The deadlines that the environment sets, in whole seconds.

    The variables are REPLICANT_START_TIMEOUT, REPLICANT_EXCHANGE_TIMEOUT, REPLICANT_HEARTBEAT_TIMEOUT and REPLICANT_STOP_TIMEOUT.

    >>> timeouts_of({"REPLICANT_START_TIMEOUT": "5"}).start
    5
    """
    names = ("start", "exchange", "heartbeat", "stop")
    found = {name: number(environ, f"REPLICANT_{name.upper()}_TIMEOUT") for name in names}
    return Timeouts(**{name: value for name, value in found.items() if value is not None})


def start(
    membership: Membership, *, timeouts: Timeouts | None = None, environ: Environ | None = None, generation: int | None = None
) -> World:
    """Meet the other workers and connect JAX to them. Every worker calls this once, before anything starts JAX.

    Args:
        membership: Which one of the workers this process is.
        timeouts: The deadlines of everything that waits. By default those of the environment.
        environ: The environment to read. By default the process's own.
        generation: How many times the workers have formed a new group. By default REPLICANT_GENERATION, or else 0.

    Returns:
        The world of this process and the other workers.

    Raises:
        AlreadyStartedError: If JAX has started, or if this process is in a world already.
        ClusterError, UnreachableError, WorkerMismatchError: If the workers cannot form one group. All of them raise it.
    """
    environ = os.environ if environ is None else environ
    if _state["world"] is not None:
        raise AlreadyStartedError(f"This process has already met the other workers, as {_state['world'].membership!r}.")
    if backends_started():
        raise AlreadyStartedError(
            "JAX started before the workers could meet. Make the strategy at the top of the program, right after the imports: "
            "before arrays, models, jax.devices() and other strategies."
        )
    _supervisor.start(environ)
    _supervisor.when_cut_off(_end_alone)
    timeouts = timeouts or timeouts_of(environ)
    generation = (number(environ, "REPLICANT_GENERATION") or 0) if generation is None else generation
    check_proxies(environ, str(membership.coordinator_address))
    outside = environ.get("REPLICANT_COORDINATOR", "").strip() == OUTSIDE
    made = _connect(membership, timeouts, generation, outside=outside, environ=environ)
    if not _state["hooked"]:
        _state["hooked"] = True
        atexit.register(_at_exit)
        sys.excepthook = functools.partial(_note_failure, sys.excepthook)
    return made


def leave() -> None:
    """Leave this process's world, drop all arrays and compiled programs, and end JAX, so that it can be started again.

    Peers that are in an exchange with this process get an error at once.
    """
    import jax
    import jax.extend

    gloo, _state["gloo"] = _state["gloo"], None
    if gloo is not None:  # something may still refer to the old client, but its sockets must not stay open
        _gloo_sockets.shut_down(*gloo)
    _disconnect()
    jax.clear_caches()
    jax.extend.backend.clear_backends()
    gc.collect()  # the client is part of reference cycles; collecting it closes its sockets


def stop() -> None:
    """Leave without an error. Process 0 waits until the others have left, because they talk through it.

    Nothing happens without a world.
    """
    found = _state["world"]
    if found is None:
        return
    found.report_end()
    if found.is_chief and not found.supervised:
        found.wait_for_others(found.timeouts.stop)
    _disconnect()


def backends_started() -> bool:
    """Whether JAX has started, so that it is too late to connect it."""
    return bool(_private().xla_bridge.backends_are_initialized())


def fingerprint() -> dict[str, str]:
    """The versions that must be the same on all workers before they start."""
    facts = {"Python": ".".join(platform.python_version_tuple()[:2])}
    for name in ("jax", "jaxlib", "numpy", "keras"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            facts[name] = importlib.metadata.version(name)
    facts["replicant"] = sys.modules["replicant"].__version__ if "replicant" in sys.modules else ""
    return facts


def _connect(membership: Membership, timeouts: Timeouts, generation: int, *, outside: bool, environ: Environ) -> World:
    address = str(membership.coordinator_address)
    if outside:
        check_reachable(address, timeouts.start)
        _supervisor.meet(generation, timeouts.start)
        who: tuple[str, ...] = ()
        secret = _seal.of_key(environ.get(_supervisor.KEY, ""))
    else:
        job, key = job_of(membership, environ), job_key(environ)
        who = met = _member.call_roll(membership, this_process(), fingerprint(), timeouts.start, job=job, key=key)
        secret = _seal.of_key(key, met.secret) or met.secret  # an earlier run may have had the same key
    jax_private = _private()
    if membership.process_id == 0 and not outside:
        _state["service"] = jax_private.service(membership, timeouts)
    client, relay = jax_private.client(membership, timeouts, may_change=_supervisor.is_elastic(), relayed=_state["service"] is None)
    if _state["service"] is not None:  # all have connected
        outlast_cuts(split_address(str(membership.bind_address or address), "coordinator address")[1])
    store = JaxStore(client, relay)
    made = World(store, membership, who, generation=generation, timeouts=timeouts, supervised=outside, secret=secret)
    jax_private.adopt(client, _state["service"], membership)
    _state["world"] = made
    if outside:
        made.who = _compared(made, timeouts)
    ports = _gloo_sockets.listening_ports()
    with jax_private.gloo_at(_own_address(made, address)):
        platform = _devices.start(store, membership.num_processes)
    if outside:
        mine = _gloo_sockets.listening_ports() - ports
        theirs = [json.loads(text) for text in made.exchange("sockets", json.dumps(sorted(mine)), timeouts.start)]
        _supervisor.tell_connected(generation)
        _state["gloo"] = mine, {port for rank, each in enumerate(theirs) if rank != made.process_id for port in each}
        made.break_off = functools.partial(_gloo_sockets.shut_down, *_state["gloo"])
    if platform in ("cpu", "gpu"):  # the programs of TPUs know their places
        share_programs()
    made.begin_watch(_leave)
    return made


def _own_address(made: World, coordinator: str) -> str:
    """The address at which the other workers find this one, whatever its host's name resolves to."""
    if is_loopback(split_address(coordinator, "coordinator address")[0]):
        return LOOPBACK  # all are on this host
    sources = made.exchange("addresses", source_towards(coordinator), made.timeouts.start)
    mine = seen_by_others(made.process_id, sources, coordinator)
    made.addresses = tuple(mine if rank == made.process_id else source for rank, source in enumerate(sources))
    return mine


def _compared(made: World, timeouts: Timeouts) -> tuple[str, ...]:
    """Do the work of a roll call where there was none: learn who the workers are, and check that their versions are equal."""
    said = [json.loads(text) for text in made.exchange("who", json.dumps([this_process(), fingerprint()]), timeouts.start)]
    problem = problem_of([Claim(i, made.num_processes, who, facts) for i, (who, facts) in enumerate(said)])
    if problem is not None:
        raise problem
    return tuple(who for who, _ in said)


def _disconnect() -> None:
    found, _state["world"] = _state["world"], None
    if found is not None:
        found.end_watch()
        found.store.close()
    _private().forget()
    service, _state["service"] = _state["service"], None
    if service is not None:
        with contextlib.suppress(RuntimeError):  # nobody is left who would care
            service.shutdown()


def is_broken_exchange(error: BaseException) -> bool:
    """Whether an error says that a program of several workers failed in an exchange. JAX raises RuntimeError or ValueError then."""
    return isinstance(error, RuntimeError | ValueError) and _STATUS.match(str(error)) is not None


def _leave(text: str) -> None:
    """End the process from the watching thread, because the main thread may be stuck in an exchange that never ends."""
    _print(text)
    _supervisor.report(f"WorkerLostError: {text}")
    found = _state["world"]
    if found is not None:
        found.report_end(well=False)
    _exit(1)


def _end_alone(reason: str) -> None:
    """End the process at once when its supervisor cannot be reached: the others may go on without it, and it must write nothing."""
    _print(f"This worker ends because {reason}. The others may go on without it.")
    _exit(1)


def _print(text: str) -> None:
    print(f"replicant: {text}", file=sys.stderr, flush=True)  # noqa: T201 - the process is about to end


def _exit(status: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # it is closed, or nobody reads it any more
            stream.flush()
    os._exit(status)


def _note_failure(original: Any, kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Tell the others that the interpreter ends with an error, and print what is known about them."""
    original(kind, error, trace)
    found = _state["world"]
    if found is None:
        return
    _state["failure"] = error
    found.report_failure(describe_error(error))
    if is_broken_exchange(error):
        _print(str(found.lost("could not compute together with the others", error)))


def _at_exit() -> None:
    found = _state["world"]
    if found is None:
        return
    if _state["failure"] is None:
        stop()
        return
    if found.is_chief and not found.supervised:  # the others can read why only while this process is there
        found.wait_for_others(_FAILURE_GRACE_SECONDS)
    _exit(1)


class _Private:
    """The private parts of JAX that are used here. Making one checks that they exist."""

    def __init__(self) -> None:
        import jax

        try:
            from jax._src import distributed, xla_bridge

            _jax = importlib.import_module("jaxlib._jax")
            self.xla_bridge: Any = xla_bridge
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

    def service(self, membership: Membership, timeouts: Timeouts) -> Any:
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

    def adopt(self, client: Any, service: Any, membership: Membership) -> None:
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
def _private() -> _Private:
    return _Private()
