"""Finds out which job a process belongs to, so that the processes of two jobs with the same address do not form one group.

REPLICANT_JOB_ID names the job explicitly. Otherwise its name comes from the launcher, because it is then the same on all workers:
Slurm's job and step, torchrun's run id, Open MPI's namespace, the job of Intel MPI, Cray PALS or Flux, the run of Ray Train, the
stage of Spark, or the name of a Kubernetes JobSet. TF_CONFIG, JAX's variables, MPICH and TPU hosts have no such name. Arguments are
not compared, because ``--task_index``, paths and flags of the chief differ between the workers of one job. The name of the script
alone does not stop a job either. It only decides who is the stranger if two claims contradict each other.
"""

import dataclasses
import hashlib
import sys
from pathlib import Path

from ...errors import ClusterError
from ..resolvers._environ import Environ
from ..resolvers._membership import Membership

JOB_ID, JOB_KEY = "REPLICANT_JOB_ID", "REPLICANT_JOB_KEY"
_MAX_NAME = 96  # bytes, in a claim
_NO_SCRIPTS = ("", "-c", "-", "-m", "ipykernel_launcher.py", "ipython", "ipython3")


@dataclasses.dataclass(frozen=True)
class JobName:
    """What a process knows about its job. A text is empty if it knows nothing.

    Args:
        told: The value of REPLICANT_JOB_ID.
        found: The launcher's name for the job, after the launcher's own name and a colon.
        script: The file name of the program.
    """

    told: str = ""
    found: str = ""
    script: str = ""

    def __str__(self) -> str:
        return repr(self.told) if self.told else self.found or "one without a name"

    def is_other(self, other: "JobName") -> bool:
        """Whether the other name certainly belongs to another job.

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
        """Whether both are known to run scripts, and the names of these scripts differ."""
        return bool(self.script and other.script) and self.script != other.script


def job_of(membership: Membership, environ: Environ) -> JobName:
    """The job that this process belongs to."""
    told = environ.get(JOB_ID, "").strip()
    return JobName(shortened(told), shortened(membership.job_id or ""), shortened(_script()))


def job_key(environ: Environ) -> str:
    """The secret in REPLICANT_JOB_KEY, which the workers of a job share, or an empty string if they have none.

    Raises:
        ClusterError: If the key is so short that it can be guessed.
    """
    key = environ.get(JOB_KEY, "").strip()
    if key and len(key) < 16:
        raise ClusterError(
            f"{JOB_KEY} has {len(key)} characters, but a key needs at least 16. Make one with `openssl rand -hex 32`, and give the "
            "same key to all workers."
        )
    return key


def shortened(text: str, size: int = _MAX_NAME) -> str:
    """Shorten a text so that it fits into a claim and can be printed. Long texts that differ still differ afterwards.

    >>> shortened("run 7"), shortened("a" * 200, 40)
    ('run 7', 'aaaaaaaaaaaaaaaaaaaaaaa c2a908d98f5df987')
    """
    shown = "".join(c if c.isprintable() and not "\ud800" <= c <= "\udfff" else "?" for c in text)
    if shown == text and len(text.encode()) <= size:
        return text
    digest = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:16]
    return shown.encode()[: size - 17].decode(errors="ignore") + " " + digest


def _script() -> str:
    """The file name of the program, or an empty string without a script. Its folder is left out, because it may differ by host."""
    path = Path(sys.argv[0] if sys.argv else "")
    name = path.parent.name if path.name == "__main__.py" else path.name
    return "" if name in _NO_SCRIPTS else name
