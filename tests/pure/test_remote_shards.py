"""Tar files and JSON Lines at URLs have exact positions and tell of changes."""

import io
import json
import tarfile

import fsspec
import pytest
import zstandard

from replicant.data import JsonLinesDataset, TarDataset
from replicant.errors import DatasetError


def put(name: str, data: bytes) -> str:
    fsspec.filesystem("memory").pipe(f"/shards/{name}", data)
    return f"memory://shards/{name}"


def tar_of(numbers: range) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for i in numbers:
            member = tarfile.TarInfo(f"{i:04}.txt")
            member.size = 3
            tar.addfile(member, io.BytesIO(b"%03d" % i))
    return file.getvalue()


def lines_of(numbers: range) -> bytes:
    return "".join(json.dumps({"n": i}) + "\n" for i in numbers).encode()


CASES = {
    "tar": (lambda r: put("a.tar", tar_of(r)), TarDataset, lambda element: int(element["txt"])),
    "jsonl": (lambda r: put("a.jsonl", lines_of(r)), JsonLinesDataset, lambda element: int(element["n"])),
    "zst": (lambda r: put("a.jsonl.zst", zstandard.compress(lines_of(r))), JsonLinesDataset, lambda element: int(element["n"])),
}


@pytest.mark.parametrize("kind", CASES)
def test_positions_are_exact_and_changes_are_told(kind: str) -> None:
    make, dataset, number = CASES[kind]
    url = make(range(9))
    iterator = iter(dataset(url))
    assert [number(next(iterator)) for _ in range(4)] == [0, 1, 2, 3]
    state = iterator.state()
    again = iter(dataset(url))
    again.restore(state)
    assert [number(element) for element in again] == [4, 5, 6, 7, 8]
    make(range(8))
    changed = iter(dataset(url))
    changed.restore(state)
    with pytest.raises(DatasetError, match="has changed since the position was saved"):
        next(changed)
