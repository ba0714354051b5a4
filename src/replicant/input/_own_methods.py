"""Methods of `Dataset` that tf.data does not have. Each checks its arguments and adds a node."""

from typing import Any, Self

import numpy as np

from ..errors import ArgumentError, ArgumentTypeError
from ._arguments import calls_in_parallel, number_dtype, whole
from ._methods import Methods, chosen_seed
from .transforms.batches._pack import POLICIES, PackSequences
from .transforms.elements._map import Map
from .transforms.elements._tokenize import Tokens
from .transforms.order._global_shuffle import Order, globally_shuffled


class OwnMethods(Methods):
    """Methods that `Dataset` inherits."""

    def global_shuffle(self, seed: int | None = None, reshuffle_each_iteration: bool = True, *, window: int | None = None) -> Self:
        """Shuffle all elements, without a buffer: the order is computed from the seed, and a position is a few numbers.

        Without ``window``, every order of all elements is about equally likely, nothing is read ahead and nothing is held. The
        elements must be readable by their numbers, as those of `range` and `from_tensor_slices` are (also of arrays on a disk, as
        ``np.load(path, mmap_mode="r")`` returns them), of `NumpyDataset`, `TokenDataset`, `MegatronDataset` and
        `ArrayRecordDataset`, and of `TarDataset`, `MDSDataset` and `LitDataDataset`, if their files are local and not compressed,
        behind any of `map`, `take`, `skip`, `shard`, `enumerate`, `zip` and `concatenate`. Others have `shuffle`.

        With ``window``, a dataset of files is shuffled in two levels: all row groups (of Parquet and Arrow), or all files (of other
        formats), come in a random order, and ``window`` of them at a time are read and held, and their elements mixed. So each of
        them is read once and in order, also at a URL. Elements of one group come at most a window apart. The method must follow
        the dataset of files; a `map` may come between.

        Under AUTO, several workers share the batches by DATA, so that any number of them sees one order. Under FILE, each shuffles
        its own files or row groups.

        Args:
            seed: A seed, as in `shuffle`: one seed gives one sequence of orders. Without one, it is drawn from Python's `random`.
            reshuffle_each_iteration: Whether every iteration, and every pass of a later `repeat`, has another order.
            window: How many row groups or files of a dataset of files are in memory at a time.

        Raises:
            ArgumentError: If ``window`` is below 1.
            ArgumentTypeError: If ``window`` is not an integer.
            DatasetError: If the elements cannot be read by their numbers, or are not of files if there is a ``window``. During
                iteration, if a file is missing or damaged: once the other elements of its window have come.

        >>> from replicant.data import Dataset
        >>> dataset = Dataset.range(1_000_000).global_shuffle(seed=1)
        >>> list(dataset.take(3)) == list(Dataset.range(3))
        False
        >>> sorted(Dataset.range(5).global_shuffle()) == list(range(5))
        True
        """
        size = None if window is None else whole("global_shuffle", "window", window, 1)
        checked, entropy = chosen_seed("global_shuffle", seed)
        return self._then(globally_shuffled(self._node, Order(checked, entropy, bool(reshuffle_each_iteration)), size))

    def tokenize(
        self,
        tokenizer: Any,
        *,
        key: str | None = None,
        end: int | None = None,
        dtype: Any = np.int32,
        num_parallel_calls: int | None = -1,
    ) -> Self:
        """Turn texts into arrays of token ids.

        Args:
            tokenizer: An object whose ``encode(text)`` returns whole numbers, or an object that has them as ``ids``: a
                `tokenizers.Tokenizer`, or a tokenizer of transformers or sentencepiece. Several threads call it.
            key: The component that is a text, if elements are dicts; the others stay. None means elements that are texts.
                A text is a string or bytes of UTF-8.
            end: A token id that is added to every text.
            dtype: The dtype of the ids.
            num_parallel_calls: The number of threads, AUTOTUNE (-1) for one per core, or None for the consumer's. The order of
                elements stays.

        Raises:
            ArgumentTypeError: If ``tokenizer`` has no ``encode``, ``key`` is not a string, ``end`` is not an integer, or ``dtype``
                is not one of integers.
            ArgumentError: If ``end`` does not fit into the dtype.
            DatasetError: During iteration, if elements are not texts.
            ElementError: During iteration, if ``encode`` returns something else, or ids that do not fit into the dtype.

        >>> from replicant.data import Dataset
        >>> class Letters:
        ...     def encode(self, text):
        ...         return [ord(letter) - 96 for letter in text]
        >>> list(Dataset.from_tensor_slices(["abc", "b"]).tokenize(Letters(), end=0))
        [array([1, 2, 3, 0], dtype=int32), array([2, 0], dtype=int32)]
        """
        if not callable(getattr(tokenizer, "encode", None)):
            raise ArgumentTypeError(f"tokenize: tokenizer must have a method `encode(text)`. Received: {tokenizer!r}.")
        if key is not None and not isinstance(key, str):
            raise ArgumentTypeError(f"tokenize: key must be the name of a component, or None. Received: {key!r}.")
        kind = number_dtype("tokenize", dtype, "dtype", "iu")
        limits = np.iinfo(kind)
        last = None if end is None else whole("tokenize", "end", end)
        if last is not None and not limits.min <= last <= limits.max:
            raise ArgumentError(f"tokenize: end must be {limits.min} to {limits.max}, which {kind} holds. Received: {last}.")
        threads = calls_in_parallel("tokenize", num_parallel_calls) or 0
        return self._then(Map(inputs=(self._node,), fn=Tokens(tokenizer, key, last, kind), num_threads=threads))

    def pack_sequences(self, length: int, *, key: str | None = None, lookback: int = 8, policy: str = "split") -> Self:
        """Pack sequences of token ids into rows of one length, so that little of a batch is padding.

        A sequence goes into the oldest open pack that has room for it (first fit), or opens a pack. A pack is emitted when it is
        full, when ``lookback`` packs were opened after it and one more is needed, and at the end. An empty sequence takes no
        place. Sequences in a pack keep their order. A position holds no tokens: the sequences of open packs are read again.

        Each element of the result is a dict of arrays of shape (length,):

        - ``tokens``: The token ids, of the dtype of the sequences. Padding, at the end, is 0.
        - ``segment_ids``: The number of the sequence in the pack, from 1; 0 is padding. int32.
        - ``positions``: The place of a token in its segment, from 0. int32.

        Args:
            length: The number of tokens in a pack.
            key: The component that holds the tokens, if elements are dicts; the others are left out. None means elements that
                are arrays themselves. Sequences are arrays of whole numbers with one dimension, of any length.
            lookback: How many packs, besides the newest one, stay open for later sequences. More leave less padding.
            policy: What is done with a sequence that is longer than a pack: "split" cuts it into pieces, which are segments of
                their own; "refuse" raises an error; "drop" leaves it out, and the iterator's ``num_skipped`` counts it.

        Raises:
            ArgumentError: If ``length`` is below 1, ``lookback`` is below 0, or there is no such policy.
            ArgumentTypeError: If ``length`` or ``lookback`` is not an integer, or ``key`` is not a string.
            DatasetError: During iteration, if elements are not such sequences.
            ElementError: During iteration, if a sequence is refused, or sequences differ in their dtype.

        >>> from replicant.data import Dataset
        >>> import numpy as np
        >>> def sequences():
        ...     yield from (np.array([1, 2, 3]), np.array([4, 5, 6]), np.array([7]))
        >>> for pack in Dataset.from_generator(sequences).pack_sequences(4):
        ...     print(pack["tokens"], pack["segment_ids"], pack["positions"])
        [1 2 3 7] [1 1 1 2] [0 1 2 0]
        [4 5 6 0] [1 1 1 0] [0 1 2 0]
        """
        size = whole("pack_sequences", "length", length, 1)
        others = whole("pack_sequences", "lookback", lookback, 0)
        if key is not None and not isinstance(key, str):
            raise ArgumentTypeError(f"pack_sequences: key must be the name of a component, or None. Received: {key!r}.")
        if policy not in POLICIES:
            names = ", ".join(map(repr, POLICIES))
            raise ArgumentError(f"pack_sequences: policy must be one of {names}. Received: {policy!r}.")
        return self._then(PackSequences(inputs=(self._node,), length=size, key=key, lookback=others, policy=policy))
