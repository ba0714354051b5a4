"""Pure parts of the core: variable rules, function identity, errors, values."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import replicant
from replicant import VariableAggregation as Aggregation
from replicant import VariableSynchronization as Synchronization
from replicant import errors
from replicant.errors import ArgumentError, ArgumentTypeError, ContextError, DivergenceError, VariableError
from replicant.programs.validity._function_key import function_key
from replicant.replicas._copies import aggregate_copies, parse_rule, split_value


@given(value=st.integers(-1000, 1000), num_replicas=st.integers(2, 9))
def test_integers_split_without_loss(value: int, num_replicas: int) -> None:
    copies = split_value(jnp.asarray(value), Aggregation.SUM, num_replicas)
    assert copies.shape == (num_replicas,)
    assert int(aggregate_copies(copies, Aggregation.SUM, "v")) == value


@pytest.mark.parametrize(
    ("aggregation", "copies", "back"),
    [(Aggregation.SUM, [1.5, 1.5], 3.0), (Aggregation.MEAN, [3.0, 3.0], 3.0), (Aggregation.ONLY_FIRST_REPLICA, [3.0, 3.0], 3.0)],
)
def test_split_and_aggregate(aggregation: Aggregation, copies: list[float], back: float) -> None:
    split = split_value(jnp.asarray(3.0), aggregation, 2)
    assert split.tolist() == copies
    assert float(aggregate_copies(split, aggregation, "v")) == back


def test_no_aggregation_no_single_value() -> None:
    with pytest.raises(VariableError, match=r"'v' keeps one value per replica.*aggregation=SUM, MEAN or ONLY_FIRST_REPLICA"):
        aggregate_copies(jnp.ones(2), Aggregation.NONE, "v")


def test_rules_by_name() -> None:
    assert parse_rule(Aggregation, "only_first_replica") is Aggregation.ONLY_FIRST_REPLICA
    assert parse_rule(Synchronization, Synchronization.ON_READ) is Synchronization.ON_READ
    assert parse_rule(Aggregation, None) is Aggregation.NONE
    with pytest.raises(ArgumentError, match="'MAX' is not a valid VariableAggregation: use one of NONE, SUM, MEAN, ONLY_FIRST"):
        parse_rule(Aggregation, "MAX")


def maker(captured, default=0):
    def fn(x, d=default):
        return x + captured + d

    return fn


def test_the_same_code_over_the_same_objects_is_the_same_function() -> None:
    array = jnp.ones(2)
    assert function_key(maker(1)) == function_key(maker(1)) != function_key(maker(2))
    assert function_key(maker(1)) != function_key(maker(1.0)) != function_key(maker(True))
    assert function_key(maker(array)) == function_key(maker(array)) != function_key(maker(jnp.ones(2)))
    assert function_key(maker(1, default=2)) != function_key(maker(1, default=3))
    assert function_key(maker((1, "a"))) == function_key(maker((1, "a")))
    assert function_key(functools.partial(maker(1), 2)) == function_key(functools.partial(maker(1), 2))
    assert function_key(functools.partial(maker(1), d=2)) != function_key(functools.partial(maker(1), d=3))

    class Model:
        def __call__(self):
            return None

        def step(self):
            return None

    model, other = Model(), Model()
    assert function_key(model.step) == function_key(model.step) != function_key(other.step)
    assert function_key(model) == function_key(model) != function_key(other)

    def unbound():
        return later

    assert function_key(unbound) == function_key(unbound)
    later = 1


def test_every_error_is_ours_and_a_builtin_one() -> None:
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass)]
    assert all(c.__name__ in errors.__doc__ for c in classes)
    classes = [c for c in classes if not issubclass(c, UserWarning)]
    assert all(issubclass(c, errors.ReplicantError) for c in classes)
    builtin = (ValueError, TypeError, RuntimeError, IndexError, TimeoutError, AttributeError, OSError)
    assert all(issubclass(c, builtin) for c in classes if c is not errors.ReplicantError)


def test_values_pass_through_jax_transformations() -> None:
    even = replicant.PerReplica.from_stacked(jnp.arange(4.0).reshape(2, 2))
    ragged = replicant.PerReplica([jnp.ones(2), jnp.ones(1)])
    same = replicant.Mirrored(jnp.ones(()), num_replicas=3)
    back = jax.jit(lambda tree: tree)({"even": even, "ragged": ragged, "same": same})
    assert [v.tolist() for v in back["even"].values] == [[0.0, 1.0], [2.0, 3.0]]
    assert [v.shape for v in back["ragged"].values] == [(2,), (1,)]
    assert (back["same"].num_replicas, float(np.asarray(back["same"]))) == (3, 1.0)
    assert (even.num_replicas, ragged.num_replicas) == (2, 2)
    assert np.asarray(same, dtype=np.float64).dtype == np.float64


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: replicant.Variable(1.0, synchronization="NONE"), VariableError, "synchronization=NONE is not supported"),
        (lambda: replicant.Variable(1, aggregation="MEAN"), VariableError, "aggregation=MEAN needs a float dtype.*int32"),
        (lambda: replicant.Variable(replicant.PerReplica([1.0])), ArgumentTypeError, "same on all replicas; got a PerReplica"),
        (lambda: replicant.get_strategy().run(lambda: replicant.Variable(1.0, name="v")), ContextError, "'v' was created inside"),
        (
            lambda: replicant.Variable(1.0).assign([1.0, 2.0]),
            ArgumentError,
            r"shape \(2,\), but the variable has shape \(\)",
        ),
        (lambda: replicant.Variable(1.0).assign(replicant.PerReplica([1.0])), DivergenceError, "PerReplica value in cross-replica"),
    ],
)
def test_misuse_of_variables(make, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_a_variable_behaves_like_its_value() -> None:
    v = replicant.Variable(lambda: [1.0, 2.0], name="v")
    assert (v.name, v.shape, v.dtype, v.trainable) == ("v", (2,), jnp.float32, True)
    assert (v + 1).tolist() == (1 + v).tolist() == [2.0, 3.0]
    assert (v * v).tolist() == [1.0, 4.0]
    assert (2 / v).tolist() == [2.0, 1.0]
    assert (-v).tolist() == [-1.0, -2.0]
    assert (v**2 - v // 2 + v % 2).tolist() == [2.0, 3.0]
    assert float(v @ v) == 5.0
    assert float(v[1]) == 2.0
    assert jnp.sum(v.value()) == 3.0
    assert np.asarray(v, dtype=np.float64).tolist() == [1.0, 2.0]
    assert repr(v) == "<Variable 'v' shape=(2,) dtype=float32 value=[1. 2.]>"
    scalar = replicant.Variable(3)
    assert (int(scalar), float(scalar)) == (3, 3.0)
    assert not replicant.Variable(0.0, synchronization="ON_READ").trainable
