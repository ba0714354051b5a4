"""Random functions of Python numbers, called with random numbers: equal to the code without a compiler, whatever it looks at."""

import math
import operator
import sys
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import pytest

import replicant

ROW = jnp.arange(1.0, 5.0)
SEES_TYPES = sys.version_info >= (3, 12)
TABLE = {0: 0.5, 1: 2, 2.5: 3, "3": 4.5, "2.5": 7, -1: 0.25, 7: 1}
UNARY: dict[str, Any] = {
    "-": operator.neg,
    "abs": abs,
    "round": round,
    "round 1": lambda n: round(n, 1),
    "int": int,
    "float": float,
    "bool": bool,
    "length of the text": lambda n: len(str(n)),
    "number of the text": lambda n: float(f"{n:.1f}"),
    "floor": math.floor,
    "ceil": math.ceil,
    "sqrt": math.sqrt,
    "exp": math.exp,
    "cos": math.cos,
    "entry": lambda n: TABLE[n],
    "entry of the text": lambda n: TABLE.get(f"{n}", 0.75),
    "item": lambda n: (3, 1, 4, 1.5, 9)[n],
    "items": lambda n: len([1, 2, 3][:n]),
    "loop": lambda n: sum(i * 2 for i in range(min(n, 20))),
    "while": lambda n: sum(1 for i in range(5) if n > i),
    "is int": lambda n: 2 if isinstance(n, int) else 3,
    "type": lambda n: 2 if (type(n) if SEES_TYPES else n.__class__) is int else 3,
    "bits": lambda n: n.bit_length(),
    "hash": lambda n: hash(n) % 7,
    "member": lambda n: 2 if n in {1, 2, 3.5} else 5,
    "not": lambda n: not n,
    "numpy": lambda n: float(np.float32(n)),
}
BINARY: dict[str, Any] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": lambda a, b: a**b if abs(a) < 50 and abs(b) < 9 else a,
    "min": min,
    "max": max,
    "divmod": lambda a, b: divmod(a, b)[1],
    "<": lambda a, b: a if a < b else b + 1,
    "==": lambda a, b: 2 if a == b else 3,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
}
CAUGHT = (KeyError, IndexError, ZeroDivisionError, TypeError, ValueError, OverflowError, AttributeError)
ENDS: dict[str, Any] = {
    "x * n": lambda x, n: x * n,
    "n - x": lambda x, n: n - x,
    "where": lambda x, n: jnp.where(x > n, x, n),
    "clip": lambda x, n: jnp.clip(x, 0, n),
    "x[n]": lambda x, n: x[n],
    "x[:n]": lambda x, n: x[:n],
    "x ** n": lambda x, n: x**n if isinstance(n, float) or abs(n) < 9 else x,
    "full": lambda x, n: jnp.full((2,), n) + x[0],
    "float32": lambda x, n: x * jnp.float32(n),
    "the number": lambda x, n: (n, x),
    "two": lambda x, n: [n + 1, {"n": x + n}],
}

numbers = st.one_of(
    st.integers(-3, 8), st.sampled_from([0.0, -0.0, 0.5, 2.5, -1.5, 3.0, 1e6, 1e-6, 2**31, 2**40, math.inf, math.nan])
)
constants = st.sampled_from([0, 1, 2, 3, 7, -1, 0.5, 2.5, 1e3])


def extended(inner: Any) -> Any:
    return st.one_of(
        st.tuples(st.sampled_from([*UNARY]), inner),
        st.tuples(st.sampled_from([*BINARY]), inner, inner),
        st.tuples(st.just("try"), inner, inner),
        st.tuples(st.just("if"), inner, inner, inner),
    )


trees = st.recursive(st.one_of(st.sampled_from(["a", "b"]), constants), extended, max_leaves=6)


def evaluate(tree: Any, names: dict[str, Any]) -> Any:
    """Compute an expression as Python does."""
    if isinstance(tree, str):
        return names[tree]
    if not isinstance(tree, tuple):
        return tree
    if tree[0] == "try":
        try:
            return evaluate(tree[1], names)
        except CAUGHT:
            return evaluate(tree[2], names)
    if tree[0] == "if":
        return evaluate(tree[2 if evaluate(tree[1], names) else 3], names)
    operands = [evaluate(each, names) for each in tree[1:]]
    return (UNARY[tree[0]] if len(operands) == 1 else BINARY[tree[0]])(*operands)


def outcome(fn: Any, *args: Any) -> Any:
    """What a call returns, in plain Python, or its error."""
    try:
        result = fn(*args)
    except Exception as error:  # noqa: BLE001 - the error is the outcome
        return error
    leaves = result if isinstance(result, list | tuple) else [result]
    leaves = [part for leaf in leaves for part in (leaf.values() if isinstance(leaf, dict) else [leaf])]
    leaves = [getattr(x, "value", x) for x in leaves]
    return [(type(x), x) if isinstance(x, int | float | complex) else (str(x.dtype), np.asarray(x)) for x in leaves]


def check(tree: Any, end: str, calls: list[tuple[Any, Any]], *, by_run: bool) -> None:
    """Compare the calls of one function with the same code without a compiler."""

    def fn(x: Any, a: Any, b: Any) -> Any:
        value = evaluate(tree, {"a": a, "b": b})
        return ENDS[end](x, value)

    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    compiled = (lambda *args: strategy.run(fn, args)) if by_run else replicant.function(fn)
    for a, b in [*calls, *calls[:2]]:
        expected, got = outcome(fn, ROW, a, b), outcome(compiled, ROW, a, b)
        if isinstance(expected, Exception) or isinstance(got, Exception):
            assert isinstance(got, type(expected)), (a, b, expected, got)
            continue
        assert len(expected) == len(got)
        for (kind, wanted), (kind_now, given) in zip(expected, got, strict=True):
            assert kind == kind_now, (a, b, wanted, given)
            value, want = np.complex128(given), np.complex128(wanted)
            np.testing.assert_allclose(value, want, rtol=2e-6, err_msg=f"{a}, {b}")
            assert (np.signbit(value.real) == np.signbit(want.real)).all() or np.isnan(want).any()


ARGUMENTS = (trees, st.sampled_from([*ENDS]), st.lists(st.tuples(numbers, numbers), min_size=2, max_size=4), st.booleans())


@hypothesis.settings(max_examples=25, suppress_health_check=[*hypothesis.HealthCheck])
@hypothesis.given(*ARGUMENTS)
@pytest.mark.filterwarnings("ignore")
def test_random_functions_of_numbers(tree, end, calls, by_run) -> None:
    check(tree, end, calls, by_run=by_run)


@pytest.mark.long
@hypothesis.settings(max_examples=2000, suppress_health_check=[*hypothesis.HealthCheck])
@hypothesis.given(*ARGUMENTS)
@pytest.mark.filterwarnings("ignore")
def test_two_thousand_random_functions_of_numbers(tree, end, calls, by_run) -> None:
    check(tree, end, calls, by_run=by_run)
