"""Connecting the processes of one job through JAX's distributed runtime: the only user of what JAX keeps private about it.

``start`` meets the other workers (``_rollcall.py``), connects JAX to them and makes the `World` (``_world.py``). Process 0 has the
coordination service, unless REPLICANT_COORDINATOR=outside says that a supervisor does: then workers may die and come back, and
after ``leave`` the same process can ``start`` in a new world. ``stop`` is done at the end of the program by itself; a program that
ends with an error tells the others why and leaves at once, instead of waiting minutes in JAX's own barrier.
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

from ..errors import AlreadyStartedError, ClusterError, UnreachableError
from . import _devices, _gloo_sockets, _heartbeat, _rollcall
from ._addresses import is_loopback, split_address
from ._claims import Claim, problem_of
from ._environ import Environ, number
from ._job import job_key, job_of
from ._membership import Membership
from ._own_address import LOOPBACK, seen_by_others, source_towards
from ._patience import Patience
from ._program_cache import share_programs
from ._reach import check_proxies, check_reachable
from ._world import Timeouts, World, describe_error, this_process

OUTSIDE = "outside"
# What XLA says of an exchange that a peer has broken off; NCCL calls its own failures INTERNAL.
_STATUS = re.compile("(UNKNOWN|UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED): |INTERNAL: .*(NCCL|Gloo)", re.DOTALL)
_FAILURE_GRACE_SECONDS = 15.0  # that process 0 stays after an error of its own, for the others to read it
_CUT_SECONDS = 2.0  # that process 0 stays where it hears nobody: JAX aborts those to whom a link heals, and who find nothing there
_JAX_HEARTBEAT_SECONDS = 3600  # JAX aborts a worker that was silent and comes back; our own watch names it before
_CALL_SECONDS = 2.0  # for an answer of the coordination service
_TRY_SECONDS = 1  # to connect where the workers may form anew meanwhile; JAX takes some seconds more
_JAX_TIMEOUT_SECONDS = 10  # of JAX's own shutdown barrier, which workers that may come back do not wait in

_state: dict[str, Any] = {"world": None, "service": None, "failure": None, "hooked": False, "gloo": None}


def world() -> World | None:
    """The workers that this process has met; None for a process on its own."""
    return _state["world"]


def timeouts_of(environ: Environ) -> Timeouts:
    """Deadlines as the environment sets them, in whole seconds: REPLICANT_START_TIMEOUT, REPLICANT_EXCHANGE_TIMEOUT,
    REPLICANT_HEARTBEAT_TIMEOUT and REPLICANT_STOP_TIMEOUT.

    >>> timeouts_of({"REPLICANT_START_TIMEOUT": "5"}).start
    5
    """  # noqa: D205 - a list of names
    names = ("start", "exchange", "heartbeat", "stop")
    found = {name: number(environ, f"REPLICANT_{name.upper()}_TIMEOUT") for name in names}
    return Timeouts(**{name: value for name, value in found.items() if value is not None})


def start(
    membership: Membership, *, timeouts: Timeouts | None = None, environ: Environ | None = None, generation: int | None = None
) -> World:
    """Meet the other workers and connect JAX to them. Every worker calls it, before anything starts JAX; once.

    Args:
        membership: this process among several.
        timeouts: of everything that waits; those of the environment by default.
        environ: the environment to read; the process's own by default.
        generation: how often the workers have formed anew; REPLICANT_GENERATION, or 0, by default.

    Raises:
        AlreadyStartedError: JAX has started, or another world is there.
        ClusterError, UnreachableError, WorkerMismatchError: the workers cannot form one group; on every one of them.
    """
    environ = os.environ if environ is None else environ
    if _state["world"] is not None:
        raise AlreadyStartedError(f"This process has met its workers already, as {_state['world'].membership!r}.")
    if backends_started():
        raise AlreadyStartedError(
            "JAX has started before the workers could meet. Make the strategy at the top of the program, right after the imports: "
            "before arrays, models, jax.devices() and other strategies."
        )
    _heartbeat.start(environ)
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
    """Leave the world that this process was in, with all arrays and compiled programs, and end JAX: it can be started anew.

    Peers that are inside of an exchange with this process get an error at once.
    """
    import jax
    import jax.extend

    gloo, _state["gloo"] = _state["gloo"], None
    if gloo is not None:  # whoever refers to the old client, its sockets are of no use any more
        _gloo_sockets.shut_down(*gloo)
    _disconnect()
    jax.clear_caches()
    jax.extend.backend.clear_backends()
    gc.collect()  # the client is part of cycles; its sockets are closed with it


def stop() -> None:
    """Leave well: process 0 waits until the others have left, since they speak over it. Nothing happens without a world."""
    found = _state["world"]
    if found is None:
        return
    found.report_end()
    if found.is_chief and not found.supervised:
        found.wait_for_others(found.timeouts.stop)
    _disconnect()


def backends_started() -> bool:
    """Whether JAX has started: then it is too late to connect it."""
    return bool(_private().xla_bridge.backends_are_initialized())


def fingerprint() -> dict[str, str]:
    """What must be the same on all workers before they start: versions."""
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
        _heartbeat.meet(generation, timeouts.start)
        who: tuple[str, ...] = ()
    else:
        job, key = job_of(membership, environ), job_key(environ)
        who = _rollcall.call_roll(membership, this_process(), fingerprint(), timeouts.start, job=job, key=key)
    jax_private = _private()
    if membership.process_id == 0 and not outside:
        _state["service"] = jax_private.service(membership, timeouts)
    client = jax_private.client(membership, timeouts, may_change=_heartbeat.is_elastic())
    store = JaxStore(client)
    made = World(store, membership, who, generation=generation, timeouts=timeouts, supervised=outside)
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
        _heartbeat.tell_connected(generation)
        _state["gloo"] = mine, {port for rank, each in enumerate(theirs) if rank != made.process_id for port in each}
    if platform in ("cpu", "gpu"):  # the programs of TPUs know their places
        share_programs()
    made.begin_watch(_leave)
    return made


def _own_address(made: World, coordinator: str) -> str:
    """Where the other workers find this one, whatever its host's name stands for."""
    if is_loopback(split_address(coordinator, "coordinator address")[0]):
        return LOOPBACK  # all are on this host
    mine = source_towards(coordinator)
    return seen_by_others(made.process_id, made.exchange("addresses", mine, made.timeouts.start), coordinator)


def _compared(made: World, timeouts: Timeouts) -> tuple[str, ...]:
    """What the roll call finds out where process 0 has called one: who the workers are, and that their versions are the same."""
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
        with contextlib.suppress(RuntimeError):  # nobody is left to whom it would matter
            service.shutdown()


def is_broken_exchange(error: BaseException) -> bool:
    """Whether a program of several workers failed in its exchange: JAX says so in a RuntimeError, or in a ValueError."""
    return isinstance(error, RuntimeError | ValueError) and _STATUS.match(str(error)) is not None


def _leave(text: str) -> None:
    """From the watching thread: the main thread may sit in an exchange that never ends."""
    _print(text)
    _heartbeat.report(f"WorkerLostError: {text}")
    found = _state["world"]
    if found is not None:
        found.report_end(well=False)
        if _state["service"] is not None:
            time.sleep(_CUT_SECONDS)
    _exit(1)


def _print(text: str) -> None:
    print(f"replicant: {text}", file=sys.stderr, flush=True)  # noqa: T201 - the process is about to end


def _exit(status: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads it any more
            stream.flush()
    os._exit(status)


def _note_failure(original: Any, kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Before the interpreter ends with an error: tell the others, and say what is known of them."""
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


class JaxStore:
    """The key-value store of JAX's coordination service.

    Only asking for one key has a deadline in JAX: where a link is cut, the other calls wait for as long as TCP tries.
    """

    def __init__(self, client: Any):
        self._client = client
        self._patience = Patience(_CALL_SECONDS, "the coordination service")

    def put(self, key: str, text: str, *, overwrite: bool = False) -> None:
        """Store a text."""
        with _translated():
            self._patience.call(self._client.key_value_set, key, text, overwrite)

    def get(self, key: str, timeout_seconds: float) -> str:
        """The text, as soon as it is there."""
        with _translated():
            return self._client.blocking_key_value_get(key, max(1, int(timeout_seconds * 1000)))

    def list(self, prefix: str) -> dict[str, str]:
        """Everything whose key begins so."""
        with _translated():
            return dict(self._patience.call(self._client.key_value_dir_get, prefix))

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
        with contextlib.suppress(RuntimeError):  # it may be gone already
            client.shutdown()


class _Closed:
    def shutdown(self) -> None:
        """Nothing is left to leave."""

    def __getattr__(self, name: str) -> Any:
        raise ConnectionAbortedError("this process has left the coordination service")


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # JaxRuntimeError
        text = str(error).splitlines()[0]  # the rest is about gRPC
        if text.startswith(("DEADLINE_EXCEEDED", "NOT_FOUND")):
            raise TimeoutError(text) from None
        raise ConnectionError(text) from None


class _Private:
    """What is used of JAX's private parts; checked for being there."""

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
                xla_bridge: ("backends_are_initialized",),
                self._state: ("client", "service", "process_id", "num_processes", "coordinator_address"),
            }
            missing = [name for owner, names in needed.items() for name in names if not hasattr(owner, name)]
        except ImportError as error:
            missing = [str(error)]
        if missing:
            raise ClusterError(
                f"JAX {jax.__version__} has moved what Replicant connects workers with ({', '.join(missing)}). Use a version that "
                "this release was tested with (0.10, 0.11), or a newer Replicant."
            )

    def service(self, membership: Membership, timeouts: Timeouts) -> Any:
        """The coordination service, in this process. Workers may leave without taking the others with them."""
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

    def client(self, membership: Membership, timeouts: Timeouts, *, may_change: bool) -> Any:
        """A connected client. `may_change`: whether the workers may be told to form anew meanwhile.

        Connecting waits for all workers and cannot be broken off, so that it is then tried for short times. Who has been told
        that all are about to connect does so once in any case: the others wait for it.
        """
        deadline = time.monotonic() + timeouts.start
        while True:
            client = self._jax.get_distributed_runtime_client(
                str(membership.coordinator_address),
                membership.process_id,
                init_timeout=_TRY_SECONDS if may_change else max(10, int(timeouts.start)),
                shutdown_timeout=_JAX_TIMEOUT_SECONDS,
                heartbeat_timeout=_JAX_HEARTBEAT_SECONDS,
                missed_heartbeat_callback=_ignore if may_change else None,  # with one, failing is an error; else it is an abort
                shutdown_on_destruction=False,
                use_compression=True,
            )
            try:
                client.connect()
            except RuntimeError as error:
                _heartbeat.check_order()
                if may_change and time.monotonic() < deadline:
                    continue
                raise UnreachableError(
                    f"Process {membership.process_id} could not connect to JAX's coordination service at "
                    f"{membership.coordinator_address}: {str(error).splitlines()[0]}"
                ) from error
            return client

    def adopt(self, client: Any, service: Any, membership: Membership) -> None:
        """What ``jax.distributed.initialize`` notes, so that JAX's backends connect."""
        state = self._state
        state.client, state.service = client, None  # the service is ours to end
        state.process_id, state.num_processes = membership.process_id, membership.num_processes
        state.coordinator_address = membership.coordinator_address

    def forget(self) -> None:
        """The opposite."""
        state = self._state
        state.client, state.service, state.coordinator_address = None, None, None
        state.process_id, state.num_processes = 0, 1

    @contextlib.contextmanager
    def gloo_at(self, address: str) -> Iterator[None]:
        """While backends start: CPU workers listen to each other there. Gloo would ask what the host's own name stands for."""
        original = self._jax.make_gloo_tcp_collectives
        self._jax.make_gloo_tcp_collectives = functools.partial(original, hostname=address)
        try:
            yield
        finally:
            self._jax.make_gloo_tcp_collectives = original


def _ignore(*_: Any) -> None:
    """What JAX says of a failure to connect, it says with an error, too."""


@functools.cache
def _private() -> _Private:
    return _Private()
