"""Fingerprints, part by part, of what a pipeline's elements depend on. Two pipelines with the same parts read the same."""

import dataclasses
import os
from collections.abc import Iterable, Sequence
from typing import Any

from ...errors import DatasetError
from ...storage._retry import RemoteError
from ...storage._store import facts_of
from ...storage._urls import is_url
from ..files._files import FileNames, ReadFiles
from ..graph._fingerprint import of_value
from ..graph._graph import Node, describe, nodes
from ..graph._structure import STRING, flatten
from ..sources._foreign import Foreign
from ..sources._sources import Rows
from ._whole_files import WholeFiles
from .mixtures._interleave import Interleave

# Fields that do not decide on the elements, or that positions contain: threads, counters, caches.
_NOT_COMPARED = {
    "inputs",
    "num_threads",
    "parallel",
    "alike",
    "strict",
    "entropy",
    "passes",
    "numbers",
    "iterations",
    "made_in_function",
    "store",
    "name",
    "tables",
    "make_dataset",
    "memory",
    "method",
}
_FUNCTIONS = ("fn", "predicate", "make", "key_func", "class_func")


def parts(node: Node) -> list[tuple[str, str]]:
    """Return, for each node from the sources on, descriptions and fingerprints of what is compared."""
    reads_files = any(isinstance(each, ReadFiles | Interleave | WholeFiles) for each in nodes(node))
    return [part for each in nodes(node) for part in _of_node(each, reads_files)]


def fingerprint(node: Node) -> str:
    """Return the fingerprint of a pipeline and its data, in 16 hexadecimal digits."""
    return of_value([describe(node), parts(node)])[:16]


def first_difference(ones: list[tuple[str, str]], others: list[tuple[str, str]]) -> str | None:
    """Return the first difference between two lists of parts of one pipeline, or None if there is none."""
    if len(ones) != len(others):
        return f"the numbers of what they depend on ({len(ones)} and {len(others)})"
    return next((what for (what, one), (_, other) in zip(ones, others, strict=True) if one != other), None)


def file_facts(names: Iterable[str], *, ask: bool = True) -> list[tuple[Any, ...]]:
    """Return file names with sizes in bytes and times in nanoseconds; only the name if the file does not exist.

    A file at a URL has a size and what its store calls the version of its contents. No store is asked unless ``ask`` is true.

    Raises:
        DatasetError: If a store does not answer.
    """
    facts: list[tuple[Any, ...]] = []
    names = list(names)
    remote = _remote_facts([name for name in names if is_url(name)] if ask else [])
    for name in names:
        if is_url(name):
            facts.append((name, *remote.get(name, ())))
            continue
        try:
            found = os.stat(name)  # noqa: PTH116 - names may be anything
            facts.append((name, found.st_size, found.st_mtime_ns))
        except (OSError, ValueError):
            facts.append((name,))
    return facts


def _are_files(table: Any) -> bool:
    """Whether texts that may be anything are URLs of files. Text that only mentions web pages must not lead to requests."""
    texts = [os.fsdecode(text) for text in table]
    return all(is_url(text) and not text.startswith(("http://", "https://")) for text in texts)


def _remote_facts(urls: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    try:
        found = facts_of(urls)
    except RemoteError as error:
        raise DatasetError(f"The files of the dataset: {error}.") from error
    return {url: () if facts is None else (facts.size, facts.identity) for url, facts in zip(urls, found, strict=True)}


def _of_node(node: Node, reads_files: bool) -> Iterable[tuple[str, str]]:
    if isinstance(node, Foreign):
        if node.digest is not None:
            yield f"the rows of {node.label}", node.digest
        return
    if isinstance(node, Rows):
        # One part for all columns: a label names all of them, so a part for each would take the square of their number.
        label = node.label
        yield f"the values of {label}", _together([of_value(table) for table in node.tables])
        leaves = zip(node.tables, flatten(node.spec)[0], strict=True)
        named = [table for table, leaf in leaves if reads_files and leaf.dtype == STRING and not leaf.shape]
        if named:
            asks = isinstance(node, FileNames)
            facts = [of_value(file_facts(map(os.fsdecode, each), ask=asks or _are_files(each))) for each in named]
            yield f"the files that {label} names, their sizes or their times", _together(facts)
    fields = [each.name for each in dataclasses.fields(node) if each.name not in _NOT_COMPARED]
    for name in (name for name in fields if name in _FUNCTIONS):
        yield f"the function of {node.label}: its code, its defaults or what it captures", of_value(getattr(node, name))
    settings = {name: getattr(node, name) for name in fields if name not in (*_FUNCTIONS, "spec", "structure", "form")}
    yield f"the settings of {node.label}", of_value(settings)


def _together(digests: list[str]) -> str:
    return digests[0] if len(digests) == 1 else of_value(digests)
