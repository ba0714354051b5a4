"""The backups of workers that train by themselves, between whose rounds they meet (``LocalSGDStrategy``).

Each worker saves in a folder of its own, and only where a round begins. There, all have the same weights. A worker that is lost may
have one backup less than the others, or two if the last one was still being written. So all go on from the newest one that
all of them have, and keep enough for that.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from ...checkpoint._meta import read_checked
from ...checkpoint._numbered import numbered_checkpoints, warn_passed_over
from ...checkpoint._places import Place, folders_in, place_at, reaching, remove
from ...cluster._world import World
from ...errors import CheckpointError, DamagedCheckpointError
from ...strategies._rounds import Rounds

MARK = "round"
_KEPT = 3  # the newest backups of a worker: others may have one or two less
_COMMON_KEPT = 2  # backups that all workers made at the same time, such as those before an epoch

_WORKER = re.compile(r"worker-(0|[1-9][0-9]*)")


@dataclasses.dataclass
class RoundsBackups:
    """The backups of one worker.

    Args:
        rounds: The rounds of the fit.
        prefix: What its backups are called, but for their numbers.
    """

    rounds: Rounds
    prefix: Place

    def __post_init__(self) -> None:
        self._common: list[int] = []  # the numbers of backups that all workers have, or are about to have

    @property
    def world(self) -> World | None:
        """The workers; None if there is only this one."""
        return self.rounds.world

    @property
    def may_save(self) -> bool:
        """Whether a round begins here."""
        return self.rounds.num_steps == 0

    @property
    def mark(self) -> list[Any]:
        """What tells the backups of one round of one training from all others: its number, and the weights at its beginning."""
        return [self.rounds.num_rounds, self.rounds.digest()]

    def note_common(self, number: int) -> None:
        """Note that all workers make this backup."""
        self._common = [*self._common, number][-_COMMON_KEPT:]

    def old(self, found: list[tuple[int, Place]]) -> list[Place]:
        """Return those of these backups, oldest first, that need not stay."""
        return [path for number, path in found[:-_KEPT] if number not in self._common]

    def candidates(self) -> list[str]:
        """Return this worker's paths of what may be restored, best first. All workers call this, and get as many.

        Those that every worker has come first, the newest at the beginning. Then come those that some have: a worker that is new,
        or has lost its folder, takes another one's. The weights are the same.
        """
        found = reversed(numbered_checkpoints(self.prefix))
        mine = [(*mark, str(path)) for number, path in found if (mark := _mark_of(number, path)) is not None]
        texts = [json.dumps(mine)] if self.world is None else self.world.exchange("backups", json.dumps(mine))
        of_workers = [_by_mark(json.loads(text)) for text in texts]
        rank = 0 if self.world is None else self.world.process_id
        known = {mark for each in of_workers for mark in each}
        common = {mark for mark in known if all(mark in each for each in of_workers)}
        order = [*sorted(common, reverse=True), *sorted(known - common, reverse=True)]
        return [of_workers[rank].get(mark) or next(each[mark] for each in of_workers if mark in each) for mark in order]

    def agree(self, path: Place, problem: CheckpointError | None) -> bool:
        """Return whether all workers could read their backups; False if some are damaged. All workers call this.

        Raises:
            CheckpointError: If a worker could not read its backup for another reason.
        """
        told = None if problem is None else [isinstance(problem, DamagedCheckpointError), str(problem)]
        if self.world is None:
            texts, names = [told], ["this worker"]
        else:
            texts = [json.loads(text) for text in self.world.exchange("backup", json.dumps(told))]
            names = [self.world.name_of(rank) for rank in range(len(texts))]
        failed = {name: each for name, each in zip(names, texts, strict=True) if each is not None}
        if all(is_damaged for is_damaged, _ in failed.values()):
            return not failed
        if problem is not None and len(failed) == len(texts):  # each worker tells its own, as for another model
            raise problem
        listing = "; ".join(f"{name}: {text}" for name, (_, text) in failed.items())
        raise CheckpointError(
            f"{len(failed)} of {len(texts)} workers cannot read the backup of the round that all should go on from, which on this "
            f"worker is {path}. {listing} A worker that has no backup of its own needs a backup_dir that it shares with the "
            "others. To begin anew, delete the backups."
        ) from problem

    def restored(self, path: Place) -> None:
        """Delete this worker's newer backups, which belong to steps that are taken again."""
        own = numbered_checkpoints(self.prefix)
        number = next((number for number, each in own if str(each) == str(path)), 0)
        self._common = [number]
        for each, newer in own:
            if each > number:
                remove(newer)

    def delete_others(self) -> None:
        """Delete the backups of workers that there were, on the chief."""
        if self.world is None or not self.world.is_chief:
            return
        with reaching():
            folders = [each for each in folders_in(self.prefix.parent.parent) if _is_of_lost(each.name, self.world.num_processes)]
        for folder in folders:
            for _, path in numbered_checkpoints(folder / self.prefix.name):
                remove(path)


def _is_of_lost(name: str, num_workers: int) -> bool:
    match = _WORKER.fullmatch(name)
    return match is not None and int(match[1]) >= num_workers


def _mark_of(number: int, path: Place) -> tuple[int, str] | None:
    """Return the mark of a backup; None if it is damaged."""
    try:
        mark = read_checked(path)["meta"]["extra"].get(MARK)
    except DamagedCheckpointError as error:
        warn_passed_over(path, error, stacklevel=5)
        return None
    if isinstance(mark, list) and len(mark) == 2 and type(mark[0]) is int and isinstance(mark[1], str):
        return mark[0], mark[1]
    return -1, str(number)


def _by_mark(listed: Iterable[tuple[int, str, str]]) -> dict[tuple[int, str], str]:
    """Return the newest path of each mark; `listed` has the newest first."""
    found: dict[tuple[int, str], str] = {}
    for number, weights, path in listed:
        found.setdefault((number, weights), path)
    return found


def read_first(backups: RoundsBackups, read: Callable[[Place], Any]) -> tuple[Place | None, Any]:
    """Return the first candidate that all workers can read, and what ``read(path)`` returns; (None, None) if there is none.

    Raises:
        CheckpointError: If there are some, but none is whole on all workers. Some have then assigned what they have read.
    """
    names = backups.candidates()
    for name in names:
        path, result, problem = place_at(name), None, None
        try:
            result = read(path)
        except CheckpointError as error:
            problem = error
        if backups.agree(path, problem):
            backups.restored(path)
            return path, result
        if isinstance(problem, DamagedCheckpointError):
            warn_passed_over(path, problem, stacklevel=3)
    if names and backups.world is not None:
        raise CheckpointError(
            f"None of the {len(names)} backups in {backups.prefix.parent} is whole on all {backups.world.num_processes} workers. "
            "To begin anew, delete the backups of all workers."
        )
    return None, None
