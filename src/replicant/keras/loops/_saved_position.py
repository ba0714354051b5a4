"""The position of a ``fit`` in its data, and the states of the random generators, as a backup holds them."""

import dataclasses
import random
from typing import Any

import numpy as np

from ...errors import CheckpointError
from .. import _internals
from ..state._global_generator import global_generator


@dataclasses.dataclass
class Randomness:
    """The states of the global random generators of NumPy, Python and Keras, as arrays. Keras makes its own at the first use."""

    numpy: np.ndarray
    python: np.ndarray
    rest: list[Any]
    keras: np.ndarray | None = None

    @classmethod
    def now(cls) -> "Randomness":
        """Return the present states."""
        name, keys, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002 - the global one is what Keras shuffles with
        version, internal, following = random.getstate()
        rest = [name, position, has_gauss, repr(gauss), version, None if following is None else repr(following)]
        generator = global_generator()
        drawn = None if generator is None else np.array(generator.state.value)
        return cls(np.array(keys), np.array(internal, np.uint32), rest, drawn)

    def bring_back(self) -> None:
        """Give the generators these states.

        Raises:
            CheckpointError: If these are not states of the generators.
        """
        try:
            name, position, has_gauss, gauss, version, following = self.rest
            _check_position(position, len(self.numpy))
            if self.keras is not None:
                _set_keras_generator(self.keras)  # first, as making it draws from Python's
            np.random.set_state((name, self.numpy, position, has_gauss, float(gauss)))  # noqa: NPY002 - as above
            random.setstate((version, tuple(map(int, self.python)), None if following is None else float(following)))
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            raise CheckpointError(
                f"The saved states of the random generators of NumPy, Python and Keras are not valid: {error}."
            ) from error


def _set_keras_generator(value: np.ndarray) -> None:
    state = _internals.seed_generator.global_seed_generator().state
    if (value.shape, value.dtype) != (tuple(state.shape), np.dtype(state.dtype)):
        raise ValueError(
            f"Keras's generator has a state of type {state.dtype}{list(state.shape)}, not {value.dtype}{list(value.shape)}"
        )
    state.assign(value)


def _check_position(position: Any, size: int) -> None:
    """Raise for an invalid position: NumPy does not check it, and would read beyond its memory."""
    if type(position) is not int or not 0 <= position <= size:
        raise ValueError(f"{position!r} is not a position in {size} numbers")


@dataclasses.dataclass
class Position:
    """The position of a fit.

    Attributes:
        epoch: The current epoch.
        num_steps: How many of its steps are done.
        all_done: Whether all of its steps are done, and only its end is left.
        passes: For each pass over the data that was begun, whether anything was read from it.
        is_live: Whether the last pass continues.
        num_batches: How many batches were read from it.
        seen: How many steps Keras has counted in it.
        state: The state of a Replicant dataset after the last batch.
        size: The number of batches of an epoch; None if unknown.
        begin: The random generators as they were before the pass.
    """

    epoch: int
    num_steps: int
    all_done: bool
    passes: list[bool]
    is_live: bool
    num_batches: int
    seen: int
    state: Any
    size: int | None
    begin: Randomness

    @classmethod
    def of(cls, saved: Any) -> "Position":
        """Return the position with the fields in `saved`, which ``dataclasses.asdict`` has made.

        Raises:
            CheckpointError: If `saved` is not a position.
        """
        try:
            found = cls(**{**saved, "begin": Randomness(**saved["begin"])})
        except (TypeError, KeyError) as error:
            raise CheckpointError(f"The saved position in the data is not valid: {type(error).__name__}: {error}.") from error
        counts = [found.epoch, found.num_steps, found.num_batches, *([] if found.size is None else [found.size])]
        truths = [found.all_done, found.is_live, *(found.passes if isinstance(found.passes, list) else [None])]
        if {type(count) for count in [*counts, found.seen]} != {int} or min(counts) < 0 or {type(x) for x in truths} != {bool}:
            raise CheckpointError(
                f"The saved position in the data is not valid: {found.epoch=}, {found.num_steps=}, {found.num_batches=}."
            )
        return found
