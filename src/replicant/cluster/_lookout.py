"""Who looks after everybody's signs of life: one worker, which tells the others what it has found.

That is the chief. Where nothing has been heard of it for some beats, the worker with the next rank does it meanwhile. So a worker
makes two requests per beat, and what it reads does not grow with the number of workers. Pure: the time is an argument.
"""

import dataclasses
import json
import time
from collections.abc import Collection, Mapping

_PATIENCE = 3  # unchanged news in a row before rank 1 looks by itself; one more for every two ranks


@dataclasses.dataclass(frozen=True)
class News:
    """What one worker has found out about all.

    by: its rank. number: of this news. silent: seconds without a sign of life, by rank, where these are too many. failed: some
    ranks whose programs have failed. leave: whether somebody was asked to leave.
    """

    by: int = -1
    number: int = 0
    silent: Mapping[int, float] = dataclasses.field(default_factory=dict)
    failed: Collection[int] = ()
    leave: bool = False

    def text(self) -> str:
        """As the others read it."""
        silent = {str(rank): seconds for rank, seconds in self.silent.items()}
        return json.dumps([self.by, self.number, silent, [*self.failed], self.leave])

    @classmethod
    def parse(cls, text: str) -> "News":
        """The opposite."""
        by, number, silent, failed, leave = json.loads(text)
        return cls(by, number, {int(rank): seconds for rank, seconds in silent.items()}, failed, leave)


class Lookout:
    """One worker's part in looking after all.

    Args:
        rank: of this worker.
        num_workers: of all.
        silence: seconds without a sign of life that are too many.
        now: what the clock shows.
    """

    def __init__(self, rank: int, num_workers: int, silence: float, now: float | None = None):
        self._rank, self._silence = rank, silence
        now = time.monotonic() if now is None else now
        self._seen: dict[int, tuple[str, float]] = dict.fromkeys(range(num_workers), ("", now))
        self._number = 0
        self._heard: str | None = None  # the news that was read last
        self._unchanged = 0  # how often in a row
        self.looks = rank == 0  # whether this worker looks, and tells the others
        self.news = News()

    def hear(self, text: str | None) -> None:
        """Take in the news that are there; None: there are none so far."""
        if text == self._heard:
            self._unchanged += 1
            if self._unchanged >= _PATIENCE + self._rank // 2 and not self.looks:
                self.looks = True
        else:
            self._heard, self._unchanged = text, 0
            news = News() if text is None else News.parse(text)
            if news.by != self._rank and not (self.looks and news.by > self._rank):
                self.looks, self.news = self._rank == 0, news

    def look(self, beats: Mapping[int, str], ended: Collection[int], failed: Collection[int], leave: bool, now: float) -> News:
        """What there is to tell, from everybody's last sign of life and from what is known of their ends."""
        for rank, text in beats.items():
            if rank in self._seen and self._seen[rank][0] != text:
                self._seen[rank] = (text, now)
        silent = {
            rank: round(now - since, 1)
            for rank, (_, since) in self._seen.items()
            if now - since > self._silence and rank not in ended and rank != self._rank
        }
        self._number += 1
        self.news = News(self._rank, self._number, silent, sorted(failed)[:2], leave)
        return self.news
