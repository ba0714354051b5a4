"""Which engines there are, and which options each of them can use."""

from ...errors import ArgumentError

JOBS = ("slurm", "kubernetes", "jobset", "trainer", "vertex", "sagemaker", "mpi")  # that are printed, and watched by another system
ENGINES = ("local", "ray", *JOBS)
IN_CONTAINERS = ("kubernetes", "jobset", "trainer", "vertex", "sagemaker")  # which hold the script
SUBMITTED = ("slurm", "kubernetes", "jobset", "trainer", "mpi")
_WATCHED = ("local", "ray")

# The options that not every engine can use.
TAKEN_BY = {
    "max_restarts": (*_WATCHED, "slurm", "kubernetes", "jobset"),
    "elastic": ("local",),
    "log_dir": (*_WATCHED, "slurm"),
    "grace": (*_WATCHED, "slurm", "kubernetes", "jobset"),
    "heartbeat": _WATCHED,
    "start": _WATCHED,
    "finish": (*_WATCHED, "slurm"),
    "stall": _WATCHED,
    "port": _WATCHED,
    "status_port": _WATCHED,
    "preempted_code": (*_WATCHED, "slurm", "kubernetes", "jobset"),
    "print": JOBS,
    "submit": SUBMITTED,
    "hosts": ("local", "slurm", "mpi"),
    "hosts_file": ("local", "slurm", "mpi"),
    "python": ("local",),
    "nodes": ("local",),
    "node_rank": ("local",),
    "address": ("local",),
    "max_clock_skew": ("local",),
    "name": tuple(engine for engine in JOBS if engine != "mpi"),
    "image": IN_CONTAINERS,
    "engine_args": JOBS,
}


def check_engine(engine: str) -> None:
    """Check that there is such an engine.

    Raises:
        ArgumentError: If there is none.
    """
    if engine not in ENGINES:
        raise ArgumentError(f"--engine {engine!r} is not known. It is one of {', '.join(ENGINES)}.")


def check_taken(option: str, engine: str) -> None:
    """Check that an engine can use an option, given as ``max_restarts``.

    Raises:
        ArgumentError: If it cannot. The message says which engines can.
    """
    engines = TAKEN_BY.get(option, ENGINES)
    if engine not in engines:
        taken = " and ".join(filter(None, (", ".join(engines[:-1]), engines[-1])))
        raise ArgumentError(f"--{option.replace('_', '-')} is not for --engine {engine}. It is for --engine {taken}.")
