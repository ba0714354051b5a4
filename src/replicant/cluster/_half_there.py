"""Finds the remains of a cluster's description where no source is complete, which means that some of its variables got lost."""

from ._environ import Environ, facts

# Variables that are set only for the processes of a job, and what is needed besides them. `WORLD_SIZE=1` alone is not a job.
_SIGNS = (
    (("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_COUNT"), "JAX_PROCESS_ID"),
    (("RANK", "WORLD_SIZE", "MASTER_ADDR"), "RANK and WORLD_SIZE"),
    (("OMPI_COMM_WORLD_SIZE",), "OMPI_COMM_WORLD_RANK"),
    (("TF_CONFIG",), 'a "cluster" in it'),
    (("REPLICANT_JOB_ID", "REPLICANT_COORDINATOR"), "a description of the cluster, such as TF_CONFIG or JAX_PROCESS_ID,"),
)
_ALONE = ("1", "{}")


def what_is_missing(environ: Environ) -> str | None:
    """What this process lacks to be one of several, or None if nothing says that it should be.

    >>> what_is_missing({"WORLD_SIZE": "4", "MASTER_ADDR": "node1"})
    'WORLD_SIZE=4 and MASTER_ADDR=node1 are set, but RANK and WORLD_SIZE are not both set'
    >>> what_is_missing({"WORLD_SIZE": "1"}), what_is_missing({"TF_CONFIG": "{}"})
    (None, None)
    """
    for signs, needed in _SIGNS:
        found = facts({name: environ[name] for name in signs if environ.get(name, "").strip() not in ("", *_ALONE)}, *signs)
        if found:
            there = "not both set" if " and " in needed else "missing"
            return f"{' and '.join(found)} {'are' if len(found) > 1 else 'is'} set, but {needed} {_is(needed)} {there}"
    return None


def _is(needed: str) -> str:
    return "are" if " and " in needed else "is"
