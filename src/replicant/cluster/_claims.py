"""What each worker says of itself at the roll call, and whether that makes one group."""

import dataclasses
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any, TypeGuard

from ..errors import ClusterError, ReplicantError, WorkerMismatchError
from ._job import JobName, shortened
from ._lines import MAX_STRANGERS_LINE

MAGIC = "replicant-roll-call-2"
_MAX_PROCESSES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Claim:
    """What a worker says of itself.

    Args:
        process_id: which it believes to be.
        num_processes: how many it believes there are.
        who: host and process number, for messages.
        facts: what must be the same on all workers, by name: versions of libraries, for instance.
        job: which it believes to be of.
    """

    process_id: int
    num_processes: int
    who: str
    facts: Mapping[str, str]
    job: JobName = dataclasses.field(default_factory=JobName)

    @classmethod
    def parse(cls, said: Mapping[str, Any]) -> "Claim | None":
        """Of an object that somebody sent; None if it is no claim.

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
        # Whatever is shown later cannot move a terminal's cursor.
        facts = {shortened(name): shortened(text) for name, text in facts.items()}
        return cls(number, count, shortened(who), facts, JobName(**{name: shortened(text) for name, text in job.items()}))

    def as_dict(self) -> dict[str, Any]:
        """As it is sent."""
        facts = {shortened(name): shortened(text) for name, text in self.facts.items()}
        return {"magic": MAGIC, **dataclasses.asdict(self), "who": shortened(self.who), "facts": facts}

    def line(self, key: str = "", theirs: str = "", mine: str = "") -> bytes:
        """The line to send; with a key, also the proof that this process knows it.

        Args:
            key: of the job.
            theirs: the number that process 0 has drawn for this connection.
            mine: the number that this process has drawn for it.
        """
        said = self.as_dict()
        if key:
            said |= {"nonce": mine, "proof": proof_of_claim(key, self, theirs, mine)}
        line = json.dumps(said, ensure_ascii=False).encode(errors="replace") + b"\n"
        if len(line) > MAX_STRANGERS_LINE:
            raise ClusterError(
                f"What this worker says of itself takes {len(line)} bytes, and process 0 reads {MAX_STRANGERS_LINE}: {said}. "
                "Give the job a shorter name."
            )
        return line


def _is_texts(value: Any) -> TypeGuard[dict[str, str]]:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def proof_of_claim(key: str, claim: Claim, theirs: str, mine: str) -> str:
    """What only a worker that knows the key can say, and only on this connection."""
    return _proof(key, "claim", theirs, mine, claim.as_dict())


def proof_of_answer(key: str, who: Any, theirs: str, mine: str) -> str:
    """What only a process 0 that knows the key can say, and only on this connection."""
    return _proof(key, "answer", theirs, mine, who)


def _proof(key: str, side: str, theirs: str, mine: str, what: Any) -> str:
    return hmac.new(key.encode(), json.dumps([side, theirs, mine, what], sort_keys=True).encode(), hashlib.sha256).hexdigest()


def is_proved(said: object, expected: str) -> bool:
    """Whether somebody has said the right thing; how long that takes tells nobody how much of it was right."""
    return hmac.compare_digest(str(said).encode(errors="replace"), expected.encode())


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
    """Who they are, for such a table."""
    return {claim.who: f"process {claim.process_id} of {claim.num_processes}" for claim in claims}


def problem_of(claims: list[Claim]) -> ReplicantError | None:
    """Why these claims, in the order in which they came, cannot belong to one group; None as far as they can.

    >>> problem_of([Claim(0, 2, "a", {}), Claim(1, 2, "b", {})])
    >>> print(problem_of([Claim(0, 2, "host a", {}), Claim(0, 2, "host b", {})]))
    Two workers have the process id 0: each needs its own.
      host a  process 0 of 2
      host b  process 0 of 2
    """
    counts = sorted({claim.num_processes for claim in claims})
    if len(counts) > 1:
        return ClusterError(table_of(f"The workers disagree on how many they are: {counts}.", rows_of(claims)))
    ids = [claim.process_id for claim in claims]
    if len(set(ids)) < len(ids):
        twice = min(i for i in ids if ids.count(i) > 1)
        return ClusterError(table_of(f"Two workers have the process id {twice}: each needs its own.", rows_of(claims)))
    names = sorted({name for claim in claims for name in claim.facts})
    differing = [name for name in names if len({claim.facts.get(name) for claim in claims}) > 1]
    if differing:
        facts = {
            f"worker {claim.process_id} ({claim.who})": ", ".join(f"{name} {claim.facts.get(name)}" for name in differing)
            for claim in sorted(claims, key=lambda claim: claim.process_id)
        }
        text = f"The workers run different versions of {', '.join(differing)}: install the same on all."
        return WorkerMismatchError(table_of(text, facts))
    return None
