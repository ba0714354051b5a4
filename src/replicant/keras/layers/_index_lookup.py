"""What StringLookup and IntegerLookup share: a vocabulary, its indices, and how they are encoded and saved."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from ...errors import ArgumentError, ContextError
from ...storage._read_ahead import RemoteFile
from ...storage._retry import RemoteError
from ...storage._urls import is_url
from .._internals import in_safe_mode
from ._hashes import fingerprints, siphashes
from ._host import HostLayer, batches_of, in_model
from ._table import Counts, Table, Token, check_tokens
from ._values import Rows, counted, dense_only, encoded, mode_of, one_hot, one_of, raw, salt_of

_NOWHERE = np.iinfo(np.int64).max  # the index of a mask in modes that count: it falls into no place


class _Given:
    """What the caller gave to the constructor. A plain object: Keras would wrap and track long lists."""

    def __init__(self, vocabulary: Any, idf_weights: Any) -> None:
        self.vocabulary = None if isinstance(vocabulary, str) else _listed(vocabulary)
        self.idf_weights = _listed(idf_weights)


class IndexLookup(HostLayer):
    """The base class of the lookups."""

    def __init__(
        self,
        max_tokens: int | None,
        num_oov_indices: int,
        mask_token: Any,
        oov_token: Any,
        vocabulary_dtype: str,
        vocabulary: Any = None,
        idf_weights: Any = None,
        invert: bool = False,
        output_mode: str = "int",
        sparse: bool = False,
        pad_to_max_tokens: bool = False,
        oov_method: str = "floormod",
        name: str | None = None,
        salt: Any = None,
        **kwargs: Any,
    ) -> None:
        owner = type(self).__name__
        mode = mode_of(output_mode, owner)
        _check_sizes(owner, max_tokens, num_oov_indices, pad_to_max_tokens)
        _check_modes(owner, mode, invert, vocabulary, idf_weights)
        dense_only(sparse, owner)
        one_of(oov_method, ("floormod", "farmhash"), "oov_method", owner)
        if salt is not None and vocabulary_dtype != "string" and oov_method != "farmhash":
            raise ArgumentError(f"salt={salt!r} needs oov_method='farmhash'; got oov_method={oov_method!r}.")
        frozen, static = kwargs.pop("vocabulary_size", None), kwargs.pop("has_input_vocabulary", vocabulary is not None)
        for ignored in ("trainable", "dtype"):
            kwargs.pop(ignored, None)
        if kwargs:
            raise ArgumentError(f"{owner} has no argument {', '.join(map(repr, kwargs))}. See help({owner}).")
        super().__init__(name=name)
        self.invert, self.max_tokens, self.num_oov_indices = invert, max_tokens, num_oov_indices
        self.mask_token, self.oov_token = mask_token, oov_token
        self.output_mode, self.sparse, self.pad_to_max_tokens = mode, False, pad_to_max_tokens
        self.vocabulary_dtype, self.oov_method, self.salt = vocabulary_dtype, oov_method, salt_of(salt, owner)
        self._frozen_size, self._static = frozen, static
        self._given = _Given(vocabulary, idf_weights)
        self._table, self._counts, self._idf = Table(), Counts(), None
        if vocabulary is not None:
            self.set_vocabulary(vocabulary, idf_weights)

    @property
    def compute_dtype(self) -> str:
        """The dtype of the tokens."""
        return self.vocabulary_dtype

    @property
    def variable_dtype(self) -> str:
        """The dtype of the tokens."""
        return self.vocabulary_dtype

    @property
    def result_dtype(self) -> str:
        """The dtype of the outputs."""
        if self.output_mode == "tf_idf":
            return keras.config.floatx()
        return self.vocabulary_dtype if self.invert else "int64"

    # What is known

    def get_vocabulary(self, include_special_tokens: bool = True) -> list[Any]:
        """Return the tokens in the order of their indices, by default with those for mask and OOV."""
        tokens = [self._shown(token) for token in self._table.tokens]
        return [*self._special, *tokens] if include_special_tokens else tokens

    def vocabulary_size(self) -> int:
        """Return the number of indices, with those for mask and OOV."""
        return len(self._table.tokens) + self._start

    def set_vocabulary(self, vocabulary: Any, idf_weights: Any = None) -> None:
        """Set the vocabulary instead of learning it.

        Args:
            vocabulary: The tokens, or the path of a text file with one token per line.
            idf_weights: The inverse document frequency of each token, for output_mode="tf_idf" only.
        """
        if (self.output_mode == "tf_idf") != (idf_weights is not None):
            raise ArgumentError(
                f"output_mode={self.output_mode!r} with idf_weights={idf_weights!r}: output_mode='tf_idf' needs idf_weights, "
                "one number per token, and no other mode takes them. A vocabulary file cannot hold them: pass the tokens as a list."
            )
        if isinstance(vocabulary, str):
            self._set_table(self._tokens_of_file(vocabulary))
            return
        given, special = [self._token(token) for token in _listed(vocabulary)], self._special
        begins_with_special = given[: self._start] == special
        tokens = given[self._start :] if begins_with_special else given
        check_tokens(tokens, len(special), [self.mask_token, self.oov_token if self.invert else None])
        size = self._start + len(tokens)
        if self.max_tokens is not None and size > self.max_tokens:
            raise ArgumentError(f"the vocabulary has {size} tokens, with those for mask and OOV; max_tokens={self.max_tokens}.")
        weights = None if idf_weights is None else np.asarray(idf_weights, keras.config.floatx())
        if weights is not None and weights.shape != (len(given),):
            raise ArgumentError(f"idf_weights of shape {weights.shape} for {len(given)} tokens; give one number per token.")
        self._set_table(tokens)
        if weights is not None:
            self._set_idf(weights, 0 if begins_with_special else self._start)

    def _set_table(self, tokens: Sequence[Token]) -> None:
        table = Table(tokens, self._start)
        size = self._start + len(tokens)
        if not self._free_size and self._frozen_size not in (None, size):
            raise ContextError(
                f"the vocabulary of {self.name!r} had {self._frozen_size} indices and would get {size}, but the model after it "
                "depends on this number. Make a new layer, or use max_tokens with pad_to_max_tokens=True."
            )
        self._table, self._frozen_size = table, size

    def _set_idf(self, weights: NDArray[Any], num_front: int) -> None:
        """Set the weights: the mean for special tokens that have none, and zeros for padding."""
        num_back = self.max_tokens - num_front - len(weights) if self.pad_to_max_tokens and self.max_tokens is not None else 0
        front = np.full(num_front, weights.mean())
        self._idf = np.concatenate([front, weights, np.zeros(num_back)]).astype(keras.config.floatx())

    def _tokens_of_file(self, path: str) -> list[Token]:
        if in_safe_mode():
            raise ArgumentError(
                f"the configuration names the vocabulary file {path!r}, outside of the model's archive. Loading it could read any "
                "file of this machine. If you trust the model, pass safe_mode=False to the loading function."
            )
        lines = _contents(path).decode("utf-8", "surrogateescape").replace("\r", "").split("\n")
        if lines[-1] == "":
            lines.pop()
        if "" in lines:
            raise ArgumentError(f"line {lines.index('') + 1} of the vocabulary file {path!r} is empty. Each line is a token.")
        return list(check_tokens([self._token(line) for line in lines], len(self._special), []))

    # Learning

    def adapt(self, data: Any, steps: int | None = None) -> None:
        """Learn the vocabulary: the most frequent tokens first, and of equally frequent ones the greatest first.

        Args:
            data: An array or list, or a dataset or another iterable of batches.
            steps: How many batches to read; by default all.
        """
        self.reset_state()
        batches = batches_of(data, steps)
        if batches is None:
            keys = self._keys(data)
            batches = iter([keys[:, None] if keys.ndim == 1 else keys])
        for batch in batches:
            self.update_state(batch)
        self.finalize_state()

    def update_state(self, data: Any) -> None:
        """Count the tokens of a batch, whose first axis is that of documents."""
        if self._static:
            raise ArgumentError(f"the layer {self.name!r} cannot adapt: it was made with a vocabulary. Leave `vocabulary` out.")
        if not isinstance(data, Rows):
            keys = np.atleast_1d(self._keys(data))
            data = Rows.of(keys[None] if keys.ndim == 1 else keys.reshape(len(keys), math.prod(keys.shape[1:])))
        for document in data.rows:
            self._counts.add(document.tolist() if isinstance(document, np.ndarray) else document)

    def finalize_state(self) -> None:
        """Make the vocabulary from what was counted."""
        if self._static:
            return
        num = None if self.max_tokens is None else max(self.max_tokens - self._start, 0)
        tokens = self._counts.most_frequent(num, (self.mask_token, self.oov_token))
        if not tokens:
            raise ArgumentError(
                f"the layer {self.name!r} has learned no token. The data held none except {self.mask_token!r} and "
                f"{self.oov_token!r}, or max_tokens={self.max_tokens} is too small: mask and OOV take {self._start} indices."
            )
        self._set_table(tokens)
        if self.output_mode == "tf_idf":
            self._set_idf(self._counts.inverse_frequencies(tokens), self._start)
        self.reset_state()

    def reset_state(self) -> None:
        """Forget what was counted."""
        self._counts = Counts()

    # Looking up

    def on_host(self, inputs: Any) -> NDArray[Any]:
        """Look up tokens, and encode their indices."""
        self._check_ready()
        if isinstance(inputs, Rows):
            return self._encode_rows(inputs.with_items(self._looked_up(inputs.flat)))
        keys = np.asarray(inputs).astype(np.int64) if self.invert else self._keys(inputs)
        found = self._looked_up(keys.reshape(-1).tolist()).reshape(keys.shape)
        if self.output_mode == "int":
            return found
        mode = "count" if self.output_mode == "tf_idf" else self.output_mode
        return self._weighted(encoded(found, mode, self._depth, np.int64))

    def _encode_rows(self, found: Rows) -> NDArray[Any]:
        if self.output_mode == "int":
            return found.padded()
        if self.output_mode == "one_hot":
            padded = found.map(lambda row: np.asarray(row) + 1).padded() - 1  # -1 has no place in a vector
            return one_hot(padded, self._depth, np.int64)
        mode = "multi_hot" if self.output_mode == "multi_hot" else "count"
        return self._weighted(counted(found, mode, self._depth, np.int64))

    def _weighted(self, counts: NDArray[Any]) -> NDArray[Any]:
        return counts if self._idf is None else counts.astype(self._idf.dtype) * self._idf

    def _looked_up(self, keys: list[Any]) -> NDArray[Any]:
        if self.invert:
            return self._inverted(keys)
        found = self._table.indices(keys, -1)
        if self.mask_token is not None:
            at_mask = [at for at, key in enumerate(keys) if key == self.mask_token]
            found[at_mask] = 0 if self.output_mode == "int" else _NOWHERE
        unknown = np.flatnonzero(found == -1)
        if not len(unknown):
            return found
        missing = [keys[at] for at in unknown]
        if self.num_oov_indices == 0:
            raise ArgumentError(
                f"{missing[:10]} are not in the vocabulary of {self.name!r}, and num_oov_indices=0 leaves no index for them. "
                "Use num_oov_indices=1."
            )
        found[unknown] = self._oov_start + self._oov_buckets(missing)
        return found

    def _inverted(self, keys: list[int]) -> NDArray[Any]:
        tokens = [None if token is None else self._shown(token) for token in self._table.tokens_at(keys, self.oov_token)]
        if self.mask_token is not None:
            tokens = [self.mask_token if key == 0 else token for key, token in zip(keys, tokens, strict=True)]
        result = np.empty(len(keys), object if self.vocabulary_dtype == "string" else np.int64)
        result[:] = tokens
        return result

    def _oov_buckets(self, keys: list[Any]) -> NDArray[np.int64]:
        if self.num_oov_indices == 1:
            return np.zeros(len(keys), np.int64)
        if self.vocabulary_dtype != "string" and self.oov_method == "floormod":
            return np.mod(np.array(keys, np.int64), self.num_oov_indices)
        strings = [raw(str(key)) for key in keys]
        hashes = fingerprints(strings) if self.salt is None else siphashes(strings, self.salt)
        return (hashes % np.uint64(self.num_oov_indices)).astype(np.int64)

    def _check_ready(self) -> None:
        if not self._table.tokens:
            raise ContextError(f"the layer {self.name!r} has no vocabulary yet. Call adapt(), or make it with vocabulary=[...].")

    # Shapes

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """Return the shape of the outputs."""
        shape = tuple(input_shape)
        if self.output_mode == "int":
            return shape
        if self.output_mode == "one_hot":
            return (*(shape[:-1] if len(shape) > 1 and shape[-1] == 1 else shape), self._depth)
        return (*shape[:1], *shape[2:], self._depth) if len(shape) > 1 else (self._depth,)

    def compute_output_spec(self, inputs: Any) -> keras.KerasTensor:
        """Return the shape and dtype of the outputs in a model."""
        dtype = in_model(self.result_dtype) if self.output_mode == "int" else keras.config.floatx()
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), dtype=dtype)

    @property
    def _depth(self) -> int:
        depth = self.max_tokens if self.pad_to_max_tokens else self._frozen_size
        if depth is None:
            self._check_ready()
        assert depth is not None, "a vocabulary has a size"
        return depth

    @property
    def _free_size(self) -> bool:
        """Whether the size of the vocabulary may change."""
        return self.output_mode == "int" or self.pad_to_max_tokens

    @property
    def _oov_start(self) -> int:
        return int(self.mask_token is not None and self.output_mode == "int")

    @property
    def _start(self) -> int:
        return self._oov_start + self.num_oov_indices

    @property
    def _special(self) -> list[Any]:
        return [self.mask_token] * self._oov_start + [self.oov_token] * self.num_oov_indices

    # Saving

    def get_config(self) -> dict[str, Any]:
        """Return the configuration, as Keras's layer of this name has it."""
        return {
            **super().get_config(),
            "invert": self.invert,
            "max_tokens": self.max_tokens,
            "num_oov_indices": self.num_oov_indices,
            "oov_token": self.oov_token,
            "mask_token": self.mask_token,
            "output_mode": self.output_mode,
            "sparse": self.sparse,
            "pad_to_max_tokens": self.pad_to_max_tokens,
            "vocabulary_dtype": self.vocabulary_dtype,
            "idf_weights": self._given.idf_weights,
            "vocabulary": self._given.vocabulary,
            "vocabulary_size": self._frozen_size,
            "oov_method": self.oov_method,
            "salt": None if self.salt is None else list(self.salt),
        }

    def get_build_config(self) -> dict[str, Any]:
        """Return an empty configuration: nothing depends on the shape of the inputs."""
        return {}

    def build_from_config(self, config: Any) -> None:
        """Build the layer."""
        self.build(None)

    def build(self, input_shape: Any) -> None:
        """Make nothing: the layer has no weights."""
        self.built = True

    def save_own_variables(self, store: Any) -> None:
        """Save the weights of tokens."""
        if self._idf is not None:
            store["idf_weights"] = self._idf

    def load_own_variables(self, store: Any) -> None:
        """Load the weights of tokens."""
        if self.output_mode == "tf_idf":
            self._idf = np.asarray(store["idf_weights"])

    def save_assets(self, dir_path: str) -> None:
        """Save a learned vocabulary, in Keras's format: a line per token."""
        if self._given.vocabulary is not None or not self._table.tokens:
            return
        tokens = [str(token) for token in self.get_vocabulary()]
        broken = [token for token in tokens if "\n" in token or "\r" in token]
        if broken:
            raise ArgumentError(
                f"the vocabulary of {self.name!r} cannot be saved: Keras's format has one token per line, and {broken} contain "
                "line breaks. Make a new layer with vocabulary=layer.get_vocabulary(), which is saved in the model's configuration."
            )
        _vocabulary_file(dir_path).write_bytes(raw("\n".join(tokens)))

    def load_assets(self, dir_path: str) -> None:
        """Load a learned vocabulary."""
        if self._given.vocabulary is not None or not _vocabulary_file(dir_path).is_file():
            return
        lines = _vocabulary_file(dir_path).read_bytes().decode("utf-8", "surrogateescape").replace("\r", "").split("\n")
        while lines[-1] == "" and len(lines) > (self._frozen_size or 0):
            lines.pop()
        self._set_table([self._token(line) for line in lines[self._start :]])

    # What strings and integers do in their own way

    def _token(self, value: Any) -> Any:
        """Return a token of a vocabulary as the table has it."""
        raise NotImplementedError

    def _shown(self, token: Any) -> Any:
        """Return a token of the table as the caller sees it."""
        raise NotImplementedError

    def _keys(self, values: Any) -> NDArray[Any]:
        """Return the array of keys that were passed."""
        raise NotImplementedError


def _listed(values: Any) -> Any:
    return values if values is None or isinstance(values, str) else np.asarray(values, object).tolist()


def _contents(path: str) -> bytes:
    """The bytes of a file, or of an object at a URL."""
    if is_url(path):
        try:
            with RemoteFile(path) as file:
                return file.read()
        except RemoteError as error:
            raise ArgumentError(f"the vocabulary file cannot be read: {error}.") from error
    if not Path(path).is_file():
        raise ArgumentError(f"there is no vocabulary file {path!r}.")
    return Path(path).read_bytes()


def _vocabulary_file(folder: str) -> Path:
    return Path(folder) / "vocabulary.txt"


def _check_sizes(owner: str, max_tokens: int | None, num_oov_indices: int, pad_to_max_tokens: bool) -> None:
    if max_tokens is not None and max_tokens <= 1:
        raise ArgumentError(f"max_tokens={max_tokens}: {owner} needs at least 2, or None for no limit.")
    if pad_to_max_tokens and max_tokens is None:
        raise ArgumentError("pad_to_max_tokens=True needs max_tokens, the width of the output.")
    if num_oov_indices < 0:
        raise ArgumentError(f"num_oov_indices={num_oov_indices} must not be negative.")


def _check_modes(owner: str, mode: str, invert: bool, vocabulary: Any, idf_weights: Any) -> None:
    if invert and mode != "int":
        raise ArgumentError(f"invert=True turns indices into tokens, so {owner} needs output_mode='int'; got {mode!r}.")
    if idf_weights is not None and mode != "tf_idf":
        raise ArgumentError(f"idf_weights need output_mode='tf_idf'; got {mode!r}.")
    if mode == "tf_idf" and vocabulary is not None and idf_weights is None:
        raise ArgumentError("output_mode='tf_idf' with a vocabulary needs idf_weights, one number per token.")
