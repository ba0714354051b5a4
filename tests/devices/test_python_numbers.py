"""Python numbers among the arguments: inputs where an array takes them, and guards for what else the code has seen of them."""

import decimal
import sys
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant.programs.validity._function_key import function_key

ONES = jnp.ones(3)


def compiled(fn: Any, values: Any) -> tuple[int, list[Any]]:
    """How many programs the calls ``fn(ONES, value)`` need, and what they give."""
    step = replicant.function(fn)
    results = [step(ONES, v) for v in values]
    return step.num_compiled, [jax.tree.map(lambda x: np.asarray(x).tolist(), r) for r in results]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, t: x * t,
        lambda x, t: x.astype(jnp.bfloat16) * t,
        lambda x, t: x.astype(jnp.int32) * t,
        lambda x, t: jax.lax.scan(lambda c, _: (c * t, None), x, None, length=2)[0],
        lambda x, t: jax.lax.while_loop(lambda c: jnp.sum(c) < 9, lambda c: c + t, x),
        lambda x, t: jax.nn.softmax(x / t),
        lambda x, t: jnp.where(x > t, x, t),
        lambda x, t: jax.jit(lambda y: y * t + 1)(x),
        lambda x, t: replicant.value_and_grad(lambda y: jnp.sum(y**2 * t))(x)[1],
        lambda x, t: x * jnp.full((3,), t),
        lambda x, t: keras.ops.multiply(x, t) * 1,
        lambda x, t: jnp.clip(x, -t, t) * jnp.minimum(1.0, t / 100),
        lambda x, t: jnp.take_along_axis(x, jnp.arange(3), axis=0) * t,  # which gives NaN where an index is out of range
    ],
)
@pytest.mark.parametrize("values", [(1.0, 2.5, 3.0), (1, 2, 3)])
def test_one_program_is_enough(fn, values) -> None:
    count, results = compiled(fn, values)
    assert count == 1
    for v, result in zip(values, results, strict=True):
        expected = np.asarray(jax.jit(lambda x, v=v: fn(x, v))(ONES))  # with a constant
        np.testing.assert_allclose(result, expected.astype(np.float64), rtol=1e-6)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, k: sum((x for _ in range(k)), x),
        lambda x, k: jnp.zeros(k),
        lambda x, k: x * float(f"{k}"),
        lambda x, k: x * {0: 1.0, 1: 2.0}.get(k, 3.0),
        lambda x, k: x * int(k),
        lambda x, k: x * np.float32(k),
        lambda x, k: x * len(str(10**k)),
        lambda x, k: x**k,
        lambda x, k: x * (2 if sys.version_info < (3, 12) or type(k) is int else 3) * len(range(k)),
    ],
)
def test_code_that_needs_the_number_gets_it(fn) -> None:
    with pytest.warns(UserWarning, match=r"compiled 4 times, once for each value of its argument `k` \(now 3\).*the Python number"):
        count, results = compiled(fn, range(4))
    assert count == 4
    for k, result in enumerate(results):
        assert result == np.asarray(fn(ONES, k)).tolist()


def late(x, k):
    return x * (0.1 if k >= 5 else 1.0)


def caught(x, k):
    try:
        return x * [0.5, 0.5, 2.0][k]
    except IndexError:
        return -x


def divided(x, k):
    try:
        return x * (6 / (k - 6))
    except ZeroDivisionError:
        return -x


@pytest.mark.parametrize(
    ("fn", "programs"),
    [
        (lambda x, k: x * 2 if k % 2 == 0 else x, 2),
        (lambda x, k: x * (2 if isinstance(k, int) else 3), 1),
        (late, 2),
        (caught, 8),
        (divided, 2),
        (lambda x, k: x * {"5": 0.5}.get(f"{k}", 0.1), 8),
        (lambda x, k: x * (k * 2048 * 1024 / 1e9), 1),
        (lambda x, k: x * (1 - k * 100_000 / 1_000_000), 1),
        (lambda x, k: x * 0.5 ** (k // 2), 1),
        (lambda x, k: x * (2 if k and k < 3 else 4), 3),
        (lambda x, k: x * (k + 2**40 - 2**40), 1),
        (lambda x, k: x * (2**k + 2**-k), 2),  # of which the first has an int for 2**0
    ],
)
@pytest.mark.filterwarnings("ignore:.*has been compiled")
def test_a_program_is_right_for_what_it_has_seen(fn, programs) -> None:
    count, results = compiled(fn, [*range(8)])
    assert results == [np.asarray(fn(ONES, k)).tolist() for k in range(8)]
    assert count == programs


def test_numbers_that_do_not_fit() -> None:
    values = [2**40 + i for i in range(4)]
    assert compiled(lambda x, k: x * (k % 7), values) == (1, [[float(k % 7)] * 3 for k in values])
    count, results = compiled(lambda x, k: x * (k * 1e300), [i * 1e-300 for i in range(1, 5)])
    assert (count, results[-1]) == (1, pytest.approx([4.0] * 3))
    step = replicant.function(lambda x, k: x.astype(int) * (k * 2**20))
    assert [step(ONES, k).tolist() for k in (1, 5)] == [[2**20] * 3, [5 * 2**20] * 3]
    with pytest.raises(OverflowError):  # as of the number itself
        step(ONES, 4096)
    assert step(ONES, 6).tolist() == [6 * 2**20] * 3


def test_zero_and_minus_zero_are_two_numbers() -> None:
    assert compiled(lambda x, z: x / z, [0.0, -0.0, 0.0])[1] == [[np.inf] * 3, [-np.inf] * 3, [np.inf] * 3]
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    scale = 1.0
    for scale in (0.0, -0.0):  # which the function closes over
        assert float(strategy.run(lambda x: jnp.sum(x / scale), args=(ONES,)).value) == np.copysign(np.inf, scale)  # noqa: B023
    for pair in ([0.0, -0.0], [1, 1.0], [1, True], [float("nan"), 1.0], [0j, -0j]):
        assert len({function_key(lambda v=v: v) for v in pair}) == 2
    assert len({function_key(lambda v=float("nan"): v) for _ in range(3)}) == 1


class Store:
    latest: Any = None


STORE, LOG, TABLE = Store(), [], {}


def stores(x, k):
    STORE.latest = k + 1
    LOG.append(k * 2)
    TABLE["k"] = {"half": [k / 2]}
    return x, {k: x}


@pytest.mark.filterwarnings("ignore:.*has been compiled|.*changes the Python number")
def test_no_number_that_records_leaves_the_trace() -> None:
    step = replicant.function(stores)
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    for k, call in ((3, step), (5, step), (7, lambda *args: strategy.run(stores, args))):
        LOG.clear()
        _, keyed = call(ONES, k)
        kept = [STORE.latest, LOG[-1], TABLE["k"]["half"][0], *keyed]
        assert (kept, [*map(type, kept)]) == ([k + 1, k * 2, k / 2, k], [int, int, float, int])


def test_a_number_changed_in_place_is_an_error() -> None:
    def count(x, state):
        state["step"] += 1
        return x

    step = replicant.function(count)
    with pytest.raises(replicant.errors.LostStateError, match=r"changed its argument 1 \(a dict\), at \['step'\], in place"):
        step(ONES, {"step": 1})


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python does not tell of it")
def test_what_a_number_cannot_notice() -> None:
    """The interpreter tells of ``type(n)``, and of errors that C code raises because of it and the code catches."""

    def decimal_of(x, k):
        try:
            return x * float(decimal.Decimal(k))
        except TypeError:
            return -x

    for fn in (decimal_of, lambda x, k: x * (k if [*map(type, [k])] == [int] else -1), lambda x, k: x * len(type(k).__name__)):
        assert compiled(fn, range(3))[1] == [np.asarray(fn(ONES, k)).tolist() for k in range(3)]


def test_true_and_false_and_text_are_constants() -> None:
    count, results = compiled(lambda x, training: x if training else -x, [True, False, True, False])
    assert (count, results) == (2, [[1.0] * 3, [-1.0] * 3] * 2)
    assert compiled(lambda x, name: x * len(name), ["a", "bc", "a"])[0] == 2


def test_not_a_number() -> None:
    count, results = compiled(lambda x, t: x * t, [1.0, float("nan"), float("inf"), float("nan")])
    assert (count, str(results)) == (1, "[[1.0, 1.0, 1.0], [nan, nan, nan], [inf, inf, inf], [nan, nan, nan]]")
    assert compiled(lambda x, t: x if t > 0 else -x, [1.0, float("nan"), float("nan")]) == (2, [[1.0] * 3, [-1.0] * 3, [-1.0] * 3])


def test_a_number_that_is_handed_through_stays_one() -> None:
    step = replicant.function(lambda x, k: (k, x * k, {"k": k}))
    for k in range(4):
        same, _, nested = step(ONES, k)
        assert (same, type(same), nested) == (k, int, {"k": k})
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    step = replicant.function(lambda x, k: strategy.run(lambda x, k: (k, x * k), args=(x, k)))
    assert [step(ONES, k)[0] for k in range(4)] == [0, 1, 2, 3]
    assert step.num_compiled == 1
    step = replicant.function(lambda x, k: ([k + 1, k / 2], x))
    assert [step(ONES, k)[0] for k in (1, 2, 2**60)] == [[2, 0.5], [3, 1.0], [2**60 + 1, 2.0**59]]


def test_a_step_count_that_goes_round() -> None:
    """``TrainState.step`` is a Python int, and what Python computes from it is one."""
    step = replicant.function(lambda state: {"w": state["w"] * 2, "step": state["step"] + 1})
    state: Any = {"w": ONES, "step": 0}
    kinds = []
    for _ in range(6):
        state = step(state)
        kinds.append(type(state["step"]) is int)
    assert (int(state["step"]), kinds, step.num_compiled) == (6, [True] * 6, 1)


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_numbers_in_run(num_replicas) -> None:
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)])
    (x,) = strategy.experimental_distribute_dataset([np.ones((5, 2), np.float32)])  # rows that the replicas do not divide
    w = replicant.Variable(jnp.ones(2))

    def step(x, *, temperature):
        with replicant.GradientTape() as tape:
            loss = jnp.sum((x @ w.value()) ** 2) * temperature
        return replicant.get_replica_context().all_reduce("SUM", tape.gradient(loss, w))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for t in (1.0, 2.0, 3.5, 0.5):
            result = strategy.run(step, args=(x,), kwargs={"temperature": t})
            np.testing.assert_allclose(getattr(result, "value", result), [20.0 * t] * 2)
    assert [c.num_programs for c in strategy._eager.values()] == [1]


def test_the_argument_is_named() -> None:
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])

    def step(x, config):
        return x * int(config["depth"])

    message = r"'.*step' has been compiled 4 times, once for each value of its argument `config\['depth'\]`"
    with pytest.warns(UserWarning, match=message):
        _ = [strategy.run(step, args=(ONES, {"depth": depth})) for depth in range(4)]


def test_one_number_may_be_an_input_and_another_not() -> None:
    step = replicant.function(lambda x, k, t: sum((x * t for _ in range(k)), x))
    for k in (1, 2):
        for t in (1.0, 2.0, 3.0):
            assert step(ONES, k, t).tolist() == [1 + k * t] * 3
    assert step.num_compiled <= 4


def test_an_error_of_the_code_itself_comes_out() -> None:
    def fn(x, k):
        if k == 2:
            raise KeyError("mine")
        return x

    step = replicant.function(fn)
    step(ONES, 1)
    with pytest.raises(KeyError, match="mine"):
        step(ONES, 2)
    assert step(ONES, 3).tolist() == [1.0] * 3


def test_programs_are_bounded() -> None:
    step = replicant.function(lambda x, k: jnp.zeros(k)[:1])
    with pytest.warns(UserWarning, match="Replicant keeps the programs of the last 64 values"):
        _ = [step(ONES, k + 1) for k in range(70)]
    assert step.num_compiled == 64
