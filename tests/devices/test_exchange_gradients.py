"""Gradients through exchanges, in a step whose replicas have different numbers of rows: those of one device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import replicant
from replicant.data import Dataset
from replicant.errors import RaggedStepError

X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


@pytest.fixture
def three():
    return replicant.MirroredStrategy([f"cpu:{i}" for i in range(3)])


def rows(strategy, num_rows):
    return next(iter(strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(X[:num_rows]).batch(num_rows))))


def spread(w, x, total):
    """A loss that normalizes by the moments of all rows, as batch normalization does. Numbers of rows have no gradient."""
    y = jnp.tanh(x @ w)
    moment, count = total((y.sum(), jnp.int32(y.shape[0])))
    (square,) = total(((y - moment / count) ** 2).sum()[None])
    return ((y - moment / count) / jnp.sqrt(square / count + 1e-3)).clip(0).sum()


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
@pytest.mark.parametrize("num_rows", [2, 5])
@pytest.mark.long_cases("5-SUM")
def test_gradients_through_a_reduction_equal_those_of_one_device(num_rows, op):
    """Of two rows on three replicas, one replica has none."""
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(3)])
    w = jnp.arange(1.0, 4.0) / 4

    def step(x):
        context = replicant.get_replica_context()
        scale = 3 if op == "MEAN" else 1
        return context.all_reduce(
            "SUM", jax.grad(spread)(w, x, lambda v: jax.tree.map(lambda x: x * scale, context.all_reduce(op, v)))
        )

    found = strategy.run(step, args=(rows(strategy, num_rows),))
    np.testing.assert_allclose(found, jax.grad(spread)(w, jnp.asarray(X[:num_rows]), lambda v: v), rtol=1e-5, atol=1e-6)


def test_directions_go_through_as_well():
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(3)])
    w = jnp.arange(1.0, 4.0) / 4

    def step(x):
        context = replicant.get_replica_context()
        return context.all_reduce("SUM", jax.jvp(lambda w: spread(w, x, lambda v: context.all_reduce("SUM", v)), (w,), (w,))[1])

    expected = jax.jvp(lambda w: spread(w, jnp.asarray(X), lambda v: v), (w,), (w,))[1]
    np.testing.assert_allclose(strategy.run(step, args=(rows(strategy, 5),)), expected, rtol=1e-5)


def contrast(z, all_z, first):
    """Each row against all rows, as in SimCLR and CLIP; `first` is the place of the first row of `z` among all."""
    logits = z @ all_z.T
    own = jnp.take_along_axis(logits, first + jnp.arange(len(z))[:, None], axis=1)[:, 0]
    return (jax.nn.logsumexp(logits, axis=1) - own).sum()


def embedded(w, x):
    z = jnp.tanh(x @ w)
    return z / jnp.sqrt((z**2).sum(1, keepdims=True) + 1e-6)


def contrast_of_one_device(w, x):
    return contrast(embedded(w, x), embedded(w, x), 0)


W = np.random.default_rng(1).normal(size=(3, 2)).astype(np.float32)


def contrast_in_replica(w, x, size):
    """The loss of this replica's rows, which start at a multiple of `size`."""
    context = replicant.get_replica_context()
    z = embedded(w, x)
    return contrast(z, context.all_gather(z, axis=0), size * context.replica_id_in_sync_group)


@pytest.mark.parametrize("how", ["tape", "jax.grad", "jax.value_and_grad", "under jit"])
@pytest.mark.parametrize("num_rows", [2, 5])
@pytest.mark.long_cases("2-jax.grad", "2-jax.value_and_grad", "5-jax.value_and_grad", "2-under jit", "5-tape")
def test_a_contrastive_loss_has_the_gradient_of_one_device(three, num_rows, how):
    """Of two rows on three replicas, one replica has none."""
    with three.scope():
        w = replicant.Variable(W)
    size = -(-num_rows // 3)

    def step(x):
        if how in ("tape", "under jit"):
            loss_of = jax.jit(contrast_in_replica, static_argnums=2) if how == "under jit" else contrast_in_replica
            with replicant.GradientTape() as tape:
                loss = loss_of(w.value(), x, size)
            grad = tape.gradient(loss, w)
        elif how == "jax.grad":
            grad, loss = jax.grad(contrast_in_replica)(w.value(), x, size), contrast_in_replica(w.value(), x, size)
        else:
            loss, grad = jax.value_and_grad(contrast_in_replica)(w.value(), x, size)
        return replicant.get_replica_context().all_reduce("SUM", (loss, grad))

    loss, grad = three.run(step, args=(rows(three, num_rows),))
    expected = jax.value_and_grad(contrast_of_one_device)(W, X[:num_rows])
    np.testing.assert_allclose(loss, expected[0], rtol=1e-5)
    np.testing.assert_allclose(grad, expected[1], rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_the_gradient_of_a_gradient_goes_through_exchanges_as_well(three):
    """The gradient of the gradient's square norm, with both kinds of exchanges, and with respect to a value that was gathered."""
    with three.scope():
        w = replicant.Variable(W)

    def step(x):
        context = replicant.get_replica_context()
        with replicant.GradientTape() as outer:
            with replicant.GradientTape() as inner:
                loss = contrast_in_replica(w.value(), x, 2)
            grad = context.all_reduce("SUM", inner.gradient(loss, w))
            norm = (grad**2).sum() / 3
        by_tapes = context.all_reduce("SUM", outer.gradient(norm, w))

        def of_norm(w):
            grad = jax.grad(contrast_in_replica)(w, x, 2)
            return (context.all_reduce("SUM", grad) ** 2).sum() / 3

        return by_tapes, context.all_reduce("SUM", jax.grad(of_norm)(w.value()))

    expected = jax.grad(lambda w: (jax.grad(contrast_of_one_device)(w, X) ** 2).sum())(W)
    for found in three.run(step, args=(rows(three, 5),)):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_each_replica_gets_the_gradient_of_its_rows(three):
    """The gradient by the rows themselves has as many rows as the replica."""

    def step(x):
        context = replicant.get_replica_context()
        with replicant.GradientTape() as tape:
            tape.watch(x)
            everything = context.all_gather(x, axis=0)
            loss = (everything**3).sum() / 3
        return tape.gradient(loss, x), jax.grad(lambda x: (context.all_gather(x, axis=0) ** 3).sum() / 3)(x)

    for found in three.run(step, args=(rows(three, 5),)):
        np.testing.assert_allclose(np.concatenate(three.experimental_local_results(found)), 3 * X**2, rtol=1e-5)


def test_a_stopped_gradient_is_none(three):
    """Values that are only exchanged, such as a normalizer, do not keep a loss from being differentiated."""
    with three.scope():
        w = replicant.Variable(2.0)

    def step(x):
        context = replicant.get_replica_context()

        def loss_of(w):
            z = (x * w).sum()
            return z * jax.lax.stop_gradient(context.all_reduce("SUM", z)), z * context.all_reduce("SUM", jax.lax.stop_gradient(z))

        with replicant.GradientTape(persistent=True) as tape:
            losses = loss_of(w.value())
        grads = [*(tape.gradient(loss, w) for loss in losses), jax.grad(lambda w: sum(loss_of(w)))(w.value())]
        return context.all_reduce("SUM", grads)

    first, second, both = three.run(step, args=(rows(three, 5),))
    total = X.sum() ** 2 * 2
    np.testing.assert_allclose([first, second, both], [total, total, 2 * total], rtol=1e-5)


def test_a_tape_differentiates_merge_call(three):
    def step(x):
        context = replicant.get_replica_context()
        with replicant.GradientTape() as tape:
            tape.watch(x)
            total = context.merge_call(lambda strategy, y: strategy.reduce("SUM", y), args=((x**2).sum(),))
        return tape.gradient(total, x)

    found = three.run(step, args=(rows(three, 5),))
    np.testing.assert_allclose(np.concatenate(three.experimental_local_results(found)), 6 * X, rtol=1e-5)


def test_a_gradient_of_jax_does_not_go_through_merge_call(three):
    def step(x):
        merge = replicant.get_replica_context().merge_call
        return jax.grad(lambda w: merge(lambda strategy, y: strategy.reduce("SUM", y), args=((x * w).sum(),)))(2.0)

    with pytest.raises(RaggedStepError, match=r"goes through merge_call\. In such a step, only a replicant.GradientTape"):
        three.run(step, args=(rows(three, 5),))


def test_a_jacobian_through_exchanges_needs_equal_targets(three):
    def step(x, same):
        context = replicant.get_replica_context()
        with replicant.GradientTape() as tape:
            tape.watch(x)
            total = context.all_reduce("SUM", x.sum(0))
            target = total * 2 if same else x[:, 0] * total[0]
        return tape.jacobian(target, x)

    found = three.experimental_local_results(three.run(step, args=(rows(three, 5), True)))
    for jacobian, num_rows in zip(found, (2, 2, 1), strict=True):
        np.testing.assert_allclose(jacobian, np.broadcast_to(6 * np.eye(3)[:, None], (3, num_rows, 3)))
    with pytest.raises(RaggedStepError, match=r"tape.jacobian of a target with \[2, 2, 1\] elements on the replicas"):
        three.run(step, args=(rows(three, 5), False))


def test_a_path_through_exchanges_on_some_replicas_only_is_refused(three):
    def step(x):
        with replicant.GradientTape() as tape:
            tape.watch(x)
            total = replicant.get_replica_context().all_reduce("SUM", x.sum())
            loss = total * 2 if len(x) == 2 else x.sum()
        return tape.gradient(loss, x)

    with pytest.raises(RaggedStepError, match=r"Only some replicas make the exchange \(replica 0: a gradient through exchanges"):
        three.run(step, args=(rows(three, 5),))


def test_batch_normalization_over_all_replicas_has_the_gradient_of_one_device(three):
    """Flax's BatchNorm normalizes with all rows."""
    with three.scope():
        dense = nnx.Linear(3, 3, rngs=nnx.Rngs(0))
        norm = nnx.BatchNorm(3, axis_name="replica", rngs=nnx.Rngs(0))
    kernel = jnp.asarray(dense.kernel[...])

    def step(x):
        with replicant.GradientTape() as tape:
            loss = (norm(dense(x)) ** 3).sum()
        return replicant.get_replica_context().all_reduce("SUM", tape.gradient(loss, nnx.state(dense, nnx.Param))["kernel"])

    def loss_of(kernel):
        y = X @ kernel
        return (((y - y.mean(0)) / jnp.sqrt(y.var(0) + 1e-5)) ** 3).sum()

    np.testing.assert_allclose(three.run(step, args=(rows(three, 5),))[...], jax.grad(loss_of)(kernel), rtol=1e-3, atol=1e-4)
