"""The roll call: before JAX connects the workers, each tells process 0 who it is, and all hear whether they fit together.

JAX's own service aborts every process, with pages of C++ messages, if one of them is missing, comes twice or counts differently. So
process 0 first listens at the coordinator's address itself. A worker sends one line of JSON, waits for one line of JSON, and then
JAX starts, or all raise the same error. Nothing that arrives is run or unpickled.
"""

import contextlib
import dataclasses
import json
import selectors
import socket
import time
from collections.abc import Mapping
from typing import Any

from ..errors import ClusterError, UnreachableError, WorkerMismatchError
from ._addresses import split_address
from ._membership import Membership
from ._reach import check_reachable

_MAX_LINE = 65536
_SLICE_SECONDS = 0.5  # the longest single wait
_MAGIC = "replicant-roll-call-1"


@dataclasses.dataclass(frozen=True)
class Claim:
    """What a worker says of itself.

    Args:
        process_id: which it believes to be.
        num_processes: how many it believes there are.
        who: host and process number, for messages.
        facts: what must be the same on all workers, by name: versions of libraries, for instance.
    """

    process_id: int
    num_processes: int
    who: str
    facts: Mapping[str, str]

    @classmethod
    def parse(cls, line: bytes) -> "Claim | None":
        """Of a line that somebody sent; None if it is no claim."""
        try:
            said = json.loads(line)
            process_id, num_processes = said["process_id"], said["num_processes"]
            facts = {str(key): str(value) for key, value in said["facts"].items()}
            right = said["magic"] == _MAGIC and type(process_id) is int and type(num_processes) is int
            return cls(process_id, num_processes, str(said["who"]), facts) if right else None
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def line(self) -> bytes:
        """As it is sent."""
        return json.dumps({"magic": _MAGIC, **dataclasses.asdict(self)}).encode() + b"\n"


def table_of(title: str, rows: Mapping[str, str]) -> str:
    """A message with a row for each worker.

    >>> print(table_of("They differ:", {"worker 0": "a", "worker 10": "b"}))
    They differ:
      worker 0   a
      worker 10  b
    """
    width = max(map(len, rows), default=0)
    return "\n".join([title, *(f"  {name:<{width}}  {text}" for name, text in rows.items())])


def problem_of(claims: list[Claim]) -> str | None:
    """Why these claims, in the order in which they came, cannot belong to one group; None as far as they can.

    >>> problem_of([Claim(0, 2, "a", {}), Claim(1, 2, "b", {})])
    >>> print(problem_of([Claim(0, 2, "host a", {}), Claim(0, 2, "host b", {})]))
    Two workers have the process id 0: each needs its own.
      host a  process 0 of 2
      host b  process 0 of 2
    """
    rows = {claim.who: f"process {claim.process_id} of {claim.num_processes}" for claim in claims}
    counts = sorted({claim.num_processes for claim in claims})
    if len(counts) > 1:
        return table_of(f"The workers disagree on how many they are: {counts}.", rows)
    ids = [claim.process_id for claim in claims]
    twice = sorted({i for i in ids if ids.count(i) > 1})
    if twice:
        return table_of(f"Two workers have the process id {twice[0]}: each needs its own.", rows)
    names = sorted({name for claim in claims for name in claim.facts})
    differing = [name for name in names if len({claim.facts.get(name) for claim in claims}) > 1]
    if differing:
        facts = {
            f"worker {claim.process_id} ({claim.who})": ", ".join(f"{name} {claim.facts.get(name)}" for name in differing)
            for claim in sorted(claims, key=lambda claim: claim.process_id)
        }
        return table_of(f"The workers run different versions of {', '.join(differing)}: install the same on all.", facts)
    return None


def call_roll(membership: Membership, who: str, facts: Mapping[str, str], timeout_seconds: float) -> tuple[str, ...]:
    """Meet the other workers. Every worker calls it.

    Returns: who the workers are, in the order of their process ids.

    Raises:
        ClusterError: somebody is missing, is there twice or counts differently; or the port is in use.
        WorkerMismatchError: they run different versions.
        UnreachableError: process 0 cannot be reached.
    """
    claim = Claim(membership.process_id, membership.num_processes, who, facts)
    if membership.process_id == 0:
        return _preside(membership, claim, timeout_seconds)
    return _attend(membership, claim, timeout_seconds)


class _Guest:
    """A connection to process 0, and what came over it."""

    def __init__(self, connection: socket.socket):
        self.connection = connection
        self.received = b""
        self.claim: Claim | None = None


def _preside(membership: Membership, own: Claim, timeout_seconds: float) -> tuple[str, ...]:
    address = str(membership.bind_address or membership.coordinator_address)
    deadline = time.monotonic() + timeout_seconds
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(_listen(address))
        guests: dict[socket.socket, _Guest] = {}
        stack.callback(lambda: [guest.connection.close() for guest in guests.values()])
        selector = stack.enter_context(selectors.DefaultSelector())
        selector.register(listener, selectors.EVENT_READ)
        while True:
            claims = [own, *(guest.claim for guest in guests.values() if guest.claim is not None)]
            problem = problem_of(claims)
            if problem is None and len(claims) == own.num_processes:
                answer = tuple(claim.who for claim in sorted(claims, key=lambda claim: claim.process_id))
                _tell(guests, {"who": answer})
                return answer
            left = deadline - time.monotonic()
            if problem is None and left <= 0:
                problem = _missing(claims, timeout_seconds)
            if problem is not None:
                _tell(guests, {"error": problem})
                raise _error(problem)
            for key, _ in selector.select(min(left, _SLICE_SECONDS)):
                if key.fileobj is listener:
                    connection, _address = listener.accept()
                    connection.setblocking(False)
                    guests[connection] = _Guest(connection)
                    selector.register(connection, selectors.EVENT_READ)
                elif not _hear(guests[key.fileobj]):  # type: ignore[index]  # it left, or is no worker
                    selector.unregister(key.fileobj)
                    guests.pop(key.fileobj).connection.close()  # type: ignore[arg-type]


def _listen(address: str) -> socket.socket:
    host, port = split_address(address, "coordinator address")
    family, _, _, _, number = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the port may rest from the job before
        listener.bind(number)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ClusterError(
            f"Process 0 cannot listen at {address}: {error.strerror}. If another program has the port, choose another one, the "
            "same on all workers."
        ) from error
    return listener


def _hear(guest: _Guest) -> bool:
    """Read what came; False if the connection is of no use any more."""
    try:
        data = guest.connection.recv(_MAX_LINE)
    except BlockingIOError:
        return True
    except OSError:
        return False
    guest.received += data
    if not data or len(guest.received) > _MAX_LINE:
        return False
    if guest.claim is None and guest.received.endswith(b"\n"):
        guest.claim = Claim.parse(guest.received)
        return guest.claim is not None
    return True


def _tell(guests: Mapping[socket.socket, _Guest], answer: dict[str, Any]) -> None:
    for guest in guests.values():
        with contextlib.suppress(OSError):  # it has left; the others hear it all the same
            guest.connection.settimeout(5.0)
            guest.connection.sendall(json.dumps(answer).encode() + b"\n")


def _missing(claims: list[Claim], timeout_seconds: float) -> str:
    absent = sorted(set(range(claims[0].num_processes)) - {claim.process_id for claim in claims})
    rows = {claim.who: f"process {claim.process_id} of {claim.num_processes}" for claim in claims}
    return table_of(
        f"Worker(s) {', '.join(map(str, absent))} of {claims[0].num_processes} did not come within {timeout_seconds:g} s. Were "
        "they started, and with the same coordinator address? (REPLICANT_START_TIMEOUT=seconds waits longer.) These came:",
        rows,
    )


def _error(problem: str) -> Exception:
    return WorkerMismatchError(problem) if "different versions" in problem else ClusterError(problem)


def _attend(membership: Membership, claim: Claim, timeout_seconds: float) -> tuple[str, ...]:
    address = str(membership.coordinator_address)
    deadline = time.monotonic() + timeout_seconds
    while True:
        numbers = check_reachable(address, max(0.1, deadline - time.monotonic()), connect=False)
        _, port = split_address(address, "coordinator address")
        refused: OSError | None = None
        try:
            with socket.create_connection((numbers[0], port), timeout=_SLICE_SECONDS) as connection:
                if connection.getsockname() != connection.getpeername():  # on loopback a socket can meet itself
                    connection.sendall(claim.line())
                    return _verdict(connection, address, deadline, timeout_seconds)
        except ConnectionError as error:
            refused = error
        except TimeoutError as error:
            refused = error
        if time.monotonic() > deadline:
            raise UnreachableError(
                f"Worker {claim.process_id} found nobody at the coordinator's address {address} within {timeout_seconds:g} s "
                f"({refused}). Has process 0 started, and is the port open between the hosts? (REPLICANT_START_TIMEOUT=seconds "
                "waits longer.)"
            ) from refused
        time.sleep(0.1)


def _verdict(connection: socket.socket, address: str, deadline: float, timeout_seconds: float) -> tuple[str, ...]:
    received = b""
    connection.settimeout(_SLICE_SECONDS)
    # Process 0 has the same deadline; it answers soon after it, if it can.
    while time.monotonic() < deadline + 10 * _SLICE_SECONDS:
        try:
            data = connection.recv(_MAX_LINE)
        except TimeoutError:
            continue
        if not data:
            break
        received += data
        if received.endswith(b"\n"):
            return _understood(received, address)
    if received:
        return _understood(received, address)
    if time.monotonic() < deadline:  # process 0 is not that far yet, or was interrupted: ask again
        raise ConnectionError("the connection was closed without an answer")
    raise UnreachableError(
        f"Process 0 at {address} took the connection, but did not say within {timeout_seconds:g} s whether all workers are there. "
        "Is another program, or an older job, listening at that port?"
    )


def _understood(received: bytes, address: str) -> tuple[str, ...]:
    try:
        answer = json.loads(received)
        problem, who = answer.get("error"), answer.get("who")
    except (ValueError, AttributeError):
        problem, who = None, None
    if problem is not None:
        raise _error(str(problem))
    if not isinstance(who, list):
        raise ClusterError(
            f"{address} is answered by something that is no process 0 of this job: another program, or a job that has started "
            "already. Choose another port, the same on all workers."
        )
    return tuple(map(str, who))
