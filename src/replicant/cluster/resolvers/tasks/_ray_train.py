"""Ray Train: the place of a worker, and, from version 2 of its API, how process 0 tells the others its address."""

import importlib
import os
import sys
from typing import Any

from ....errors import ClusterError
from .._environ import RENDEZVOUS, WHERE, Environ, check_rank, facts, told_bind_address, told_coordinator, told_rendezvous
from .._resolver import FoundClusterResolver

SOURCE = "Ray Train"


def find(environ: Environ) -> FoundClusterResolver | None:
    """The resolver for a worker of Ray Train, or None.

    Ray tells a worker its rank and the number of workers. The address of process 0 goes through Ray, unless
    ``JAX_COORDINATOR_ADDRESS`` or ``REPLICANT_RENDEZVOUS`` is set.

    >>> find({"RANK": "1", "WORLD_SIZE": "2"})  # not the environment of this process
    """
    context = _context() if environ is os.environ else None
    if context is None:
        return None
    rank, count = context.get_world_rank(), context.get_world_size()
    check_rank(SOURCE, "the worker's rank", rank, "the number of workers", count)
    coordinator = told_coordinator(environ)
    return FoundClusterResolver(
        [coordinator, *[None] * (count - 1)],
        rank,
        local=(context.get_local_rank(), context.get_local_world_size()),
        bind_address=told_bind_address(environ),
        because=(f"ray.train.get_context(): rank {rank} of {count}", *facts(environ, "JAX_COORDINATOR_ADDRESS", RENDEZVOUS)),
        job_id=f"{SOURCE}: {context.get_experiment_name()}",
        rendezvous=None if coordinator or count == 1 else told_rendezvous(environ) or SOURCE,
    )


def broadcast(text: str) -> str:
    """Give all workers the text of worker 0. All of them call this."""
    try:
        collective: Any = importlib.import_module("ray.train.collective")
    except ImportError as error:
        raise ClusterError(
            f"{SOURCE}: only version 2 of its API lets process 0 tell the others its address. Set RAY_TRAIN_V2_ENABLED=1 before "
            f"Ray is imported, or {WHERE}."
        ) from error
    return str(collective.broadcast_from_rank_zero(text))


def _context() -> Any:
    """Ray Train's context if this is one of its workers, or None."""
    get_context = getattr(sys.modules.get("ray.train"), "get_context", None)
    if get_context is None:
        return None
    try:
        context = get_context()
        return context if isinstance(context.get_world_size(), int) else None
    except RuntimeError:  # this process has imported Ray Train, but it is not a worker
        return None
