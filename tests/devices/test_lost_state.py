"""State that a compiled function changes where nobody would see it: errors, not silence."""

import dataclasses
import random
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant.errors import LostStateError

ROWS = np.arange(8, dtype=np.float32).reshape(4, 2)


@jax.tree_util.register_pytree_with_keys_class
class Module:
    """A mutable model that JAX takes apart."""

    def __init__(self, weight: Any):
        self.weight = weight

    def tree_flatten_with_keys(self):
        return [(jax.tree_util.GetAttrKey("weight"), self.weight)], None

    @classmethod
    def tree_unflatten(cls, _, children):
        new = object.__new__(cls)
        new.weight = children[0]
        return new


@pytest.fixture(params=[1, 2])
def strategy(request) -> replicant.Strategy:
    return replicant.MirroredStrategy([f"cpu:{i}" for i in range(request.param)])


def rows(strategy: replicant.Strategy) -> Any:
    return next(iter(strategy.experimental_distribute_dataset([ROWS])))


def train(model: Module, x: Any) -> Any:
    model.weight = model.weight - 0.1 * jnp.sum(x)
    return jnp.sum(x)


def test_a_module_that_is_trained_in_place(strategy) -> None:
    model, x = Module(jnp.ones(())), rows(strategy)
    message = r"run: 'train' changed its argument 0 \(a Module\), at \.weight, in place\..*Return the Module from the function"
    with pytest.raises(LostStateError, match=message):
        strategy.run(train, args=(model, x))
    with pytest.raises(LostStateError, match=message):
        replicant.function(lambda m, x: strategy.run(train, args=(m, x)))(model, x)
    with pytest.raises(LostStateError, match=r"argument 'model' \(a Module\)"):
        strategy.run(lambda x, model: train(model, x), args=(x,), kwargs={"model": model})
    assert float(model.weight) == 1.0


def test_a_module_that_is_returned_is_not_lost(strategy) -> None:
    def step(model, x):
        train(model, replicant.get_replica_context().all_reduce("SUM", jnp.sum(x)))
        return model

    model = strategy.run(step, args=(Module(jnp.ones(())), rows(strategy)))
    assert float(np.asarray(getattr(model.weight, "value", model.weight))) == pytest.approx(1 - 0.1 * 28)


def test_a_function_that_changes_its_dictionary() -> None:
    def step(state):
        state["count"] = state["count"] + 1

    state = {"count": jnp.zeros(())}
    with pytest.raises(LostStateError, match=r"argument 0 \(a dict\), at \['count'\], in place\. The function gets a copy"):
        replicant.function(step)(state)
    assert float(state["count"]) == 0.0


def test_a_step_that_changes_a_dictionary_of_state() -> None:
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])

    def step(state, x):
        state["total"] = state["total"] + replicant.get_replica_context().all_reduce("SUM", jnp.sum(x))

    with pytest.raises(LostStateError, match=r"argument 0 \(a dict\), at \['total'\]"):
        strategy.run(step, args=({"total": jnp.zeros(())}, rows(strategy)))


def test_a_list_that_is_to_collect_results(strategy) -> None:
    def step(losses, x):
        losses.append(jnp.sum(x))

    with pytest.raises(LostStateError, match=r"argument 0 \(a list\), at \[0\]"):
        strategy.run(step, args=([], rows(strategy)))


def test_a_step_may_prepare_its_batch_in_place(strategy) -> None:
    batch = {"x": rows(strategy), "unused": rows(strategy)}

    def step(batch):
        batch.pop("unused")
        batch["x"] = batch["x"] * 2
        batch["mask"] = batch["x"] > 0
        return jnp.sum(batch["x"] * batch["mask"])

    assert float(strategy.reduce("SUM", strategy.run(step, args=(batch,)))) == 56.0
    assert set(batch) == {"x", "unused"}


class Holder:
    """Plain Python objects that steps write to."""

    def __init__(self) -> None:
        self.total: Any = jnp.zeros(())
        self.last: Any = None
        self.items: list[Any] = []
        self.by_name: dict[str, Any] = {"old": 1.0}


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("holder.total", lambda h, x: setattr(h, "total", h.total + jnp.sum(x))),
        ("holder.last", lambda h, x: setattr(h, "last", jnp.sum(x))),
        (r"holder.items\[0\]", lambda h, x: h.items.append(jnp.sum(x))),
        (r"holder.by_name\['loss'\]", lambda h, x: h.by_name.update(loss=jnp.sum(x))),
        (r"holder.by_name\['old'\]", lambda h, x: h.by_name.update(old=jnp.sum(x))),
    ],
)
def test_objects_that_would_keep_tracers(strategy, name, write) -> None:
    holder = Holder()

    def step(x):
        holder.total, holder.last, holder.items, holder.by_name  # noqa: B018 - names them
        write(holder, x)

    for call in (lambda: strategy.run(step, args=(rows(strategy),)), lambda: replicant.function(step)(jnp.ones(2))):
        with pytest.raises(LostStateError, match=rf"stores a traced value in `{name}`.*hold it in a replicant\.Variable"):
            call()
        # What was there is there again.
        assert (float(holder.total), holder.last, holder.items, holder.by_name) == (0.0, None, [], {"old": 1.0})


def test_an_attribute_of_the_object_whose_method_runs(strategy) -> None:
    @dataclasses.dataclass
    class Trainer:
        seen: Any = 0.0

        def step(self, x):
            self.seen += jnp.sum(x)
            return self.seen

    trainer = Trainer()
    with pytest.raises(LostStateError, match=r"stores a traced value in `self\.seen`"):
        strategy.run(trainer.step, args=(rows(strategy),))
    assert trainer.seen == 0.0


def test_a_nonlocal_variable(strategy) -> None:
    total: Any = 0.0

    def step(x):
        nonlocal total
        total = total + jnp.sum(x)

    with pytest.raises(LostStateError, match=r"stores a traced value in `total`"):
        strategy.run(step, args=(rows(strategy),))
    assert total == 0.0


def test_a_keras_layer_may_keep_its_last_scores_but_not_state(strategy) -> None:
    class Attention(keras.layers.Layer):
        scores: Any = None

        def call(self, x):
            self.scores = keras.ops.softmax(x)
            return self.scores

    class Counting(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.count = np.float32(0)

        def call(self, x):
            self.count = self.count + keras.ops.sum(x)
            return x

    attention, counting = Attention(), Counting()
    assert float(strategy.reduce("SUM", strategy.run(lambda x: jnp.sum(attention(x)), args=(rows(strategy),)))) == pytest.approx(
        4.0
    )
    with pytest.raises(LostStateError, match=r"stores a traced value in `.*\.count`"):
        strategy.run(counting, args=(rows(strategy),))
    assert counting.count == 0


@pytest.mark.parametrize("make", [np.random.default_rng, np.random.RandomState, random.Random])
def test_random_numbers_of_python_become_constants(strategy, make) -> None:
    generator = make(0)

    def step(x):
        return x * (generator.normal() if hasattr(generator, "normal") else generator.random())

    with pytest.warns(UserWarning, match=r"draws random numbers from `generator`, a generator of Python or NumPy.*constants"):
        strategy.run(step, args=(rows(strategy),))


def test_a_python_number_that_counts_steps(strategy) -> None:
    class Trainer:
        steps = 0

        def step(self, x):
            self.steps += 1
            return x

    trainer = Trainer()
    trainer.steps = 5
    strategy.run(trainer.step, args=(rows(strategy),))
    with pytest.warns(UserWarning, match=r"compiled again at each call, because its Python code changes `self\.steps`"):
        strategy.run(trainer.step, args=(rows(strategy),))
    strategy.run(trainer.step, args=(rows(strategy),))  # exact as well, and without another warning
    assert trainer.steps == 8


TRANSFORMATIONS = {
    "jit": lambda f: jax.jit(f)(3.0),
    "grad": lambda f: jax.grad(f)(3.0),
    "vmap": lambda f: jax.vmap(f)(jnp.ones(2)),
    "scan": lambda f: jax.lax.map(f, jnp.ones(2)),
    "eval_shape": lambda f: jax.eval_shape(f, 3.0),
}


@pytest.mark.parametrize("on_read", [False, True])
@pytest.mark.parametrize("how", TRANSFORMATIONS)
@pytest.mark.parametrize("what", ["assign", "assign_add", "assign_sub"])
def test_assigning_under_a_transformation_of_jax(what: str, how: str, on_read: bool) -> None:
    """The variable would keep a tracer, which fails where somebody reads it."""
    sync = replicant.VariableSynchronization.ON_READ if on_read else replicant.VariableSynchronization.AUTO
    mean = replicant.VariableAggregation.MEAN
    variable = replicant.Variable(1.0, name="count", synchronization=sync, aggregation=mean)
    message = rf"^{what} of variable 'count' was called inside a function under jax.jit .* Decorate .* replicant.function instead"
    with pytest.raises(LostStateError, match=message):
        TRANSFORMATIONS[how](getattr(variable, what))
    assert float(variable) == 1.0


def test_assigning_what_has_a_value_under_a_transformation_of_jax() -> None:
    variable = replicant.Variable(1.0)

    def counted(x: Any) -> Any:
        variable.assign_add(2.0)
        return x * x

    assert float(jax.grad(counted)(3.0)) == 6.0
    assert float(variable) == 3.0


def test_assigning_in_a_function_of_replicant_inside_of_nothing_else() -> None:
    variable = replicant.Variable(1.0)
    replicant.function(variable.assign_add)(3.0)
    assert float(variable) == 4.0
