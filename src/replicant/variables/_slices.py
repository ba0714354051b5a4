"""Variables of which each of several workers keeps slices: how all read them together, and how they agree on new values."""

import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from ..cluster.exchange._world import World
from ..cluster.jax import _bootstrap
from ..cluster.meeting._claims import table_of
from ..errors import WorkerLostError, WorkerMismatchError
from ..replicas._placement import host_copy

LARGE = 1 << 24  # bytes from which a variable in slices is never whole for longer than it takes to cut it

_TOGETHER = (
    "To read a variable that lies in slices on several workers takes all of them: call numpy(), get_weights(), save() and "
    "checkpoint.save() on all workers, outside of `if strategy.is_chief:`, and use the values where you need them."
)


class _Reading(threading.local):
    """What this thread reads together with the other workers.

    Attributes:
        met: Whether the workers have met for what is read now.
        known: Arrays that were read, by the ids of their slices.
    """

    met = False
    known: Mapping[int, np.ndarray] = {}


_reading = _Reading()


class _Cut:
    """Descriptions of large values that this process has cut, and that the workers have not compared yet."""

    world: World | None = None
    lines: list[str] = []  # noqa: RUF012 - one list for the process


_cut = _Cut()


def in_pieces(array: Any) -> bool:
    """Whether this process has only slices of an array."""
    if not isinstance(array, jax.Array) or isinstance(array, Tracer):
        return False
    return not array.is_fully_addressable and not array.is_fully_replicated


def read_whole(name: str, array: jax.Array) -> np.ndarray:
    """Return the whole of an array in pieces. All workers must read it together.

    Raises:
        WorkerLostError: If another worker does not come, has ended or has failed.
        WorkerMismatchError: If another worker reads something else, or has gone on with the next step.
    """
    with reading(f"the read of {name!r}"):
        return host_copy(array)


@contextmanager
def reading_once(what: str, reads: Sequence[tuple[str, jax.Array, Callable[[], Any]]]) -> Iterator[None]:
    """Read variables in pieces, and know their values in the ``with`` block, which only the chief need enter then.

    Args:
        what: What they are read for, the same on all workers.
        reads: For each variable its name, what is stored, and a function that reads it.

    Raises:
        WorkerLostError: If another worker does not come, has ended or has failed.
        WorkerMismatchError: If another worker reads something else, or has gone on with the next step.
    """
    known, world = dict[int, np.ndarray](), _bootstrap.world()
    with reading(f"{what}: {digest_of_names(name for name, _, _ in reads)}"):
        for _, array, read in reads:
            value = np.asarray(read())
            if world is None or world.is_chief:
                known[id(array)] = value
    before, _reading.known = _reading.known, known
    try:
        yield
    finally:
        _reading.known = before


def known_value(array: Any) -> np.ndarray | None:
    """Return the value of a variable that was read before its use, in ``reading_once``. `array` is what is stored."""
    return _reading.known.get(id(array))


def digest_of_names(names: Iterable[str]) -> str:
    """Return a text that says how many names there are, and that differs for other names."""
    found = list(names)
    return f"{len(found)} variables ({zlib.crc32(chr(10).join(found).encode()):08x})"


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Let the workers meet once for all that they read in the ``with`` block. `what` is the same on all workers.

    Raises:
        WorkerLostError: If another worker does not come, has ended or has failed.
        WorkerMismatchError: If another worker does something else, or has gone on with the next step.
    """
    world = _bootstrap.world()
    if world is not None and not _reading.met:
        try:
            problem = "The workers read variables at different times, so their slices do not belong together."
            world.agree(what, f"after {world.steps} steps", problem, before_next_step=True)
        except (WorkerLostError, WorkerMismatchError) as error:
            raise type(error)(f"{error}\n{_TOGETHER}") from None
    before, _reading.met = _reading.met, True
    try:
        yield
    finally:
        _reading.met = before


def note_cut(name: str, value: np.ndarray | str) -> None:
    """Note that this process has cut a value of its own. `value` is the value, or a digest of the program that makes it."""
    said = value if isinstance(value, str) else f"{zlib.crc32(np.ascontiguousarray(value).data):08x}"
    world = _bootstrap.world()
    if _cut.world is not world:  # the workers have formed a new group
        _cut.world = world
        _cut.lines.clear()
    _cut.lines.append(f"{name}: {said}")


def compare_cut(world: World) -> None:
    """Check that all workers have cut the same values since the last comparison. All workers call it before a step.

    Raises:
        WorkerMismatchError: If they have not.
    """
    if not _cut.lines or _cut.world is not world:
        return
    mine = list(_cut.lines)
    _cut.lines.clear()
    said = world.exchange("large variables", "\n".join(mine))
    if len(set(said)) > 1:
        raise WorkerMismatchError(
            table_of(
                "The workers have cut different values into slices. Give variables of 16 MiB and more the same values on all "
                "workers: call keras.utils.set_random_seed(n) with the same n before the model is made, and load the same files.",
                {world.name_of(rank): _first_unlike(text.split("\n"), said) for rank, text in enumerate(said)},
            )
        )


def _first_unlike(lines: Sequence[str], said: Sequence[str]) -> str:
    others = [set(text.split("\n")) for text in said]
    return next((line for line in lines if not all(line in other for other in others)), f"{len(lines)} variables")
