"""Gives all workers the chief's values of variables that lie in each worker's own memory.

These are the initial values, and the values that were assigned on the host. Before a program uses them, the workers compare which
variables they are about to use, and the chief sends its values to all. So copies never differ, whatever seeds were drawn.
"""

import base64
import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..cluster.exchange._world import World
from ..cluster.meeting._claims import table_of
from ..errors import WorkerMismatchError
from ..replicas._placement import Placement, is_local, on_all
from ..tracing.jaxprs._fingerprint import fingerprint, first_difference
from ._ref import Ref
from ._slices import compare_cut

_SMALL = 1 << 16  # at most so many bytes go with the text message
_MIN_WORDS, _MAX_WORDS = 1 << 14, 1 << 22  # in one broadcast; there are few sizes, so that few programs are compiled
_MAX_NAMED = 3  # variables named in one row of an error message


def adopt(refs: Sequence[Ref], placement: Placement) -> None:
    """Move the variables that lie in this process's memory to the devices, with the chief's values."""
    if placement.world is None:
        return
    compare_cut(placement.world)
    fresh = [ref for ref in refs if (raw := ref.get_raw()[0]) is not ref.owned and is_local(raw)]
    if not fresh:
        return
    made = [ref.fitting(placement) for ref in fresh]
    values = chiefs_values([(ref.name, np.asarray(value)) for ref, (value, _) in zip(fresh, made, strict=True)], placement)
    for ref, (_, home), value in zip(fresh, made, values, strict=True):
        ref.set_raw(placement.own(value, home), stacked=ref.copies(placement.num_replicas))
        ref.expose()


def chiefs_values(named: Sequence[tuple[str, np.ndarray]], placement: Placement) -> list[np.ndarray]:
    """Return the chief's values of these arrays. All workers must call it together.

    Raises:
        WorkerMismatchError: If the workers do not have equally many arrays, with the same shapes and dtypes.
    """
    world = placement.world
    assert world is not None, "only called where there are several workers"
    arrays = [array for _, array in named]
    data = np.frombuffer(b"".join(array.tobytes() for array in arrays), np.uint8)
    small = len(data) <= _SMALL
    specs = [[name, str(array.dtype), list(array.shape)] for (name, _), array in zip(named, arrays, strict=True)]
    mine = base64.b64encode(data.tobytes()).decode() if small and world.is_chief else ""
    answers = [json.loads(text) for text in world.exchange("variables", json.dumps([specs, mine]))]
    _check_alike([theirs for theirs, _ in answers], world)
    data = np.frombuffer(base64.b64decode(answers[0][1]), np.uint8) if small else _broadcast(data, placement)
    values, start = [], 0
    for array in arrays:
        values.append(data[start : start + array.nbytes].view(array.dtype).reshape(array.shape))
        start += array.nbytes
    return values


def check_same_program(name: str, closed: Any, world: World) -> None:
    """Check that all workers have traced the same program, with the same constants. All workers must call it together.

    Raises:
        WorkerMismatchError: If they have not.
    """
    mine = fingerprint(closed)
    inputs = ", ".join(v.aval.str_short() for v in closed.jaxpr.invars[-_MAX_NAMED:])
    kind = f"{name}: {mine.num_operations} operations ({mine.digest}) on {len(closed.jaxpr.invars)} inputs"
    texts = world.exchange("program", f"{kind}, the last of them {inputs}")
    if len(set(texts)) == 1:
        return
    lines = first_difference(mine, partial(world.exchange, "operations"))
    rows = {world.name_of(rank): text for rank, text in enumerate(texts)}
    first = table_of("", {world.name_of(rank): line for rank, line in enumerate(lines)})
    raise WorkerMismatchError(
        table_of(
            "The workers have traced different programs. They must run the same code on arguments of the same shapes and dtypes, "
            "with the same Python values and random seeds, and the arrays that the code captures must be equal.",
            rows,
        )
        + (f"\nThe first operation that differs:{first}" if lines else "")
    )


def _check_alike(specs_of_workers: list[Any], world: World) -> None:
    kinds = [[spec[1:] for spec in specs] for specs in specs_of_workers]
    if all(kind == kinds[0] for kind in kinds):
        return
    rows = {}
    for rank, specs in enumerate(specs_of_workers):
        others = [kind for kind in kinds if kind != kinds[rank]]
        differing = [
            f"{name} {dtype}{shape}"
            for i, (name, dtype, shape) in enumerate(specs)
            if any(i >= len(other) or other[i] != [dtype, shape] for other in others)
        ]
        more = f" and {len(differing) - _MAX_NAMED} more" if len(differing) > _MAX_NAMED else ""
        listing = f"; differing: {', '.join(differing[:_MAX_NAMED])}{more}" if differing else ""
        rows[world.name_of(rank)] = f"{len(specs)} variable(s) to place{listing}"
    raise WorkerMismatchError(
        table_of(
            "The workers are about to use different variables. Build the same model on all workers, and if you assign variables "
            "outside of steps, do so on all workers.",
            rows,
        )
    )


def _broadcast(data: np.ndarray, placement: Placement) -> np.ndarray:
    """Return the chief's bytes. `data` has the same size on all workers."""
    padded = np.concatenate([data, np.zeros(-len(data) % 4, np.uint8)]).view(np.uint32)
    parts, start = [], 0
    while start < len(padded):
        left = len(padded) - start
        size = min(_MAX_WORDS, max(_MIN_WORDS, 1 << (left - 1).bit_length()))
        part = np.zeros(size, np.uint32)
        part[: min(size, left)] = padded[start : start + size]
        parts.append(_first_row(part, placement)[: min(size, left)])
        start += size
    return np.concatenate(parts).view(np.uint8)[: len(data)]


def _first_row(part: np.ndarray, placement: Placement) -> np.ndarray:
    """Return replica 0's numbers on all workers, as a sum to which the other replicas add zeros."""
    rows = [part if replica == 0 else np.zeros_like(part) for replica in placement.local_ids]
    stacked = placement.stack_local(rows)
    return np.asarray(on_all(_sum_rows, stacked))


def _sum_rows(stacked: jax.Array) -> jax.Array:
    return jnp.sum(stacked, axis=0, dtype=stacked.dtype)
