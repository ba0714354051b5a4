"""``Generator``: a stream of random numbers for each replica, whose state is one variable.

The state is a key and the number of draws so far. It is the same on all replicas. The number of the replica is mixed into the key
only at a draw. So replica r draws the same numbers however many replicas there are, and a checkpoint fits any number of them.
"""

import operator
import secrets
import threading
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..checkpoint.values._objects import register_parts
from ..errors import ArgumentError, ArgumentTypeError, ContextError
from ..replicas._context import active_replica_context, active_strategy
from ..replicas._copies import VariableAggregation, VariableSynchronization
from ..replicas._own_mesh import at_once, in_a_trace
from ..tracing.gradients import _eager
from ..variables._known import variable_of
from ..variables._recorder import current_recorder
from ..variables._variable import OwnRef, Variable
from ._arguments import float_dtype, in_order, int_dtype, parse_shape, within

_IMPL = "threefry2x32"  # and not the default of JAX, which a user may change
_ALGORITHMS = (None, "threefry", "auto_select", 2, 3)  # as TensorFlow writes and numbers them
_WORD = 0xFFFFFFFF
_counting = threading.RLock()  # threads that draw outside of steps never draw the same; not an attribute, which could not be copied


class Generator:
    """A generator of random numbers, whose state is a variable.

    In ``strategy.run``, each replica draws numbers of its own. Those of replica 0 are the ones that the generator draws outside.

    Semantics: tf.random.Generator, with other numbers.

    Args:
        copy_from: A generator whose state to copy.
        state: The state, as the attribute `state` of a generator holds it. Give either this or `copy_from`.
        alg: ``"threefry"`` or ``"auto_select"``, which is the same.

    Raises:
        ArgumentError: If both or neither of `copy_from` and `state` are given, the state is not one, or there is no such algorithm.
        ContextError: Inside ``strategy.run`` or a compiled function, and in the scope of a ParameterServerStrategy.

    >>> generator = Generator.from_seed(7)
    >>> generator.uniform((2,), 0, 10, dtype="int32").shape
    (2,)
    """

    def __init__(self, copy_from: "Generator | None" = None, state: Any = None, alg: Any = None):
        _check_algorithm(alg)
        if (copy_from is None) == (state is None):
            raise ArgumentError(
                "Generator takes either copy_from= or state=. To begin from a seed, write replicant.random.Generator.from_seed(1)."
            )
        if hasattr(active_strategy(), "variable_class"):
            raise ContextError(
                "A Generator was created in the scope of a ParameterServerStrategy, where no two workers would agree on its state. "
                "Pass a seed to each scheduled function instead, and draw with keras.random.normal(shape, seed=seed)."
            )
        words = np.asarray(state if copy_from is None else copy_from.state)
        self._state = Variable(_checked(words), trainable=False, name="generator_state")

    @classmethod
    def from_seed(cls, seed: Any, alg: Any = None) -> "Generator":
        """Make a generator from a seed.

        Args:
            seed: An integer of at most 64 bits.
            alg: As for the class.

        Raises:
            ArgumentError: If the seed is larger.
            ArgumentTypeError: If it is not an integer.
        """
        return cls(state=_state_of(seed), alg=alg)

    @classmethod
    def from_non_deterministic_state(cls, alg: Any = None) -> "Generator":
        """Make a generator that differs at every start. Several workers use the chief's."""
        return cls.from_seed(secrets.randbits(64), alg)

    @classmethod
    def from_state(cls, state: Any, alg: Any = None) -> "Generator":
        """Make a generator from the state of another one."""
        return cls(state=state, alg=alg)

    @property
    def state(self) -> Variable:
        """The variable that holds the state: the two words of the key, and the two words of the number of draws so far."""
        return self._state

    @property
    def key(self) -> jax.Array:
        """The two words of the key."""
        return self._state.value()[:2]

    @property
    def algorithm(self) -> int:
        """The number that TensorFlow gives the algorithm: 2 for threefry."""
        return 2

    def reset(self, state: Any) -> None:
        """Go to the state of another generator.

        Raises:
            ArgumentError: If it is not a state.
        """
        value = state.value() if isinstance(state, Variable) else state
        self._state.assign(_checked(value if isinstance(value, jax.Array) else np.asarray(value)))

    def reset_from_seed(self, seed: Any) -> None:
        """Go to the state that ``from_seed`` gives."""
        self._state.assign(_state_of(seed))

    def skip(self, delta: int) -> None:
        """Leave out as many draws. A draw is one call, whatever its shape.

        Raises:
            ArgumentError: If `delta` is negative or has more than 64 bits.
            ArgumentTypeError: If it is not an integer.
        """
        number = _integer(delta, "skip takes the number of draws")
        if not 0 <= number < 2**64:
            raise ArgumentError(f"skip takes the number of draws to leave out, from 0 to 2**64 - 1; got {number}.")
        with _counting:
            self._advance(self._state.value(), number)

    def split(self, count: int = 1) -> "list[Generator]":
        """Make `count` new generators, each with a key that this one draws.

        Raises:
            ArgumentError: If `count` is negative.
            ArgumentTypeError: If `count` is not an integer.
            ContextError: Inside ``strategy.run`` or a compiled function.
        """
        if active_replica_context() is not None or current_recorder() is not None:
            raise ContextError(
                "Generator.split was called inside `strategy.run` or a compiled function, where every trace would make the "
                "generators again. Call it outside. Inside, each replica draws its own numbers from one generator anyway."
            )
        seeds = np.asarray(self.make_seeds(count))
        return [type(self)(state=np.concatenate([seed, np.zeros(2, np.uint32)])) for seed in seeds.T]

    def make_seeds(self, count: int = 1) -> jax.Array:
        """Draw seeds for functions without a state, such as those of ``jax.random`` and ``keras.random``.

        Returns:
            An array of uint32 of shape (2, count). Each column is a seed.

        Raises:
            ArgumentError: If `count` is negative.
            ArgumentTypeError: If `count` is not an integer.
        """
        number = _integer(count, "count is a number of seeds")
        if number < 0:
            raise ArgumentError(f"count must be a number of seeds, 0 or more; got {number}.")
        return jax.random.bits(self._draw(), (2, number), jnp.uint32)

    def normal(
        self, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = jnp.float32, name: str | None = None
    ) -> jax.Array:
        """Draw from a normal distribution."""
        del name
        kind, sizes = float_dtype(dtype, "normal"), parse_shape(shape, "normal")
        return jax.random.normal(self._draw(), sizes, kind) * jnp.asarray(stddev, kind) + jnp.asarray(mean, kind)

    def truncated_normal(
        self, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = jnp.float32, name: str | None = None
    ) -> jax.Array:
        """Draw from a normal distribution, without values that are more than two standard deviations from the mean."""
        del name
        kind, sizes = float_dtype(dtype, "truncated_normal"), parse_shape(shape, "truncated_normal")
        drawn = jax.random.truncated_normal(self._draw(), -2.0, 2.0, sizes, kind)
        return drawn * jnp.asarray(stddev, kind) + jnp.asarray(mean, kind)

    def uniform(
        self, shape: Any, minval: Any = 0, maxval: Any = None, dtype: Any = jnp.float32, name: str | None = None
    ) -> jax.Array:
        """Draw from the numbers between `minval`, which is one of them, and `maxval`, which is not.

        Args:
            shape: The shape of the result.
            minval: The lower end.
            maxval: The upper end. The default is 1 for floats, and integers need one.
            dtype: A float or integer dtype.
            name: Has no effect.

        Raises:
            ArgumentError: If `minval` is above `maxval`, if integers have no `maxval` or have it equal to `minval`, or if one of
                the ends does not fit the dtype.
        """
        del name
        sizes = parse_shape(shape, "uniform")
        if not jnp.issubdtype(jnp.dtype(dtype), jnp.integer):
            kind = float_dtype(dtype, "uniform")
            top = 1.0 if maxval is None else maxval
            in_order(minval, top, equal=True)
            return jax.random.uniform(self._draw(), sizes, kind, jnp.asarray(minval, kind), jnp.asarray(top, kind))
        kind = int_dtype(dtype, "uniform")
        if maxval is None:
            raise ArgumentError(f"uniform of {kind} needs maxval, the end of the range. For all integers, write uniform_full_int.")
        within(minval, kind, "minval")
        within(maxval, kind, "maxval")
        in_order(minval, maxval, equal=False)
        return jax.random.randint(self._draw(), sizes, minval, maxval, kind)

    def uniform_full_int(self, shape: Any, dtype: Any = jnp.uint32, name: str | None = None) -> jax.Array:
        """Draw from all integers of a dtype."""
        del name
        kind, sizes = int_dtype(dtype, "uniform_full_int"), parse_shape(shape, "uniform_full_int")
        bits = jax.random.bits(self._draw(), sizes, jnp.dtype(f"uint{8 * kind.itemsize}"))
        return jax.lax.bitcast_convert_type(bits, kind)

    def binomial(self, shape: Any, counts: Any, probs: Any, dtype: Any = jnp.int32, name: str | None = None) -> jax.Array:
        """Draw the number of successes in `counts` trials that each succeed with probability `probs`."""
        del name
        kind, sizes = jax.dtypes.canonicalize_dtype(dtype), parse_shape(shape, "binomial")
        n, p = jnp.asarray(counts, jnp.float32), jnp.asarray(probs, jnp.float32)
        return jax.random.binomial(self._draw(), n, p, sizes, jnp.float32).astype(kind)

    def _draw(self) -> jax.Array:
        """Return the key of this replica's next draw."""
        with _counting:
            words = self._state.value()
            self._advance(words, 1)
        context = active_replica_context()
        replica = 0 if context is None else context.replica_id_in_sync_group
        key = jax.random.wrap_key_data(words[:2], impl=_IMPL)
        return jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(key, words[2]), words[3]), replica)

    def _advance(self, words: jax.Array, delta: int) -> None:
        if current_recorder() is None and in_a_trace() and _eager.current() is None and not self._in_functional_code():
            raise ContextError(
                "A Generator was used inside a function under jax.jit or another JAX transformation, or while Keras finds out the "
                "shapes of a layer, so its state could not be updated. Decorate the function with replicant.function instead, or "
                "make the generator an attribute of the layer."
            )
        low = words[2] + jnp.uint32(delta & _WORD)
        high = words[3] + jnp.uint32(delta >> 32) + (low < words[2]).astype(jnp.uint32)
        self._state.assign(jnp.stack([words[0], words[1], low, high]))

    def _in_functional_code(self) -> bool:
        """Whether Keras's functional code has the state, because a layer has the generator as an attribute."""
        stand_in = self._state._ref.stand_in  # noqa: SLF001 - users need no name for it
        return stand_in is not None and stand_in.in_functional_code()

    def __repr__(self) -> str:
        return f"<Generator state={self._state!r}>"


def _parts(generator: Generator) -> Mapping[str, Any]:
    return {"state": generator.state}


register_parts(Generator, _parts)


def _check_algorithm(alg: Any) -> None:
    if alg not in _ALGORITHMS:
        raise ArgumentError(
            f"The algorithm of a Generator is 'threefry'; got {alg!r}. Leave alg out. TensorFlow's numbers are not available here."
        )


def _integer(value: Any, what: str) -> int:
    try:
        return operator.index(value)
    except TypeError as error:
        raise ArgumentTypeError(f"{what}, an integer; got {value!r}.") from error


def _state_of(seed: Any) -> np.ndarray:
    number = _integer(seed, "A seed is a number")
    if not -(2**63) <= number < 2**64:
        raise ArgumentError(f"A seed has at most 64 bits; got {number}.")
    return np.array([number >> 32 & _WORD, number & _WORD, 0, 0], np.uint32)


def _checked(words: Any) -> Any:
    if words.shape != (4,) or words.dtype.kind not in "iu":
        raise ArgumentError(
            f"The state of a Generator is an array of 4 integers, as generator.state is; got shape {words.shape} and dtype "
            f"{words.dtype}. To begin from a seed, write Generator.from_seed(seed) or generator.reset_from_seed(seed)."
        )
    return words.astype(np.uint32)


class _Global:
    """The generator of the program."""

    def __init__(self) -> None:
        self.generator: Generator | None = None
        self.lock = threading.Lock()


_global = _Global()


def get_global_generator() -> Generator:
    """Return the generator of the program. It differs at every start, unless ``set_global_generator`` has replaced it."""
    with _global.lock:
        if _global.generator is None:
            _global.generator = _made_anywhere(_state_of(secrets.randbits(64)))
        return _global.generator


def set_global_generator(generator: Generator) -> None:
    """Replace the generator of the program. Steps that are compiled already keep the one that they have.

    Raises:
        ArgumentTypeError: If it is not a Generator.
    """
    if not isinstance(generator, Generator):
        raise ArgumentTypeError(
            f"set_global_generator takes a Generator, such as replicant.random.Generator.from_seed(1); got {generator!r}."
        )
    _global.generator = generator


def _made_anywhere(words: np.ndarray) -> Generator:
    """Make a generator of no strategy, even in a trace: its variable is not part of it."""
    with at_once():
        array = jnp.array(words)
    ref = OwnRef(array, "global_generator_state", VariableSynchronization.ON_WRITE, VariableAggregation.NONE, trainable=False)
    generator = object.__new__(Generator)
    generator._state = variable_of(ref)
    return generator
