"""Packs sequences of tokens into rows of one length: first fit, over a few open packs.

A sequence goes into the oldest open pack that has room for it, or opens a pack. At most ``lookback + 1`` packs are open: if there
would be more, the oldest is emitted. A pack that is full is emitted at once. A sequence that is longer than a pack is cut, and each
piece emits at most one pack. The position is where the oldest open pack began in the source, and which piece of which sequence
lies in which pack.
"""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from ....errors import DatasetError, ElementError
from ...graph._blocks import Block
from ...graph._graph import INFINITE, UNKNOWN, Cursor, OneInput, State, Through, sample
from ...graph._structure import TensorSpec, show_structure

POLICIES = ("split", "refuse", "drop")
_STRUCTURE = jax.tree_util.tree_structure({"positions": 0, "segment_ids": 0, "tokens": 0})  # in the order of leaves


@dataclasses.dataclass(frozen=True, eq=False)
class PackSequences(OneInput):
    """Packs of ``length`` tokens. ``key`` names the component that holds the tokens, None the whole element."""

    length: int = 1
    key: str | None = None
    lookback: int = 0
    policy: str = "split"

    @property
    def label(self) -> str:
        key = "" if self.key is None else f", key={self.key!r}"
        return f"pack_sequences({self.length}{key}, lookback={self.lookback}, policy={self.policy!r})"

    @property
    def spec(self) -> Any:
        return self._spec

    @functools.cached_property
    def _spec(self) -> Any:
        spec = self.input.spec
        if spec is None:
            return None
        tokens = self.tokens(spec)
        dtype = tokens.dtype
        if not _is_whole(dtype):  # the first sequence may be empty, which has any dtype; the others are asked
            pack = sample(self)
            if pack is None:
                return None
            dtype = pack["tokens"].dtype
        shape = (self.length,)
        return {
            "positions": TensorSpec(shape, np.int32),
            "segment_ids": TensorSpec(shape, np.int32),
            "tokens": TensorSpec(shape, dtype),
        }

    @property
    def cardinality(self) -> int:
        size = self.input.cardinality
        return size if size in (0, INFINITE) else UNKNOWN

    def tokens(self, element: Any) -> Any:
        """Return the component of an element (or of a spec) that holds the tokens.

        Raises:
            DatasetError: If there is none, or it is not known which.
        """
        if self.key is None:
            if isinstance(element, np.ndarray | np.generic | str | bytes | TensorSpec):
                return element
            names = f' Name the component that holds the tokens: `key="{next(iter(element))}"`.' if type(element) is dict else ""
            raise DatasetError(
                "pack_sequences takes elements that are arrays of token ids, or dicts and the name of one component. Received "
                f"{_show(element)}.{names}"
            )
        if type(element) is not dict or self.key not in element:
            raise DatasetError(
                f"pack_sequences: elements have no component {self.key!r}, which `key` names. They are {_show(element)}."
            )
        return element[self.key]

    def open(self, state: State | None = None) -> Cursor:
        cursor = PackCursor(self.input.open(state and state["source"]), self)
        if state:
            cursor.go_to(state)
        return cursor


@dataclasses.dataclass(frozen=True)
class _Piece:
    """Tokens ``start`` to ``stop`` of the sequence with this number in the pass."""

    number: int
    start: int
    stop: int
    sequence: np.ndarray

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclasses.dataclass(frozen=True)
class _Begin:
    """The number of a sequence, and the source's position before it."""

    number: int
    before: State


@dataclasses.dataclass
class _Pack:
    """A pack that is not full. It was opened by the sequence at ``begin``, the first one that it holds."""

    begin: _Begin
    room: int
    pieces: list[_Piece] = dataclasses.field(default_factory=list)

    def add(self, piece: _Piece) -> None:
        self.pieces.append(piece)
        self.room -= piece.size


class PackCursor(Through):
    """Holds the open packs, oldest first, and the rest of the sequence that is being cut."""

    def __init__(self, source: Cursor, node: PackSequences) -> None:
        super().__init__(source)
        self.node = node
        self.dtype: np.dtype | None = None  # of the first sequence that is not empty
        self.num_dropped = 0
        self._forget()

    def _forget(self) -> None:
        self.num_read = 0
        self.packs: list[_Pack] = []
        self.rest: tuple[_Begin, _Piece] | None = None

    def pull(self, limit: int) -> Block | None:
        while self.rest is not None or self._read():
            pack = self._place_piece()
            if pack is not None:
                return self._emitted(pack.pieces)
        return self._emitted(self.packs.pop(0).pieces) if self.packs else None

    def _read(self) -> bool:
        """Take the next sequence that has tokens to pack. Return whether there is one."""
        while True:
            begin = _Begin(self.num_read, self.source.state())
            one = self.source.pull_one()
            if one is None:
                return False
            self.num_read += 1
            sequence = self._checked(self.node.tokens(one[0]))
            if len(sequence) > self.node.length and self.node.policy == "drop":
                self.num_dropped += 1
            elif len(sequence):
                self.rest = begin, _Piece(begin.number, 0, len(sequence), sequence)
                return True

    def _place_piece(self) -> _Pack | None:
        """Put the next piece of the sequence into a pack, and return the pack that is to be emitted, if there is one."""
        assert self.rest is not None, "only called then"
        begin, whole = self.rest
        piece = dataclasses.replace(whole, stop=min(whole.stop, whole.start + self.node.length))
        self.rest = (begin, dataclasses.replace(whole, start=piece.stop)) if piece.stop < whole.stop else None
        pack = next((each for each in self.packs if each.room >= piece.size), None)
        if pack is not None:
            pack.add(piece)
            if pack.room:
                return None
            self.packs.remove(pack)
            return pack
        pack = _Pack(begin, self.node.length)
        pack.add(piece)
        if not pack.room:
            return pack
        self.packs.append(pack)
        return self.packs.pop(0) if len(self.packs) > self.node.lookback + 1 else None

    def _checked(self, tokens: Any) -> np.ndarray:
        """Return a sequence.

        Raises:
            DatasetError: If it has no rank of 1, or does not hold whole numbers.
            ElementError: If it is too long and must not be cut, or has another dtype than those before it.
        """
        sequence = np.asarray(tokens)
        if sequence.ndim != 1:
            raise DatasetError(
                "pack_sequences packs sequences of token ids, which are arrays with one dimension. Received one of shape "
                f"{sequence.shape}. {_remedy(sequence.ndim, sequence.dtype)}"
            )
        if not len(sequence):
            return sequence  # an empty list has no dtype of its own
        if not _is_whole(sequence.dtype):
            raise DatasetError(
                f"pack_sequences packs token ids, which are whole numbers. Received a sequence of dtype {sequence.dtype}. Convert "
                "it in `map`: `ids.astype(np.int32)`."
            )
        self.dtype = self.dtype or sequence.dtype
        if sequence.dtype != self.dtype:
            raise ElementError(
                f"pack_sequences: all sequences need the same dtype. Those before were of {self.dtype}, this one is of "
                f"{sequence.dtype}. Convert them in `map`."
            )
        if len(sequence) > self.node.length and self.node.policy == "refuse":
            raise ElementError(
                f"pack_sequences: a sequence has {len(sequence)} tokens, more than the length of a pack, which is "
                f'{self.node.length}. Cut it in `map`, or use policy="split" or policy="drop".'
            )
        return sequence

    def _emitted(self, pieces: list[_Piece]) -> Block:
        tokens = np.zeros(self.node.length, self.dtype)
        segment_ids, positions = np.zeros((2, self.node.length), np.int32)
        begin = 0
        for segment, piece in enumerate(pieces, 1):
            end = begin + piece.size
            tokens[begin:end] = piece.sequence[piece.start : piece.stop]
            segment_ids[begin:end] = segment
            positions[begin:end] = np.arange(piece.size)
            begin = end
        return Block.of_elements(_STRUCTURE, [[positions, segment_ids, tokens]])

    @property
    def num_skipped(self) -> int:
        return self.num_dropped + self.source.num_skipped

    def reset(self) -> None:
        self.source.reset()
        self._forget()

    @property
    def _oldest(self) -> _Begin | None:
        """The oldest sequence that is still needed. Packs were opened in the order of sequences."""
        if self.packs:
            return self.packs[0].begin
        return None if self.rest is None else self.rest[0]

    def state(self) -> State:
        oldest = self._oldest
        first = self.num_read if oldest is None else oldest.number
        return {
            "source": self.source.state() if oldest is None else oldest.before,
            "read": self.num_read - first,
            "packs": [[[piece.number - first, piece.start, piece.stop] for piece in pack.pieces] for pack in self.packs],
            "rest": None if self.rest is None else self.rest[1].start,
            "dtype": None if self.dtype is None else self.dtype.name,
        }

    def go_to(self, state: State) -> None:
        """Read the sequences of the open packs again, from the source's position on."""
        packs, rest, self.num_read = state["packs"], state["rest"], state["read"]
        self.dtype = None if state["dtype"] is None else np.dtype(state["dtype"])
        needed = {number for pieces in packs for number, _, _ in pieces}
        if rest is not None:
            needed.add(self.num_read - 1)
        begins, sequences = self._read_again(sorted(needed))
        for pieces in packs:
            pack = _Pack(begins[pieces[0][0]], self.node.length)
            for number, start, stop in pieces:
                pack.add(_Piece(number, start, stop, sequences[number]))
            self.packs.append(pack)
        if rest is not None:
            number = self.num_read - 1
            self.rest = begins[number], _Piece(number, rest, len(sequences[number]), sequences[number])

    def _read_again(self, numbers: list[int]) -> tuple[dict[int, _Begin], dict[int, np.ndarray]]:
        """Return the beginnings and the tokens of the sequences with these increasing numbers, and go behind all that were read."""
        begins, sequences, position = {}, {}, 0
        for number in numbers:
            self.source.skip(number - position)
            begins[number] = _Begin(number, self.source.state())
            one = self.source.pull_one()
            assert one is not None, "the source is shorter than it was"
            sequences[number] = np.asarray(self.node.tokens(one[0]))
            position = number + 1
        self.source.skip(self.num_read - position)
        return begins, sequences


def _is_whole(dtype: np.dtype) -> bool:
    return dtype.kind in "iu"


def _show(element: Any) -> str:
    return show_structure(jax.tree_util.tree_structure(element))


def _remedy(rank: int, dtype: np.dtype) -> str:
    if dtype.kind in "OUS":
        return "Make numbers of texts first: `tokenize(tokenizer)`."
    return "Call `unbatch()` before it." if rank else "Each element must be a whole sequence: `batch(n)` makes them of n tokens."
