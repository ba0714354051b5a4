"""The roll call: before JAX connects the workers, each tells process 0 who it is, and all are told whether they fit together.

JAX's own service aborts every process, with pages of C++ messages, if one of them is missing, comes twice, or expects another
number of processes. So process 0 first listens at the coordinator's address itself (``_chair.py``). It greets each connection with
one line of JSON. A worker sends one line and waits for one line. Then JAX starts, or all workers raise the same error. With a key
(REPLICANT_JOB_KEY), both sides prove that they know it. Nothing that arrives is run or unpickled.
"""

import contextlib
import socket
import time
from collections.abc import Mapping
from typing import Any

from ...errors import ClusterError, UnreachableError, WorkerMismatchError
from .._addresses import split_address
from ..resolvers._membership import Membership
from ..wire._handshake import draw_nonce, is_proved, nonce_of
from ..wire._json_lines import parse_message
from ._chair import Chair, NotHereError
from ._claims import MAGIC, Claim, Met, proof_of_answer
from ._job import JOB_KEY, JobName
from ._reachable import check_reachable

_SLICE_SECONDS = 0.5  # the longest single wait
_MAX_ANSWER = 1 << 20  # bytes
_RIVAL_SECONDS = 5.0  # to find another process 0 at an address that does not belong to this host


def call_roll(
    membership: Membership,
    who: str,
    facts: Mapping[str, str],
    timeout_seconds: float,
    *,
    job: JobName = JobName(),  # noqa: B008 - it does not change
    key: str = "",
) -> Met:
    """Meet the other workers. Every worker calls this.

    Args:
        membership: Which one of the workers this process is.
        who: The host and process number of this process, for messages.
        facts: What must be the same on all workers, by name.
        timeout_seconds: The time within which all must come.
        job: The job of this process. Workers of another job are told so, and do not count.
        key: The key that all workers of the job share, or an empty string if they have none.

    Returns:
        The hosts and process numbers of the workers, in the order of their process ids, with a secret that process 0 has drawn.

    Raises:
        ClusterError: If a worker is missing, is there twice or expects another number of workers, if the port is in use, or if
            process 0 belongs to another job.
        WorkerMismatchError: If the workers run different versions.
        UnreachableError: If process 0 cannot be reached.
    """
    claim = Claim(membership.process_id, membership.num_processes, who, facts, job)
    if membership.process_id == 0:
        try:
            chair = Chair(str(membership.bind_address or membership.coordinator_address), claim, key)
        except NotHereError as error:
            # If another host is process 0, too, it tells all workers at once which two have the same number.
            with contextlib.suppress(UnreachableError):
                _attend(str(membership.coordinator_address), claim, key, min(timeout_seconds, _RIVAL_SECONDS))
            raise ClusterError(str(error)) from error.__cause__
        with chair:
            return chair.preside(timeout_seconds)
    return _attend(str(membership.coordinator_address), claim, key, timeout_seconds)


def _attend(address: str, claim: Claim, key: str, timeout_seconds: float) -> Met:
    deadline = time.monotonic() + timeout_seconds
    while True:
        numbers = check_reachable(address, max(0.1, deadline - time.monotonic()), connect=False)
        _, port = split_address(address, "coordinator address")
        refused: OSError | None = None
        try:
            with socket.create_connection((numbers[0], port), timeout=_SLICE_SECONDS) as connection:
                if connection.getsockname() != connection.getpeername():  # on loopback a socket can meet itself
                    # Process 0 has the same deadline; it answers soon after it, if it can.
                    return _Meeting(connection, address, deadline, timeout_seconds).meet(claim, key)
        except OSError as error:  # also "No route to host": that host may still be starting
            if isinstance(error, UnreachableError):
                raise
            refused = error
        if time.monotonic() > deadline:
            raise UnreachableError(
                f"Worker {claim.process_id} found nobody at the coordinator's address {address} within {timeout_seconds:g} s "
                f"({refused}). Has process 0 started, and is the port open between the hosts? (To wait longer, set "
                "REPLICANT_START_TIMEOUT=seconds.)"
            ) from refused
        time.sleep(0.1)


class _Meeting:
    """A worker's conversation with process 0, or with whoever listens there."""

    def __init__(self, connection: socket.socket, address: str, deadline: float, timeout_seconds: float):
        self._connection, self._address = connection, address
        self._deadline, self._timeout_seconds = deadline, timeout_seconds
        self._received = b""

    def meet(self, claim: Claim, key: str) -> Met:
        """Make this worker's claim, and wait for the answer.

        Returns:
            The hosts and process numbers of the workers, in the order of their process ids, with a secret that process 0 has drawn.

        Raises:
            ClusterError, WorkerMismatchError, UnreachableError: As in `call_roll`.
            ConnectionError: If it is worth trying again.
        """
        mine, theirs = draw_nonce(), ""
        if not key:  # another program that listens there answers sooner if it is sent something
            self._connection.sendall(claim.line())
        greeting = self._next()
        if greeting.get("magic") != MAGIC:
            raise self._somebody_else()
        if key:
            theirs = nonce_of(greeting)
            self._connection.sendall(claim.line(key, theirs, mine))
        answer = self._next()
        problem, who = answer.get("error"), answer.get("who")
        if problem is not None:
            raise (WorkerMismatchError if answer.get("mismatch") is True else ClusterError)(str(problem))
        if not isinstance(who, list) or len(who) != claim.num_processes or not all(isinstance(name, str) for name in who):
            raise self._somebody_else()
        secret = answer.get("seal")
        if not isinstance(secret, str) or not secret:
            raise self._somebody_else()
        if key and not is_proved(answer, proof_of_answer(key, {"who": who, "seal": secret}, theirs, mine)):
            raise ClusterError(
                f"Process 0 at {self._address} does not know this worker's {JOB_KEY}: give all workers the same one. If they have "
                "the same one, something else answers at that address."
            )
        return Met(who, secret)

    def _next(self) -> dict[str, Any]:
        """Read the next message of the other end.

        Raises:
            ClusterError: If it is not process 0 of this job.
            UnreachableError: If it does not answer in time.
            ConnectionError: If it has closed the connection without an answer.
        """
        while b"\n" not in self._received and len(self._received) <= _MAX_ANSWER:
            left = self._deadline + 10 * _SLICE_SECONDS - time.monotonic()
            if left <= 0:
                raise UnreachableError(
                    f"Process 0 at {self._address} accepted the connection, but did not say within {self._timeout_seconds:g} s "
                    "whether all workers are there. Is another program, or an older job, listening at that port?"
                )
            self._connection.settimeout(min(left, _SLICE_SECONDS))
            try:
                data = self._connection.recv(65536)
            except TimeoutError:
                continue
            if not data:
                if self._received:
                    raise self._somebody_else()
                raise ConnectionError("the connection was closed without an answer")  # not ready yet, or interrupted: ask again
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        message = parse_message(line, _MAX_ANSWER)
        if message is None:
            raise self._somebody_else()
        return message

    def _somebody_else(self) -> ClusterError:
        return ClusterError(
            f"What listens at {self._address} is not process 0 of this job. It is another program, or a job that has already "
            "started. Choose another port, the same on all workers."
        )
