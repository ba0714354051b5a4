"""GradientTape and value_and_grad, against jax.grad and values worked out by hand."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant import GradientTape
from replicant.errors import ArgumentError, ArgumentTypeError, GradientError

pytestmark = pytest.mark.both_ways

THREE = jnp.asarray(3.0)


def compiled(fn, eagerly=True):
    """`fn` at 3.0, as a compiled function and as a replica of two; both must give the same, and so must `fn` itself."""
    alone = replicant.function(fn)(THREE)
    if eagerly:
        itself = fn(THREE)
        assert jax.tree.structure(itself) == jax.tree.structure(alone)
        for a, b in zip(jax.tree.leaves(itself), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-6)
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    shared = strategy.run(fn, args=(THREE,))
    for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(shared), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    return jax.tree.map(lambda x: x if x is None else np.asarray(x).tolist(), alone, is_leaf=lambda x: x is None)


def test_nested_tapes_give_second_derivatives() -> None:
    def fn(x):
        with GradientTape() as outer:
            with GradientTape() as inner:
                y = x**3
            first = inner.gradient(y, x)
        return first, outer.gradient(first, x)

    assert compiled(fn) == (27.0, 18.0)


def test_persistent_tape_many_gradients_and_structures() -> None:
    def fn(x):
        with GradientTape(persistent=True) as tape:
            square = x * x
            cube = square * x
        return tape.gradient(square, x), tape.gradient(cube, [x, square]), tape.gradient([square, {"c": cube}], {"x": x})

    assert compiled(fn) == (6.0, [27.0, 3.0], {"x": 33.0})


def test_unconnected_sources_are_none_or_zero() -> None:
    used, frozen, other = (
        replicant.Variable(2.0, name="used"),
        replicant.Variable(5.0, trainable=False),
        replicant.Variable([1.0, 1.0]),
    )

    def fn(x):
        with GradientTape(persistent=True) as tape:
            y = used * x + frozen
        sources = [used, frozen, other, x, jnp.asarray(1)]
        return tape.gradient(y, sources), tape.gradient(y, sources[:3], unconnected_gradients="zero")

    assert compiled(fn) == ([3.0, None, None, 2.0, None], [3.0, 0.0, [0.0, 0.0]])


def test_frozen_variables_can_be_watched_and_trainable_ones_ignored() -> None:
    frozen = replicant.Variable(5.0, trainable=False, name="frozen")
    trainable = replicant.Variable(2.0, name="trainable")
    seen = []

    def fn(x):
        with GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([frozen, x])
            y = frozen * trainable * x
        seen.append(tape.watched_variables())
        return tape.gradient(y, [frozen, trainable])

    assert compiled(fn) == ([6.0, None])
    assert set(seen) == {("frozen",)}


def test_only_what_is_computed_inside_the_block_has_a_gradient() -> None:
    def fn(x):
        with GradientTape(persistent=True) as tape:
            a = x * x
            with tape.stop_recording():
                b = a * 3
            c = a + b
        return tape.gradient(c, x), tape.gradient(c * 2, x), tape.gradient(a * 0 + 1.0, x)

    assert compiled(fn) == (6.0, None, None)


def test_gradient_inside_the_block_and_of_values_from_before() -> None:
    def fn(x):
        before = x * x
        with GradientTape() as tape:
            y = before * x
            return tape.gradient(y, x)

    assert compiled(fn) == 9.0


def test_a_variable_counts_with_the_values_it_had_when_read() -> None:
    v = replicant.Variable(2.0)

    @replicant.function
    def fn(x):
        v.assign(2.0)
        with GradientTape() as tape:
            y = v * v * x
            v.assign(x)
            z = y + v * v
        v.assign(100.0)
        return tape.gradient(z, v)

    assert float(fn(THREE)) == 2 * 2.0 * 3.0 + 2 * 3.0


def test_output_gradients_weigh_the_target() -> None:
    def fn(x):
        with GradientTape() as tape:
            y = {"a": jnp.stack([x, x * x]), "b": x}
        return tape.gradient(y, x, output_gradients={"a": jnp.asarray([1.0, 10.0]), "b": jnp.asarray(100.0)})

    assert compiled(fn) == 161.0


def test_two_tapes_with_a_common_part() -> None:
    """As in a GAN: two losses share the discriminator."""
    v, w = replicant.Variable(0.3), replicant.Variable(-0.2)

    def losses(v, w, x):
        real, fake = jnp.tanh(w * x), jnp.tanh(w * (v * x))
        return (fake - 1) ** 2, (real - 1) ** 2 + fake**2

    def fn(x):
        with GradientTape() as generator, GradientTape() as discriminator:
            of_generator, of_discriminator = losses(v, w, x)
        return generator.gradient(of_generator, v), discriminator.gradient(of_discriminator, w)

    expected = (jax.grad(lambda v: losses(v, -0.2, 3.0)[0])(0.3), jax.grad(lambda w: losses(0.3, w, 3.0)[1])(-0.2))
    np.testing.assert_allclose(compiled(fn), expected, rtol=1e-6)


def test_gradient_penalty() -> None:
    """A gradient inside the loss whose gradient is taken."""
    w = replicant.Variable(0.5)

    def fn(x):
        with GradientTape() as outer:
            with GradientTape() as inner:
                y = jnp.sin(w * x)
            penalty = (inner.gradient(y, x) - 1) ** 2 + y
        return outer.gradient(penalty, w)

    def penalty(w, x):
        return (jax.grad(lambda x: jnp.sin(w * x))(x) - 1) ** 2 + jnp.sin(w * x)

    np.testing.assert_allclose(compiled(fn), jax.grad(penalty)(0.5, 3.0), rtol=1e-6)


def test_through_loops_branches_and_inner_functions() -> None:
    @jax.jit
    def inner(z):
        with GradientTape() as tape:
            y = z * z
        return tape.gradient(y, z)

    def body(carry, _):
        with GradientTape() as tape:
            y = carry * carry
        return carry + tape.gradient(y, carry), None

    def fn(x):
        with GradientTape(persistent=True) as tape:
            scanned, _ = jax.lax.scan(lambda c, _: (c * x, None), jnp.ones(()), None, length=3)
            chosen = jax.lax.cond(x > 0, lambda: x * 5, lambda: x)
            soft = jax.nn.softplus(x)
        return (
            tape.gradient(scanned, x),
            tape.gradient(chosen, x),
            tape.gradient(soft, x),
            inner(x),
            jax.lax.scan(body, x, None, 2)[0],
        )

    scanned, chosen, soft, inside, looped = compiled(fn)
    assert (scanned, chosen, inside, looped) == (27.0, 5.0, 6.0, 27.0)
    assert soft == pytest.approx(float(jax.nn.sigmoid(3.0)), rel=1e-6)


def test_inside_checkpointed_functions() -> None:
    @jax.checkpoint
    def fn(x):
        with GradientTape() as tape:
            y = x * x
        return tape.gradient(y, x)

    assert compiled(fn) == 6.0


def test_the_python_code_runs_as_often_as_without_a_tape() -> None:
    runs = []

    def step(x, *, tapes: int):
        runs.append(1)
        for _ in range(tapes):
            with GradientTape() as tape:
                y = x * x
            x = tape.gradient(y, x)
        return x

    replicant.function(lambda x: step(x, tapes=0))(THREE)
    without = len(runs)
    runs.clear()
    assert float(replicant.function(lambda x: step(x, tapes=3))(THREE)) == 24.0
    assert len(runs) == without == 1


def test_the_forward_pass_is_compiled_once() -> None:
    """One dot forward and one backward: as many as in a hand-written value_and_grad."""
    w = replicant.Variable(np.ones((4, 4), np.float32))

    def fn(x):
        with GradientTape() as tape:
            loss = jnp.sum(jnp.tanh(x @ w.value()))
        gradient = tape.gradient(loss, w)
        w.assign_sub(0.1 * gradient)
        return loss

    step = replicant.function(fn)
    x = jnp.ones((2, 4))
    step(x)
    program = next(iter(step._compiled._programs))
    text = program.executable.lower([w._ref._value], [], [x]).as_text()  # before XLA could merge anything
    assert (text.count("stablehlo.dot_general"), text.count("stablehlo.tanh")) == (2, 1)


def test_tape_around_run() -> None:
    v = replicant.Variable(2.0)
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])

    @replicant.function
    def fn(x):
        with GradientTape() as tape:
            loss = strategy.reduce("SUM", strategy.run(lambda x: v * x, args=(x,)))
        return tape.gradient(loss, v)

    assert float(fn(THREE)) == 6.0


def test_tape_around_a_run_that_assigns() -> None:
    """What `run` reads after it assigned has no name outside; before, and where only the assignment is the last word, it has."""
    v = replicant.Variable(2.0, name="v", aggregation="MEAN")
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])

    def assign_last(x):
        y = v * x
        v.assign(y)
        return y

    def read_last(x):
        v.assign(v * x)
        return v * x

    def gradient(step):
        @replicant.function
        def fn(x):
            v.assign(2.0)
            with GradientTape() as tape:
                loss = strategy.reduce("SUM", strategy.run(step, args=(x,)))
            return tape.gradient(loss, v)

        return fn(THREE)

    assert float(gradient(assign_last)) == 6.0
    with pytest.raises(
        GradientError, match=r"Variable 'v' was assigned and then read inside `strategy.run`, but the tape is outside"
    ):
        gradient(read_last)


def test_assigned_keras_variables_stop_gradients() -> None:
    """What TensorFlow 2.21 with Keras 3.15 gave: after assign, after assign_add, and for the statistics of a BatchNormalization."""
    v, x = keras.Variable(1.0, aggregation="mean"), replicant.Variable(3.0)
    norm = keras.layers.BatchNormalization(momentum=0.5)
    rows = jnp.asarray([[1.0], [3.0]])
    norm.build(rows.shape)

    def fn(_):
        with GradientTape() as after_assign:
            v.assign(x * 2.0)
            y = v * x.value()
        with GradientTape() as after_add:
            v.assign_add(x * 2.0)
            z = v * x.value()
        with GradientTape() as normalized:
            norm(rows, training=True)
            loss = jnp.sum(norm(rows, training=False) ** 2)
        return (
            after_assign.gradient(y, [x, v]),
            after_add.gradient(z, [x, v]),
            normalized.gradient(loss, [rows, norm.gamma, norm.beta]),
        )

    def check(found):
        np.testing.assert_allclose(jnp.stack(found[0]), [6.0, 3.0])
        np.testing.assert_allclose(jnp.stack(found[1]), [12.0, 3.0])
        expected = [[0.0], [3.996004343032837]], [7.992008209228516], [3.99800181388855]
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), list(found[2]), list(map(np.asarray, expected)))

    def fresh():
        for variable, value in ((v, 1.0), (norm.moving_mean, [0.0]), (norm.moving_variance, [1.0])):
            variable.assign(value)

    check(replicant.function(fn)(THREE))
    fresh()
    found = replicant.MirroredStrategy(["cpu:0", "cpu:1"]).run(fn, args=(THREE,))
    check(jax.tree.map(lambda x: x.values[0], found, is_leaf=lambda x: hasattr(x, "values")))


def test_value_and_grad_works_anywhere() -> None:
    v, w = replicant.Variable(2.0), replicant.Variable(1.0)

    def loss(x):
        return v * x * x, {"aux": x}

    both = replicant.value_and_grad(loss, {"v": v, "w": w}, has_aux=True)
    (value, aux), gradients = both(THREE)
    assert (float(value), float(aux["aux"])) == (18.0, 3.0)
    assert {k: float(g) for k, g in gradients.items()} == {"v": 9.0, "w": 0.0}
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    _, in_run = strategy.run(both, args=(THREE,))
    assert [float(g) for g in in_run["v"].values] == [9.0, 9.0]
    value, gradient = replicant.value_and_grad(lambda x: x * x)(THREE)
    assert (float(value), float(gradient)) == (9.0, 6.0)


def twice(x):
    with GradientTape() as tape:
        y = x * x
    tape.gradient(y, x)
    return tape.gradient(y, x)


def again(x):
    with GradientTape() as tape, tape:
        return x


def stopped(x):
    with GradientTape().stop_recording():
        return x


def reset_outside(x):
    tape = GradientTape()
    with tape:
        y = x * 2.0
    tape.reset()
    return y


def test_reset() -> None:
    v = replicant.Variable(5.0)

    def fn(x):
        with GradientTape(persistent=True) as tape:
            y = x * x * v
            tape.reset()
            z = x * 7.0 + y
        return tape.gradient(z, x), tape.gradient(y, x), tape.gradient(z, v), tape.gradient(z, y)

    assert compiled(fn) == (7.0, None, None, 1.0)


def target_of(target, **options):
    def fn(x):
        with GradientTape() as tape:
            y = x * 1.0
        return tape.gradient(target if target is not None else y, x, **options)

    return fn


@pytest.mark.parametrize(
    ("fn", "error", "message"),
    [
        (twice, GradientError, "not persistent computes gradients only once"),
        (again, GradientError, "already recording"),
        (reset_outside, GradientError, "reset was called on a tape that is not recording"),
        (stopped, GradientError, "stop_recording was called on a tape that is not recording"),
        (lambda x: GradientTape().gradient(x, x), GradientError, "recorded nothing"),
        (lambda x: GradientTape().watch(1.0), ArgumentTypeError, "watch takes JAX arrays and variables; got 1.0"),
        (target_of(jnp.asarray(1)), ArgumentTypeError, "must be of a float dtype; got int32"),
        (target_of(None, output_gradients=[1.0]), ArgumentError, "output_gradients has the structure"),
        (target_of(None, unconnected_gradients="one"), ArgumentError, "must be 'none' or 'zero'; got 'one'"),
    ],
)
def test_misuse(fn, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        replicant.function(fn)(THREE)


def test_a_source_must_be_differentiable() -> None:
    def fn(x):
        with GradientTape() as tape:
            y = x * x
        return tape.gradient(y, "x")

    with pytest.raises(ArgumentTypeError, match="must be a variable or a JAX array; got 'x'"):
        replicant.function(fn)(THREE)


def test_in_a_program_of_jax() -> None:
    def fn(x):
        with GradientTape() as tape:
            y = x * x
        return tape.gradient(y, x)

    assert float(jax.jit(fn)(THREE)) == 6.0
    assert float(jax.grad(fn)(THREE)) == 2.0


def test_a_tape_does_not_outlive_its_function() -> None:
    kept = []

    def fn(x):
        with GradientTape() as tape:
            y = x * x
        kept.append(lambda: tape.gradient(y, x))
        return y

    replicant.function(fn)(THREE)
    with pytest.raises(GradientError, match="outside the function in which the tape recorded"):
        kept[-1]()


def cond_in_tape(x):
    with replicant.GradientTape() as tape:
        tape.watch(x)
        y = x * x
        return jax.lax.cond(x > 0, lambda: tape.gradient(y, x), lambda: x)


def scan_after_tape(x):
    with replicant.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = x * x
    return jax.lax.scan(lambda total, _: (total + tape.gradient(y, x), None), jnp.float32(0), None, length=2)[0]


def carried_through_scan(x):
    """The second product contains the first one, which the body does not see."""
    with replicant.GradientTape(persistent=True) as tape:
        tape.watch(x)

        def body(carry, _):
            y = carry * x
            return y, tape.gradient(y, x)

        return jax.lax.scan(body, jnp.float32(1), None, length=2)[1]


def jit_after_tape(x):
    with replicant.GradientTape() as tape:
        tape.watch(x)
        y = x * x
    return jax.jit(lambda: tape.gradient(y, x))()


def tape_in_scan(x):
    def body(total, _):
        with replicant.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        return total + tape.gradient(y, x), None

    return jax.lax.scan(body, jnp.float32(0), None, length=2)[0]


OPENED_OUTSIDE = r"(computed|called) inside a loop, a branch or another function that JAX traces.*Open the tape inside it as well"


@pytest.mark.parametrize("traced", [True, False], ids=["function", "eager"])
@pytest.mark.parametrize(
    ("fn", "eager"), [(cond_in_tape, 6.0), (scan_after_tape, 12.0), (carried_through_scan, None), (jit_after_tape, 6.0)]
)
def test_a_gradient_in_a_body_of_a_tape_that_was_opened_outside(fn, eager, traced):
    """The body does not see what the tape saw. An eager tape has the values, unless the target itself is computed in the body."""
    x = jnp.float32(3)
    if traced or eager is None:
        with pytest.raises(GradientError, match=OPENED_OUTSIDE):
            (replicant.function(fn) if traced else fn)(x)
    else:
        assert float(fn(x)) == eager


@pytest.mark.parametrize("wrap", [replicant.function, lambda fn: fn], ids=["function", "eager"])
def test_a_tape_in_a_body(wrap):
    assert float(wrap(tape_in_scan)(jnp.float32(3))) == 12.0
