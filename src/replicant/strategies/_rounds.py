"""The rounds of local SGD: k steps of each worker by itself, and then an outer step of all workers.

The outer step moves the weights by the workers' changes since the last one: their mean, weighted by the number of examples that
each worker has trained on. This mean is the negative gradient of an outer SGD, which may have momentum. The workers first say over
the coordination service how many examples they have seen, so a worker that does not come is named; then one exchange sums the
changes.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..checkpoint._objects import register_parts
from ..cluster._claims import table_of
from ..cluster._world import World
from ..errors import ArgumentError, ArgumentTypeError, WorkerMismatchError
from ..replicas._values import is_distributed
from ..variables._known import is_variable, ref_of
from ..variables._variable import Variable
from ._outer_step import OuterStep, SumsOfWorkers

_BEGUN, _ROUND, _STEPS, _ROWS = range(4)  # what `counts` holds

Read = Callable[[], list[np.ndarray]]
Write = Callable[[list[np.ndarray]], None]


class Rounds:
    """The rounds of local SGD for some variables. Make them with ``LocalSGDStrategy.rounds``.

    A ``Checkpoint`` saves and restores them, also in the middle of a round: the weights after the last outer step, the outer
    momentum, and the counts of the round.

    Args:
        variables: The variables: those that are trained, and what else the model has.
        local_steps: The number of steps of a round.
        outer: The outer step.
        world: The workers; None for one.
    """

    def __init__(self, variables: Sequence[Any], local_steps: int, outer: OuterStep, world: World | None):
        wrong = [each for each in variables if not is_variable(each)]
        if wrong:
            raise ArgumentTypeError(f"rounds: variables must be variables; got {wrong[0]!r} of type {type(wrong[0]).__name__}.")
        unique = list({ref_of(each): each for each in variables}.values())
        floats = [each for each in unique if jnp.issubdtype(ref_of(each).dtype, jnp.floating) and not ref_of(each).on_read]
        self.trained = [each for each in floats if ref_of(each).trainable]
        self.averaged = [each for each in floats if not ref_of(each).trainable]
        if not self.trained:
            raise ArgumentError(
                f"rounds: none of the {len(unique)} variables is trainable and a float, so there is nothing to average. Pass "
                "model.variables, after the model is built."
            )
        self._local_steps, self._outer, self._world = local_steps, outer, world
        self.question: Callable[[], bool] = bool  # asked on the chief at each outer step, and answered to all workers
        self.answer = False  # whether the answer was yes since this was last set
        self._sums = SumsOfWorkers(world)
        self._anchor = [Variable(np.zeros(ref_of(each).shape, ref_of(each).dtype), trainable=False) for each in self.trained]
        self._momentum = [
            Variable(np.zeros(ref_of(each).shape, np.float32), trainable=False) for each in self.trained if outer.momentum
        ]
        self._counts = Variable(np.zeros(4, np.int32), trainable=False)

    @property
    def world(self) -> World | None:
        """The workers; None for one."""
        return self._world

    def digest(self) -> str:
        """Return a digest of the weights and the momentum after the last outer step, which all workers have."""
        summed = hashlib.blake2b(digest_size=16)
        for variable in (*self._anchor, *self._momentum):
            summed.update(np.ascontiguousarray(variable.numpy()).view(np.uint8).data)
        return summed.hexdigest()

    @property
    def num_rounds(self) -> int:
        """The number of outer steps so far."""
        return self._count(_ROUND)

    @property
    def num_steps(self) -> int:
        """The number of steps since the last outer step."""
        return self._count(_STEPS)

    def over(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield this worker's batches, and take the outer steps between them, and one at the end.

        A worker whose batches have ended takes part in the others' outer steps, with no weight, until all have ended. Batches
        without rows are left out. All workers must call this.

        Args:
            batches: Batches of this worker, such as a distributed dataset. Each leaf has the examples along its first axis.

        Raises:
            WorkerLostError: If another worker does not come to an outer step.
            WorkerMismatchError: If another worker is in another round.
        """
        self.begin(self.values, self.assign)
        self.end_if_complete(self.values, self.assign)
        for batch in batches:
            num_rows = rows_of(batch)
            self.count(num_rows)  # before the step, so that a checkpoint after it, in the loop, has counted it
            if num_rows:
                yield batch
            self.end_if_complete(self.values, self.assign)
        self.finish(self.values, self.assign)

    # What `fit` does one after the other, which has the values of variables elsewhere.

    def begin(self, read: Read, write: Write) -> None:
        """Give all workers the chief's values before the first step."""
        if self._count(_BEGUN):
            return
        values = read()
        told = self._exchange("begin", {"shapes": [[list(x.shape), str(x.dtype)] for x in values]})
        if any(each["shapes"] != told[0]["shapes"] for each in told):
            rows = {self._name_of(rank): str(each["shapes"])[:300] for rank, each in enumerate(told)}
            raise WorkerMismatchError(table_of("The workers' variables differ. All must make the same model.", rows))
        is_chief = self._world is None or self._world.is_chief
        values = self._sums.of([x if is_chief else np.zeros_like(x) for x in values])
        write(values)
        self._keep(values)
        self._counts.assign(np.array([1, 0, 0, 0], np.int32))

    def count(self, num_rows: int) -> None:
        """Count a step on so many examples."""
        counts = np.array(self._counts.numpy(), copy=True)
        counts[_STEPS] += 1
        counts[_ROWS] += num_rows
        self._counts.assign(counts)

    def end_if_complete(self, read: Read, write: Write) -> None:
        """Take the outer step if the round is complete."""
        if self._count(_STEPS) >= self._local_steps:
            self._step(read, write, done=False)

    def finish(self, read: Read, write: Write) -> None:
        """End the round, however many steps it has, and wait until all workers have ended theirs."""
        while not self._step(read, write, done=True):
            pass

    def _step(self, read: Read, write: Write, *, done: bool) -> bool:
        """Take the outer step, unless no worker has trained. Return whether all workers are done."""
        number = self._count(_ROUND)
        own = {"rows": self._count(_ROWS), "done": done, "round": number, "yes": self.question()}
        told = self._exchange(f"round {number}", own)
        self.answer |= told[0]["yes"]
        total = sum(each["rows"] for each in told)
        if total:
            share = self._count(_ROWS) / total
            values, anchor = read(), [np.array(each.numpy()) for each in self._anchor]
            parts = [_wide(x) - _wide(before) for x, before in zip(values, anchor, strict=False)]
            parts += [_wide(x) for x in values[len(anchor) :]]
            parts = [x * np.asarray(share, x.dtype) if share else np.zeros_like(x) for x in parts]
            means = self._sums.of(parts)
            momentum = [np.array(each.numpy()) for each in self._momentum]
            moved, momentum = self._outer.step(anchor, means[: len(anchor)], momentum)
            moved += [x.astype(value.dtype) for x, value in zip(means[len(anchor) :], values[len(anchor) :], strict=True)]
            write(moved)
            self._keep(moved)
            for variable, value in zip(self._momentum, momentum, strict=True):
                variable.assign(value)
        self._counts.assign(np.array([1, number + 1, 0, 0], np.int32))
        return all(each["done"] for each in told)

    def _exchange(self, what: str, told: dict[str, Any]) -> list[dict[str, Any]]:
        if self._world is None:
            return [told]
        texts = [json.loads(text) for text in self._world.exchange("local SGD", json.dumps([what, told]))]
        if any(theirs != what for theirs, _ in texts):
            rows = {self._name_of(rank): theirs for rank, (theirs, _) in enumerate(texts)}
            raise WorkerMismatchError(
                table_of(
                    "The workers are in different rounds of local SGD. Restore checkpoints of the same round on all workers, and "
                    "loop over the same number of datasets.",
                    rows,
                )
            )
        return [each for _, each in texts]

    def _name_of(self, rank: int) -> str:
        return f"worker {rank}" if self._world is None else self._world.name_of(rank)

    def _keep(self, values: list[np.ndarray]) -> None:
        for variable, value in zip(self._anchor, values, strict=False):
            variable.assign(value)

    def values(self) -> list[np.ndarray]:
        """Return the values of all variables, in the order in which `begin`, `count` and `finish` read and write them."""
        return [np.array(ref_of(each).get_raw()[0], copy=True) for each in (*self.trained, *self.averaged)]

    def assign(self, values: list[np.ndarray]) -> None:
        """Assign what `values` returns."""
        for variable, value in zip((*self.trained, *self.averaged), values, strict=True):
            variable.assign(value)

    def _count(self, which: int) -> int:
        return int(self._counts.numpy()[which])

    def parts(self) -> dict[str, Any]:
        """Return what a checkpoint saves, by name."""
        return {"weights": self._anchor, "momentum": self._momentum, "counts": self._counts}


register_parts(Rounds, lambda rounds: rounds.parts())


def rows_of(batch: Any) -> int:
    """Return the number of examples of a worker's batch: of its first leaf that has an axis, on all replicas."""
    for leaf in jax.tree.leaves(batch, is_leaf=is_distributed):
        each = [np.shape(x) for x in leaf.values] if is_distributed(leaf) else [np.shape(leaf)]
        if all(each):
            return sum(shape[0] for shape in each)
    raise ArgumentError(
        "A batch of local SGD has no array whose first axis holds the examples, so it is not known how many it has."
    )


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.promote_types(x.dtype, np.float32) if x.dtype.kind == "f" else np.float32)
