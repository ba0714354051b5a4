"""How fast elements arrive, and how long the consumer waits for them."""

import dataclasses
import time


@dataclasses.dataclass(frozen=True)
class InputStats:
    """Measurements of an iterator, from the first request to the last answer.

    Args:
        num_steps: The number of elements returned.
        num_examples: The number of rows in them that belong to this worker's replicas.
        seconds: The time from the first request to the last answer.
        seconds_waiting: The part of that time in which the consumer waited for input.
        num_ready: The number of elements that wait for the consumer now.
        buffer_size: The largest number of elements that may wait.
        num_skipped: The number of records that were left out, because they could not be read by a reader with
            ``on_error="skip"``, or were too long for ``pack_sequences(policy="drop")``. Records of elements that wait for the
            consumer count, too.
    """

    num_steps: int
    num_examples: int
    seconds: float
    seconds_waiting: float
    num_ready: int
    buffer_size: int
    num_skipped: int = 0

    @property
    def examples_per_second(self) -> float:
        """Rows of this worker per second; 0 before the first element."""
        return self.num_examples / self.seconds if self.seconds else 0.0

    @property
    def share_waiting(self) -> float:
        """The part of the time in which the consumer waited for input, from 0 to 1."""
        return self.seconds_waiting / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        return (
            f"{self.num_steps} steps, {self.num_examples:,} examples, {self.examples_per_second:,.0f} examples/s, "
            f"waiting for input {self.share_waiting:.1%} of the time ({self.seconds_waiting:.3f} s), "
            f"{self.num_ready} of {self.buffer_size} elements ready"
            f"{f', {self.num_skipped:,} records skipped' if self.num_skipped else ''}"
        )


class Meter:
    """Measures with two looks at the clock per element."""

    def __init__(self) -> None:
        self.num_steps = self.num_examples = 0
        self.first = self.asked = self.last = 0.0
        self.waiting = 0.0

    def ask(self) -> None:
        """Note that the consumer begins to wait."""
        self.asked = time.perf_counter()
        self.first = self.first or self.asked

    def answer(self, num_examples: int) -> None:
        """Note that the consumer gets an element with `num_examples` rows."""
        self.last = time.perf_counter()
        self.waiting += self.last - self.asked
        self.num_steps += 1
        self.num_examples += num_examples

    def stats(self, num_ready: int, buffer_size: int, num_skipped: int = 0) -> InputStats:
        """Return what was measured so far."""
        return InputStats(
            self.num_steps,
            self.num_examples,
            self.last - self.first if self.num_steps else 0.0,
            self.waiting,
            num_ready,
            buffer_size,
            num_skipped,
        )
