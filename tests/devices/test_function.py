"""What replicant.function compiles, when it compiles again, and what it leaves to Python."""

import enum
import gc

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant.data import Dataset, TensorSpec
from replicant.errors import ArgumentError, ArgumentTypeError, ContextError, ReplicantError


class Mode(enum.Enum):
    TRAIN = 1


def test_one_program_per_structure_shape_dtype_and_python_value() -> None:
    fn = replicant.function(lambda x, **_: x)
    for args, kwargs in [
        ((jnp.ones(2),), {}),
        ((np.zeros(2, np.float32),), {}),  # the same program
        ((jnp.ones(3),), {}),
        ((jnp.ones(2, jnp.int32),), {}),
        (([jnp.ones(2)],), {}),
        ((jnp.ones(2),), {"training": True}),
        ((jnp.ones(2),), {"training": 1}),
        ((jnp.ones(2),), {"training": Mode.TRAIN}),
        ((jnp.ones(2),), {"training": True}),  # known
    ]:
        fn(*args, **kwargs)
    assert fn.num_compiled == 7


def test_state_is_read_and_written() -> None:
    total, count = replicant.Variable(0.0), replicant.Variable(0)

    @replicant.function(jit_compile=True)
    def add(x):
        total.assign_add(x)
        count.assign_add(1)
        return total.value(), "text", None

    assert [float(add(jnp.asarray(v))[0]) for v in (1.0, 2.0, 3.0)] == [1.0, 3.0, 6.0]
    assert (float(total), int(count)) == (6.0, 3)
    assert add(jnp.asarray(0.0))[1:] == ("text", None)
    total.assign(10.0)  # a change from outside is seen
    assert float(add(jnp.asarray(1.0))[0]) == 11.0


def test_values_read_before_a_step_stay_good_after_it() -> None:
    """The step donates the variable's memory; what the user holds must not be part of that."""
    v = replicant.Variable(jnp.zeros(3))
    step = replicant.function(lambda: v.assign_add(jnp.ones(3)) is None)
    held = []
    for _ in range(4):
        held.append((v.value(), np.asarray(v.value())))
        step()
    for i, (array, view) in enumerate(held):
        assert array.tolist() == view.tolist() == [float(i)] * 3


def test_one_array_may_start_several_variables() -> None:
    zeros = jnp.zeros(2)
    a, b = replicant.Variable(zeros), replicant.Variable(zeros)
    step = replicant.function(lambda: (a.assign_add(jnp.ones(2)), b.assign_sub(jnp.ones(2))))
    step()
    step()
    assert (a.numpy().tolist(), b.numpy().tolist(), zeros.tolist()) == ([2.0, 2.0], [-2.0, -2.0], [0.0, 0.0])


def test_numpy_memory_may_change_after_it_was_given_away() -> None:
    start = np.zeros(64, np.float32)
    v = replicant.Variable(start)
    start[:] = 7
    step = replicant.function(lambda: v.assign_add(jnp.ones(64)))
    step()
    assert v.numpy().tolist() == [1.0] * 64


def test_functions_inside_functions_are_one_program() -> None:
    inner = replicant.function(lambda x: x * 2)
    outer = replicant.function(lambda x: inner(x) + 1)
    assert float(outer(jnp.asarray(3.0))) == 7.0
    assert (inner.num_compiled, outer.num_compiled) == (0, 1)


def test_a_jitted_function_inside_sees_the_variables_of_each_call() -> None:
    v = replicant.Variable(2.0)

    @jax.jit
    def inner(x):
        return v.value() * x

    outer = replicant.function(inner)
    assert float(outer(jnp.asarray(3.0))) == 6.0
    v.assign(5.0)
    assert float(outer(jnp.asarray(3.0))) == 15.0
    assert outer(jnp.ones(2)).tolist() == [5.0, 5.0]


def test_methods() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.scale = replicant.Variable(3.0)

        @replicant.function
        def step(self, x):
            return self.scale * x

    first, second = Trainer(), Trainer()
    second.scale.assign(4.0)
    assert float(first.step(jnp.asarray(2.0))) == 6.0
    assert float(second.step(jnp.asarray(2.0))) == 8.0
    assert Trainer.step.python_function is not None


def dataset(strategy: replicant.Strategy):
    return strategy.experimental_distribute_dataset(Dataset.range(10).map(np.float32).batch(4))


@pytest.mark.parametrize("num_replicas", [1, 2, 3])
def test_loops_over_datasets_run_as_written(num_replicas: int) -> None:
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)])
    distributed = dataset(strategy)

    def total(batches):
        result = 0.0
        for x in batches:
            result += strategy.reduce("SUM", strategy.run(jnp.sum, args=(x,)))
        return result

    as_argument = replicant.function(total)
    captured = replicant.function(lambda: total(distributed))
    for _ in range(2):
        assert float(as_argument(distributed)) == 45.0
        assert float(captured()) == 45.0

    @replicant.function
    def two_steps(iterator):
        return total([next(iterator), next(iterator)])

    iterator = iter(distributed)
    assert float(two_steps(iterator)) == 28.0
    assert float(total([next(iterator)])) == 17.0
    assert not iterator.get_next_as_optional().has_value()


def test_misuse() -> None:
    with pytest.raises(ArgumentTypeError, match="function takes a callable; got 3"):
        replicant.function(3)  # type: ignore[call-overload]
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    distributed = dataset(strategy)
    with pytest.raises(ContextError, match="read while a function was being compiled"):
        strategy.run(lambda: next(iter(distributed)))


def test_a_function_that_never_settles_is_refused() -> None:
    @replicant.function
    def restless():
        return keras.layers.Dense(1)(jnp.ones((1, 1)))

    with pytest.raises(
        ReplicantError,
        match=r"made variables in each of its 16 traces, such as .* in the last one\. Create variables, layers",
    ):
        restless()


def test_what_one_signature_taught_is_not_believed_of_another() -> None:
    """Which gradients have a path depends on the Python arguments."""
    a, b = replicant.Variable(2.0), replicant.Variable(3.0)

    @replicant.function
    def fn(x, which):
        with replicant.GradientTape() as tape:
            y = (a if which == "a" else b) * x
        return tape.gradient(y, [a, b])

    one = jnp.asarray(1.0)
    for which, expected in [("a", [1.0, None]), ("b", [None, 1.0]), ("a", [1.0, None])]:
        assert [g if g is None else float(g) for g in fn(one, which)] == expected


def test_one_function_may_serve_several_strategies() -> None:
    total = replicant.Variable(0.0, aggregation="SUM")
    strategies = {n: replicant.MirroredStrategy([f"cpu:{i}" for i in range(n)]) for n in (1, 2, 3)}

    @replicant.function
    def fn(num_replicas):
        strategies[num_replicas].run(lambda: total.assign_add(jnp.ones(())) is None)

    for num_replicas in (1, 2, 3, 2):
        fn(num_replicas)
    assert float(total) == 8.0


def test_python_arguments_that_keep_changing_are_named_in_one_warning() -> None:
    fn = replicant.function(lambda x, name: x + len(name))
    with pytest.warns(UserWarning, match=r"compiled 16 times, once for each value of its argument `name` \(now '15'\)"):
        _ = [fn(jnp.ones(2), str(step)) for step in range(16)]
    _ = [fn(jnp.ones(2), str(step)) for step in range(20)]  # once is enough: another warning would be an error


def test_inside_a_jitted_function_there_is_no_state() -> None:
    v = replicant.Variable(1.0)
    inner = replicant.function(lambda: v.assign_add(1.0))
    strategy = replicant.MirroredStrategy(["cpu:0"])
    for call in (inner, lambda: strategy.run(v.value)):
        with pytest.raises(
            ContextError, match=r"called inside a function under jax.jit.*Decorate the outer function with replicant.f"
        ):
            jax.jit(lambda call=call: call())()
    assert float(v) == 1.0


def test_weakly_typed_arrays_are_a_signature_of_their_own() -> None:
    fn = replicant.function(lambda x: x * jnp.ones((), jnp.bfloat16))
    assert [fn(x).dtype for x in (jnp.asarray(2.0), jnp.asarray(2.0, jnp.float32))] == [jnp.bfloat16, jnp.float32]


def test_arguments_of_tf_function() -> None:
    options = {"autograph": False, "jit_compile": True, "reduce_retracing": True, "experimental_relax_shapes": True}
    assert float(replicant.function(**options)(lambda x: x + 1)(jnp.float32(1))) == 2
    with pytest.raises(ArgumentError, match=r"function does not take input_signature; got \[1\]\. Each call is compiled"):
        replicant.function(input_signature=[1])


def test_a_concrete_function_has_its_program_and_can_be_called() -> None:
    v, runs = replicant.Variable([1.0, 2.0]), []

    @replicant.function
    def step(x, how, *, scale):
        runs.append(1)
        v.assign_add(x * scale)
        return {how: jnp.tanh(v * 1.0)}

    concrete = step.get_concrete_function(TensorSpec([2], "float32"), "a", scale=2.0)
    assert concrete.as_text().count("stablehlo.tanh") == 1
    assert (concrete.name, v.numpy().tolist()) == (
        "test_a_concrete_function_has_its_program_and_can_be_called.<locals>.step",
        [1, 2],
    )
    assert concrete.structured_input_signature == ((jax.ShapeDtypeStruct((2,), np.float32), "a"), {"scale": 2.0})
    num_runs = len(runs)
    result = concrete(np.ones(2, np.float32), "a", scale=2.0)
    np.testing.assert_allclose(result["a"], np.tanh([3, 4]), rtol=1e-6)
    assert (len(runs), step.num_compiled) == (num_runs, 1)
    assert step.get_concrete_function(jnp.ones(2), "a", scale=2.0).as_text() == concrete.as_text()
    assert len(runs) == num_runs
    for args in [(jnp.ones(3), "a"), (jnp.ones(2), "b"), (jnp.ones(2, int), "a"), (jnp.ones(2),)]:
        with pytest.raises(ArgumentError, match=r"takes arguments of the structure, shapes and dtypes .*shape=\(2,\).*; got"):
            concrete(*args, scale=2.0)


def test_a_concrete_function_of_a_method_and_of_replicas() -> None:
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])

    class Model:
        @replicant.function
        def __call__(self, x):
            return strategy.reduce("SUM", strategy.run(lambda x: x * 2.0, args=(x,)))

    model, batches = Model(), strategy.experimental_distribute_dataset(Dataset.from_tensors(np.arange(4.0)))
    (batch,) = batches
    concrete = model.__call__.get_concrete_function(batch)
    assert float(jnp.sum(concrete(batch))) == 12.0
    assert "stablehlo" in concrete.as_text()
    assert len(concrete.structured_input_signature[0]) == 1


def test_no_concrete_function() -> None:
    fn = replicant.function(lambda x: next(x) if isinstance(x, type(iter([]))) else x)
    with pytest.raises(ArgumentError, match=r"needs to know all shapes; got TensorSpec\(shape=\(None, 2\)"):
        fn.get_concrete_function(TensorSpec((None, 2), np.float32))
    with pytest.raises(ArgumentTypeError, match=r"No program takes an array of dtype object"):
        fn.get_concrete_function(TensorSpec((2,), object))
    batches = Dataset.range(3)
    for reads, args in ((fn, (iter(batches),)), (replicant.function(lambda: next(iter(batches))), ())):
        with pytest.raises(ContextError, match="reads a dataset or an iterator, so it runs as ordinary Python and has no program"):
            reads.get_concrete_function(*args)
    with pytest.raises(ContextError, match="was called inside another compiled function or a tape"):
        replicant.function(lambda x: fn.get_concrete_function(x).as_text())(jnp.ones(2))


def test_no_garbage_is_looked_for_while_a_program_is_traced() -> None:
    before, seen = gc.get_threshold(), []

    @replicant.function
    def inner(x):
        seen.append(gc.get_threshold())
        return x + 1.0

    @replicant.function
    def outer(x, fails=False):
        y = inner(x)
        seen.append(gc.get_threshold())
        if fails:
            raise ValueError("the program's own")
        return y * 2.0

    assert float(outer(jnp.ones(()))) == 4.0
    assert gc.get_threshold() == before
    assert {len(seen) > 0, *(threshold[0] > 1 << 30 for threshold in seen)} == {True}
    with pytest.raises(ValueError, match="the program's own"):
        outer(jnp.ones(()), fails=True)
    assert gc.get_threshold() == before
