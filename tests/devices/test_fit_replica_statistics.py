"""BatchNormalization with the statistics of each replica's own rows, against a training loop that is written out."""

from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from keras import layers

import replicant
from replicant.errors import ArgumentError, ArgumentTypeError

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(11, 6)).astype(np.float32), RNG.integers(0, 3, 11)
XENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
MOMENTUM, EPSILON, RATE, BATCH = 0.8, 1e-3, 0.1, 8

# Rows of the replicas that have any, in the batches of 8 and of 3 rows.
CHUNKS = {2: [(4, 4), (2, 1)], 3: [(3, 3, 2), (1, 1, 1)], 4: [(2, 2, 2, 2), (1, 1, 1)]}


def mirrored(n: int) -> replicant.Strategy:
    return replicant.MirroredStrategy([f"cpu:{i}" for i in range(n)]) if n else replicant.get_strategy()


def make(n: int, *, asked: bool = True, **options: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    with mirrored(n).scope():
        norm = layers.BatchNormalization(momentum=MOMENTUM, epsilon=EPSILON)
        model = keras.Sequential([layers.Dense(4, use_bias=False), norm, layers.Dense(3)])
        model.build((None, 6))
        model.compile(keras.optimizers.SGD(RATE), XENTROPY, **options)
    if asked:
        replicant.keras.use_replica_statistics(model)
    return model


def normalized(h: Any, chunks: tuple[int, ...], gamma: Any, beta: Any) -> tuple[Any, Any, Any]:
    """Every chunk by its own mean and variance; the mean of the means and that of the variances."""
    parts, means, variances, first = [], [], [], 0
    for rows in chunks:
        part, first = h[first : first + rows], first + rows
        means.append(part.mean(0))
        variances.append(part.var(0))
        parts.append((part - means[-1]) / jnp.sqrt(variances[-1] + EPSILON) * gamma + beta)
    return jnp.concatenate(parts), sum(means) / len(chunks), sum(variances) / len(chunks)


def written_out(weights: list[Any], batches: list[tuple[int, ...]]) -> tuple[list[Any], list[float]]:
    """Weights and losses of an epoch of gradient descent."""
    first, gamma, beta, mean, variance, kernel, bias = weights
    losses, row = [], 0
    for chunks in batches:
        x, y, row = X[row : row + sum(chunks)], Y[row : row + sum(chunks)], row + sum(chunks)

        def loss_of(trained: Any, x: Any = x, y: Any = y, chunks: Any = chunks) -> Any:
            first, gamma, beta, kernel, bias = trained
            h, batch_mean, batch_variance = normalized(x @ first, chunks, gamma, beta)
            logits = h @ kernel + bias
            nll = jax.nn.logsumexp(logits, axis=1) - logits[jnp.arange(len(y)), y]
            return jnp.mean(nll), (batch_mean, batch_variance)

        trained = (first, gamma, beta, kernel, bias)
        (loss, statistics), gradients = jax.value_and_grad(loss_of, has_aux=True)(trained)
        first, gamma, beta, kernel, bias = (w - RATE * g for w, g in zip(trained, gradients, strict=True))
        mean, variance = (MOMENTUM * old + (1 - MOMENTUM) * new for old, new in zip((mean, variance), statistics, strict=True))
        losses.append(float(loss) * sum(chunks))
    return [first, gamma, beta, mean, variance, kernel, bias], losses


@pytest.mark.cases("4-{}")
@pytest.mark.parametrize(
    ("n", "options"), [(2, {}), (3, {}), (4, {}), (3, {"steps_per_execution": 2}), (3, {"run_eagerly": True})], ids=str
)
@pytest.mark.long
def test_each_replica_normalizes_its_own_rows(n: int, options: dict[str, Any]) -> None:
    model = make(n, **options)
    start = [np.asarray(w) for w in model.get_weights()]
    order = [w.path.split("/")[-1] for w in model.weights]
    assert order == ["kernel", "gamma", "beta", "moving_mean", "moving_variance", "kernel", "bias"]
    history = model.fit(X, Y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0).history
    expected, losses = written_out(start, CHUNKS[n])
    assert history["loss"] == pytest.approx([sum(losses) / len(X)], abs=1e-5)
    for a, b in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.long
def test_they_differ_from_those_of_the_global_batch_which_are_the_default() -> None:
    """And `evaluate` and `predict` use the moving statistics in both."""
    asked, default, plain = make(2), make(2, asked=False), make(0)
    for model in (asked, default, plain):
        model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0)
    np.testing.assert_allclose(default.get_weights()[4], plain.get_weights()[4], atol=1e-6)
    assert np.abs(asked.get_weights()[4] - plain.get_weights()[4]).max() > 0.01
    plain.set_weights(asked.get_weights())
    np.testing.assert_allclose(asked.predict(X, verbose=0), plain.predict(X, verbose=0), atol=1e-5)


@pytest.mark.long
def test_after_a_first_fit_and_with_one_replica() -> None:
    """Asking traces the step anew; with one replica there is nothing to ask for."""
    model, one, plain = make(2, asked=False), make(1), make(0)
    for each in (model, one, plain):
        each.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0)
    for a, b in zip(one.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    start = [np.asarray(w) for w in model.get_weights()]
    replicant.keras.use_replica_statistics(model)
    model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0)
    for a, b in zip(model.get_weights(), written_out(start, CHUNKS[2])[0], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_a_layer_that_sees_every_row_several_times() -> None:
    """Four rows of the layer for each of the batch: the statistics are those of a replica's rows times four."""
    with mirrored(2).scope():
        inputs = keras.Input((4, 6))
        rows = keras.ops.reshape(inputs, (-1, 6))
        outputs = keras.ops.reshape(layers.BatchNormalization(momentum=0.0, name="norm")(rows), (-1, 4, 6))
        model = keras.Model(inputs, outputs)
        model.compile("sgd", "mse")
    replicant.keras.use_replica_statistics(model)
    x = RNG.normal(size=(3, 4, 6)).astype(np.float32)
    model.train_on_batch(x, x)
    np.testing.assert_allclose(model.get_layer("norm").moving_variance, (x[:2].reshape(8, 6).var(0) + x[2].var(0)) / 2, atol=1e-5)


def test_a_mask_counts_the_rows_that_it_shows() -> None:
    """Of the replicas' rows, the first has one step, the second all three."""
    with mirrored(2).scope():
        inputs = keras.Input((3, 2))
        hidden = layers.Masking()(inputs)
        model = keras.Model(inputs, layers.BatchNormalization(momentum=0.0, name="norm")(hidden))
        model.compile("sgd", "mse")
    replicant.keras.use_replica_statistics(model)
    x = RNG.normal(size=(2, 3, 2)).astype(np.float32)
    x[0, 1:] = 0.0  # masked
    model.train_on_batch(x, x)
    np.testing.assert_allclose(model.get_layer("norm").moving_mean, (x[0, 0] + x[1].mean(0)) / 2, atol=1e-5)


@pytest.mark.parametrize(
    ("middle", "what"),
    [
        ([layers.BatchNormalization(axis=0)], r"shape \(8, 4\) with axis=0 in a step on 8 rows"),
        (
            [layers.Lambda(lambda x: x[:5]), layers.BatchNormalization(), layers.Lambda(lambda x: keras.ops.tile(x, (2, 1))[:8])],
            r"shape \(5, 4\) with axis=-1 in a step on 8 rows",
        ),
    ],
    ids=["features first", "other rows"],
)
def test_a_layer_without_the_rows_of_the_batch(middle: Any, what: str) -> None:
    keras.utils.set_random_seed(1)
    with mirrored(2).scope():
        model = keras.Sequential([keras.Input((6,), batch_size=8), layers.Dense(4), *middle])
        model.compile("sgd", "mse")
    replicant.keras.use_replica_statistics(model)
    with pytest.raises(ArgumentError, match=what):
        model.fit(X[:8], np.zeros((8, 4)), batch_size=8, verbose=0)


def test_only_models_can_be_asked() -> None:
    with pytest.raises(ArgumentTypeError, match=r"model must be a keras\.Model; got BatchNormalization"):
        replicant.keras.use_replica_statistics(layers.BatchNormalization())
