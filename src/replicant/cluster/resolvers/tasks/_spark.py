"""Spark's barrier tasks, also on Databricks: the place of a task, and how task 0 tells the others its address."""

import os
import sys
from typing import Any

from .._environ import RENDEZVOUS, Environ, check_rank, facts, told_bind_address, told_coordinator, told_rendezvous
from .._resolver import FoundClusterResolver

SOURCE = "Spark"


def find(environ: Environ) -> FoundClusterResolver | None:
    """The resolver for a task of a barrier stage (``RDD.barrier().mapPartitions``), or None.

    The address of process 0 goes through Spark, unless ``JAX_COORDINATOR_ADDRESS`` or ``REPLICANT_RENDEZVOUS`` is set.

    >>> find({"SPARK_REUSE_WORKER": "1"})  # not the environment of this process
    """
    context = _context() if environ is os.environ else None
    if context is None:
        return None
    rank, count = context.partitionId(), len(context.getTaskInfos())
    check_rank(SOURCE, "the task's partition", rank, "the number of tasks", count)
    coordinator = told_coordinator(environ)
    return FoundClusterResolver(
        [coordinator, *[None] * (count - 1)],
        rank,
        local=_local(context, rank),
        bind_address=told_bind_address(environ),
        because=(f"BarrierTaskContext: task {rank} of {count}", *facts(environ, "JAX_COORDINATOR_ADDRESS", RENDEZVOUS)),
        job_id=f"{SOURCE}: {context.stageId()}.{context.attemptNumber()}",
        rendezvous=None if coordinator or count == 1 else told_rendezvous(environ) or SOURCE,
    )


def broadcast(text: str) -> str:
    """Give all tasks the text of task 0. All of them call this."""
    return str(_context().allGather(text)[0])


def _context() -> Any:
    """The context of this task if its stage is a barrier stage, or None."""
    kind = getattr(sys.modules.get("pyspark"), "BarrierTaskContext", None)
    context = None if kind is None else sys.modules["pyspark"].TaskContext.get()
    return context if kind is not None and isinstance(context, kind) else None


def _local(context: Any, rank: int) -> tuple[int, int]:
    """The number of this task among those on its host, and their number."""
    hosts = [info.address.rpartition(":")[0] or info.address for info in context.getTaskInfos()]
    return hosts[:rank].count(hosts[rank]), hosts.count(hosts[rank])
