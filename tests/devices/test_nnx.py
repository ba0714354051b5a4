"""Modules of Flax NNX as state of a step: made outside, used inside, equal to one device."""

import copy
import pickle
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import replicant
from replicant.errors import BackendError, DivergenceError, LostStateError, MixedStrategyError, VariableError

sys.path.insert(0, str(Path(__file__).parent))  # test folders are no packages

from _neighbours import (
    BATCH,
    CLASSES,
    INPUTS,
    LABELS,
    NNX,
    WIDTH,
    NnxCNN,
    NnxMLP,
    all_reduce,
    batches,
    cross_entropy,
    make_optimizer,
    mirrored,
    nnx_step,
    values_of,
)


def train(strategy, kind, *, compiled=False, steps=2, **options):
    with strategy.scope():
        model = NNX[kind](nnx.Rngs(0), **options)
        optimizer = nnx.Optimizer(model, make_optimizer(kind), wrt=nnx.Param)

    def step(batch):
        return strategy.reduce("SUM", strategy.run(nnx_step, args=(model, optimizer, *batch)))

    step = replicant.function(step) if compiled else step
    losses = [float(step(batch)) for _ in range(steps) for batch in batches(strategy, kind)]
    return losses, values_of(model), values_of(optimizer)


def one_device(kind, *, steps=2, rows=22):
    """Train in plain Flax, without Replicant."""
    model = NNX[kind](nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, make_optimizer(kind), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, x, y):
        def loss_fn(m):
            return optax.softmax_cross_entropy_with_integer_labels(m(x), y).sum() / BATCH

        loss, grads = nnx.value_and_grad(loss_fn)(model)
        optimizer.update(model, grads)
        return loss

    starts = range(0, rows, BATCH)
    parts = [(INPUTS[kind][i : min(i + BATCH, rows)], LABELS[i : min(i + BATCH, rows)]) for i in starts]
    losses = [float(step(model, optimizer, *part)) for _ in range(steps) for part in parts]
    return losses, values_of(model), values_of(optimizer)


def assert_close(found, expected, tolerance=1e-5):
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=tolerance, rtol=tolerance, err_msg=name)


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("kind", ["mlp", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("lstm", "transformer"))])
@pytest.mark.long_cases("mlp-4")
def test_training_equals_one_device_with_ragged_batches(kind, n):
    losses, weights, slots = train(mirrored(n), kind, compiled=kind == "mlp")
    expected_losses, expected_weights, expected_slots = one_device(kind)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    assert_close(weights, expected_weights)
    assert_close(slots, expected_slots)
    assert int(slots["step"]) == 6


@pytest.mark.slow
@pytest.mark.parametrize("rows", [16, 21])
def test_batch_norm_over_the_axis_of_the_replicas_equals_one_device(rows):
    """Of 21 rows, the last batch has 5: for the replicas 2, 2, 1 and none."""
    strategy = mirrored(4)
    with strategy.scope():
        model = NnxCNN(nnx.Rngs(0), axis_name="replica")
        optimizer = nnx.Optimizer(model, make_optimizer("cnn"), wrt=nnx.Param)
    losses = [
        float(strategy.reduce("SUM", strategy.run(nnx_step, args=(model, optimizer, *batch))))
        for _ in range(2)
        for batch in batches(strategy, "cnn", rows=rows)
    ]
    expected_losses, expected, _ = one_device("cnn", rows=rows)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    assert_close(values_of(model), expected)


def test_batch_norm_by_default_is_of_each_replica_and_its_moving_statistics_are_averaged():
    strategy = mirrored(4)
    with strategy.scope():
        norm = nnx.BatchNorm(WIDTH, momentum=0.8, use_fast_variance=False, rngs=nnx.Rngs(0))
    for x, _ in batches(strategy, "mlp"):
        strategy.run(norm, args=(x,))
    mean, var = np.zeros(WIDTH), np.ones(WIDTH)
    x = INPUTS["mlp"]
    for rows in [[x[0:2], x[2:4], x[4:6], x[6:8]], [x[8:10], x[10:12], x[12:14], x[14:16]], [x[16:18], x[18:20], x[20:22]]]:
        mean = 0.8 * mean + 0.2 * np.mean([r.mean(0) for r in rows], 0)
        var = 0.8 * var + 0.2 * np.mean([r.var(0) for r in rows], 0)
    np.testing.assert_allclose(norm.mean[...], mean, atol=1e-6)
    np.testing.assert_allclose(norm.var[...], var, atol=1e-6)


def test_dropout_differs_by_replica_and_is_reproducible():
    def masks(n):
        strategy = mirrored(n)
        with strategy.scope():
            dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(7))
        ones = strategy.experimental_distribute_values_from_function(lambda _: np.ones(64, np.float32))
        found = [strategy.experimental_local_results(strategy.run(dropout, args=(ones,))) for _ in range(2)]
        return np.array([[np.asarray(mask) for mask in step] for step in found])

    first = masks(3)
    assert len({mask.tobytes() for step in first for mask in step}) == 6
    np.testing.assert_array_equal(masks(3), first)
    one = nnx.Dropout(0.5, rngs=nnx.Rngs(7))
    np.testing.assert_array_equal(first[:, 0], [one(jnp.ones(64)), one(jnp.ones(64))])  # replica 0 draws what one device draws


@pytest.mark.long
def test_metrics_are_added_up_over_the_replicas():
    strategy = mirrored(4)
    with strategy.scope():
        metrics = nnx.MultiMetric(
            accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("values"), spread=nnx.metrics.Welford("values")
        )
    plain = copy.deepcopy(nnx.merge(*nnx.split(metrics)))
    logits = np.random.default_rng(1).normal(size=(22, CLASSES)).astype(np.float32)

    def step(rows, labels):
        metrics.update(logits=rows, labels=labels, values=rows[:, 0])

    data = replicant.data.Dataset.from_tensor_slices((logits, LABELS)).batch(BATCH)
    for _ in range(2):  # the second time after a reset
        for batch in strategy.experimental_distribute_dataset(data):
            strategy.run(step, args=batch)
        plain.update(logits=jnp.asarray(logits), labels=jnp.asarray(LABELS), values=jnp.asarray(logits[:, 0]))
        found, expected = metrics.compute(), plain.compute()
        np.testing.assert_allclose(found["accuracy"], expected["accuracy"], rtol=1e-6)
        np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-5)
        np.testing.assert_allclose(found["spread"].mean, expected["spread"].mean, rtol=1e-5)
        np.testing.assert_allclose(found["spread"].standard_deviation, expected["spread"].standard_deviation, rtol=1e-5)
        metrics.reset()
        plain.reset()
        assert float(metrics.accuracy.total[...]) == 0


@pytest.mark.long
def test_a_tape_takes_state_and_variables():
    strategy = mirrored(2)
    with strategy.scope():
        model = NnxMLP(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    def step(x, y):
        with replicant.GradientTape() as tape:
            loss = cross_entropy(model(x), y)
        optimizer.update(model, all_reduce(tape.gradient(loss, nnx.state(model, nnx.Param))))
        return loss

    def slope(x, y):
        with replicant.GradientTape() as tape:
            loss = cross_entropy(model(x), y)
        return all_reduce(tape.gradient(loss, [model.layers[0].kernel, model.layers[1].bias]))

    (batch, *_) = batches(strategy, "mlp")
    expected = NnxMLP(nnx.Rngs(0))
    _, grads = nnx.value_and_grad(
        lambda m: optax.softmax_cross_entropy_with_integer_labels(m(INPUTS["mlp"][:8]), LABELS[:8]).mean()
    )(expected)
    kernel, bias = strategy.run(slope, args=batch)
    np.testing.assert_allclose(kernel, grads["layers"][0]["kernel"][...], atol=1e-6)
    np.testing.assert_allclose(bias, grads["layers"][1]["bias"][...], atol=1e-6)
    strategy.run(step, args=batch)
    nnx.Optimizer(expected, optax.sgd(0.1), wrt=nnx.Param).update(expected, grads)
    assert_close(values_of(model), values_of(expected))


def test_value_and_grad_of_replicant_and_an_eager_tape():
    model = nnx.Linear(WIDTH, 1, rngs=nnx.Rngs(0))
    x = jnp.asarray(INPUTS["mlp"])
    expected = nnx.grad(lambda m: m(x).sum())(model)["kernel"][...]
    value, gradient = replicant.value_and_grad(lambda: model(x).sum(), [model.kernel])()
    np.testing.assert_allclose(gradient[0], expected, rtol=1e-6)
    with replicant.GradientTape() as tape:
        loss = model(x).sum()
    np.testing.assert_allclose(tape.gradient(loss, model.kernel), expected, rtol=1e-6)
    np.testing.assert_allclose(value, loss, rtol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
def test_eval_and_train_choose_another_program(compiled):
    strategy = mirrored(2)
    with strategy.scope():
        model = NnxMLP(nnx.Rngs(0), rate=0.5)
    (x, _), *_ = batches(strategy, "mlp")

    def forward(x):
        return strategy.gather(strategy.run(model, args=(x,)), axis=0)

    forward = replicant.function(forward) if compiled else forward
    noisy = forward(x)
    model.eval()
    np.testing.assert_allclose(forward(x), model(jnp.asarray(INPUTS["mlp"][:8])), atol=1e-6)
    np.testing.assert_array_equal(forward(x), forward(x))
    model.train()
    assert not np.allclose(noisy, forward(x))
    if compiled:
        assert forward.num_compiled == 2  # each mode keeps its program


def test_what_run_returns_works_outside_whatever_the_number_of_devices():
    for n in (1, 2):
        strategy = mirrored(n)
        layer = nnx.Linear(WIDTH, 2, rngs=nnx.Rngs(0))
        doubled = strategy.run(lambda m: jax.tree.map(lambda a: a * 2, m), args=(layer,))
        np.testing.assert_allclose(doubled(jnp.ones((1, WIDTH))), 2 * layer(jnp.ones((1, WIDTH))), rtol=1e-6)
        assert strategy.run(lambda m: m, args=(layer,)) is layer
        state = strategy.run(lambda s: jax.tree.map(lambda a: a + 1, s), args=(nnx.state(layer),))
        before = np.asarray(layer.kernel[...])
        nnx.update(layer, state)
        np.testing.assert_allclose(layer.kernel[...], before + 1, rtol=1e-6)


def test_state_as_an_argument_is_a_value():
    strategy = mirrored(2)
    model = nnx.Linear(WIDTH, CLASSES, rngs=nnx.Rngs(0))
    graphdef, state = nnx.split(model)

    def step(state, x, y):
        grads = jax.grad(lambda s: cross_entropy(nnx.merge(graphdef, s)(x), y))(state)
        return jax.tree.map(lambda w, g: w - 0.1 * g, state, all_reduce(grads))

    (batch, *_) = batches(strategy, "mlp")
    new = strategy.run(step, args=(state, *batch))
    assert not np.allclose(new["kernel"][...], model.kernel[...])
    nnx.update(model, new)
    np.testing.assert_array_equal(new["kernel"][...], model.kernel[...])


def test_a_state_that_is_changed_in_place_would_be_lost():
    strategy = mirrored(2)
    model = nnx.Linear(WIDTH, CLASSES, rngs=nnx.Rngs(0))
    message = (
        r"argument 0 \(a State\), at \['kernel'\]\.value, in place\..* Pass the modules themselves, as in "
        r"`strategy\.run\(step, args=\(model, optimizer\)\)`.* put it back with `nnx\.update\(model, state\)`"
    )

    def step(state, model):
        state["kernel"][...] = state["kernel"][...] * 2

    with pytest.raises(LostStateError, match=message):
        strategy.run(step, args=(nnx.state(model), model))
    before = np.asarray(model.kernel[...])
    strategy.run(lambda model: step(model, None), args=({"kernel": model.kernel},))  # as the message says
    np.testing.assert_array_equal(model.kernel[...], 2 * before)


def test_transformations_of_flax_inside_a_step():
    strategy = mirrored(2)
    with strategy.scope():
        model = NnxCNN(nnx.Rngs(0))
        count = nnx.Variable(0)

    @nnx.jit
    def inner(model, count, x):
        count[...] += 1
        return nnx.remat(lambda m, x: m(x))(model, x)

    def step(x):
        return inner(model, count, x)

    for x, _ in batches(strategy, "cnn", rows=16):
        strategy.run(step, args=(x,))
    assert int(count[...]) == 2
    assert float(jnp.abs(model.norm.mean[...]).sum()) > 0
    model(jnp.asarray(INPUTS["cnn"]))  # the module still works outside


def test_remat_and_micro_batches_keep_what_a_module_assigns():
    strategy = mirrored(2)
    with strategy.scope():
        model = nnx.Linear(WIDTH, CLASSES, rngs=nnx.Rngs(0))
        count = nnx.Variable(jnp.zeros(()))

    def loss(x, y):
        count[...] += 1
        return cross_entropy(model(x), y)

    def step(x, y):
        once = replicant.remat(loss)(x, y)
        total, _ = replicant.value_and_grad(loss, [model.kernel], accumulate_steps=2)(x, y)
        return once - total

    (batch, *_) = batches(strategy, "mlp")
    assert abs(float(strategy.reduce("SUM", strategy.run(step, args=batch)))) < 1e-6
    assert float(count[...]) == 3


def test_an_update_with_a_replicas_own_gradient_is_an_error():
    strategy = mirrored(2)
    with strategy.scope():
        model = nnx.Linear(WIDTH, CLASSES, rngs=nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    before = values_of(model)

    def step(x, y):
        optimizer.update(model, nnx.grad(lambda m: cross_entropy(m(x), y))(model))

    (batch, *_) = batches(strategy, "mlp")
    with pytest.raises(
        DivergenceError,
        match=r"'(bias|kernel)'.*differs between the 2 replicas.*If it is the gradients: grads = .*all_reduce\('SUM', grads\)",
    ):
        strategy.run(step, args=batch)
    assert_close(values_of(model), before, tolerance=0)
    model(jnp.ones((1, WIDTH)))


def test_new_attributes_of_a_module_would_be_lost():
    strategy = mirrored(2)

    class Probed(nnx.Module):
        def __init__(self, rngs):
            self.dense = nnx.Linear(WIDTH, 2, rngs=rngs)

        def __call__(self, x):
            self.hidden = nnx.Intermediate(x)
            return self.dense(x)

    model = Probed(nnx.Rngs(0))
    (x, _), *_ = batches(strategy, "mlp")
    with pytest.raises(LostStateError, match="sets the attribute 'hidden' of a Probed"):
        strategy.run(model, args=(x,))
    with pytest.raises(LostStateError, match="sets the attribute 'hidden' of a Probed"):
        strategy.run(lambda x: nnx.value_and_grad(lambda m: m(x).sum())(model)[0], args=(x,))
    nnx.value_and_grad(lambda m: m(jnp.ones((1, WIDTH))).sum())(model)  # outside, it works as ever
    del model.hidden
    assert model.dense(jnp.ones((1, WIDTH))).shape == (1, 2)


def test_plain_arrays_of_a_module_stay_what_they_are():
    strategy = mirrored(2)

    class Masked(nnx.Module):
        def __init__(self, rngs):
            self.dense = nnx.Linear(WIDTH, 2, rngs=rngs)
            self.mask = jnp.asarray([1.0, 0.0])

        def __call__(self, x):
            return self.dense(x) * self.mask

    model = Masked(nnx.Rngs(0))
    mask = model.mask
    (x, _), *_ = batches(strategy, "mlp")
    for _ in range(2):
        strategy.run(lambda x: nnx.value_and_grad(lambda m: m(x).sum())(model)[0], args=(x,))
    assert model.mask is mask


def test_a_value_of_another_shape_compiles_again_outside_and_is_refused_inside():
    strategy = mirrored(2)
    with strategy.scope():
        state = nnx.Variable(jnp.zeros(3))
        text = nnx.Variable("name")

    def read():
        return state[...].sum()

    assert float(strategy.run(read)) == 0
    state.set_value(jnp.ones(5))
    assert float(strategy.run(read)) == 5

    def grow():
        state.set_value(jnp.ones(7))

    with pytest.raises(VariableError, match=r"holds float32\[5\], and a compiled step assigned float32\[7\]"):
        strategy.run(grow)

    def to_int():
        state.set_value(jnp.ones(5, jnp.int32))

    with pytest.raises(VariableError, match=r"assigned int32\[5\]"):
        strategy.run(to_int)
    assert strategy.run(lambda: len(text.get_value())) == 4
    with pytest.raises(VariableError, match=r"An nnx\.Variable that holds a str cannot be"):
        replicant.Checkpoint(text=text).save("/nowhere")


def test_a_variable_of_several_arrays_and_one_of_a_number():
    strategy = mirrored(2)
    with strategy.scope():
        pair, number = nnx.Variable({"a": jnp.zeros(2), "b": jnp.ones(())}), nnx.Variable(3)

    def step():
        value = pair.get_value()
        pair.set_value({"a": value["a"] + 1, "b": value["b"] * 2})
        number.set_value(number.get_value() + 1)

    for _ in range(3):
        strategy.run(step)
    np.testing.assert_array_equal(pair.get_value()["a"], [3, 3])
    assert float(pair.get_value()["b"]) == 8
    assert int(number.get_value()) == 6


def test_a_model_of_another_strategy_is_refused_and_one_made_outside_goes_anywhere():
    first, second = mirrored(2), mirrored(3)
    with first.scope():
        theirs = nnx.Linear(WIDTH, 2, rngs=nnx.Rngs(0))
    anyone = nnx.Linear(WIDTH, 2, rngs=nnx.Rngs(0))
    for strategy in (first, second):
        strategy.run(lambda: anyone(jnp.ones((1, WIDTH))))
    with pytest.raises(MixedStrategyError, match="belongs to"):
        second.run(lambda: theirs(jnp.ones((1, WIDTH))))


def test_modules_are_copied_and_pickled_after_a_step():
    strategy = mirrored(2)
    with strategy.scope():
        model = NnxMLP(nnx.Rngs(0), rate=0.5)
    (x, _), *_ = batches(strategy, "mlp")
    strategy.run(model, args=(x,))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), nnx.clone(model), nnx.merge(*nnx.split(model))):
        assert_close(values_of(other), values_of(model), tolerance=0)
        assert int(other.dropout.rngs.count[...]) == int(model.dropout.rngs.count[...])


@pytest.mark.long
def test_checkpoints_of_modules(tmp_path):
    strategy = mirrored(2)

    def make():
        with strategy.scope():
            model = NnxMLP(nnx.Rngs(0), rate=0.5)
            return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param), nnx.metrics.Average()

    def run(model, optimizer, average, n):
        def step(x, y):
            loss = nnx_step(model, optimizer, x, y)
            average.update(values=loss)
            return loss

        found = [strategy.run(step, args=batch) for batch in list(batches(strategy, "mlp")) * n]
        return [float(strategy.reduce("SUM", loss)) for loss in found]

    parts = make()
    run(*parts, 1)
    path = replicant.Checkpoint(**dict(zip("moa", parts, strict=True))).save(str(tmp_path / "c"))
    expected = run(*parts, 1)
    again = make()
    status = replicant.Checkpoint(**dict(zip("moa", again, strict=True))).restore(path)
    status.assert_consumed()
    assert run(*again, 1) == expected  # with the same dropout masks
    assert_close(values_of(again[0]), values_of(parts[0]), tolerance=0)
    assert_close(values_of(again[1]), values_of(parts[1]), tolerance=0)
    assert_close(values_of(again[2]), values_of(parts[2]), tolerance=0)


@pytest.mark.slow
def test_fully_sharded_training_keeps_slices_and_equals_one_device():
    strategy = replicant.FullyShardedStrategy([f"cpu:{i}" for i in range(2)], min_size=1)
    with strategy.scope():
        model = NNX["transformer"](nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, make_optimizer("transformer"), wrt=nnx.Param)
    for _ in range(2):
        for batch in batches(strategy, "transformer"):
            strategy.run(nnx_step, args=(model, optimizer, *batch))
    found, found_slots = values_of(model), values_of(optimizer)  # waits for the steps
    cell = vars(nnx.Variable)["_raw_value"].slot.__get__(model.attention.query.kernel)
    raw = cell.refs[0].get_raw()[0]
    assert raw.addressable_shards[0].data.size * 2 == raw.size
    _, expected, slots = one_device("transformer")
    assert_close(found, expected)
    assert_close(found_slots, slots)


def test_variables_of_references_are_refused():
    strategy = mirrored(2)
    variable = nnx.Variable(jnp.zeros(2), ref=True)

    def read():
        return variable[...].sum()

    with pytest.raises(VariableError, match=r"An nnx\.Variable with ref=True holds a jax\.Ref"):
        strategy.run(read)


def test_another_flax_is_refused(monkeypatch):
    from replicant.nnx import _hooks

    monkeypatch.setattr(_hooks, "_EXPECTED", [(nnx.RngStream, "draw", ("self",))])
    with pytest.raises(BackendError, match=r"Flax [\d.]+ is not supported: RngStream\.draw is not what Replicant knows"):
        _hooks.check()


def test_keys_of_a_replica_are_no_parts_of_a_key():
    """In JAX 0.12, ``fold_in(key, 1)`` is ``split(key)[1]``. So replica 1 must get another key."""
    strategy = mirrored(4)
    with strategy.scope():
        rngs = nnx.Rngs(3)

    def step(rngs):
        key = rngs()
        return jax.random.key_data(jnp.stack([key, *jax.random.split(key, 4)]))

    keys = np.concatenate(strategy.experimental_local_results(strategy.run(step, args=(rngs,))))
    assert len(np.unique(keys, axis=0)) == 20
