"""The steps of workers that each read their own data, agreed upon several at a time.

At the beginning of a block every worker tells of the batches that lie ready there: how many, of which form, and whether its data
end after them. The block is as long as that is known of all. So a fast input costs one exchange for many steps, a slow one an
exchange for each, and nobody waits for more than its next batch.
"""

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from replicant.errors import DatasetError

from ..graph._background import END
from ._agreement import ExchangeFn

MOST_STEPS = 16  # of a block
_MOST_BYTES = 32 << 20  # of batches that wait, but for the first ones

_MORE, _ENDED, _FAILED = "more", "ended", "failed"


class AgreedSteps:
    """This worker's batches, and what the others have told of theirs.

    Args:
        take: gives this worker's next batch, or `END`; may wait.
        is_ready: whether `take` would not wait.
        form_of: what the others have to know of a batch, in JSON's types.
        form_of_nothing: of a step without rows. Raises DatasetError if this worker cannot know.
        size_of: a batch in bytes.
        exchange: with the other workers.
    """

    def __init__(
        self,
        take: Callable[[], Any],
        is_ready: Callable[[], bool],
        *,
        form_of: Callable[[Any], Any],
        form_of_nothing: Callable[[], Any],
        size_of: Callable[[Any], int],
        exchange: ExchangeFn,
    ) -> None:
        self._take, self._is_ready, self._exchange = take, is_ready, exchange
        self._form_of, self._form_of_nothing, self._size_of = form_of, form_of_nothing, size_of
        self._items: deque[Any] = deque()
        self._num_bytes = 0
        self._then = _MORE
        self._error: Exception | None = None  # of `take`
        self._told_error: Exception | None = None  # that all know of: nobody asks any more
        self._is_over = False  # once the steps that are left are made
        self._forms: deque[tuple[Any, ...]] = deque()  # of all workers, for each step that is left of the block

    def next(self, step: int) -> tuple[Any, Sequence[Any]] | None:
        """This worker's batch for a step, `END` if it has none, and the forms of all; None once no worker has one.

        Raises:
            Exception: what `take` raised; every time from then on.
            DatasetError: another worker could not read.
        """
        if not self._forms:
            self._agree(step)
        if not self._forms:
            return None
        return self._pop() if self._items else END, self._forms.popleft()

    def own(self) -> Any:
        """This worker's next batch, or `END`, without asking the others."""
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
        """Have one batch at least, and what lies ready."""
        while self._then == _MORE and (not self._items or (self._has_room() and self._is_ready())):
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

    def _has_room(self) -> bool:
        return len(self._items) < MOST_STEPS and self._num_bytes < _MOST_BYTES

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
        elif "lacks" not in told or len(self._items) >= length:  # else this worker has a message of its own
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
                told["nothing"] = self._form_of_nothing()
            except DatasetError:
                told["lacks"] = True  # its own message comes when there is a step for it
        return told


def _problem(answers: Sequence[dict[str, Any]], counts: list[int], length: int, step: int) -> DatasetError | None:
    for worker, (answer, count) in enumerate(zip(answers, counts, strict=True)):
        if answer["then"] == _FAILED and not count:
            return DatasetError(
                f"Worker {worker} could not read its input at step {step}, so this worker cannot go on either. That worker's own "
                "message says why."
            )
        if answer.get("lacks") and count < length:
            return DatasetError(
                f"Worker {worker} has no element for step {step + count}, and cannot know what the others' look like, so this "
                "worker cannot go on either. That worker's own message says what to do."
            )
    return None


def _forms(answer: dict[str, Any], length: int) -> list[Any]:
    """What a worker has told of each step of a block."""
    forms = [form for count, form in answer["runs"] for _ in range(count)]
    return (forms + [answer.get("nothing")] * (length - len(forms)))[:length]
