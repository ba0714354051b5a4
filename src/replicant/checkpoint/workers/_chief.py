"""Checkpoints of several workers. All take part in saving, because some values are spread over them; the chief writes."""

import json
from collections.abc import Callable
from typing import Any, TypeVar, cast

from ...cluster.exchange._world import World
from ...cluster.jax import _bootstrap
from ...errors import CheckpointError, DamagedCheckpointError
from ...storage._urls import is_url

_Result = TypeVar("_Result")

LEAST_SPEED = 1 << 20  # bytes per second and worker; the deadline leaves time for a disk that many workers share
RESTORE_AGAIN = "Restore again, from this checkpoint or another one, before you go on."


def is_writer() -> bool:
    """Return whether this process is the one that writes and deletes."""
    world = _bootstrap.world()
    return world is None or world.is_chief


def chiefs(label: str, make: Callable[[], Any]) -> Any:
    """Return on all workers what `make` returns on the chief: numbers, texts and lists of them. All workers call this."""
    world = _bootstrap.world()
    if world is None:
        return make()
    return json.loads(world.tell(label, json.dumps(make()) if world.is_chief else "", before_next_step=True))


def patience(world: World, num_bytes: int) -> float:
    """Return how many seconds to wait for workers of which each reads or writes at most `num_bytes`."""
    return world.timeouts.exchange + num_bytes / LEAST_SPEED


def write_once(write: Callable[[], None], num_bytes: int | None = None, *, what: str = "the checkpoint") -> None:
    """Let the chief write, or begin to write, while the others wait.

    Args:
        write: Writes, or begins to write.
        num_bytes: How much the chief writes before `write` returns; None if it only begins. The others' number does not matter.
        what: What is written, for messages.

    Raises:
        Exception: What `write` raises, on the chief.
        CheckpointError: If `write` fails, on the other workers.
    """
    world = _bootstrap.world()
    if world is None:
        write()
        return
    size = 0 if num_bytes is None else int(world.tell("checkpoint size", str(num_bytes), before_next_step=True))
    problem: Exception | None = None
    if world.is_chief:
        try:
            write()
        except Exception as error:  # noqa: BLE001 - it is raised below, once the others know
            problem = error
    text = "" if problem is None else f"{type(problem).__name__}: {problem}"
    said = world.exchange("checkpoint written", text, timeout_seconds=patience(world, size), before_next_step=True)[0]
    if problem is not None:
        raise problem
    if said:
        raise CheckpointError(f"{world.name_of(0)} could not write {what}: {said}")


def meet_before_reading(path: Any) -> None:
    """Let the workers meet before they read, so that the chief's write is complete.

    Raises:
        WorkerMismatchError: If they read different checkpoints.
    """
    world = _bootstrap.world()
    if world is not None:
        problem = "The workers are about to restore different checkpoints."
        world.agree("restore", str(path), problem, before_next_step=True)


def all_read(what: str, path: Any, read: Callable[[], _Result], *, num_bytes: int = 0, changes: bool = False) -> _Result:
    """Return what `read` returns, once all workers could read. Each may read other parts of a checkpoint. All workers call this.

    Args:
        what: What is done, for messages.
        path: The checkpoint.
        read: A function that reads this worker's parts.
        num_bytes: The most that a worker reads.
        changes: Whether `read` also assigns what it reads.

    Raises:
        DamagedCheckpointError: If what some workers have read is damaged. All raise it, so that all pass over it.
        CheckpointError: If a worker could not read for another reason, or if other workers have assigned what they read.
    """
    world = _bootstrap.world()
    if world is None:
        return read()
    result, problem = None, None
    try:
        result = read()
    except CheckpointError as error:
        problem = error
    mine = None if problem is None else [isinstance(problem, DamagedCheckpointError), str(problem)]
    texts = world.exchange(
        f"checkpoint {what}", json.dumps(mine), timeout_seconds=patience(world, num_bytes), before_next_step=True
    )
    said = [json.loads(text) for text in texts]
    failed = {world.name_of(rank): each for rank, each in enumerate(said) if each is not None}
    if not failed:
        return cast(_Result, result)
    is_damaged = not changes and all(is_damaged for is_damaged, _ in failed.values())
    if problem is not None and len({text for _, text in failed.values()}) == 1 and len(failed) == world.num_processes:
        raise problem
    told = "; ".join(f"{name}: {text}" for name, (_, text) in failed.items())
    text = f"{len(failed)} of {world.num_processes} workers cannot read the checkpoint {path}. {told}"
    if changes:
        raise CheckpointError(f"{text} On other workers, values may have changed. {RESTORE_AGAIN}") from problem
    if is_damaged:
        raise DamagedCheckpointError(text) from problem
    if is_url(path):  # a store that does not answer one worker is the same for all
        raise CheckpointError(text) from problem
    raise CheckpointError(f"{text} The others can read it: the workers must share the folder.") from problem
