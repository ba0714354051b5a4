"""How fast elements arrive, and how long the consumer waits for them."""

import dataclasses
import time
from collections.abc import Iterable, Mapping

from ...storage._counts import Counts
from ..graph._watch import Stage, Stages

_NOW = ("num_ready", "buffer_size", "seconds_waiting_by_stage", "epochs_by_source")  # not sums over time, or not single numbers


@dataclasses.dataclass(frozen=True)
class InputStats:
    """Measurements of an iterator, from the first request to the last answer.

    They are this worker's own, begin anew when the iterator is restored, and are not part of its position. Another measurement of
    the same iterator can be subtracted: ``after - before`` is what has come since.

    Args:
        num_steps: The number of elements returned.
        num_examples: The number of rows in them that belong to this worker's replicas.
        seconds: The time from the first request to the last answer.
        seconds_waiting: The part of that time in which the consumer waited for input.
        num_ready: The number of elements that wait for the consumer now.
        buffer_size: The largest number of elements that may wait.
        num_skipped: The number of records that were left out, because they could not be read by a reader with
            ``on_error="skip"``, were too long for ``pack_sequences(policy="drop")``, or are members of tar files that belong to no
            sample, and of the elements that ``ignore_errors`` left out. Records of elements that wait for the consumer count, too.
        num_file_bytes: Bytes that were read from files of this machine, compressed as they are there. Datasets of tables count the
            columns that they read. Files that functions open, those of folders of examples and of Hugging Face are not counted.
        num_store_bytes: Bytes that came from object stores, also ranges that were read ahead or came in vain.
        num_cache_hits: Ranges of files at URLs that the cache of this host had.
        num_cache_misses: Ranges that it was asked for and did not have.
        num_retries: Requests to object stores that were made again, because one before had failed.
        seconds_waiting_by_stage: The seconds in which the consumer waited while a stage worked, by the stage as `explain` shows
            it, in the order of the data. ``"placing"`` copies to the devices, and ``"other workers"`` is the exchange with them.
            Stages of one name are added up. A stage that was never waited for is left out, and so are the stages of arrays in
            memory, whose batches are made when they are asked for.
        epochs_by_source: How many passes over each source of ``sample_from_datasets`` or ``choose_from_datasets`` have been read
            since the beginning, also before the iterator was restored. Each source is called by its number. Of a source whose
            length is not known, whole passes of its ``repeat`` count, each as soon as the next one begins. Under FILE, these are
            passes over this worker's files, by its own whole batches.
    """

    num_steps: int
    num_examples: int
    seconds: float
    seconds_waiting: float
    num_ready: int
    buffer_size: int
    num_skipped: int = 0
    num_file_bytes: int = 0
    num_store_bytes: int = 0
    num_cache_hits: int = 0
    num_cache_misses: int = 0
    num_retries: int = 0
    seconds_waiting_by_stage: Mapping[str, float] = dataclasses.field(default_factory=dict)
    epochs_by_source: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __sub__(self, before: "InputStats") -> "InputStats":
        sums = [each.name for each in dataclasses.fields(self) if each.name not in _NOW]
        stages, earlier = self.seconds_waiting_by_stage, before.seconds_waiting_by_stage
        return dataclasses.replace(
            self,
            **{name: getattr(self, name) - getattr(before, name) for name in sums},
            seconds_waiting_by_stage={name: seconds - earlier.get(name, 0.0) for name, seconds in stages.items()},
        )

    def scalars(self, prefix: str = "input/") -> dict[str, float]:
        """Return the measurements as numbers with names, to be written with the loss, for example by ``replicant.summary.scalar``.

        >>> stats = InputStats(4, 256, 2.0, 0.5, 1, 2, seconds_waiting_by_stage={"map(decode)": 0.4})
        >>> stats.scalars()["input/seconds_waiting"], stats.scalars()["input/share_waiting"]
        (0.5, 0.25)
        >>> stats.scalars()["input/seconds_waiting/map(decode)"]
        0.4
        """
        names = [each.name for each in dataclasses.fields(self) if not each.name.endswith(("_by_stage", "_by_source"))]
        values = {name: float(getattr(self, name)) for name in [*names, "examples_per_second", "share_waiting"]}
        values |= {f"seconds_waiting/{stage}": seconds for stage, seconds in self.seconds_waiting_by_stage.items()}
        values |= {f"epochs/{source}": epochs for source, epochs in self.epochs_by_source.items()}
        return {prefix + name: value for name, value in values.items()}

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
            f"{''.join(self._rest())}"
        )

    def _rest(self) -> Iterable[str]:
        """What is only shown if there is any."""
        if self.num_skipped:
            yield f", {self.num_skipped:,} records skipped"
        for size, where in ((self.num_file_bytes, "files"), (self.num_store_bytes, "object stores")):
            if size:
                yield f", {size:,} bytes from {where}"
        if self.num_cache_hits or self.num_cache_misses:
            yield f", {self.num_cache_hits:,} of {self.num_cache_hits + self.num_cache_misses:,} ranges in the cache of the host"
        if self.num_retries:
            yield f", {self.num_retries:,} requests repeated"
        if self.seconds_waiting_by_stage:
            stage, seconds = max(self.seconds_waiting_by_stage.items(), key=lambda each: each[1])
            yield f", most of all for {stage} ({seconds:.3f} s)"
        if self.epochs_by_source:
            yield f", epochs by source {', '.join(f'{name}: {epochs:.2f}' for name, epochs in self.epochs_by_source.items())}"


class Meter:
    """Measures with two looks at the clock per element.

    Attributes:
        counts: What reading files has taken.
        stages: The stages of the pipelines.
        placing: The stage that copies to the devices.
        others: The stage that exchanges with other workers.
        skipped_before: The number of records that were left out in what has been read to its end.
    """

    def __init__(self) -> None:
        self._num_steps = self._num_examples = 0
        self._first = self._asked = self._last = 0.0
        self._waiting = 0.0
        self.counts, self.stages = Counts(), Stages()
        self.placing, self.others = Stage("placing"), Stage("other workers")
        self.skipped_before = 0

    def ask(self) -> None:
        """Note that the consumer begins to wait."""
        self._asked = time.perf_counter()
        self._first = self._first or self._asked

    def end(self) -> None:
        """Note that the consumer waits no longer: it gets an element, or an error, or hears that there is no more."""
        self._last = time.perf_counter()
        self._waiting += self._last - self._asked

    def answer(self, num_examples: int) -> None:
        """Note that the consumer gets an element with `num_examples` rows."""
        self.end()
        self._num_steps += 1
        self._num_examples += num_examples

    def stats(self, num_ready: int, buffer_size: int, num_skipped: int, epochs: Mapping[str, float]) -> InputStats:
        """Return what was measured so far."""
        by_stage: dict[str, float] = {}
        for stage in (*(stage for _, stage in self.stages), self.placing, self.others):
            if stage.waited:
                by_stage[stage.label] = by_stage.get(stage.label, 0.0) + stage.waited
        return InputStats(
            self._num_steps,
            self._num_examples,
            self._last - self._first if self._last else 0.0,  # the first element may still be waited for
            self._waiting,
            num_ready,
            buffer_size,
            self.skipped_before + num_skipped,
            self.counts.file_bytes,
            self.counts.store_bytes,
            self.counts.cache_hits,
            self.counts.cache_misses,
            self.counts.retries,
            by_stage,
            epochs,
        )
