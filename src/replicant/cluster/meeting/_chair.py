"""Process 0 at the roll call: it listens, hears who comes, and tells all of them whether they form one group.

Strangers do no harm. A connection that makes no claim, belongs to another job or does not know the key is closed, and the roll
call goes on.
"""

import collections
import dataclasses
import errno
import socket
import time
import warnings
from typing import Self

from ...errors import ClusterError, ReplicantError, WorkerMismatchError
from .._addresses import split_address
from ..wire import _seal
from ..wire._handshake import is_proved, nonce_of
from ..wire._listener import Connection, Door, Message
from ._claims import MAGIC, Claim, Met, problem_of, proof_of_answer, proof_of_claim, rows_of, table_of
from ._job import JOB_ID, JOB_KEY

_SLICE_SECONDS = 0.5  # the longest single wait
_TELL_SECONDS = 5.0  # to send the answer to all workers
_TURNED_AWAY = 5  # rejected claims that are kept for the error message


@dataclasses.dataclass(frozen=True)
class _Seat:
    """Who has taken a place."""

    claim: Claim
    theirs: str  # the random number of the other end


_Guest = Connection[_Seat]


class Chair:
    """A roll call, as process 0 sees it. It is a context manager.

    Args:
        address: The ``host:port`` to listen at.
        own: This process's claim.
        key: The key of the job, or an empty string if it has none.

    Raises:
        ClusterError: If this process cannot listen at the address.
    """

    def __init__(self, address: str, own: Claim, key: str = ""):
        self._own, self._key = own, key
        self._members: dict[int, _Guest] = {}  # by process id, without this process
        self._turned_away: collections.deque[str] = collections.deque(maxlen=_TURNED_AWAY)
        self._problem: ReplicantError | None = None
        self._door: Door[_Seat] = Door(_listen(address), {"magic": MAGIC})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._door.close()

    def preside(self, timeout_seconds: float) -> Met:
        """Wait until all workers are there, and tell each of them the result.

        Returns:
            The workers' hosts and process numbers, in the order of their process ids.

        Raises:
            ClusterError, WorkerMismatchError: As in `call_roll`.
        """
        deadline = time.monotonic() + timeout_seconds
        while self._problem is None and len(self._members) < self._own.num_processes - 1:
            left = deadline - time.monotonic()
            if left <= 0:
                self._problem = self._missing(timeout_seconds)
            else:
                self._hear_all(min(left, _SLICE_SECONDS))
        if self._problem is not None:
            self._tell_all({"error": str(self._problem), "mismatch": isinstance(self._problem, WorkerMismatchError)})
            raise self._problem
        who = [claim.who for claim in sorted(self._claims(), key=lambda claim: claim.process_id)]
        secret = _seal.draw()
        self._tell_all({"who": who, "seal": secret})
        self._warn_of_scripts()
        return Met(who, secret)

    def _claims(self) -> list[Claim]:
        return [self._own, *(guest.who.claim for guest in self._members.values() if guest.who is not None)]

    def _hear_all(self, seconds: float) -> None:
        """Wait until a connection or a message arrives, and handle it."""
        for guest, said in self._door.poll(seconds):
            if guest.who is not None or said is None or not self._judge(guest, said):  # a worker says nothing after its claim
                self._show_out(guest)

    def _judge(self, guest: _Guest, said: Message) -> bool:
        """Whether a message is a claim of this job, as far as process 0 can tell. If it is not, the sender is told why."""
        claim = Claim.parse(said)
        if claim is None:
            magic = str(said.get("magic"))
            if magic.startswith("replicant-roll-call-") and magic != MAGIC:
                guest.say(
                    {"error": "Process 0 runs another version of Replicant: install the same on all workers.", "mismatch": True}
                )
            return False
        seat = _Seat(claim, nonce_of(said))
        refusal = self._refusal(guest, seat, said)
        if refusal is None:
            refusal = self._admit(guest, seat)
        if refusal is not None:
            self._turn_away(guest, claim, refusal)
        return refusal is None

    def _refusal(self, guest: _Guest, seat: _Seat, said: Message) -> str | None:
        """Why the sender of a claim is certainly not a worker of this job, or None."""
        claim, has_proof = seat.claim, said.get("proof") is not None
        if self._key:
            if not has_proof:
                return f"process 0 has a {JOB_KEY} and this worker has none: give all workers the same one"
            if not is_proved(said, proof_of_claim(self._key, claim, guest.nonce, seat.theirs)):
                return f"this worker's {JOB_KEY} differs from that of process 0"
        elif has_proof:
            return f"this worker has a {JOB_KEY} and process 0 has none: give all workers the same one"
        if self._own.job.is_other(claim.job):
            return f"this worker's job is {claim.job}, process 0's is {self._own.job}"
        return None

    def _admit(self, guest: _Guest, seat: _Seat) -> str | None:
        """Accept a claim, or say why not. If claims contradict each other, the one that runs another script than process 0 goes."""
        claim, rival = seat.claim, self._members.get(seat.claim.process_id)
        differs = claim.num_processes != self._own.num_processes or claim.facts != self._own.facts
        contradicts = differs or rival is not None or claim.process_id == 0
        if contradicts and self._is_foreign(claim):
            return f"{self._scripts(claim)}, and {problem_of([*self._claims(), claim])}"
        self._door.admit(guest, seat)
        if rival is not None and rival.who is not None and self._is_foreign(rival.who.claim):
            theirs = rival.who.claim
            self._turn_away(rival, theirs, f"{self._scripts(theirs)}, and another worker has its process id")
            self._show_out(rival)
            contradicts = differs
        if contradicts:
            self._problem = problem_of([*self._claims(), claim])
        self._members.setdefault(claim.process_id, guest)
        return None

    def _is_foreign(self, claim: Claim) -> bool:
        return not self._own.job.told and self._own.job.has_other_script(claim.job)

    def _scripts(self, claim: Claim) -> str:
        return f"this worker runs {claim.job.script}, process 0 runs {self._own.job.script}"

    def _turn_away(self, guest: _Guest, claim: Claim, why: str) -> None:
        self._turned_away.append(f"  {claim.who}, as process {claim.process_id} of {claim.num_processes}: {why}")
        guest.say(
            {
                "error": f"Process 0 ({self._own.who}) takes this worker ({claim.who}) for one of another job: {why}. If these are "
                f"two jobs, give each its own coordinator address. If they are one, set {JOB_ID} to the same name on all workers."
            }
        )

    def _show_out(self, guest: _Guest) -> None:
        if guest.who is not None and self._members.get(guest.who.claim.process_id) is guest:
            del self._members[guest.who.claim.process_id]
        self._door.drop(guest)

    def _tell_all(self, answer: Message) -> None:
        until = time.monotonic() + _TELL_SECONDS
        for guest, seat in self._door.known():
            said = dict(answer)
            if self._key:
                said["proof"] = proof_of_answer(self._key, answer, guest.nonce, seat.theirs)
            guest.say(said, max(0.1, until - time.monotonic()))  # if it has left, the others still get the answer

    def _missing(self, timeout_seconds: float) -> ClusterError:
        absent = sorted({*range(1, self._own.num_processes)} - self._members.keys())
        title = (
            f"Worker(s) {', '.join(map(str, absent))} of {self._own.num_processes} did not come within {timeout_seconds:g} s. Were "
            "they started, with the same coordinator address? (To wait longer, set REPLICANT_START_TIMEOUT=seconds.) These came:"
        )
        lines = [table_of(title, rows_of(self._claims()))]
        if self._turned_away:
            lines += ["These were turned away:", *dict.fromkeys(self._turned_away)]
        if self._door.has_been_exhausted:
            lines.append("Process 0 ran out of file descriptors meanwhile: raise the limit with `ulimit -n`.")
        return ClusterError("\n".join(lines))

    def _warn_of_scripts(self) -> None:
        others = [claim for claim in self._claims() if self._is_foreign(claim)]
        if others:
            warnings.warn(
                f"Worker {others[0].process_id} ({others[0].who}) runs {others[0].job.script}, and process 0 runs "
                f"{self._own.job.script}. If they belong to one job, set {JOB_ID} to the same name on all workers, which ends this "
                "warning. If they do not, give each job its own coordinator address.",
                stacklevel=2,
            )


class NotHereError(ClusterError):
    """The address to listen at belongs to another host."""


def _listen(address: str) -> socket.socket:
    host, port = split_address(address, "coordinator address")
    family, _, _, _, number = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the job before may have just closed the port
        listener.bind(number)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise NotHereError(
                f"Process 0 cannot listen at {address}, which is not an address of this host ({socket.gethostname()}). If the "
                "coordinator is another host, this process must not have the process id (TF_CONFIG's index) 0: each worker needs "
                "its own. If it is this host, and others reach it at that address, set JAX_COORDINATOR_BIND_ADDRESS=0.0.0.0:port."
            ) from error
        raise ClusterError(
            f"Process 0 cannot listen at {address}: {error.strerror}. If another program has the port, choose another port, the "
            "same on all workers. If another worker of this job has it, both have the process id 0: each needs its own."
        ) from error
    return listener
