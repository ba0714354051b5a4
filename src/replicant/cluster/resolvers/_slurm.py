"""Slurm: ``srun`` starts one process per task and numbers them."""

import os
from collections.abc import Mapping, Sequence

from ...errors import ClusterError
from .._spec import ClusterSpec
from ._environ import (
    Environ,
    check_rank,
    coordinator_port,
    facts,
    first,
    named_job,
    needed_number,
    number,
    port_of_job,
    told_bind_address,
    told_coordinator,
)
from ._hostlist import expand_counts, expand_hosts
from ._resolver import ClusterResolver
from ._slurm_places import COMPONENTS, in_component_order, place_components

SOURCE = "Slurm"

_JOB = ("SLURM_JOB_ID", "SLURM_JOBID")
_STEP_ID = ("SLURM_STEP_ID", "SLURM_STEPID")
_COUNT = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
_NUM_NODES = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES")
_NODES = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
_PER_NODE = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
# Only srun sets these. A batch script has a SLURM_PROCID, too, but it is always 0.
_STEP = (*_STEP_ID, "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_SRUN_COMM_HOST")
_ADVICE = "Start the program with srun, which numbers its processes."


class SlurmClusterResolver(ClusterResolver):
    """Finds the tasks of a Slurm job step. Semantics: ``tf.distribute.cluster_resolver.SlurmClusterResolver``.

    It reads the step's node list, or the job's if ``srun`` set none. Several tasks may share a node. If all tasks run on one node,
    they talk over loopback. The resolver sets no variables: use ``srun`` (``--gpus-per-task``) to choose which accelerators a task
    sees.

    Args:
        jobs: The number of tasks of each job. The jobs get the ranks in alphabetical order. By default all tasks are workers.
        port_base: The port of the first task on each node. The next task has the next port. By default it follows from the job and
            the step, so that two jobs on one node have different ports.
        tasks_per_node: The number of tasks on every node, or a dictionary from node names to numbers. By default Slurm's own
            numbers.
        rpc_layer: The prefix of `master`.
        environ: The environment to read. By default the process's own.

    Raises:
        ClusterError: If the process is not in a job step, or if numbers contradict each other.

    >>> environ = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "3",
    ...            "SLURM_STEP_NODELIST": "node[01-02]", "SLURM_STEP_TASKS_PER_NODE": "2,1"}
    >>> resolver = SlurmClusterResolver(port_base=8888, environ=environ)
    >>> resolver.cluster_spec(), resolver.task_id
    (ClusterSpec({'worker': ['node01:8888', 'node01:8889', 'node02:8888']}), 2)
    """

    def __init__(
        self,
        jobs: Mapping[str, int] | None = None,
        port_base: int | None = None,
        *,
        tasks_per_node: int | Mapping[str, int] | None = None,
        rpc_layer: str | None = "grpc",
        environ: Environ | None = None,
    ) -> None:
        environ = os.environ if environ is None else environ
        self._rpc_layer = rpc_layer
        self._bind_address = told_bind_address(environ)
        self._job_id = named_job(SOURCE, first(environ, *_JOB), first(environ, *_STEP_ID))
        self._because = facts(environ, _JOB[0], "SLURM_PROCID", "SLURM_LOCALID", *_STEP[:1], *_COUNT, *_NODES, *_PER_NODE)
        alone = _is_alone(environ)
        rank = 0 if alone else needed_number(environ, SOURCE, _ADVICE, "SLURM_PROCID")
        num_tasks = 1 if alone else needed_number(environ, SOURCE, _ADVICE, *_COUNT)
        check_rank(SOURCE, "SLURM_PROCID", rank, _name(environ, _COUNT), num_tasks)
        if num_tasks == 1 and jobs is None:
            self._local = (0, 1)
            self._spec = self._allotted({"worker": 1}, 0, ["127.0.0.1:" + str(_port_base(environ, port_base))])
            return
        hosts, counts = _nodes(environ, num_tasks, tasks_per_node)
        sizes = [len(hosts)]
        if not isinstance(tasks_per_node, Mapping):
            hosts, counts, sizes = in_component_order(environ, hosts, counts)
        places = place_components(counts, sizes, _plane_size(environ))
        _check_own_place(environ, rank, places)
        self._local = (places[rank][1], counts[places[rank][0]])
        if len(hosts) == 1:
            hosts = ["127.0.0.1"]
        self._coordinator_address = told_coordinator(environ)
        base = _port_base(environ, port_base)
        self._spec = self._allotted(
            jobs or {"worker": num_tasks}, rank, [f"{hosts[node]}:{base + local}" for node, local in places]
        )

    def cluster_spec(self) -> ClusterSpec:
        """The cluster, with the address of every task."""
        return self._spec

    def _allotted(self, jobs: Mapping[str, int], rank: int, addresses: list[str]) -> ClusterSpec:
        """Divide the tasks among the jobs in alphabetical order, as TensorFlow does."""
        if sum(jobs.values()) != len(addresses):
            raise ClusterError(f"{SOURCE}: jobs={dict(jobs)} have {sum(jobs.values())} tasks, but the step has {len(addresses)}.")
        allotted: dict[str, list[str]] = {}
        begin = 0
        for job, count in sorted(jobs.items()):
            allotted[job] = addresses[begin : begin + count]
            if begin <= rank < begin + count:
                self._task_type, self._task_id = job, rank - begin
            begin += count
        return ClusterSpec(allotted)


def find(environ: Environ) -> SlurmClusterResolver | None:
    """The resolver, if this process is part of a Slurm job, or None."""
    return None if first(environ, *_JOB) is None else SlurmClusterResolver(environ=environ)


def _is_alone(environ: Environ) -> bool:
    """Whether this is a batch script or an salloc shell: a single process, which must not wait for tasks that nobody started.

    Raises:
        ClusterError: If the process is not part of a job, or if the job has several tasks or components.
    """
    if first(environ, *_JOB) is None:
        raise ClusterError(f"{SOURCE}: SLURM_JOB_ID is not set, so this process is not part of a Slurm job. {_ADVICE}")
    if first(environ, *_STEP) is not None or number(environ, "SLURM_PROCID"):
        return False
    for names in (_COUNT, _NUM_NODES, COMPONENTS):
        asked = number(environ, *names)
        if asked is not None and asked > 1:
            raise ClusterError(
                f"{SOURCE}: {_name(environ, names)}={asked}, but this process was not started by srun. A batch script runs only "
                "once, and would wait for others that nobody started. Write 'srun python ...' in the script. If it is to train "
                "alone, set REPLICANT_SINGLE=1."
            )
    return True


def _nodes(environ: Environ, num_tasks: int, tasks_per_node: int | Mapping[str, int] | None) -> tuple[list[str], list[int]]:
    """The nodes, and the number of tasks on each of them."""
    if isinstance(tasks_per_node, Mapping):
        hosts, counts, said = list(tasks_per_node), list(tasks_per_node.values()), "tasks_per_node"
    else:
        found = first(environ, *_NODES)
        if found is None:
            raise ClusterError(
                f"{SOURCE}: {' or '.join(_NODES)} is not set, so the nodes of {num_tasks} tasks are not known. {_ADVICE}"
            )
        hosts = expand_hosts(found[1])
        counts, said = _counts(environ, num_tasks, hosts, tasks_per_node)
        if len(counts) != len(hosts):
            raise ClusterError(f"{SOURCE}: {said} describes {len(counts)} nodes, but {found[0]}={found[1]} has {len(hosts)}.")
    if sum(counts) != num_tasks:
        name = _name(environ, _COUNT)
        raise ClusterError(f"{SOURCE}: {said} adds up to {sum(counts)} tasks on {len(hosts)} node(s), but {name}={num_tasks}.")
    return hosts, counts


def _counts(environ: Environ, num_tasks: int, hosts: list[str], tasks_per_node: int | None) -> tuple[list[int], str]:
    """The number of tasks on each node, and the source of these numbers."""
    if tasks_per_node is not None:
        return [tasks_per_node] * len(hosts), f"tasks_per_node={tasks_per_node}"
    found = first(environ, *_PER_NODE)
    if found is not None:
        return expand_counts(found[1]), f"{found[0]}={found[1]}"
    if num_tasks % len(hosts):
        raise ClusterError(
            f"{SOURCE}: there are {num_tasks} tasks on {len(hosts)} nodes, but {' or '.join(_PER_NODE)} is not set to say how many "
            "each node runs. Give tasks_per_node."
        )
    return [num_tasks // len(hosts)] * len(hosts), "an even share"


def _plane_size(environ: Environ) -> int | None:
    """How ``srun --distribution`` deals tasks out to the nodes. None fills one node after the other."""
    method = environ.get("SLURM_DISTRIBUTION", "").strip().lower().partition(":")[0].partition(",")[0]
    if method == "cyclic":
        return 1
    if method.startswith("plane"):
        size = method.partition("=")[2] or environ.get("SLURM_DIST_PLANESIZE", "").strip()
        if not size.isdigit() or int(size) < 1:
            raise ClusterError(f"{SOURCE}: SLURM_DISTRIBUTION={method!r} needs a size of at least 1, as in 'plane=4'.")
        return int(size)
    if method in ("", "block", "*", "pack", "nopack"):
        return None
    raise ClusterError(f"{SOURCE}: SLURM_DISTRIBUTION={method!r} is not known. It must be block, cyclic or plane=size.")


def _check_own_place(environ: Environ, rank: int, places: list[tuple[int, int]]) -> None:
    """Compare the computed place of this process with what Slurm says.

    Raises:
        ClusterError: If they differ.
    """
    for name, worked_out in zip(("SLURM_NODEID", "SLURM_LOCALID"), places[rank], strict=True):
        told = number(environ, name)
        if told is not None and told != worked_out:
            raise ClusterError(
                f"{SOURCE}: by the node list and the tasks per node, SLURM_PROCID={rank} should have {name}={worked_out}, but it "
                f"has {told}. Use --distribution=block, cyclic or plane, or SimpleClusterResolver."
            )


def _port_base(environ: Environ, port_base: int | None) -> int:
    if port_base is not None:
        return port_base
    job = first(environ, *_JOB)
    step = first(environ, *_STEP_ID)
    return coordinator_port(environ, port_of_job(f"slurm {job and job[1]}.{step and step[1]}"))


def batch_of_several(environ: Environ) -> tuple[str, ...]:
    """The variables of a batch script whose job has several tasks, nodes or components, of which srun has started none here.

    >>> batch_of_several({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}), batch_of_several({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1"})
    (('SLURM_NTASKS=4',), ())
    """
    if first(environ, *_JOB) is None or first(environ, *_STEP) is not None:
        return ()
    found = [first(environ, *names) for names in (_COUNT, _NUM_NODES, COMPONENTS)]
    return tuple(f"{each[0]}={each[1]}" for each in found if each is not None and each[1] not in ("0", "1"))


def _name(environ: Environ, names: Sequence[str]) -> str:
    """The name of the variable that was read."""
    found = first(environ, *names)
    return names[0] if found is None else found[0]
