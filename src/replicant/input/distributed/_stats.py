"""How fast elements come, and how long the consumer waits for them."""

import dataclasses
import time


@dataclasses.dataclass(frozen=True)
class InputStats:
    """What an iterator measured from the first request to the last answer.

    Args:
        num_steps: elements handed out.
        num_examples: rows in them, of this worker's replicas.
        seconds: from the first request to the last answer.
        seconds_waiting: of these, how long the consumer waited for input.
        num_ready: elements that wait for the consumer now.
        buffer_size: the most that may wait.
    """

    num_steps: int
    num_examples: int
    seconds: float
    seconds_waiting: float
    num_ready: int
    buffer_size: int

    @property
    def examples_per_second(self) -> float:
        """Rows of this worker per second; 0 before the first element."""
        return self.num_examples / self.seconds if self.seconds else 0.0

    @property
    def share_waiting(self) -> float:
        """Part of the time in which the consumer waited for input, from 0 to 1."""
        return self.seconds_waiting / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        return (
            f"{self.num_steps} steps, {self.num_examples:,} examples, {self.examples_per_second:,.0f} examples/s, "
            f"waiting for input {self.share_waiting:.1%} of the time ({self.seconds_waiting:.3f} s), "
            f"{self.num_ready} of {self.buffer_size} elements ready"
        )


class Meter:
    """Two looks at the clock per element."""

    def __init__(self) -> None:
        self.num_steps = self.num_examples = 0
        self.first = self.asked = self.last = 0.0
        self.waiting = 0.0

    def ask(self) -> None:
        """The consumer begins to wait."""
        self.asked = time.perf_counter()
        self.first = self.first or self.asked

    def answer(self, num_examples: int) -> None:
        """It gets an element with so many rows."""
        self.last = time.perf_counter()
        self.waiting += self.last - self.asked
        self.num_steps += 1
        self.num_examples += num_examples

    def stats(self, num_ready: int, buffer_size: int) -> InputStats:
        """What was measured so far."""
        return InputStats(
            self.num_steps,
            self.num_examples,
            self.last - self.first if self.num_steps else 0.0,
            self.waiting,
            num_ready,
            buffer_size,
        )
