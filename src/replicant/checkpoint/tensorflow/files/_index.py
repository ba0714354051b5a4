"""The index of a bundle: which tensors there are, and where the bytes of each are."""

from itertools import pairwise
from typing import Any

from ...._protobuf import MessageError
from ....errors import CheckpointError
from ...format._boxes import Box, sizes_of
from ._cover import check_cover
from ._damage import damaged, reading, require, shown
from ._entry import Entry, box_in, check_shape, entry_of, header_of
from ._slice_key import SLICE_PREFIX, slice_key
from ._table import Table

_MAX_NAMES = 20  # in a message
_HEADER = b""  # the key of the header


class Index:
    """The parsed index of a bundle.

    Args:
        table: The table that holds it.

    Raises:
        CheckpointError: If it is damaged, or for readers of a newer version.
    """

    def __init__(self, table: Table):
        self.path = table.path
        records = dict(table.entries())
        with reading(self.path, " of the header"):
            require(_HEADER in records, self.path, "it has no header, the record with the empty key")
            self.header = header_of(self.path, records.pop(_HEADER))
        found = {key: _parsed(self.path, key, record) for key, record in records.items()}
        self.entries = {_text(key): entry for key, entry in found.items() if not key.startswith(SLICE_PREFIX)}
        self._slices = {key: entry for key, entry in found.items() if key.startswith(SLICE_PREFIX)}
        named = {slice_key(_raw(key), own) for key, entry in self.entries.items() for own in entry.slices}
        stray = next((key for key in self._slices if key not in named), None)
        require(stray is None, self.path, f"it has the slice {shown(stray or b'')}, which no tensor has")

    def entry(self, key: str) -> Entry:
        """Return what is said about a tensor.

        Raises:
            CheckpointError: If there is no such tensor, or it says something impossible.
        """
        entry = self.entries.get(key)
        if entry is None:
            raise no_such_key(self.path, key, list(self.entries))
        self._check(key, entry)
        return entry

    def parts(self, key: str) -> list[tuple[Box, Entry]]:
        """Return the slices of a tensor, which have each of its elements once, and where their bytes are.

        Raises:
            CheckpointError: If they do not, or one is missing or says something impossible.
        """
        whole, found = self.entry(key), []
        for own in whole.slices:
            box = box_in(self.path, key, own, whole.shape)
            part = self._slices.get(slice_key(_raw(key), own))
            if part is None:
                raise damaged(self.path, f"the slice {own} of {shown(key)} is missing")
            self._check(key, part)
            require(
                (part.dtype, part.shape, part.slices) == (whole.dtype, sizes_of(box), ()),
                self.path,
                f"the slice {own} of {shown(key)} should have shape {sizes_of(box)} and dtype number {whole.dtype}, but has "
                f"{part.shape} and {part.dtype}",
            )
            found.append((box, part))
        check_cover(self.path, key, whole.shape, [box for box, _ in found])
        _check_apart(self.path, key, [part for _, part in found])
        return found

    def _check(self, key: str, entry: Entry) -> None:
        """Check the numbers of an entry that need no other file."""
        check_shape(self.path, key, entry.shape)
        shards = self.header.num_shards
        if not 0 <= entry.shard < shards:
            raise damaged(
                self.path,
                f"{shown(key)} should be in the data file with the number {entry.shard}, but there are {shards}, from 0 on",
            )
        if entry.offset < 0 or entry.size < 0:
            raise damaged(self.path, f"the bytes of {shown(key)} are {entry.size} from byte {entry.offset} on")


def no_such_key(file: Any, key: str, keys: list[str]) -> CheckpointError:
    """Return the error about a name that is not there, with those that are."""
    more = f", ... ({len(keys)} in all)" if len(keys) > _MAX_NAMES else ""
    return CheckpointError(f"{file} has no tensor {shown(key)}. It has: {', '.join(map(shown, keys[:_MAX_NAMES]))}{more}.")


def _parsed(file: Any, key: bytes, record: memoryview) -> Entry:
    try:
        return entry_of(record)
    except MessageError as error:
        raise damaged(file, f"the record of {shown(key)} cannot be parsed, {error}") from error


def _check_apart(file: Any, key: str, parts: list[Entry]) -> None:
    """Check that no byte is in two slices, so that a tensor is not larger than the files."""
    ranges = sorted((part.shard, part.offset, part.size) for part in parts if part.size)
    for (shard, start, size), (other, after, _) in pairwise(ranges):
        require(
            shard != other or start + size <= after,
            file,
            f"two slices of {shown(key)} are at byte {after} of the data file with the number {shard}",
        )


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")


def _raw(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")
