"""What each worker says about itself at the roll call, and whether these claims fit together."""

import collections
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Self, TypeGuard

from ...errors import ClusterError, ReplicantError, WorkerMismatchError
from ..wire._handshake import proof
from ..wire._json_lines import MAX_STRANGERS_LINE, line_of
from ._job import JobName, shortened

MAGIC = "replicant-roll-call-3"
_MAX_PROCESSES = 1 << 20


class Met(tuple[str, ...]):  # noqa: SLOT001 - a tuple takes no slots
    """The hosts and process numbers of workers that have met.

    Args:
        who: The hosts and process numbers.
        secret: What they alone know, if nobody listens on the network between them.
    """

    secret: str

    def __new__(cls, who: Iterable[str], secret: str) -> Self:
        """Make the tuple."""
        made = super().__new__(cls, who)
        made.secret = secret
        return made


@dataclasses.dataclass(frozen=True)
class Claim:
    """What a worker says about itself.

    Args:
        process_id: The process id that it believes to have.
        num_processes: The number of processes that it believes there are.
        who: Its host and process number, for messages.
        facts: What must be the same on all workers, by name, such as the versions of libraries.
        job: The job that it believes to belong to.
    """

    process_id: int
    num_processes: int
    who: str
    facts: Mapping[str, str]
    job: JobName = dataclasses.field(default_factory=JobName)

    @classmethod
    def parse(cls, said: Mapping[str, Any]) -> "Claim | None":
        """Make a claim from an object that was received, or return None if it is not a claim.

        >>> Claim.parse(Claim(1, 2, "host pid 7", {"jax": "0.11"}).as_dict()) == Claim(1, 2, "host pid 7", {"jax": "0.11"})
        True
        >>> Claim.parse({**Claim(1, 2, "host pid 7", {}).as_dict(), "process_id": -1})
        """
        number, count, who = said.get("process_id"), said.get("num_processes"), said.get("who")
        facts, job = said.get("facts"), said.get("job")
        if said.get("magic") != MAGIC or type(number) is not int or type(count) is not int:
            return None
        if not 0 <= number < count <= _MAX_PROCESSES or not isinstance(who, str) or not _is_texts(facts):
            return None
        if not _is_texts(job) or job.keys() != {"told", "found", "script"}:
            return None
        # These texts are shown later; none of them may move a terminal's cursor.
        facts = {shortened(name): shortened(text) for name, text in facts.items()}
        return cls(number, count, shortened(who), facts, JobName(**{name: shortened(text) for name, text in job.items()}))

    def as_dict(self) -> dict[str, Any]:
        """The claim as it is sent."""
        facts = {shortened(name): shortened(text) for name, text in self.facts.items()}
        return {"magic": MAGIC, **dataclasses.asdict(self), "who": shortened(self.who), "facts": facts}

    def line(self, key: str = "", theirs: str = "", mine: str = "") -> bytes:
        """The line to send. With a key, it includes the proof that this process knows the key.

        Args:
            key: The key of the job.
            theirs: The number that process 0 has drawn for this connection.
            mine: The number that this process has drawn for it.

        Raises:
            ClusterError: If the line is longer than process 0 reads.
        """
        said = self.as_dict()
        if key:
            said |= {"nonce": mine, "proof": proof_of_claim(key, self, theirs, mine)}
        line = line_of(said)
        if len(line) > MAX_STRANGERS_LINE:
            raise ClusterError(
                f"This worker's claim has {len(line)} bytes, but process 0 reads at most {MAX_STRANGERS_LINE}: {said}. "
                "Give the job a shorter name."
            )
        return line


def _is_texts(value: Any) -> TypeGuard[dict[str, str]]:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def proof_of_claim(key: str, claim: Claim, theirs: str, mine: str) -> str:
    """A proof that only a worker with the key can give, and that is valid only on this connection."""
    return proof(key, "claim", theirs, mine, claim.as_dict())


def proof_of_answer(key: str, who: Any, theirs: str, mine: str) -> str:
    """A proof that only a process 0 with the key can give, and that is valid only on this connection."""
    return proof(key, "answer", theirs, mine, who)


def table_of(title: str, rows: Mapping[str, str]) -> str:
    """A message with a row for each worker.

    >>> print(table_of("They differ:", {"worker 0": "a", "worker 10": "b"}))
    They differ:
      worker 0   a
      worker 10  b
    """
    width = max(map(len, rows), default=0)
    return "\n".join([title, *(f"  {name:<{width}}  {text}" for name, text in rows.items())])


def rows_of(claims: list[Claim]) -> dict[str, str]:
    """The rows of such a table, which say who the workers are."""
    return {claim.who: f"process {claim.process_id} of {claim.num_processes}" for claim in claims}


def problem_of(claims: list[Claim]) -> ReplicantError | None:
    """Why these claims, in the order in which they came, cannot belong to one group, or None if they can.

    >>> problem_of([Claim(0, 2, "a", {}), Claim(1, 2, "b", {})])
    >>> print(problem_of([Claim(0, 2, "host a", {}), Claim(0, 2, "host b", {})]))
    Two workers have the process id 0: each needs its own.
      host a  process 0 of 2
      host b  process 0 of 2
    """
    counts = sorted({claim.num_processes for claim in claims})
    if len(counts) > 1:
        return ClusterError(table_of(f"The workers disagree on how many of them there are: {counts}.", rows_of(claims)))
    ids = [claim.process_id for claim in claims]
    if len(set(ids)) < len(ids):
        twice = min(number for number, times in collections.Counter(ids).items() if times > 1)
        return ClusterError(table_of(f"Two workers have the process id {twice}: each needs its own.", rows_of(claims)))
    names = sorted({name for claim in claims for name in claim.facts})
    differing = [name for name in names if len({claim.facts.get(name) for claim in claims}) > 1]
    if differing:
        facts = {
            f"worker {claim.process_id} ({claim.who})": ", ".join(f"{name} {claim.facts.get(name)}" for name in differing)
            for claim in sorted(claims, key=lambda claim: claim.process_id)
        }
        text = f"The workers run different versions of {', '.join(differing)}: install the same versions on all of them."
        return WorkerMismatchError(table_of(text, facts))
    return None
