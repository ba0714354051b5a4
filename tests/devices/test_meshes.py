"""A mesh that the user has set, and arrays on meshes with Explicit axes, change no number and break nothing.

``jax.make_mesh`` makes Explicit axes, with which JAX refuses to compute beside arrays of another mesh.
"""

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import replicant
from replicant.data import Dataset
from replicant.replicas._own_mesh import handed_over, has_explicit_axes, without_mesh

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(20, 6)).astype(np.float32), RNG.integers(0, 3, 20)
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
EXPLICIT, AUTO = AxisType.Explicit, AxisType.Auto
# name -> (first device, shape, names, types of the axes)
MESHES = {
    "all devices": (0, (8,), ("x",), EXPLICIT),
    "two axes": (0, (2, 4), ("x", "y"), EXPLICIT),
    "no Explicit axes": (0, (8,), ("x",), AUTO),
    "the strategy's devices": (0, (4,), ("replica",), EXPLICIT),
    "other devices": (4, (4,), ("x",), EXPLICIT),
}
STRATEGIES = {
    "four": lambda: replicant.MirroredStrategy([f"cpu:{i}" for i in range(4)]),
    "one": lambda: replicant.OneDeviceStrategy("cpu:1"),
    "default": replicant.get_strategy,
}

pytestmark = pytest.mark.both_ways


def mesh_of(name: str) -> Mesh:
    first, shape, names, kind = MESHES[name]
    devices = np.array(jax.devices()[first : first + int(np.prod(shape))]).reshape(shape)
    return Mesh(devices, names, axis_types=(kind,) * len(names))


def model_in(strategy: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(3)]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model


def trained_by_fit(strategy: Any) -> Any:
    model = model_in(strategy)
    history = model.fit(X, Y, batch_size=7, epochs=2, verbose=0, shuffle=False).history
    one_batch = model.train_on_batch(X[:8], Y[:8]), model.test_on_batch(X[:8], Y[:8]), model.predict_on_batch(X[:8])
    return history, model.evaluate(X, Y, batch_size=6, verbose=0), model.predict(X, verbose=0), one_batch, model.get_weights()


def trained_by_a_loop(strategy: Any) -> Any:
    """The loop of TensorFlow's guide. It computes with what `reduce` and the metric return."""
    model = model_in(strategy)
    with strategy.scope():
        accuracy = keras.metrics.SparseCategoricalAccuracy()

    def step(inputs: Any) -> Any:
        x, y = inputs
        with replicant.GradientTape() as tape:
            predictions = model(x, training=True)
            loss = replicant.compute_average_loss(LOSS(y, predictions), global_batch_size=7)
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        accuracy.update_state(y, predictions)
        return loss

    @replicant.function
    def distributed_step(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(step, args=(batch,)), axis=None)

    total, seen = jnp.zeros(()), jnp.zeros(())
    for batch in strategy.experimental_distribute_dataset(Dataset.from_tensor_slices((X, Y)).batch(7)):
        total = total + distributed_step(batch)
        seen = seen + strategy.reduce("SUM", strategy.run(lambda x, y: jnp.sum(x) + len(y), args=batch), axis=None)
    logits = keras.ops.softmax(model(X[:4]))  # eager
    return total, seen, accuracy.result() + 0.0, logits, model.get_weights()


def variables(strategy: Any) -> Any:
    with strategy.scope():
        mean = replicant.Variable(jnp.ones(3), aggregation="MEAN")
        count = replicant.Variable(0.0, synchronization="ON_READ", aggregation="SUM")

    def step(x: Any) -> Any:
        mean.assign_add(jnp.ones(3) * replicant.get_replica_context().replica_id_in_sync_group)
        count.assign_add(jnp.sum(x))
        return replicant.get_replica_context().all_gather(x, 0)

    rows = strategy.gather(strategy.run(step, args=(jnp.arange(4.0),)), axis=0)
    mean.assign_sub(jnp.ones(3))
    mean.scatter_add([0], jnp.ones(1))
    before = count.value() + 1
    count.assign(2.0)
    return mean + 1, mean.numpy(), before, count.value() * 2, rows


def kept(strategy: Any, folder: str) -> Any:
    model = model_in(strategy)
    checkpoint = replicant.Checkpoint(model=model)
    path = checkpoint.save(f"{folder}/checkpoint")
    model.fit(X, Y, batch_size=7, verbose=0)
    checkpoint.restore(path)
    model.save(f"{folder}/model.keras")
    with strategy.scope():
        loaded = keras.models.load_model(f"{folder}/model.keras")
    return model.get_weights(), loaded.predict(X, verbose=0)


def check_equal(got: Any, expected: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-6), got, expected)


@pytest.mark.cases("apart-variables-four-all devices", "fused-variables-default-all devices")
@pytest.mark.parametrize(
    ("strategy", "mesh"),
    [*[("four", mesh) for mesh in MESHES], ("one", "all devices"), ("one", "other devices"), ("default", "all devices")],
)
@pytest.mark.parametrize("compute", [trained_by_a_loop, variables])
@pytest.mark.filterwarnings("ignore:.*default strategy")
@pytest.mark.long
def test_the_numbers_are_those_without_a_mesh(compute: Callable[[Any], Any], strategy: str, mesh: str) -> None:
    expected = compute(STRATEGIES[strategy]())
    with jax.set_mesh(mesh_of(mesh)):
        check_equal(compute(STRATEGIES[strategy]()), expected)


@pytest.mark.cases("fused-four-other devices")
@pytest.mark.parametrize("mesh", ["all devices", "other devices"])
@pytest.mark.parametrize("strategy", ["four", "one"])
@pytest.mark.long
def test_fit_evaluate_and_predict(strategy: str, mesh: str) -> None:
    expected = trained_by_fit(STRATEGIES[strategy]())
    with jax.set_mesh(mesh_of(mesh)):
        check_equal(trained_by_fit(STRATEGIES[strategy]()), expected)


@pytest.mark.cases("fused")
@pytest.mark.long_cases("fused")
def test_checkpoints_and_saved_models(tmp_path: Any) -> None:
    expected = kept(STRATEGIES["four"](), str(tmp_path / "a"))
    with jax.set_mesh(mesh_of("two axes")):
        check_equal(kept(STRATEGIES["four"](), str(tmp_path / "b")), expected)


@pytest.mark.cases("apart")
@pytest.mark.long
def test_a_model_may_be_used_with_and_without_the_mesh() -> None:
    expected, model = model_in(STRATEGIES["four"]()), model_in(STRATEGIES["four"]())
    for mesh in ("all devices", None, "other devices"):
        expected.fit(X, Y, batch_size=7, verbose=0, shuffle=False)
        with jax.set_mesh(None if mesh is None else mesh_of(mesh)):
            model.fit(X, Y, batch_size=7, verbose=0, shuffle=False)
            check_equal(keras.ops.sum(model.weights[0].value), keras.ops.sum(jnp.asarray(np.asarray(expected.weights[0]))))
    check_equal(model.get_weights(), expected.get_weights())


def test_results_lie_on_the_mesh_that_is_set() -> None:
    strategy, mesh = STRATEGIES["four"](), mesh_of("all devices")
    values = strategy.run(lambda: replicant.get_replica_context().replica_id_in_sync_group + jnp.zeros(2))
    with jax.set_mesh(mesh):
        total = strategy.reduce("SUM", values, axis=None)
        assert total.sharding == NamedSharding(mesh, PartitionSpec())
        check_equal(total + jnp.ones(2), [7, 7])
        assert jax.sharding.get_mesh() == mesh  # it is still set
    assert jax.sharding.get_mesh().empty


def test_the_mesh_is_set_again_after_an_error() -> None:
    def fail() -> None:
        raise ValueError("stop")

    mesh = mesh_of("all devices")
    with jax.set_mesh(mesh):
        with pytest.raises(ValueError, match="stop"):
            STRATEGIES["four"]().run(fail)
        assert jax.sharding.get_mesh() == mesh


def test_a_scope_has_no_mesh_but_one_may_be_set_in_it() -> None:
    strategy, mesh = STRATEGIES["four"](), mesh_of("all devices")
    with jax.set_mesh(mesh), strategy.scope():
        assert jax.sharding.get_mesh().empty
        with jax.set_mesh(mesh):
            check_equal(strategy.reduce("SUM", strategy.run(lambda: jnp.ones(())), axis=None) + 1, 5)


@pytest.mark.cases("fused")
@pytest.mark.long
def test_a_mesh_that_is_set_for_good_in_a_thread() -> None:
    found: list[Any] = []

    def work() -> None:
        jax.set_mesh(mesh_of("all devices"))
        found.append(trained_by_a_loop(STRATEGIES["four"]()))

    expected = trained_by_a_loop(STRATEGIES["four"]())
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    check_equal(found, [expected])
    assert jax.sharding.get_mesh().empty


@pytest.mark.cases(
    "apart-mesh set-four-two axes-cut", "fused-mesh not set-one-other devices-whole", "fused-mesh set-four-all devices-cut"
)
@pytest.mark.parametrize("spec", [PartitionSpec(), PartitionSpec("x")], ids=["whole", "cut"])
@pytest.mark.parametrize("mesh", ["all devices", "two axes", "other devices"])
@pytest.mark.parametrize("strategy", ["four", "one"])
@pytest.mark.parametrize("is_set", [True, False], ids=["mesh set", "mesh not set"])
def test_arrays_with_explicit_axes_as_inputs(strategy: str, mesh: str, spec: PartitionSpec, is_set: bool) -> None:
    on = STRATEGIES[strategy]()
    host = np.arange(8, dtype=np.float32)
    given = jax.device_put(host, NamedSharding(mesh_of(mesh), spec))
    assert has_explicit_axes(given)
    with jax.set_mesh(mesh_of(mesh) if is_set else None):
        with on.scope():
            variable = replicant.Variable(given)
            keras_variable = keras.Variable(given)
        variable.assign_add(given)
        keras_variable.assign(given)
        check_equal(on.reduce("MEAN", on.run(lambda x: x[0] + variable + keras_variable, args=(given,)), axis=None), host * 3)
        with on.scope():
            batches = list(on.experimental_distribute_dataset(Dataset.from_tensor_slices(given).batch(8)))
        check_equal(on.gather(batches[0], axis=0) + 0, host)


@pytest.mark.cases("apart")
@pytest.mark.long
def test_fit_on_an_array_with_explicit_axes() -> None:
    expected, model = model_in(STRATEGIES["four"]()), model_in(STRATEGIES["four"]())
    given = jax.device_put(X, NamedSharding(mesh_of("two axes"), PartitionSpec("x")))
    for each, x in ((expected, X), (model, given)):
        each.fit(x, Y, batch_size=7, verbose=0, shuffle=False)
    check_equal(model.get_weights(), expected.get_weights())


def test_an_abstract_mesh_leaves_results_where_they_are() -> None:
    strategy = STRATEGIES["four"]()
    values = strategy.run(lambda: replicant.get_replica_context().replica_id_in_sync_group + jnp.zeros(2))
    with jax.sharding.use_abstract_mesh(mesh_of("all devices").abstract_mesh):
        total = strategy.reduce("SUM", values, axis=None)
    check_equal(total, [6, 6])


def test_nothing_happens_in_a_trace() -> None:
    seen = []

    def body(x: Any) -> Any:
        with without_mesh():
            seen.append(jax.sharding.get_abstract_mesh().axis_names)
        return handed_over(x)

    with jax.set_mesh(mesh_of("all devices")):
        jax.jit(body)(jnp.ones(()))
    assert seen == [("x",)]


def test_a_step_that_makes_variables_leaves_the_types_of_other_arrays_alone(fuse_replicas: str) -> None:
    """JAX keeps the compiled copy of an array by shape and device: a type on a mesh of replicas would be that of later copies."""
    width = 11 if fuse_replicas == "fused" else 13  # shapes that no other test has
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(width)])
        optimizer = keras.optimizers.Adam(0.1)

    def replica_step(x: jax.Array) -> jax.Array:
        with replicant.GradientTape() as tape:
            loss = jnp.mean(model(x) ** 2) / strategy.num_replicas_in_sync
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
        return loss

    step = replicant.function(lambda rows: strategy.run(replica_step, args=(rows,)))
    for rows in strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(np.ones((8, 5), np.float32)).batch(4)):
        step(rows)
    assert len(optimizer.variables) == 6  # made by the step: two moments for each weight, the number of steps, the learning rate
    for shape in ((5, width), (width,), ()):
        assert jnp.array(jnp.zeros(shape), copy=True).aval.sharding.mesh.empty
