"""Writes one checkpoint with several workers: each writes its parts into the folder that the chief has made.

The chief writes the manifest last, once all workers have said that their parts are there, and then gives the folder its name. So
nothing counts before everything is there. What one worker says, all hear, so all raise an error if one of them fails.
"""

import contextlib
import json
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from ...cluster.exchange._world import World
from ...errors import CheckpointError, WorkerLostError, WorkerMismatchError
from ..folders._locations import Place, appearing, created
from ..format._files import open_file
from ..format._parts import Parts, joined, part_name
from ..format._storage import fill, telling_what_failed
from . import _chief

SEEN_SECONDS = 10.0  # until a file that another worker has made must be visible; a network file system may need a moment
_PAUSE_SECONDS = 0.05

_SHARE = "All workers must save to a folder that they share, such as one on a network file system."


class Together:
    """One checkpoint, as each worker writes it.

    Args:
        world: The workers.
        path: The folder of the checkpoint, which must not exist.
        folder: The chief's name for the folder until then.
    """

    def __init__(self, world: World, path: Place, folder: Place):
        self._world, self._path, self._folder = world, path, folder
        self._number = 0
        self._num_bytes = 0  # what the worker with the most has to write

    @property
    def name(self) -> str:
        """The name of the exchanges, of which there is one for each checkpoint."""
        return f"checkpoint-{zlib.crc32(str(self._folder).encode()):08x}"

    def write(self, meta: dict[str, Any], arrays: Mapping[str, Any], parts: Parts) -> None:
        """Write this worker's parts, and on the chief everything else. All workers call it, from any thread.

        Raises:
            CheckpointError: If a worker cannot write, or does not see what the others write. None of it is used then, unless it
                says that this is not known.
            WorkerLostError: If a worker does not come in time, has ended or has failed. The time grows with the bytes to write.
        """
        try:
            self._write(meta, arrays, parts)
        except (WorkerLostError, WorkerMismatchError):
            raise
        except Exception:
            with contextlib.suppress(WorkerLostError):  # all have failed, and none goes on before the chief has removed the folder
                self._say("all removed", "")
            raise

    def _write(self, meta: dict[str, Any], arrays: Mapping[str, Any], parts: Parts) -> None:
        is_chief = self._world.is_chief
        own = parts.num_bytes + sum(array.nbytes for array in arrays.values())
        self._num_bytes = max(map(int, self._say("its size", str(own))))
        with contextlib.ExitStack() as made:
            self._step("its folder", lambda: self._begin(made) if is_chief else None)
            self._step("its parts", lambda: self._write_parts(parts))
            self._step("its manifest", lambda: (self._finish(meta, arrays, parts), made.close()) if is_chief else None)

    def _begin(self, made: contextlib.ExitStack) -> None:
        self._folder = made.enter_context(appearing(self._path, self._folder))

    def _step(self, what: str, do: Callable[[], Any]) -> None:
        """Do this worker's share of a step, and wait for the others to have done theirs."""
        problem: Exception | None = None
        try:
            with telling_what_failed(self._path):
                do()
        except Exception as error:  # noqa: BLE001 - raised below, once the others know
            problem = error
        said = self._say(what, "" if problem is None else f"{type(problem).__name__}: {problem}")
        if problem is not None:
            raise problem
        failed = {self._world.name_of(rank): each for rank, each in enumerate(said) if each}
        if failed:
            told = "; ".join(f"{name}: {each}" for name, each in failed.items())
            raise CheckpointError(f"Not all workers could write the checkpoint {self._path}. {told}")

    def _say(self, what: str, text: str) -> list[str]:
        """Return what all workers say."""
        number, self._number = self._number, self._number + 1
        seconds = _chief.patience(self._world, self._num_bytes)
        advice = (
            f"No worker has more than {self._num_bytes} bytes to write. So this one, which still lives, writes less than "
            f"{_chief.LEAST_SPEED} bytes per second, or its disk does not answer. To wait longer, set REPLICANT_EXCHANGE_TIMEOUT."
        )
        label = f"the checkpoint {self._path.name}: {what}"
        return self._world.exchange.collect(self.name, number, label, text, seconds, advice=advice)

    def _write_parts(self, parts: Parts) -> None:
        me = self._world.name_of(self._world.process_id)
        if not _comes(self._folder):
            raise CheckpointError(
                f"{me} does not see the folder {self._folder}, which {self._world.name_of(0)} has made for the checkpoint. {_SHARE}"
            )
        written = parts.write(self._folder, me)
        with created(self._folder / _list_name(self._world.process_id)) as stream:
            stream.write(json.dumps(written).encode())

    def _finish(self, meta: dict[str, Any], arrays: Mapping[str, Any], parts: Parts) -> None:
        """Check that all parts are there, and write the rest."""
        written = [self._list_of(rank) for rank in range(self._world.num_processes)]
        everything = joined(written)
        for part in everything["parts"]:
            file = self._folder / part_name(part["number"])
            if not _comes(file) or file.stat().st_size != part["num_bytes"]:
                raise self._unseen(file, part["writer"])
        fill(self._folder, meta, arrays, parts.records(everything))

    def _list_of(self, rank: int) -> Any:
        file = self._folder / _list_name(rank)
        if not _comes(file):
            raise self._unseen(file, self._world.name_of(rank))
        with open_file(file) as stream:
            written = json.loads(stream.read())
        file.unlink()
        return written

    def _unseen(self, file: Place, writer: str) -> CheckpointError:
        return CheckpointError(f"{writer} has written {file}, but {self._world.name_of(0)} does not see it. {_SHARE}")


def _list_name(rank: int) -> str:
    """The name of the file in which a worker leaves the records of its parts for the chief."""
    return f"parts-of-worker-{rank}.json"


def _comes(path: Place) -> bool:
    """Whether `path` is there, or appears soon."""
    deadline = time.monotonic() + SEEN_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_SECONDS)
    return True
