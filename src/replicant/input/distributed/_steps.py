"""The steps of a pass, as one worker sees them: what it has for each, and who decides after which the pass is over.

Workers that each read their own data may have to agree on that as they go, on several steps at a time. At the beginning of a block,
every worker reports the batches that it has ready: how many there are, of which form, and whether its data ends after them. The
block is as long as the shortest of these reports. So a fast input costs one exchange for many steps, a slow one costs one for each
step, and no worker waits for more than its next batch.
"""

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from ...errors import DatasetError
from ..graph._background import END, Background
from ._agreement import ExchangeFn
from ._shares import Share

_MOST_STEPS = 16  # in a block
_SMALL_BYTES = 2 << 20  # batches up to this size may wait in the number of a block's steps
_MOST_BYTES = 32 << 20  # of batches that wait, apart from the first ones

_MORE, _ENDED, _FAILED = "more", "ended", "failed"


# This worker's result for a step, `END` if it has none; and what all workers have reported about the step, if they have.
Step: TypeAlias = tuple[Any, Sequence[Any] | None]


class Steps(Protocol):
    """The steps of a pass. `OwnSteps`, `CountedSteps` and `AgreedSteps` differ in who decides on its end."""

    def next(self, step: int) -> Step | None:
        """Return what this worker has for a step, or None if the pass is over before it."""
        ...


class OwnSteps:
    """All workers end where this one does.

    Args:
        take: Returns this worker's next result, or `END`.
    """

    def __init__(self, take: Callable[[], Any]) -> None:
        self._take = take

    def next(self, step: int) -> Step | None:
        """Return the next result, or None at the end."""
        del step
        item = self._take()
        return None if item is END else (item, None)


class CountedSteps:
    """The workers have agreed on the number of steps before the first one.

    Args:
        before: Returns what this worker has for a step before the end, if anything.
        take: Returns this worker's next result behind the end, which should be `END`.
        num_steps: The number of steps.
    """

    def __init__(self, before: Callable[[int], Step | None], take: Callable[[], Any], num_steps: int) -> None:
        self._before, self._take, self._num_steps = before, take, num_steps
        self._has_more: bool | None = None  # not known before the end

    def next(self, step: int) -> Step | None:
        """Return what this worker has for a step, or None at the end.

        Raises:
            DatasetError: If this worker has results for more steps than it has promised.
        """
        if step < self._num_steps:
            return self._before(step)
        if self._has_more is None:
            self._has_more = self._take() is not END
        if self._has_more:
            raise DatasetError(
                f"The dataset has more than the {self._num_steps} steps that its cardinality promised to the other workers. "
                "It may have changed since it was built: build it again."
            )
        return None


class AgreedSteps:
    """This worker's batches, and what the other workers reported about theirs.

    Args:
        reader: Reads this worker's batches ahead, as a `Share` each, or as what it has placed.
        nothing: Returns a step without rows. Raises DatasetError if this worker cannot know it.
        exchange: Exchanges values with the other workers.
        placed: Whether the reader places batches, so that the others need not know anything of them.
        ahead: How many batches it usually keeps ready.
    """

    def __init__(self, reader: Background, nothing: Callable[[], Share], exchange: ExchangeFn, *, placed: bool, ahead: int) -> None:
        self._reader, self._nothing, self._exchange = reader, nothing, exchange
        self._placed, self._most_ahead = placed, max(ahead, _MOST_STEPS)
        self._items: deque[Any] = deque()
        self._num_bytes = 0
        self._then = _MORE
        self._error: Exception | None = None  # raised by the reader
        self._told_error: Exception | None = None  # known to all workers, so there are no more exchanges
        self._is_over = False  # after the steps that are left
        self._forms: deque[tuple[Any, ...]] = deque()  # of all workers, for each step that is left of the block

    def next(self, step: int) -> Step | None:
        """Return this worker's batch for a step (`END` if it has none) and the forms of all; None once no worker has one.

        Raises:
            Exception: What the reader raised, on this call and every later one.
            DatasetError: If another worker could not read its input.
        """
        if not self._forms:
            self._agree(step)
        if not self._forms:
            return None
        return self._pop() if self._items else END, self._forms.popleft()

    def own(self) -> Any:
        """Return this worker's next batch, or `END`, without asking the others."""
        self._fill()
        if self._items:
            return self._pop()
        if self._error is not None:
            raise self._error
        return END

    def _pop(self) -> Any:
        item = self._items.popleft()
        self._num_bytes -= self._size_of(item)
        return item

    def _fill(self) -> None:
        """Take at least one batch, and all that are ready."""
        while self._then == _MORE and (not self._items or (self._has_room() and self._reader.is_ready)):
            try:
                item = self._take()
            except Exception as error:  # noqa: BLE001 - raised in its step
                self._then, self._error = _FAILED, error
            else:
                if item is END:
                    self._then = _ENDED
                else:
                    self._items.append(item)
                    self._num_bytes += self._size_of(item)

    def _take(self) -> Any:
        item = self._reader.next()
        if item is not END and not self._placed and self._size_of(item) < _SMALL_BYTES:
            self._reader.keep(self._most_ahead)
        return item

    def _size_of(self, item: Any) -> int:
        return 0 if self._placed else item[0].num_bytes

    def _form_of(self, item: Any) -> Any:
        return None if self._placed else item[0].form()

    def _has_room(self) -> bool:
        return len(self._items) < _MOST_STEPS and self._num_bytes < _MOST_BYTES

    def _agree(self, step: int) -> None:
        if self._told_error is not None:
            raise self._told_error
        if self._is_over:
            return
        self._fill()
        told = self._told()
        answers = self._exchange(told)
        counts = [sum(count for count, _ in answer["runs"]) for answer in answers]
        going = [count for count, answer in zip(counts, answers, strict=True) if answer["then"] != _ENDED]
        length = min(going) if going else max(counts)
        if self._error is not None and not self._items:
            self._told_error = self._error
        elif "lacks" not in told or len(self._items) >= length:  # otherwise this worker has a message of its own
            self._told_error = _problem(answers, counts, length, step)
        if self._told_error is not None:
            raise self._told_error
        self._is_over = not going
        self._forms.extend(zip(*[_forms(answer, length) for answer in answers], strict=True))

    def _told(self) -> dict[str, Any]:
        runs = [[len(list(same)), form] for form, same in itertools.groupby(map(self._form_of, self._items))]
        told: dict[str, Any] = {"runs": runs, "then": self._then}
        if self._then == _ENDED:
            try:
                told["nothing"] = self._nothing().form()
            except DatasetError:
                told["lacks"] = True  # its own message comes when there is a step for it
        return told


def _problem(answers: Sequence[dict[str, Any]], counts: list[int], length: int, step: int) -> DatasetError | None:
    for worker, (answer, count) in enumerate(zip(answers, counts, strict=True)):
        if answer["then"] == _FAILED and not count:
            return DatasetError(
                f"Worker {worker} could not read its input at step {step}, so this worker cannot continue either. The message of "
                "that worker says why."
            )
        if answer.get("lacks") and count < length:
            return DatasetError(
                f"Worker {worker} has no element for step {step + count}, and cannot know what the others' elements look like, so "
                "this worker cannot continue either. The message of that worker says what to do."
            )
    return None


def _forms(answer: dict[str, Any], length: int) -> list[Any]:
    """What a worker reported about each step of a block."""
    forms = [form for count, form in answer["runs"] for _ in range(count)]
    return (forms + [answer.get("nothing")] * (length - len(forms)))[:length]
