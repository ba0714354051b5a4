"""Connects the processes of one job through JAX's distributed runtime.

``start`` meets the other workers (``meeting/_member.py``), connects JAX to them and makes the `World` (``exchange/_world.py``).
Process 0 runs the coordination service, unless REPLICANT_COORDINATOR=outside says that a supervisor does. With a supervisor,
workers may die and come back, and after ``leave`` the same process can ``start`` in a new world. At its end, a program leaves by
itself. One that ends with an error tells the others why and leaves at once, instead of waiting for minutes in JAX's own barrier.
"""

import atexit
import contextlib
import functools
import gc
import importlib.metadata
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import AlreadyStartedError
from .._addresses import is_loopback, split_address
from ..exchange._fates import describe_error
from ..exchange._peers import this_process
from ..exchange._world import Timeouts, World
from ..meeting import _member
from ..meeting._claims import Claim, problem_of
from ..meeting._job import job_key, job_of
from ..meeting._own_address import LOOPBACK, seen_by_others, source_towards
from ..meeting._reachable import check_proxies, check_reachable
from ..meeting._rendezvous import located
from ..resolvers._environ import Environ, number
from ..resolvers._membership import Membership
from ..wire import _seal, _supervisor
from . import _devices, _gloo_sockets
from ._program_cache import share_programs
from ._runtime import runtime
from ._service_sockets import outlast_cuts
from ._store import JaxStore

OUTSIDE = "outside"
# How XLA describes an exchange that a peer has broken off. NCCL reports its own failures as INTERNAL.
_STATUS = re.compile("(UNKNOWN|UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED): |INTERNAL: .*(NCCL|Gloo)", re.DOTALL)
_FAILURE_GRACE_SECONDS = 15.0  # process 0 stays for so long after its own error, so that the others can read it


class _Group:
    """What this process has of its group. It leaves one group before it joins the next.

    Attributes:
        world: The workers of the group; None if this process is on its own.
        sockets: The ports of this process and of its peers, through which CPU workers exchange data, if a supervisor watches them.
    """

    def __init__(self) -> None:
        self.world: World | None = None
        self.sockets: tuple[set[int], set[int]] | None = None
        self._service: Any = None  # JAX's coordination service, if it runs in this process
        self._stop_seconds = 0.0  # to wait at the end for the others to end
        self._has_failed = False  # whether the program ends with an error
        self._is_hooked = False

    def join(self, membership: Membership, timeouts: Timeouts, generation: int, environ: Environ) -> World:
        """Meet the other workers, connect JAX to them, and start its devices."""
        self._stop_seconds = timeouts.stop
        supervised = environ.get("REPLICANT_COORDINATOR", "").strip() == OUTSIDE
        who, secret = (_meet_supervised if supervised else _meet)(membership, timeouts, generation, environ)
        store = self._connect(membership, timeouts, has_service=membership.process_id == 0 and not supervised)
        self.world = world = World.over(
            store, membership, who, generation=generation, timeouts=timeouts, supervised=supervised, secret=secret
        )
        if supervised:
            world.peers.introduce(_compared(world, timeouts))
        ports = _gloo_sockets.listening_ports()
        with runtime().gloo_at(_own_address(world, timeouts)):
            platform = _devices.start(store, membership.num_processes)
        break_off = None
        if supervised:
            break_off = self._find_sockets(world, ports, timeouts)
            _supervisor.tell_connected(generation)
        if platform in ("cpu", "gpu"):  # the programs of TPUs know their places
            share_programs()
        world.liveness.begin(_end, break_off)
        self._hook()
        return world

    def leave(self) -> None:
        """Leave the group. Peers that are in an exchange with this process get an error at once."""
        sockets, self.sockets = self.sockets, None
        if sockets is not None:  # something may still refer to the old client, but its sockets must not stay open
            _gloo_sockets.shut_down(*sockets)
        self._disconnect()

    def _connect(self, membership: Membership, timeouts: Timeouts, *, has_service: bool) -> JaxStore:
        """Connect JAX to the coordination service, which this process may have to start."""
        if has_service:
            self._service = runtime().service(membership)
        client, relay = runtime().client(membership, timeouts, may_change=_supervisor.is_elastic(), relayed=not has_service)
        if has_service:  # all have connected
            outlast_cuts(split_address(str(membership.bind_address or membership.coordinator_address), "coordinator address")[1])
        runtime().adopt(client, membership)
        return JaxStore(client, relay)

    def _find_sockets(self, world: World, before: set[int], timeouts: Timeouts) -> Callable[[], int]:
        """Find the sockets through which CPU workers exchange data. Returns a function that breaks their exchanges off."""
        own = _gloo_sockets.listening_ports() - before
        said = [json.loads(text) for text in world.exchange("sockets", json.dumps(sorted(own)), timeouts.start)]
        peers = {port for rank, each in enumerate(said) if rank != world.process_id for port in each}
        self.sockets = own, peers
        return functools.partial(_gloo_sockets.shut_down, own, peers)

    def _disconnect(self) -> None:
        world, self.world = self.world, None
        if world is not None:
            world.liveness.end()
            world.store.close()
        runtime().forget()
        service, self._service = self._service, None
        if service is not None:
            with contextlib.suppress(RuntimeError):  # nobody is left who would care
                service.shutdown()

    def _hook(self) -> None:
        """Let the end of the program do the rest."""
        if not self._is_hooked:
            self._is_hooked = True
            atexit.register(self._at_exit)
            sys.excepthook = functools.partial(self._note_failure, sys.excepthook)

    def _note_failure(self, original: Any, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        """Tell the others that the interpreter ends with an error, and print what is known about them."""
        original(kind, error, trace)
        if self.world is None:
            return
        self._has_failed = True
        self.world.fates.report_failure(describe_error(error))
        if is_broken_exchange(error):
            _print(str(self.world.fates.lost("could not compute together with the others", error)))

    def _at_exit(self) -> None:
        if self.world is None:
            return
        if not self._has_failed:
            self.world.fates.report_end()
        if self._service is not None:  # the others talk through it, and can read only as long why this process has failed
            self.world.fates.wait_for_others(_FAILURE_GRACE_SECONDS if self._has_failed else self._stop_seconds)
        if self._has_failed:
            _exit(1)
        self._disconnect()


_group = _Group()


def world() -> World | None:
    """The workers that this process has met, or None if it is on its own."""
    return _group.world


def is_chief() -> bool:
    """Whether this process writes what must be written only once."""
    found = world()
    return found is None or found.is_chief


def timeouts_of(environ: Environ) -> Timeouts:
    """The deadlines that the environment sets, in whole seconds.

    The variables are REPLICANT_START_TIMEOUT, REPLICANT_EXCHANGE_TIMEOUT, REPLICANT_HEARTBEAT_TIMEOUT and REPLICANT_STOP_TIMEOUT.

    >>> timeouts_of({"REPLICANT_START_TIMEOUT": "5"}).start
    5
    """
    names = ("start", "exchange", "heartbeat", "stop")
    found = {name: number(environ, f"REPLICANT_{name.upper()}_TIMEOUT") for name in names}
    return Timeouts(**{name: value for name, value in found.items() if value is not None})


def start(membership: Membership) -> World:
    """Meet the other workers and connect JAX to them. Every worker calls this once, before anything starts JAX.

    Args:
        membership: Which one of the workers this process is.

    Returns:
        The world of this process and the other workers.

    Raises:
        AlreadyStartedError: If JAX has started, or if this process is in a world already.
        ClusterError, UnreachableError, WorkerMismatchError: If the workers cannot form one group. All of them raise it.
    """
    environ = os.environ
    if _group.world is not None:
        raise AlreadyStartedError(f"This process has already met the other workers, as {_group.world.peers.membership!r}.")
    check_not_connected()
    if runtime().backends_started():
        raise AlreadyStartedError(
            "JAX started before the workers could meet. Make the strategy at the top of the program, right after the imports: "
            "before arrays, models, jax.devices() and other strategies."
        )
    _supervisor.start(environ)
    _supervisor.when_cut_off(_end_alone)
    timeouts = timeouts_of(environ)
    with located(membership, environ, timeouts.start) as where:
        check_proxies(environ, str(where.coordinator_address))
        return _group.join(where, timeouts, number(environ, "REPLICANT_GENERATION") or 0, environ)


def check_not_connected() -> None:
    """Check that the program has left it to this package to connect JAX.

    Raises:
        AlreadyStartedError: If it has called ``jax.distributed.initialize`` itself.
    """
    connected = runtime().connected_by_program() if _group.world is None else None
    if connected is not None:
        raise AlreadyStartedError(
            f"The program has called jax.distributed.initialize ({connected}). Strategies over workers connect JAX themselves, so "
            "that a lost worker is an error and not a hang: remove the call. They find the other processes in the launcher's "
            "variables; elsewhere, set JAX_PROCESS_ID, JAX_NUM_PROCESSES and JAX_COORDINATOR_ADDRESS. If this process is to train "
            "alone, set REPLICANT_SINGLE=1."
        )


def leave() -> None:
    """Leave this process's world, drop all arrays and compiled programs, and end JAX, so that it can be started again.

    Peers that are in an exchange with this process get an error at once.
    """
    import jax
    import jax.extend

    _group.leave()
    jax.clear_caches()
    jax.extend.backend.clear_backends()
    gc.collect()  # the client is part of reference cycles; collecting it closes its sockets


def fingerprint() -> dict[str, str]:
    """The versions that must be the same on all workers before they start."""
    facts = {"Python": ".".join(platform.python_version_tuple()[:2])}
    for name in ("jax", "jaxlib", "numpy", "keras"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            facts[name] = importlib.metadata.version(name)
    facts["replicant"] = sys.modules["replicant"].__version__ if "replicant" in sys.modules else ""
    return facts


def is_broken_exchange(error: BaseException) -> bool:
    """Whether an error says that a program of several workers failed in an exchange. JAX raises RuntimeError or ValueError then."""
    return isinstance(error, RuntimeError | ValueError) and _STATUS.match(str(error)) is not None


def _meet(membership: Membership, timeouts: Timeouts, generation: int, environ: Environ) -> tuple[Sequence[str], str]:
    """Meet the other workers. Returns who they are, and a secret that only they know."""
    del generation  # only a supervisor forms new groups
    job, key = job_of(membership, environ), job_key(environ)
    met = _member.call_roll(membership, this_process(), fingerprint(), timeouts.start, job=job, key=key)
    return met, _seal.of_key(key, met.secret) or met.secret  # an earlier run may have had the same key


def _meet_supervised(membership: Membership, timeouts: Timeouts, generation: int, environ: Environ) -> tuple[Sequence[str], str]:
    """Wait until the supervisor says that all are about to connect. Who they are, they say later."""
    check_reachable(str(membership.coordinator_address), timeouts.start)
    _supervisor.meet(generation, timeouts.start)
    return (), _seal.of_key(environ.get(_supervisor.KEY, ""))


def _own_address(world: World, timeouts: Timeouts) -> str:
    """The address at which the other workers find this one, whatever its host's name resolves to."""
    coordinator = str(world.peers.membership.coordinator_address)
    if is_loopback(split_address(coordinator, "coordinator address")[0]):
        return LOOPBACK  # all are on this host
    sources = world.exchange("addresses", source_towards(coordinator), timeouts.start)
    mine = seen_by_others(world.process_id, sources, coordinator)
    world.peers.locate([mine if rank == world.process_id else source for rank, source in enumerate(sources)])
    return mine


def _compared(world: World, timeouts: Timeouts) -> list[str]:
    """Do the work of a roll call where there was none: learn who the workers are, and check that their versions are equal."""
    said = [json.loads(text) for text in world.exchange("who", json.dumps([this_process(), fingerprint()]), timeouts.start)]
    problem = problem_of([Claim(i, world.num_processes, who, facts) for i, (who, facts) in enumerate(said)])
    if problem is not None:
        raise problem
    return [who for who, _ in said]


def _end(text: str) -> None:
    """End the process from the watching thread, because the main thread may be stuck in an exchange that never ends."""
    _print(text)
    _supervisor.report(f"WorkerLostError: {text}")
    if _group.world is not None:
        _group.world.fates.report_end(well=False)
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
