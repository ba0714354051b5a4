"""Checks, when a dataset is distributed, that the workers which share it have the same one.

One exchange of digests says whether anything differs. Only then do more exchanges find the first difference.
"""

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import DatasetError
from .._options import AutoShardPolicy
from ..files.columns._arrow import TableRows
from ..graph._fingerprint import of_value
from ..graph._graph import Node, nodes
from ..sources._foreign import Foreign
from ..sources._sources import Rows
from ..transforms.memory._cache import Cache
from ._agreement import ExchangeFn, meet

_MAX_SIZES = 4096  # files whose sizes are looked up
_SAMPLE = 1 << 20  # bytes of an array's rows that are compared
_NUMBERS = 64  # floating-point numbers that are compared
_COLUMNS = 4096  # of a row, for its mean
_NEAR = 1e-3  # relative tolerance: another processor may round differently


@dataclasses.dataclass(frozen=True)
class Facts:
    """The facts that are compared about one worker's dataset."""

    policy: str
    files: list[str]
    pipeline: str
    arrays: list[tuple[str, str, list[float]]]  # description, fingerprint, and floating-point numbers

    def summary(self) -> dict[str, Any]:
        """Return the facts in a few bytes."""
        return {
            "policy": self.policy,
            "files": _digest(_shortened(self.files)),
            "sizes": _digest(self.sizes),
            "pipeline": _digest(self.pipeline),
            "arrays": [(_digest(what), exact, near) for what, exact, near in self.arrays],
        }

    @property
    def sizes(self) -> list[int | None]:
        """The sizes in bytes of the first files, None for those that do not exist here."""
        return [_size(name) for name in self.files[:_MAX_SIZES]]


def facts_of(node: Node, policy: AutoShardPolicy, files: list[str]) -> Facts:
    """Return the facts that are compared about this worker's dataset, whose sources name these files."""
    if policy in (AutoShardPolicy.OFF, AutoShardPolicy.HINT):
        return Facts(policy.name, [], "", [])
    if policy is AutoShardPolicy.FILE:
        return Facts(policy.name, files, "", [])
    rows = [each for each in nodes(node) if isinstance(each, Rows)]
    tables = [(each.label, table) for each in rows for table in each.tables if not _is_names(table, files)]
    # The ends of lists first: once they are equal, there are equally many values.
    columns = [(each.label, column) for each in nodes(node) if isinstance(each, TableRows) for column in each.arrays]
    tables += [(label, array) for label, column in columns for array in reversed(column)]
    share = max(2, _NUMBERS // max(1, sum(table.dtype.kind == "f" for _, table in tables)))
    arrays = [(label, *_of_table(table, share)) for label, table in tables]
    foreign = [each for each in nodes(node) if isinstance(each, Foreign)]
    arrays += [(each.label, each.digest, []) for each in foreign if each.digest is not None]
    return Facts(policy.name, files, _outline(node), arrays)


def check_same(exchange: ExchangeFn, find_facts: Callable[[], Facts]) -> None:
    """Raise on every worker unless all have the same dataset.

    Raises:
        DatasetError: If the datasets differ. The message names the first difference.
    """
    facts, told = meet(exchange, "say what its dataset reads", find_facts, Facts.summary)
    if len({each["policy"] for each in told}) > 1:
        raise DatasetError(
            f"The workers' datasets have different auto-shard policies: {_listed([each['policy'] for each in told])}. Set the same "
            "`options.experimental_distribute.auto_shard_policy` on all of them."
        )
    if len({each["files"] for each in told}) > 1:
        _raise_for_names(exchange, facts.files)
    if len({each["sizes"] for each in told}) > 1:
        _check_sizes(exchange, facts)
    if len({each["pipeline"] for each in told}) > 1:
        raise DatasetError(
            "The workers' datasets are not the same, although all workers read everything and each keeps its share of every batch: "
            f"{_listed([each['text'] for each in exchange({'text': facts.pipeline})])}. Build the same pipeline on all workers, "
            "independent of the worker's number, or make each worker's share in `strategy.distribute_datasets_from_function(fn)`."
        )
    _check_arrays(facts, [each["arrays"] for each in told])


def _raise_for_names(exchange: ExchangeFn, names: list[str]) -> None:
    """Find the first name that differs, in two exchanges of about the square root of the number of names each."""
    short = _shortened(names)
    size = max(1, math.isqrt(len(short)))
    size = max(each["size"] for each in exchange({"size": size}))
    told = exchange([_digest(short[start : start + size]) for start in range(0, len(short), size)])
    count = max(map(len, told))
    chunk = next(i for i in range(count) if len({each[i] if i < len(each) else None for each in told}) > 1)
    places = slice(chunk * size, (chunk + 1) * size)
    lists = exchange({"short": short[places], "names": names[places], "count": len(names)})
    number = next(i for i in range(size) if len({each["short"][i] if i < len(each["short"]) else None for each in lists}) > 1)
    shown = [repr(each["names"][number]) if number < len(each["names"]) else "nothing" for each in lists]
    raise DatasetError(
        f"The workers have different lists of files (names: {_listed([str(each['count']) for each in lists])}), so some examples "
        "would be read twice and others never. "
        f"The first difference is file number {places.start + number}: {_listed(shown)}. Give all "
        "workers the same names in the same order: sort what you list, as `sorted(glob.glob(pattern))` and `list_files` do, give "
        "functions that shuffle them the same seed, and make sure that every worker finds every file."
    )


def _check_sizes(exchange: ExchangeFn, facts: Facts) -> None:
    told = exchange(facts.sizes)
    for number, name in enumerate(facts.files[:_MAX_SIZES]):
        sizes = [each[number] for each in told]
        if len({size for size in sizes if size is not None}) > 1:
            shown = ["no file" if size is None else f"{size:,} bytes" for size in sizes]
            raise DatasetError(
                f"The workers have different files with the same name: {name!r} is {_listed(shown)}. Copy the data to every worker "
                "again; a file may be incomplete."
            )


def _check_arrays(facts: Facts, told: Sequence[list[tuple[str, str, list[float]]]]) -> None:
    for i, (what, _, _) in enumerate(facts.arrays):
        _, exact, near = told[0][i]
        for worker, theirs in enumerate(told):
            if theirs[i][1] != exact or not np.allclose(theirs[i][2], near, rtol=_NEAR, atol=0, equal_nan=True):
                raise DatasetError(
                    f"The workers hold different data: the values of {what} on worker {worker} differ from those on worker 0, "
                    "although all workers share every batch. Load and shuffle them in the same way on all workers (with a seed for "
                    "every permutation). Or set AutoShardPolicy.OFF if each worker loads its own part."
                )


def _of_table(table: np.ndarray, numbers: int) -> tuple[str, list[float]]:
    """The fingerprint and floating-point numbers of rows that are spread over an array."""
    count = len(table)
    if table.dtype.kind == "f" and table.size:
        chosen = np.linspace(0, count - 1, min(count, numbers)).astype(np.int64)
        rows = table[chosen].reshape(len(chosen), -1)
        means = np.abs(rows[:, :: -(-rows.shape[1] // _COLUMNS)].astype(np.float64)).mean(axis=1)
        return of_value([str(table.dtype), table.shape]), [_finite(mean) for mean in means.tolist()]
    fitting = max(2, _SAMPLE // max(1, table.nbytes // max(1, count)))
    rows = table if count <= fitting else table[np.linspace(0, count - 1, fitting).astype(np.int64)]
    return of_value([table.shape, rows]), []


def _finite(number: float) -> float:
    return float(f"{number:.6g}") if math.isfinite(number) else -1.0  # JSON has no infinity and no NaN


def _is_names(table: np.ndarray, files: list[str]) -> bool:
    return bool(files) and table.dtype.hasobject and all(map({*files}.__contains__, map(os.fsdecode, table.ravel().tolist())))


def _outline(node: Node) -> str:
    """Like `describe`, but without the names of cache files, which may differ between workers."""
    label = "cache" if isinstance(node, Cache) else node.label
    before = ", ".join(map(_outline, node.inputs))
    return f"{before if len(node.inputs) == 1 else f'({before})'} > {label}" if node.inputs else label


def _shortened(names: list[str]) -> list[str]:
    """The names relative to the folder that all of them are in, which workers may keep in different places."""
    before = os.path.commonprefix(names)  # noqa: RUF071 - cut at a folder below; names may be of any kind
    return [name[before.rfind("/") + 1 :] for name in names]


def _size(name: str) -> int | None:
    try:
        return os.path.getsize(name)  # noqa: PTH202 - names may be anything
    except (OSError, ValueError):
        return None


def _digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _listed(texts: Sequence[str]) -> str:
    return ", ".join(f"{text} on worker {worker}" for worker, text in enumerate(texts))
