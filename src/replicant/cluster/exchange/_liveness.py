"""One worker watches the heartbeats of all workers, and tells the others what it has found.

This is the chief. If nothing is heard from it for a few beats, the worker with the next rank watches meanwhile. So a worker makes
two requests per beat, and what it reads does not grow with the number of workers. Nothing here reads the clock: the time is an
argument.
"""

import dataclasses
import json
import time
from collections.abc import Collection, Mapping

_PATIENCE = 3  # times that rank 1 reads unchanged news before it watches itself; one more time for every two further ranks


@dataclasses.dataclass(frozen=True)
class News:
    """What one worker has found out about all workers.

    Args:
        by: The rank of this worker.
        number: The number of this news.
        silent: The seconds without a heartbeat, by rank, of workers that have been silent for too long.
        failed: Some of the ranks whose programs have failed.
        leave: Whether a worker was asked to leave.
    """

    by: int = -1
    number: int = 0
    silent: Mapping[int, float] = dataclasses.field(default_factory=dict)
    failed: Collection[int] = ()
    leave: bool = False

    def text(self) -> str:
        """The text that the others read."""
        silent = {str(rank): seconds for rank, seconds in self.silent.items()}
        return json.dumps([self.by, self.number, silent, [*self.failed], self.leave])

    @classmethod
    def parse(cls, text: str) -> "News":
        """Make the news from such a text: the inverse of `text`."""
        by, number, silent, failed, leave = json.loads(text)
        return cls(by, number, {int(rank): seconds for rank, seconds in silent.items()}, failed, leave)


class Lookout:
    """One worker's part in watching all workers.

    Args:
        rank: The rank of this worker.
        num_workers: The number of all workers.
        silence: The seconds without a heartbeat after which a worker counts as silent.
        now: The time now. By default that of the monotonic clock.
    """

    def __init__(self, rank: int, num_workers: int, silence: float, now: float | None = None):
        self._rank, self._silence = rank, silence
        now = time.monotonic() if now is None else now
        # The number of each worker's last heartbeat, and when it was seen.
        self._seen: dict[int, tuple[int, float]] = dict.fromkeys(range(num_workers), (-1, now))
        self._number = 0
        self._heard: dict[int, int] = {}  # the number of the last news of each worker
        self._unchanged = 0  # how many times in a row it has been the same
        self.looks = rank == 0  # whether this worker watches, and tells the others
        self.news = News()

    def hear(self, text: str | None) -> None:
        """Take in the latest news, or None if there is none so far. What was news before is none, though somebody may repeat it."""
        news = News() if text is None else News.parse(text)
        if news.number <= self._heard.get(news.by, 0):
            self._unchanged += 1
            if self._unchanged >= _PATIENCE + self._rank // 2 and not self.looks:
                self.looks = True
        else:
            self._heard[news.by], self._unchanged = news.number, 0
            if news.by != self._rank and not (self.looks and news.by > self._rank):
                self.looks, self.news = self._rank == 0, news

    def look(self, beats: Mapping[int, str], ended: Collection[int], failed: Collection[int], leave: bool, now: float) -> News:
        """Make news from the last heartbeat of each worker, and from what is known about those that have ended or failed.

        A heartbeat begins with its number. One that is not higher than before is no sign of life: somebody may repeat old ones.
        """
        for rank, text in beats.items():
            number = int(text.split()[0])
            if rank in self._seen and number > self._seen[rank][0]:
                self._seen[rank] = (number, now)
        silent = {
            rank: round(now - since, 1)
            for rank, (_, since) in self._seen.items()
            if now - since > self._silence and rank not in ended and rank != self._rank
        }
        self._number += 1
        self.news = News(self._rank, self._number, silent, sorted(failed)[:2], leave)
        return self.news
