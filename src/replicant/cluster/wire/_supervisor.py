"""The worker's side of its connection to the supervisor, if ``replicant launch`` has started it.

One thread sends JSON lines over one connection. Both ends prove that they know the key of the job, which is only in the
environment. A training step pays only for ``beat``, which writes three attributes. In processes that were not launched, nothing
happens.
"""

import atexit
import errno
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from ...errors import ClusterError, WorkerLostError, WorkersChangedError
from .._addresses import is_loopback, split_address
from ..resolvers._environ import Environ, number
from ._connect import connected
from ._handshake import draw_nonce, is_proved, nonce_of, proof
from ._json_lines import MAX_LINE, MAX_STRANGERS_LINE, line_of, parse_message, read_line

ADDRESS, KEY, GENERATION = "REPLICANT_SUPERVISOR", "REPLICANT_SUPERVISOR_KEY", "REPLICANT_GENERATION"
JOIN = "REPLICANT_JOIN"  # set for a worker that joins a running job
SUPERVISOR_FIRST = 60.0  # seconds that a worker waits longer than the supervisor, so that the supervisor decides first
_CONNECT_SECONDS = 30.0
_PAUSE_SECONDS = 0.1  # before the next try
_LONGEST_INTERVAL = 60.0
_SHARE = 0.9  # of the supervisor's patience: a worker that is cut off ends before the supervisor lets the others go on without it
_CUT = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN}  # how Linux says that nothing was acknowledged

WORKER, SUPERVISOR = "worker", "supervisor"  # the sides of a proof


class Heartbeat:
    """The worker's end of the connection to the supervisor.

    Args:
        address: The ``host:port`` of the supervisor.
        key: The key of the job.
        rank: The rank with which this worker was launched.
        generation: The generation with which it was launched.

    Raises:
        ClusterError: If nobody answers at the address, or if whoever answers does not know the key.
    """

    def __init__(self, address: str, key: str, rank: int, generation: int):
        self.rank, self.generation = rank, generation
        self.step, self.at, self.waited, self.phase = 0, time.monotonic(), 0.0, "start"
        self.is_connected = True
        self.is_elastic = False  # whether the program obeys orders to form a new group
        self.order: dict[str, Any] | None = None  # the last order that was not taken yet
        self.cut_off = ""  # why the supervisor cannot be reached any more; empty: it can, or it has ended
        self._when_cut_off: Callable[[str], None] = _do_nothing
        self._address, self._patience, self._interval = address, math.inf, _LONGEST_INTERVAL
        self._came = threading.Condition()
        self._lock = threading.Lock()
        self._socket = self._connect(address, key)
        self._thread = threading.Thread(target=self._run, name="replicant-heartbeat", daemon=True)
        self._thread.start()

    def beat(self, step: int | None) -> None:
        """Note that a step begins.

        Raises:
            WorkersChangedError: If the workers are to form a new group.
        """
        self.check_order()
        self.step = self.step + 1 if step is None else step
        self.at = time.monotonic()
        self.phase = "step"

    def say(self, **message: Any) -> None:
        """Send a message now, from any thread. Nothing happens once the supervisor is gone."""
        line = line_of(message)
        try:
            with self._lock:
                self._socket.sendall(line)
        except OSError as error:
            self._lose(error)

    def when_cut_off(self, end: Callable[[str], None]) -> None:
        """Call `end` with the reason when nothing that this worker sends has reached the supervisor for too long."""
        with self._came:
            self._when_cut_off = end
            cut_off = self.cut_off
        if cut_off:
            end(cut_off)

    def _lose(self, error: OSError) -> None:
        """Note that the connection is lost."""
        with self._came:
            self.is_connected = False
            # The system tells one thread of the cut, and another one may get EPIPE before it.
            is_news = error.errno in _CUT and not self.cut_off
            if is_news:
                self.cut_off = f"nothing that it sends has reached the supervisor at {self._address} for {self._patience:g} s"
            cut_off, end = is_news and self.cut_off, self._when_cut_off
        if cut_off:
            end(cut_off)

    def check_order(self) -> None:
        """Check whether the workers are to form a new group.

        Raises:
            WorkersChangedError: If they are.
        """
        if self.order is not None and self.is_elastic:
            raise WorkersChangedError("The workers form a new group: replicant.run_elastic goes on with those that are there.")

    def meet(self, generation: int, timeout_seconds: float) -> None:
        """Wait until all workers are about to connect.

        Args:
            generation: The generation that this worker is about to join.
            timeout_seconds: How long the supervisor waits for all workers.

        Raises:
            WorkersChangedError: If the workers are to form a new group.
            WorkerLostError: If the supervisor is gone or does not answer.
        """
        self.say(kind="here", generation=generation)
        with self._came:
            self._came.wait_for(lambda: self.order is not None or not self.is_connected, timeout_seconds + SUPERVISOR_FIRST)
            if self.order == {"kind": "connect", "generation": generation}:
                self.order = None
                return
        self.check_order()
        reason = "they did not come in time" if self.is_connected else "the supervisor is gone"
        raise WorkerLostError(f"This worker was about to connect to the others, but {reason}.")

    def take_order(self, timeout_seconds: float) -> dict[str, Any] | None:
        """Wait for the supervisor's next order. Returns None if none comes in time, or if the supervisor is gone."""
        with self._came:
            self._came.wait_for(lambda: self.order is not None or not self.is_connected, timeout_seconds)
            order, self.order = self.order, None
            return order

    def say_beat(self) -> None:
        """Tell the supervisor how far this worker has come."""
        self.say(kind="beat", step=self.step, at=self.at, waited=self.waited, phase=self.phase)

    def _connect(self, address: str, key: str) -> socket.socket:
        place = split_address(address, ADDRESS)
        deadline = time.monotonic() + _CONNECT_SECONDS
        while True:
            try:
                connection = connected(place, max(0.1, deadline - time.monotonic()))
            except OSError as error:
                raise ClusterError(
                    f"This worker cannot reach its supervisor at {ADDRESS}={address}: {error}. Is `replicant launch` still running?"
                ) from error
            try:
                self._shake_hands(connection, key, address, deadline)
            except ConnectionError as error:  # it has ended, or too many strangers came and it took this worker for one
                connection.close()
                if time.monotonic() + _PAUSE_SECONDS > deadline:
                    raise ClusterError(
                        f"What listens at {ADDRESS}={address} does not answer like a supervisor: it closed every connection for "
                        f"{_CONNECT_SECONDS:g} s."
                    ) from error
                time.sleep(_PAUSE_SECONDS)
            except BaseException:
                connection.close()
                raise
            else:
                connection.settimeout(None)
                # On one machine nothing is cut, and a launcher that was stopped (Ctrl-Z) may go on when it likes.
                if hasattr(socket, "TCP_USER_TIMEOUT") and math.isfinite(self._patience) and not is_loopback(place[0]):
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(1000 * self._patience)))
                return connection

    def _shake_hands(self, connection: socket.socket, key: str, address: str, deadline: float) -> None:
        """Prove who this worker is, and check the other end's proof.

        Raises:
            ClusterError: If the other end turns this worker away, or is not its supervisor.
            ConnectionError: If the other end is gone.
        """
        theirs, mine = nonce_of(self._hear_first(connection, address, deadline)), draw_nonce()
        hello = {
            "kind": "hello",
            "rank": self.rank,
            "generation": self.generation,
            "pid": os.getpid(),
            "host": socket.gethostname()[:255],
        }
        hello |= {"nonce": mine, "proof": proof(key, WORKER, theirs, mine)}
        connection.sendall(line_of(hello))
        answer = self._hear_first(connection, address, deadline)
        if "refused" in answer:
            raise ClusterError(f"The supervisor at {ADDRESS}={address} turned this worker away: {answer['refused']}.")
        if not is_proved(answer, proof(key, SUPERVISOR, mine, theirs)):
            raise ClusterError(f"What listens at {ADDRESS}={address} does not know the key of this job.")
        patience = answer.get("heartbeat")
        if isinstance(patience, int | float) and 0 < patience < math.inf:
            self._patience = _SHARE * patience
        interval = answer.get("interval")
        self._interval = _LONGEST_INTERVAL
        if isinstance(interval, int | float) and math.isfinite(interval):
            self._interval = min(max(0.01, interval), _LONGEST_INTERVAL)

    def _hear_first(self, connection: socket.socket, address: str, deadline: float) -> dict[str, Any]:
        """Read a message from an end that has not proved anything yet.

        Raises:
            ClusterError: If it does not answer like a supervisor.
            ConnectionError: If it has closed the connection.
        """
        try:
            line = read_line(connection, MAX_STRANGERS_LINE, deadline)
        except TimeoutError as error:
            raise ClusterError(
                f"What listens at {ADDRESS}={address} does not answer like a supervisor: no complete line came within "
                f"{_CONNECT_SECONDS:g} s."
            ) from error
        if line is None:
            raise ConnectionError("closed")
        message = parse_message(line)
        if message is None:
            raise ClusterError(f"What listens at {ADDRESS}={address} does not answer like a supervisor: {line[:80]!r}.")
        return message

    def _run(self) -> None:
        reader = threading.Thread(target=self._listen, name="replicant-orders", daemon=True)
        reader.start()
        while self.is_connected:
            self.say_beat()
            time.sleep(self._interval)

    def _listen(self) -> None:
        try:
            while (order := parse_message(read_line(self._socket, MAX_LINE) or b"")) is not None:  # else it is closed, or of no use
                self._note(order)
        except OSError as error:
            self._lose(error)
        self.is_connected = False
        self._socket.close()
        self._note(None)

    def _note(self, order: dict[str, Any] | None) -> None:
        with self._came:
            self.order = order
            self._came.notify_all()


def _do_nothing(reason: str) -> None:
    """What happens when a process that has not met other workers is cut off."""


_heartbeat: Heartbeat | None = None
_is_started = False  # also True if there was nothing to start
_lock = threading.Lock()


def start(environ: Environ | None = None) -> Heartbeat | None:
    """Connect to the supervisor, if this process is a worker that ``replicant launch`` has started. Idempotent.

    Args:
        environ: The environment to read. By default the process's own.

    Returns:
        The connection, or None for a process that was not launched.

    Raises:
        ClusterError: If the environment names a supervisor that is not there.
    """
    global _heartbeat, _is_started  # noqa: PLW0603 - one connection per process
    with _lock:
        if not _is_started:
            environ = os.environ if environ is None else environ
            address, key = environ.get(ADDRESS, ""), environ.get(KEY, "")
            if address and key:
                rank = number(environ, "JAX_PROCESS_ID") or 0
                _heartbeat = Heartbeat(address, key, rank, number(environ, GENERATION) or 0)
                sys.excepthook = _Reporting(sys.excepthook)
                atexit.register(_say_ending)
                os.register_at_fork(after_in_child=_forget)
            _is_started = True
        return _heartbeat


def when_cut_off(end: Callable[[str], None]) -> None:
    """Call `end` with the reason when the supervisor, if there is one, cannot be reached any more. See `Heartbeat.when_cut_off`."""
    if _heartbeat is not None:
        _heartbeat.when_cut_off(end)


def beat(step: int | None = None) -> None:
    """Note that a training step begins. This is cheap, and does nothing in processes that were not launched.

    Args:
        step: The number of the step. By default one more than the last one.

    >>> beat()
    """
    if not _is_started:
        start()
    if _heartbeat is not None:
        _heartbeat.beat(step)


def waited(seconds: float) -> None:
    """Note time spent waiting for results. It is not this worker's own work: stragglers are found by the rest of a step's time."""
    if _heartbeat is not None:
        _heartbeat.waited += seconds


def phase(name: str) -> None:
    """Tell the supervisor what this worker does until its next step, such as "saving" or "validation"."""
    if _heartbeat is not None:
        _heartbeat.phase = name


def is_watched() -> bool:
    """Whether a supervisor watches this process."""
    return _heartbeat is not None and _heartbeat.is_connected


def is_restarted() -> bool:
    """Whether this process has a supervisor that starts all workers again when one is lost, and so waits for this one to end."""
    return is_watched() and _heartbeat is not None and not _heartbeat.is_elastic


def is_elastic() -> bool:
    """Whether this process obeys orders to form a new group."""
    return _heartbeat is not None and _heartbeat.is_elastic


def meet(generation: int, timeout_seconds: float) -> None:
    """Wait until all workers are about to connect, if they may be told to form a new group instead. See `Heartbeat.meet`."""
    if _heartbeat is not None and _heartbeat.is_elastic:
        _heartbeat.meet(generation, timeout_seconds)


def tell_connected(generation: int) -> None:
    """Tell the supervisor that this worker is connected to the others."""
    if _heartbeat is not None:
        _heartbeat.say(kind="connected", generation=generation)


def tell_forged(text: str) -> None:
    """Tell the supervisor that somebody who is not a worker of the job writes to its coordination service."""
    if _heartbeat is not None:
        _heartbeat.say(kind="forged", text=text)


def check_order() -> None:
    """Check whether the workers are to form a new group.

    Raises:
        WorkersChangedError: If they are.
    """
    if _heartbeat is not None:
        _heartbeat.check_order()


def is_ordered() -> bool:
    """Whether the supervisor has told this worker what to do next."""
    return _heartbeat is not None and _heartbeat.order is not None


def report(text: str) -> None:
    """Tell the supervisor at once why this worker fails, because the interpreter may take a while to end."""
    if _heartbeat is not None:
        _heartbeat.say(kind="failed", text=text[:4000], step=_heartbeat.step)


def saving(path: str) -> Callable[[], None]:
    """Note that a checkpoint is taken now. What is returned tells the supervisor that it is complete."""
    heartbeat, began = _heartbeat, time.monotonic()
    if heartbeat is None:
        return lambda: None
    step = heartbeat.step
    return lambda: heartbeat.say(kind="saved", step=step, seconds=round(time.monotonic() - began, 3), path=path[:1000])


class _Reporting:
    """An excepthook that reports the error, and then calls the previous hook."""

    def __init__(self, original: Any):
        self._original = original

    def __call__(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        lines = str(error).strip().splitlines()
        report(f"{kind.__name__}: {lines[0][:500]}" if lines else kind.__name__)
        self._original(kind, error, trace)


def _forget() -> None:
    """Drop the connection in a forked child, because it belongs to the parent."""
    global _heartbeat  # noqa: PLW0603 - as above
    _heartbeat = None


def _say_ending() -> None:
    if _heartbeat is not None:
        _heartbeat.phase = "end"
        _heartbeat.say_beat()
