"""The detector: finds everything in the environment that describes a cluster, and decides which description is used, and why."""

import dataclasses
import os
from collections.abc import Callable

from ..._display import hanging, printable, short
from ...errors import ClusterError
from .._addresses import split_address
from .._spec import ClusterSpec
from . import _clouds, _kubernetes, _launchers, _mpi, _operators, _pmix, _slurm, _tf_config, _tpu
from ._environ import Environ
from ._membership import Membership
from ._resolver import ClusterResolver, SimpleClusterResolver
from ._signs import why_not_alone
from .tasks import _ray_train, _spark

# The source nearest to the process comes first: what was set for this program, then what started the process, then what runs the
# machines. For example, torchrun inside a Slurm job knows its processes, while Slurm only knows the torchrun on each node.
SOURCES: tuple[tuple[str, Callable[[Environ], ClusterResolver | None]], ...] = (
    (_launchers.SINGLE, _launchers.find_single),
    (_launchers.JAX, _launchers.find_jax),
    (_tf_config.VARIABLE, _tf_config.find),
    (_ray_train.SOURCE, _ray_train.find),
    (_spark.SOURCE, _spark.find),
    (_launchers.TORCHRUN, _launchers.find_torchrun),
    (_pmix.SOURCE, _pmix.find),
    (_mpi.SOURCE, _mpi.find),
    (_tpu.SOURCE, _tpu.find),
    (_slurm.SOURCE, _slurm.find),
    (_operators.TRAINER, _operators.find_trainer),
    (_operators.JAX_JOB, _operators.find_jax_job),
    (_operators.LEADER_WORKER_SET, _operators.find_leader_worker_set),
    (_operators.VOLCANO, _operators.find_volcano),
    (_kubernetes.SOURCE, _kubernetes.find),
    (_clouds.SAGEMAKER, _clouds.find_sagemaker),
    (_clouds.VERTEX_AI, _clouds.find_vertex_ai),
)
NOTHING = "nothing"


@dataclasses.dataclass(frozen=True, repr=False)
class Detection:
    """What an environment says about the cluster. It prints as a table.

    Args:
        source: The source of the answer, or ``"nothing"`` if nothing describes a cluster.
        resolver: The resolver that gives this answer.
        membership: Which one of the workers this process is.
        because: The variables that the answer is based on.
        others: Further sources, which the first one overrules, each with what it says.
        conflicts: The points where they contradict the first one.
        doubt: Why this process may be one of several, and what to set, if the answer is that it is the only one, but something
            says otherwise.
    """

    source: str
    resolver: ClusterResolver
    membership: Membership
    because: tuple[str, ...] = ()
    others: tuple[tuple[str, str], ...] = ()
    conflicts: tuple[str, ...] = ()
    doubt: str | None = None

    @property
    def process_id(self) -> int:
        """The number of this process among those that train together, from 0."""
        return self.membership.process_id

    @property
    def num_processes(self) -> int:
        """The number of processes that train together."""
        return self.membership.num_processes

    @property
    def coordinator_address(self) -> str | None:
        """The ``host:port`` of the coordinator, or None for one process."""
        return self.membership.coordinator_address

    @property
    def bind_address(self) -> str | None:
        """The ``host:port`` where process 0 listens, or None for one process."""
        return self.membership.bind_address

    @property
    def local_rank(self) -> int | None:
        """The number of this process among those on its host, from 0, or None if it is not known."""
        return self.membership.local_rank

    def __repr__(self) -> str:
        return f"Detection({self.source}: {self.membership!r})"

    def __str__(self) -> str:
        who = self.membership
        task = "" if self.resolver.task_type is None else f" (task {self.resolver.task_id} of job {self.resolver.task_type!r})"
        rows = [("process", f"{who.process_id} of {who.num_processes}{task}")]
        if who.coordinator_address is not None:
            rows.append(("coordinator", f"{who.coordinator_address}, listening on {who.bind_address}"))
        if who.rendezvous is not None:
            rows.append(("coordinator", f"process 0, which tells its address in {who.rendezvous}"))
        if who.local_rank is not None:
            rows.append(("on this host", f"{who.local_rank} of {who.num_local_processes}"))
        rows += [("because", short(fact)) for fact in self.because]
        rows += [("also there", f"{source}: {said}") for source, said in self.others]
        rows += [("conflict", conflict) for conflict in self.conflicts]
        rows += [("doubt", self.doubt)] if self.doubt else []
        lines = [line for name, value in rows for line in hanging(f"  {name:<12}  ", printable(value))]
        return "\n".join([f"Cluster: {self.source}", *lines])


def detect(environ: Environ | None = None) -> Detection:
    """Find out about the cluster from environment variables alone.

    If there are several sources, the first of these is used: ``REPLICANT_SINGLE=1``, ``JAX_PROCESS_ID`` and its companions,
    TF_CONFIG, torchrun, Open MPI, other launchers of MPI programs, TPU, Slurm, Kubernetes and its operators, SageMaker, Vertex AI.
    The answer also contains what the others say.

    Args:
        environ: The environment to read. By default the process's own.

    Returns:
        What the environment says about the cluster.

    Raises:
        ClusterError: If the source that is used is incomplete or contradicts itself.

    >>> print(detect({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}))
    Cluster: torchrun
      process       1 of 2 (task 1 of job 'worker')
      coordinator   node1:29500, listening on node1:29500
      because       RANK=1
      because       WORLD_SIZE=2
      because       MASTER_ADDR=node1
      because       MASTER_PORT=29500
    >>> detect({})
    Detection(nothing: Membership(process 0 of 1))
    """
    environ = os.environ if environ is None else environ
    winner: tuple[str, ClusterResolver, Membership] | None = None
    others: list[tuple[str, str]] = []
    of_several: list[tuple[str, str]] = []
    conflicts: list[str] = []
    for source, find in SOURCES:
        try:
            resolver = find(environ)
            if resolver is None:
                continue
            membership = resolver.membership()
        except ClusterError as error:
            if winner is None:
                raise
            others.append((source, f"unusable: {error}"))
            continue
        if winner is None:
            winner = (source, resolver, membership)
        else:
            others.append((source, repr(membership)))
            of_several += others[-1:] if membership.num_processes > 1 else []
            conflicts += _conflicts(winner[0], winner[2], source, membership)
    if winner is None:
        resolver = SimpleClusterResolver(ClusterSpec({}))
        doubt = why_not_alone(environ, (), ())
        return Detection(NOTHING, resolver, resolver.membership(), ("no variable describes a cluster",), doubt=doubt)
    source, resolver, membership = winner
    told, used = environ.get("JAX_COORDINATOR_ADDRESS", "").strip(), membership.coordinator_address
    if source == _tf_config.VARIABLE and told and used not in (None, told):
        conflicts.append(f"coordinator: {source} says {used}, JAX_COORDINATOR_ADDRESS says {told}, which is not used")
    doubt = why_not_alone(environ, resolver.because, of_several) if _is_job_of_one(resolver) else None
    return Detection(source, resolver, membership, resolver.because, tuple(others), tuple(conflicts), doubt)


def _is_job_of_one(resolver: ClusterResolver) -> bool:
    """Whether the cluster has this process only. An evaluator's has others."""
    spec = resolver.cluster_spec()
    return sum(spec.num_tasks(job) for job in spec.jobs) == 1 and resolver.task_type != "evaluator"


def _conflicts(source: str, first: Membership, other: str, second: Membership) -> list[str]:
    """The points on which two sources disagree."""
    rows = [
        ("number of processes", first.num_processes, second.num_processes),
        ("process id", first.process_id, second.process_id),
        ("coordinator's host", _host(first), _host(second)),
    ]
    return [
        f"{what}: {source} says {mine}, {other} says {theirs}"
        for what, mine, theirs in rows
        if mine != theirs and mine is not None and theirs is not None
    ]


def _host(membership: Membership) -> str | None:
    address = membership.coordinator_address
    return None if address is None else split_address(address, "coordinator address")[0]
