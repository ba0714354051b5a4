"""Works out from a cluster's description which of the processes that train together this one is."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence

from ..._display import table_of
from ...errors import ClusterError
from .._addresses import default_bind_address, split_address
from .._spec import ClusterSpec, Problem

ROLES = ("chief", "master", "worker", "ps", "evaluator")  # "master": the older name of "chief"
_CHIEFS = ("chief", "master")


@dataclasses.dataclass(frozen=True)
class Membership:
    """One process among those that train together.

    Args:
        process_id: The number of this process, from 0. The chief is 0, and the workers follow in order.
        num_processes: The number of processes that train together.
        coordinator_address: The ``host:port`` where process 0 coordinates the others, or None for a process on its own.
        bind_address: The ``host:port`` where process 0 listens. It never means all addresses of the machine unless you ask for
            that.
        local_rank: The number of this process among those on its host, from 0, or None if it is not known.
        num_local_processes: The number of processes on this host, or None if it is not known.
        job_id: The launcher's name for the job, the same on all of its processes, or None if it has no name. Two memberships that
            differ only in it are equal.
        rendezvous: Where process 0 tells the others its address if no variable does: a folder that all share, or the launcher's own
            way. None if the address is known.

    >>> Membership(process_id=0, num_processes=1)
    Membership(process 0 of 1)
    """

    process_id: int
    num_processes: int
    coordinator_address: str | None = None
    bind_address: str | None = None
    local_rank: int | None = None
    num_local_processes: int | None = None
    job_id: str | None = dataclasses.field(default=None, compare=False)
    rendezvous: str | None = None

    @property
    def is_chief(self) -> bool:
        """Whether this process writes what must be written only once."""
        return self.process_id == 0

    def __repr__(self) -> str:
        coordinator = "" if self.coordinator_address is None else f", coordinator {self.coordinator_address}"
        coordinator += "" if self.rendezvous is None else f", who tells its address in {self.rendezvous}"
        return f"Membership(process {self.process_id} of {self.num_processes}{coordinator})"


def find_membership(
    spec: ClusterSpec,
    task_type: str | None,
    task_id: int | None,
    *,
    local: tuple[int, int] | None = None,
    coordinator_address: str | None = None,
    bind_address: str | None = None,
    rendezvous: str | None = None,
) -> Membership:
    """Find the place of a task among the chief and the workers of its cluster. Semantics: TensorFlow's ``multi_worker_util``.

    An evaluator is on its own. An empty cluster is one process.

    Args:
        spec: The cluster.
        task_type: The job of this process.
        task_id: The index of this process in that job.
        local: The rank of this process on its host and the number of processes there. By default they follow from the addresses.
        coordinator_address: The address where the others find process 0. By default the address of its task.
        bind_address: The address where process 0 listens. By default the coordinator's address.
        rendezvous: Where process 0 tells its address, if nobody knows it yet.

    Returns:
        The place of this process among those that train together.

    Raises:
        ClusterError: If the description breaks a rule, or if the task is a parameter server, which takes no part.
    """
    if not spec:
        return Membership(process_id=0, num_processes=1, local_rank=0, num_local_processes=1)
    problem = find_problem(spec, task_type, task_id)
    if problem is not None:
        raise ClusterError(problem.text)
    if task_type is None or task_id is None:
        raise ClusterError(
            f"{spec} describes a cluster, but not which task this process is: task_type is {task_type!r}, task_id is {task_id!r}. "
            'Give both, as in TF_CONFIG\'s "task": {"type": "worker", "index": 0}.'
        )
    if task_type == "ps":
        raise ClusterError(
            f"Task {task_id} of job 'ps' is a parameter server: it takes no part in synchronous training. "
            "Use ParameterServerStrategy, or leave 'ps' out of the cluster."
        )
    if task_type == "evaluator":
        return Membership(process_id=0, num_processes=1)
    members = training_tasks(spec)
    process_id = members.index((task_type, task_id))
    tasks = {job: spec.job_tasks(job) for job in spec.jobs}
    addresses = [tasks[job][index] for job, index in members]
    if local is None and None not in addresses:
        local = _local_place([split_address(str(address), "address")[0] for address in addresses], process_id)
    if len(members) == 1:
        return Membership(0, 1, None, None, *(local or (0, 1)))
    if rendezvous is not None:
        return Membership(process_id, len(members), None, bind_address, *(local or (None, None)), rendezvous=rendezvous)
    coordinator = coordinator_address or spec.task_address(*members[0])
    return Membership(
        process_id, len(members), coordinator, bind_address or default_bind_address(coordinator), *(local or (None, None))
    )


def training_tasks(spec: ClusterSpec) -> list[tuple[str, int]]:
    """The tasks that train together, in the order of their process ids: the chief, then the workers.

    >>> training_tasks(ClusterSpec({"worker": ["a:1", "b:1"], "ps": ["c:1"], "chief": ["d:1"]}))
    [('chief', 0), ('worker', 0), ('worker', 1)]
    """
    return [(job, index) for job in (*_CHIEFS, "worker") if job in spec.jobs for index in spec.task_indices(job)]


def find_problem(spec: ClusterSpec, task_type: str | None, task_id: int | None) -> Problem | None:
    """The first rule that a cluster or a process's task in it breaks, with the place in the words of TF_CONFIG, or None."""
    return _jobs_problem(spec) or _addresses_problem(spec) or _task_problem(spec, task_type, task_id)


def _jobs_problem(spec: ClusterSpec) -> Problem | None:
    for job in spec.jobs:
        if job not in ROLES:
            return Problem(("cluster", job), f"job {job!r} is not known. A cluster's jobs are {', '.join(ROLES)}.")
        if job in (*_CHIEFS, "evaluator") and spec.num_tasks(job) > 1:
            return Problem(("cluster", job), f"job {job!r} has {spec.num_tasks(job)} tasks; there can be at most one.")
    if all(job in spec.jobs for job in _CHIEFS):
        return Problem(("cluster", "master"), "jobs 'chief' and 'master' are two names for the same thing. Leave one of them out.")
    if "worker" in spec.jobs and (missing := set(range(spec.num_tasks("worker"))) - set(spec.task_indices("worker"))):
        indices = spec.task_indices("worker")
        text = f"job 'worker' has {len(indices)} tasks with indices {indices}: index {min(missing)} is missing."
        return Problem(("cluster", "worker"), text)
    return None


def _addresses_problem(spec: ClusterSpec) -> Problem | None:
    seen: dict[str, str] = {}
    for job in spec.jobs:
        for index, address in enumerate(spec.job_tasks(job)):
            if address is None:
                continue
            task = f"task {index} of job {job!r}"
            try:
                split_address(address, task)
            except ClusterError as error:
                return Problem(("cluster", job, index), str(error))
            if address in seen:
                return Problem(
                    ("cluster", job, index), f"{task} has the address {address!r}, which is also that of {seen[address]}."
                )
            seen[address] = task
    return None


def _task_problem(spec: ClusterSpec, task_type: str | None, task_id: int | None) -> Problem | None:
    if task_type is None:
        return None
    if task_type not in ROLES:
        return Problem(("task", "type"), f"task type {task_type!r} is not known. It is one of {', '.join(ROLES)}.")
    if task_type not in spec.jobs:
        if task_type == "evaluator":  # it is not one of those that train together, and need not be listed
            return None
        return Problem(("task", "type"), f"task type {task_type!r} is not a job of the cluster, which has {', '.join(spec.jobs)}.")
    if task_id is not None and task_id not in spec.task_indices(task_type):
        indices = spec.task_indices(task_type)
        dense = indices == list(range(len(indices)))
        known = f"from 0 to {len(indices) - 1}" if dense and indices else f"one of {indices}"
        text = f"index {task_id} is outside job {task_type!r}, which has {len(indices)} task(s): it must be {known}."
        return Problem(("task", "index"), text)
    return None


def _local_place(hosts: Sequence[str], process_id: int) -> tuple[int, int]:
    """The rank of a process on its host, and the number of processes there."""
    own = hosts[process_id]
    return hosts[:process_id].count(own), hosts.count(own)


def check_group(claims: Mapping[str, Membership]) -> None:
    """Check that processes that are to train together agree on who they are.

    Args:
        claims: What each process believes, under a name for the message (such as its host or its log).

    Raises:
        ClusterError: If two of them have the same process id, if they expect another number of processes than there are, or if they
            name several coordinators. The message has a row for each process.

    >>> check_group({"node1": Membership(0, 2, "node1:1"), "node2": Membership(1, 2, "node1:1")})
    """
    ids = [claim.process_id for claim in claims.values()]
    twice = sorted(process_id for process_id, times in collections.Counter(ids).items() if times > 1)
    counts = {claim.num_processes for claim in claims.values()}
    coordinators = {claim.coordinator_address for claim in claims.values()}
    if len(counts) > 1:
        rule = f"they disagree on the number of processes: {sorted(counts)}"
    elif counts and counts != {len(claims)}:
        rule = f"there are {len(claims)} of them, but each expects {counts.pop()}"
    elif twice:
        rule = f"two of them have the process id {twice[0]}"
    elif len(coordinators) > 1:
        rule = "they name different coordinators"
    else:
        return
    rows = {name: repr(claim) for name, claim in claims.items()}
    raise ClusterError(table_of(f"The processes do not form one group: {rule}.", rows))
