"""StringLookup and IntegerLookup."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ArgumentError, ArgumentTypeError
from ._index_lookup import IndexLookup
from ._values import raw, string_array, text


class StringLookup(IndexLookup):
    """Turns strings into indices of a vocabulary, or with ``invert=True`` indices into strings.

    Arguments, configuration and results are those of `keras.layers.StringLookup`, without TensorFlow. The layer runs on the host
    and returns NumPy arrays.

    >>> layer = StringLookup(vocabulary=["a", "b"])
    >>> layer([["a", "z"], ["b", "a"]])
    array([[1, 0],
           [2, 1]])

    Args:
        max_tokens: The greatest size of the vocabulary, with the indices for mask and OOV; None for no limit.
        num_oov_indices: The number of indices for strings that are not in the vocabulary. With several, a hash chooses.
        mask_token: The string that gets index 0, or counts nowhere in modes other than "int".
        oov_token: The string that ``invert=True`` returns for unknown indices.
        vocabulary: The tokens, or the path of a text file with one token per line. Without it, call `adapt`.
        idf_weights: The inverse document frequency of each token, for ``output_mode="tf_idf"``.
        invert: Whether to turn indices into strings.
        output_mode: "int", "one_hot", "multi_hot", "count" or "tf_idf".
        pad_to_max_tokens: Whether encoded outputs have `max_tokens` columns.
        sparse: Must be False.
        encoding: The encoding of the tokens that `get_vocabulary` returns.
        name: The name of the layer.
        salt: An integer or two for the hash of unknown strings.
        **kwargs: What a saved configuration holds besides.
    """

    def __init__(
        self,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        mask_token: str | None = None,
        oov_token: str | None = "[UNK]",
        vocabulary: Any = None,
        idf_weights: Any = None,
        invert: bool = False,
        output_mode: str = "int",
        pad_to_max_tokens: bool = False,
        sparse: bool = False,
        encoding: str = "utf-8",
        name: str | None = None,
        salt: Any = None,
        **kwargs: Any,
    ) -> None:
        self._encoding = encoding
        super().__init__(
            max_tokens,
            num_oov_indices,
            mask_token,
            oov_token,
            "string",
            vocabulary=vocabulary,
            idf_weights=idf_weights,
            invert=invert,
            output_mode=output_mode,
            sparse=sparse,
            pad_to_max_tokens=pad_to_max_tokens,
            name=name,
            salt=salt,
            **kwargs,
        )

    @property
    def encoding(self) -> str:
        """The encoding of the tokens that `get_vocabulary` returns."""
        return self._encoding

    def get_config(self) -> dict[str, Any]:
        """Return the configuration, as Keras's layer of this name has it."""
        config = {**super().get_config(), "encoding": self.encoding}
        del config["vocabulary_dtype"]
        return config

    def _token(self, value: Any) -> Any:
        return value if value is None else text(value)

    def _shown(self, token: Any) -> Any:
        return token if self.encoding == "utf-8" else raw(token).decode(self.encoding)

    def _keys(self, values: Any) -> NDArray[Any]:
        return string_array(values)


class IntegerLookup(IndexLookup):
    """Turns integers into indices of a vocabulary, or with ``invert=True`` indices into integers.

    Arguments, configuration and results are those of `keras.layers.IntegerLookup`, without TensorFlow. The layer runs on the host
    and returns NumPy arrays. Compiled programs call back to the host.

    >>> layer = IntegerLookup()
    >>> layer.adapt([12, 36, 36])
    >>> layer.get_vocabulary(), layer([36, 12, 5])
    ([-1, 36, 12], array([1, 2, 0]))

    Args:
        max_tokens: The greatest size of the vocabulary, with the indices for mask and OOV; None for no limit.
        num_oov_indices: The number of indices for integers that are not in the vocabulary.
        mask_token: The integer that gets index 0, or counts nowhere in modes other than "int".
        oov_token: The integer that ``invert=True`` returns for unknown indices.
        vocabulary: The tokens, or the path of a text file with one token per line. Without it, call `adapt`.
        vocabulary_dtype: Must be "int64".
        idf_weights: The inverse document frequency of each token, for ``output_mode="tf_idf"``.
        invert: Whether to turn indices into integers of the vocabulary.
        output_mode: "int", "one_hot", "multi_hot", "count" or "tf_idf".
        sparse: Must be False.
        pad_to_max_tokens: Whether encoded outputs have `max_tokens` columns.
        oov_method: How several OOV indices are chosen: "floormod", the rest of a division, or "farmhash".
        salt: An integer or two for the hash, with ``oov_method="farmhash"``.
        name: The name of the layer.
        **kwargs: What a saved configuration holds besides.
    """

    def __init__(
        self,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        mask_token: int | None = None,
        oov_token: int | None = -1,
        vocabulary: Any = None,
        vocabulary_dtype: str = "int64",
        idf_weights: Any = None,
        invert: bool = False,
        output_mode: str = "int",
        sparse: bool = False,
        pad_to_max_tokens: bool = False,
        oov_method: str = "floormod",
        salt: Any = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        if vocabulary_dtype != "int64":
            raise ArgumentError(f"vocabulary_dtype={vocabulary_dtype!r}: IntegerLookup supports only 'int64', as in Keras.")
        super().__init__(
            max_tokens,
            num_oov_indices,
            mask_token,
            oov_token,
            vocabulary_dtype,
            vocabulary=vocabulary,
            idf_weights=idf_weights,
            invert=invert,
            output_mode=output_mode,
            sparse=sparse,
            pad_to_max_tokens=pad_to_max_tokens,
            oov_method=oov_method,
            name=name,
            salt=salt,
            **kwargs,
        )

    def _token(self, value: Any) -> Any:
        return value if value is None else int(value)

    def _shown(self, token: Any) -> Any:
        return token

    def _keys(self, values: Any) -> NDArray[Any]:
        array = np.asarray(values)
        if array.dtype.kind not in "iufb":
            raise ArgumentTypeError(
                f"the layer {self.name!r} looks up integers; got dtype {array.dtype}. For strings, use StringLookup."
            )
        return array.astype(np.int64)
