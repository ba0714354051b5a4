"""Which job a process is of, so that the processes of two jobs that were given one address do not form one group.

REPLICANT_JOB_ID names it outright. Otherwise the name is the one that whatever told this process its place has for the job, because
that is the same on all workers by its nature: Slurm's job and step, torchrun's run id, Open MPI's namespace, the name of a
Kubernetes JobSet. TF_CONFIG, JAX's variables and TPU hosts have none. Arguments are not compared: ``--task_index``, paths and flags
of the chief differ between the workers of a good job. The name of the script alone stops no job, either: it only decides who is the
stranger where two claims contradict each other.
"""

import dataclasses
import hashlib
import sys
from pathlib import Path

from ..errors import ClusterError
from ._environ import Environ
from ._membership import Membership

JOB_ID, JOB_KEY = "REPLICANT_JOB_ID", "REPLICANT_JOB_KEY"
_MAX_NAME = 96  # bytes, in a claim
_NO_SCRIPTS = ("", "-c", "-", "-m", "ipykernel_launcher.py", "ipython", "ipython3")


@dataclasses.dataclass(frozen=True)
class JobName:
    """What a process knows about the job it is of; empty where it knows nothing.

    Args:
        told: REPLICANT_JOB_ID.
        found: what the launcher calls the job, with the launcher's name before a colon.
        script: the file name of the program.
    """

    told: str = ""
    found: str = ""
    script: str = ""

    def __str__(self) -> str:
        return repr(self.told) if self.told else self.found or "one without a name"

    def is_other(self, other: "JobName") -> bool:
        """Whether that is certainly another job.

        >>> JobName("a").is_other(JobName("b")), JobName("a").is_other(JobName()), JobName("a").is_other(JobName("a", "Slurm: 8"))
        (True, True, False)
        >>> JobName("", "Slurm: 7.0").is_other(JobName("", "Slurm: 8.0")), JobName("", "Slurm: 7.0").is_other(JobName())
        (True, False)
        """
        if self.told or other.told:
            return self.told != other.told
        launcher, _, name = self.found.partition(": ")
        other_launcher, _, other_name = other.found.partition(": ")
        return launcher == other_launcher and name != other_name

    def has_other_script(self, other: "JobName") -> bool:
        """Whether both are known to run scripts, and scripts of different names."""
        return bool(self.script and other.script) and self.script != other.script


def job_of(membership: Membership, environ: Environ) -> JobName:
    """The job that this process is of."""
    told = environ.get(JOB_ID, "").strip()
    return JobName(shortened(told), shortened(membership.job_id or ""), shortened(_script()))


def job_key(environ: Environ) -> str:
    """REPLICANT_JOB_KEY, the secret that the workers of a job share; empty: they have none.

    Raises:
        ClusterError: it is so short that it can be guessed.
    """
    key = environ.get(JOB_KEY, "").strip()
    if key and len(key) < 16:
        raise ClusterError(
            f"{JOB_KEY} has {len(key)} characters; a key needs at least 16 of them. `openssl rand -hex 32` makes a good one: give "
            "the same one to all workers."
        )
    return key


def shortened(text: str, size: int = _MAX_NAME) -> str:
    """A text that fits into a claim and can be printed; long ones that differ still differ.

    >>> shortened("run 7"), shortened("a" * 200, 40)
    ('run 7', 'aaaaaaaaaaaaaaaaaaaaaaa c2a908d98f5df987')
    """
    shown = "".join(c if c.isprintable() and not "\ud800" <= c <= "\udfff" else "?" for c in text)
    if shown == text and len(text.encode()) <= size:
        return text
    digest = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:16]
    return shown.encode()[: size - 17].decode(errors="ignore") + " " + digest


def _script() -> str:
    """The file name of the program; its folder may be another one on each host. Empty for an interpreter without a script."""
    path = Path(sys.argv[0] if sys.argv else "")
    name = path.parent.name if path.name == "__main__.py" else path.name
    return "" if name in _NO_SCRIPTS else name
