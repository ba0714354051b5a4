"""Signs that a process is one of several, where the source that counts, or the lack of one, says that it is the only one.

A worker that trains alone gives a wrong model, and the others wait for it, or do the same. So a job of one needs proof: no launcher
that Replicant knows of may say that there are more processes, whether its variables are read or not.
"""

import dataclasses
import re
from collections.abc import Sequence

from ...errors import ClusterError
from . import _mpi
from ._clouds import json_variable
from ._environ import Environ, facts
from ._host_lists import AZURE, LSF, NODE_FILE, several_hosts
from ._slurm import batch_of_several
from .tasks import _dask

_LONGEST_NUMBER = 18  # digits


@dataclasses.dataclass(frozen=True)
class _Launcher:
    """The variables that a launcher sets.

    Args:
        name: The name of the launcher.
        counts: Variables with a number of processes or hosts. More than 1 is a sign.
        ranks: Variables with the number of this process, or of its host. More than 0 is a sign.
        marks: Variables that only jobs of several need. They are a sign if nothing describes the cluster, and no count says 1.
        allocated: Variables with a number of hosts of a batch job, which start nothing by themselves. More than 1 is a sign.
        lists: Variables with lists of hosts. More than one host is a sign.
        needed: What the source that reads these variables needs. Empty if Replicant does not read them.
        source: The source that reads these variables, if it has another name.
    """

    name: str
    counts: tuple[str, ...] = ()
    ranks: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    allocated: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    needed: str = ""
    source: str = ""


_OURS = "JAX_PROCESS_ID, JAX_NUM_PROCESSES and JAX_COORDINATOR_ADDRESS (the host:port of process 0)"
_JAX = _Launcher(
    "JAX variables",
    counts=("JAX_NUM_PROCESSES", "JAX_PROCESS_COUNT"),
    ranks=("JAX_PROCESS_ID", "JAX_PROCESS_INDEX"),
    marks=("JAX_COORDINATOR_ADDRESS",),
    needed=_OURS,
)
_LAUNCHERS = (
    _JAX,
    _Launcher(
        "torchrun",
        counts=("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "PET_NNODES", "NNODES"),
        ranks=("RANK", "LOCAL_RANK", "GROUP_RANK", "PET_NODE_RANK", "NODE_RANK"),
        marks=("RANK", "LOCAL_RANK", "MASTER_ADDR"),
        needed="RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
    ),
    _Launcher(
        "Open MPI",
        counts=("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ranks=("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_RANK"),
        needed="OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE",
    ),
    _Launcher(
        "TPU",
        ranks=("TPU_WORKER_ID", "CLOUD_TPU_TASK_ID", "MEGASCALE_SLICE_ID"),
        needed="TPU_WORKER_HOSTNAMES and TPU_WORKER_ID",
    ),
    _Launcher(
        "Slurm",
        counts=("SLURM_STEP_NUM_TASKS",),
        ranks=("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"),
        needed="the variables of srun",
    ),
    _Launcher("Kubernetes", ranks=("JOB_COMPLETION_INDEX",), needed=_OURS),
    _Launcher(
        "JAXJob",
        counts=("NUM_PROCESSES",),
        ranks=("PROCESS_ID",),
        marks=("PROCESS_ID",),
        needed="PROCESS_ID, NUM_PROCESSES and COORDINATOR_ADDRESS",
    ),
    _Launcher(
        "MPICH, Intel MPI or Cray PALS",
        counts=("PMI_SIZE", "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE"),
        ranks=("PMI_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_RANKID", "PALS_LOCAL_RANKID", "PALS_NODEID"),
        marks=("PMI_RANK", "PALS_RANKID"),
        needed="PMI_RANK and PMI_SIZE",
        source=_mpi.SOURCE,
    ),
    _Launcher("mpiexec -pmi-port", ranks=("PMI_ID",), marks=("PMI_ID", "PMI_PORT"), needed="PMI_RANK and PMI_SIZE"),
    _Launcher("Cray ALPS", ranks=("ALPS_APP_PE",), marks=("ALPS_APP_PE",)),
    _Launcher(
        "MVAPICH2",
        counts=("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"),
        ranks=("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK"),
        marks=("MV2_COMM_WORLD_RANK",),
        needed="MV2_COMM_WORLD_RANK and MV2_COMM_WORLD_SIZE",
        source=_mpi.SOURCE,
    ),
    _Launcher("MVAPICH", ("MVP_COMM_WORLD_SIZE", "MVP_COMM_WORLD_LOCAL_SIZE"), ("MVP_COMM_WORLD_RANK",), ("MVP_COMM_WORLD_RANK",)),
    _Launcher(
        "Flux",
        counts=("FLUX_JOB_SIZE", "FLUX_JOB_NNODES"),
        ranks=("FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID"),
        marks=("FLUX_TASK_RANK",),
        needed="FLUX_TASK_RANK and FLUX_JOB_SIZE",
        source=_mpi.SOURCE,
    ),
    _Launcher(
        "IBM JSM",
        counts=("JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_SIZE"),
        ranks=("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_RANK"),
        marks=("JSM_NAMESPACE_RANK",),
        needed="JSM_NAMESPACE_RANK and JSM_NAMESPACE_SIZE",
        source=_mpi.SOURCE,
    ),
    _Launcher("Horovod", ("HOROVOD_SIZE",), ("HOROVOD_RANK",), ("HOROVOD_RANK",)),
    _Launcher("PBS", ranks=("PBS_VNODENUM", "PBS_NODENUM"), allocated=("PBS_NUM_NODES",), lists=(NODE_FILE,)),
    _Launcher("LSF", lists=LSF, needed="the variables of a launcher, such as mpiexec or jsrun"),
    _Launcher("LSF's blaunch", ranks=("LSF_PM_TASKID",), marks=("LSF_PM_TASKID",)),
    _Launcher(
        "HTCondor",
        counts=("_CONDOR_NPROCS",),
        ranks=("_CONDOR_PROCNO",),
        needed="_CONDOR_PROCNO and _CONDOR_NPROCS",
        source=_mpi.SOURCE,
    ),
    _Launcher("Spark", marks=("SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_REUSE_WORKER")),
    _Launcher("LeaderWorkerSet", ("LWS_GROUP_SIZE",), ("LWS_WORKER_INDEX",), needed="LWS_WORKER_INDEX and LWS_GROUP_SIZE"),
    _Launcher("Volcano", ranks=("VC_TASK_INDEX", "VK_TASK_INDEX"), needed="VC_TASK_INDEX and the lists of the plugin svc"),
    _Launcher("AWS Batch", ("AWS_BATCH_JOB_NUM_NODES",), ("AWS_BATCH_JOB_NODE_INDEX",)),
    _Launcher("Azure ML", ("AZUREML_NODE_COUNT", "AZ_BATCHAI_NODE_COUNT"), ("AZ_BATCHAI_TASK_INDEX",), lists=AZURE),
    _Launcher("Replicant", marks=("REPLICANT_JOB_ID", "REPLICANT_COORDINATOR")),
)
_ALONE = "If it is to train alone, set REPLICANT_SINGLE=1, or pass cluster_resolver=SimpleClusterResolver(ClusterSpec({}))."


def why_not_alone(environ: Environ, because: Sequence[str], others: Sequence[tuple[str, str]]) -> str | None:
    """Why this process may be one of several, and what to set, although it seems to be the only one. None if nothing says so.

    JAX's variables count before all others: with them, one says that a process is the only one, whatever else is there.

    Args:
        environ: The environment to read.
        because: The facts that say that it is the only one. Without any, nothing describes a cluster.
        others: The further sources with several processes, and what they say.

    >>> print(why_not_alone({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "4"}, (), ()))
    nothing that Replicant reads describes a cluster, but by HOROVOD_SIZE=4 and HOROVOD_RANK=1 (Horovod), this process is one of \
several. If so, set JAX_PROCESS_ID=$HOROVOD_RANK, JAX_NUM_PROCESSES=$HOROVOD_SIZE and JAX_COORDINATOR_ADDRESS=HOST:PORT, the \
address of process 0, before the program starts. If it is to train alone, set REPLICANT_SINGLE=1, or pass \
cluster_resolver=SimpleClusterResolver(ClusterSpec({})).
    >>> why_not_alone({"PMI_RANK": "0", "PMI_SIZE": "1", "TF_CONFIG": "{}"}, (), ())
    """
    return _several(environ, because, others)[1]


def signs_of_several(environ: Environ, because: Sequence[str]) -> list[tuple[str, str, tuple[str, ...]]]:
    """The launchers that say that there are several processes: the name of each, that of its source, and the variables.

    Args:
        environ: The environment to read.
        because: The facts that say that this process is the only one. Without any, nothing describes a cluster.
    """
    found, _ = _several(environ, because, ())
    return [(launcher.name, launcher.source or launcher.name, signs) for launcher, signs in found]


def launchers_seen(environ: Environ) -> list[tuple[str, str, tuple[str, ...]]]:
    """The launchers that have left any of their variables: the name of each, that of its source, and the variables."""
    found = []
    for launcher in _LAUNCHERS:
        variables = facts(
            environ, *dict.fromkeys((*launcher.counts, *launcher.ranks, *launcher.marks, *launcher.allocated, *launcher.lists))
        )
        found += [(launcher.name, launcher.source or launcher.name, variables)] if variables else []
    return found


_Found = list[tuple[_Launcher, tuple[str, ...]]]  # the launchers that say that there are several, and their variables


def _several(environ: Environ, because: Sequence[str], others: Sequence[tuple[str, str]]) -> tuple[_Found, str | None]:
    """What says that there are several processes, and the same in words, if anything does."""
    if facts(environ, *_JAX.ranks) and facts(environ, *_JAX.counts) and not _signs(environ, _JAX, described=True):
        return [], None
    found = [(launcher, signs) for launcher in _LAUNCHERS if (signs := _signs(environ, launcher, described=bool(because)))]
    found += [(_Launcher(name, needed=needed), facts(environ, *names)) for name, names, needed in _in_json(environ)]
    found += [(_Launcher(name), signs) for name, signs in _in_names(environ)]
    if task := _dask.sign(environ):
        found.append((_Launcher("Dask"), (task,)))
    if batch := batch_of_several(environ):
        found.append((_Launcher("Slurm", needed="the variables of srun"), batch))
    known = {launcher.source or launcher.name for launcher, _ in found}
    said = [f"{_and(signs)} ({launcher.name})" for launcher, signs in found]
    said += [f"{fact} ({source})" for source, fact in others if source not in known]
    if not said:
        return found, None
    only = f"{_and(because)} {'says' if len(because) == 1 else 'say'} that this process is the only one"
    described = only if because else "nothing that Replicant reads describes a cluster"
    it = "it" if because else "this process"
    advice = _advice(environ, [launcher for launcher, _ in found], because)
    return found, f"{described}, but by {_and(said)}, {it} is one of several. If so, {advice} {_ALONE}"


def started_several(environ: Environ) -> str | None:
    """The variables by which a launcher has started a command several times, or None. A batch job of several hosts does not say so.

    >>> started_several({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"})
    'SLURM_STEP_NUM_TASKS=2 and SLURM_PROCID=0 (Slurm)'
    >>> started_several({"SLURM_NTASKS": "2", "LSB_HOSTS": "a b", "RANK": "0", "MASTER_ADDR": "a"})
    """
    named = [(launcher.name, dataclasses.replace(launcher, allocated=(), lists=())) for launcher in _LAUNCHERS]
    said = [f"{_and(signs)} ({name})" for name, launcher in named if (signs := _signs(environ, launcher, described=True))]
    return _and(said) or None


def _signs(environ: Environ, launcher: _Launcher, *, described: bool) -> tuple[str, ...]:
    """The variables of a launcher, if they say that there are several processes."""
    counts, ranks, marks = launcher.counts, launcher.ranks, launcher.marks
    several = any(_exceeds(environ, name, 1) for name in counts) or any(_exceeds(environ, name, 0) for name in ranks)
    marked = not described and not facts(environ, *counts) and bool(facts(environ, *marks))
    if several or marked:
        return facts(environ, *dict.fromkeys((*counts[:1], *ranks, *marks, *counts)))
    hosts = facts(environ, *(name for name in launcher.allocated if _exceeds(environ, name, 1)))
    listed = several_hosts(environ) if launcher.lists else ()
    return hosts + tuple(fact for fact in listed if fact.partition("=")[0] in launcher.lists)


def _exceeds(environ: Environ, name: str, most: int) -> bool:
    """Whether a variable has a number above `most`, or something else. A range, as in "1:4", counts with its end."""
    text = environ.get(name, "").strip().rpartition(":")[2].strip()
    is_number = text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER
    return bool(text) and not (is_number and int(text) <= most)


def _in_json(environ: Environ) -> list[tuple[str, tuple[str, ...], str]]:
    """The launchers that say in JSON that there are several processes: their names, their variables, and what a source needs."""
    found = []
    config = _json(environ, "TF_CONFIG")
    if isinstance(config, dict) and not config.get("cluster"):
        told = {key for key, value in config.items() if value} - {"environment", "job", "rpc_layer", "session_master"}
        task = config.get("task")
        if isinstance(task, dict) and "cluster" in config and str(task.get("index", 0)) == "0":  # the cluster is said to be empty
            told.discard("task")
        if told:
            found.append(("TensorFlow", ("TF_CONFIG",), 'a "cluster" in TF_CONFIG'))
    hosts = _json(environ, "SM_HOSTS")
    if facts(environ, "SM_HOSTS") and not (isinstance(hosts, list) and len(hosts) <= 1):
        found.append(("SageMaker", ("SM_HOSTS", "SM_CURRENT_HOST"), "SM_HOSTS and SM_CURRENT_HOST"))
    resources = _json(environ, "SM_RESOURCE_CONFIG")
    listed = resources.get("hosts") if isinstance(resources, dict) else None
    if not facts(environ, "SM_HOSTS") and isinstance(listed, list) and len(listed) > 1:
        found.append(("SageMaker", ("SM_RESOURCE_CONFIG",), "SM_HOSTS and SM_CURRENT_HOST"))
    spec = _json(environ, "CLUSTER_SPEC")
    jobs = spec.get("cluster") if isinstance(spec, dict) else None
    if isinstance(jobs, dict) and sum(len(tasks) if isinstance(tasks, list | dict) else 1 for tasks in jobs.values()) > 1:
        found.append(("Vertex AI", ("CLUSTER_SPEC",), ""))
    return found


def _in_names(environ: Environ) -> list[tuple[str, tuple[str, ...]]]:
    """The launchers that have variables for each group of their processes, if there are several processes in all."""
    counts = [name for name in environ if re.fullmatch(r"VC_[A-Z0-9_]+_NUM", name)]
    several = len(counts) > 1 or any(_exceeds(environ, name, 1) for name in counts)
    lists = [name for name in environ if re.fullmatch(r"VC_[A-Z0-9_]+_HOSTS", name)]
    several = several or len(lists) > 1 or any("," in environ[name] for name in lists)
    return [("Volcano", facts(environ, *sorted(counts), *sorted(lists)))] if several else []


def _json(environ: Environ, name: str) -> object:
    try:
        return json_variable(environ, name)
    except ClusterError:  # TF_CONFIG's own resolver reports it, and the other names may stand for something else
        return None


def _advice(environ: Environ, launchers: Sequence[_Launcher], because: Sequence[str]) -> str:
    """What to set so that this process is one of several."""
    if because:
        return f"unset what is wrong, or set {_OURS}, which count before all others."
    for launcher in launchers:
        rank, count = (
            next((name for name in names if environ.get(name, "").strip()), None) for names in (launcher.ranks, launcher.counts)
        )
        if rank and count and not launcher.needed:
            return (
                f"set JAX_PROCESS_ID=${rank}, JAX_NUM_PROCESSES=${count} and JAX_COORDINATOR_ADDRESS=HOST:PORT, the address of "
                "process 0, before the program starts."
            )
    needed = dict.fromkeys([*[launcher.needed for launcher in launchers if launcher.needed], _OURS])
    return f"set {', or '.join(needed)} in each process."


def _and(texts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))
