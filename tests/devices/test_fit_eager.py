"""``fit`` of models that run eagerly, and of those that Keras would run eagerly and JAX can compile: the numbers of plain Keras."""

import warnings
from typing import Any

import jax
import keras
import numpy as np
import pytest
from keras import layers

import replicant

TOLERANCE = 1e-5
RNG = np.random.default_rng(0)
X, Y = RNG.uniform(size=(24, 8, 8, 3)).astype(np.float32), RNG.normal(size=(24, 2)).astype(np.float32)


def mirrored(n: int, **options: Any) -> replicant.Strategy:
    return replicant.MirroredStrategy([f"cpu:{i}" for i in range(n)], **options) if n else replicant.get_strategy()


def rows_of_eight(layer: Any) -> Any:
    return keras.Sequential([keras.Input((8,)), layer, layers.Dense(2)])


def images(layer: Any) -> Any:
    return keras.Sequential([keras.Input((8, 8, 3)), layer, layers.GlobalMaxPooling2D(), layers.Dense(2)])


class OwnStep(keras.Model):
    """Draws noise by itself, and computes something on half of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.seed = layers.Dense(2), keras.random.SeedGenerator(3)

    def call(self, x: Any) -> Any:
        return self.out(x)

    def train_step(self, state: Any, data: Any) -> Any:
        weights, others, slots, metrics = state
        x, y = data[:2]

        def loss_of(weights: Any) -> Any:
            with keras.StatelessScope(
                [*zip(self.trainable_variables, weights, strict=True), *zip(self.non_trainable_variables, others, strict=True)]
            ) as scope:
                x_noisy = x + keras.random.normal(x.shape, seed=self.seed)
                half = -(-x.shape[0] // 2)
                loss = keras.ops.mean((self(x_noisy)[:half] - y[:half]) ** 2)
            return loss, [scope.get_current_value(v) for v in self.non_trainable_variables]

        (loss, others), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights)
        return {"loss": loss}, ([w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], others, slots, metrics)


MODELS = {
    "dropout": lambda: rows_of_eight(layers.Dropout(0.5)),
    "noise": lambda: rows_of_eight(layers.GaussianNoise(0.5)),
    "alpha dropout": lambda: rows_of_eight(layers.AlphaDropout(0.5)),
    "batch norm": lambda: rows_of_eight(layers.BatchNormalization()),
    "own step": OwnStep,
    "spatial dropout": lambda: images(layers.SpatialDropout2D(0.5)),
    "flip": lambda: images(layers.RandomFlip()),
    "contrast": lambda: images(layers.RandomContrast(0.5, value_range=(0, 1))),
    "crop": lambda: images(layers.RandomCrop(5, 5)),
    "mix up": lambda: images(layers.MixUp()),
    "erasing": lambda: images(layers.RandomErasing()),
    "rotation": lambda: images(layers.RandomRotation(0.2)),
    "zoom": lambda: images(layers.RandomZoom(0.2)),
    "translation": lambda: images(layers.RandomTranslation(0.2, 0.2)),
    "shear": lambda: images(layers.RandomShear(0.2, 0.2)),
    "perspective": lambda: images(layers.RandomPerspective(0.5)),
}

VECTORS = ("dropout", "noise", "alpha dropout", "batch norm", "own step")


def train(n: int, name: str, rows: int, batch: int, *, shard: bool = False, **options: Any) -> tuple[Any, Any]:
    keras.utils.set_random_seed(1)
    x = X[:rows, 0, :, 0] if name in VECTORS else X[:rows]
    with mirrored(n, **({"shard_optimizer_state": True} if shard else {})).scope(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of layers that cannot be compiled: see below
        model = MODELS[name]()
        model.compile(keras.optimizers.Adam(0.1), "mse", **options)
        history = model.fit(x, Y[:rows], batch_size=batch, verbose=0, shuffle=False, epochs=2).history
        found = {
            "history": history,
            "evaluate": model.evaluate(x, Y[:rows], batch_size=batch, verbose=0),
            "predict": model.predict(x, batch_size=batch, verbose=0),
            "train on batch": model.train_on_batch(x[:5], Y[:5]),
            "test on batch": model.test_on_batch(x[:3], Y[:3]),
            "predict on batch": np.asarray(model.predict_on_batch(x[:7])),
            "weights": model.get_weights(),
        }
    return found, model


def assert_equal(actual: Any, expected: Any) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE), actual, expected)


@pytest.mark.cases("dropout-3-7-4-options1", "own step-4-14-8-options4")
@pytest.mark.parametrize(
    ("name", "n", "rows", "batch", "options"),
    [
        ("dropout", 4, 14, 8, {"run_eagerly": True}),
        ("dropout", 3, 7, 4, {"jit_compile": False}),
        ("noise", 4, 6, 6, {"run_eagerly": True, "steps_per_execution": 2}),
        ("dropout", 4, 14, 6, {"run_eagerly": True, "shard": True}),
        ("own step", 4, 14, 8, {"run_eagerly": True}),
        ("crop", 4, 6, 6, {}),
        pytest.param("batch norm", 4, 6, 4, {"run_eagerly": True}, marks=pytest.mark.slow),
        *[
            pytest.param(name, n, 2 * n + 2, n, {"run_eagerly": True}, marks=pytest.mark.slow)
            for name in MODELS
            for n in (2, 3, 4, 6)
        ],
    ],
)
@pytest.mark.long
def test_eager_steps_equal_plain_keras(name: str, n: int, rows: int, batch: int, options: dict[str, Any]) -> None:
    plain = {key: value for key, value in options.items() if key != "shard"}
    found, model = train(n, name, rows, batch, **options)
    assert not model.jit_compile
    assert_equal(found, train(0, name, rows, batch, **plain)[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rotation", "zoom", "translation", "shear", "perspective"])
def test_layers_that_jax_compiles_equal_eager_keras(name: str) -> None:
    found, model = train(4, name, 14, 8)
    plain, plain_model = train(0, name, 14, 8)
    assert (model.jit_compile, plain_model.jit_compile) == (True, False)
    assert_equal(found, plain)


def test_a_model_that_is_asked_to_compile_does_so_without_a_warning() -> None:
    with mirrored(2).scope():
        model = images(layers.RandomZoom(0.1))
        model.compile("sgd", "mse", jit_compile=True)
    model.fit(X[:3], Y[:3], verbose=0)
    assert model.jit_compile


def test_a_model_that_was_never_compiled_predicts_in_a_program() -> None:
    with mirrored(2).scope():
        model = images(layers.RandomZoom(0.1))
    model.predict(X[:3], verbose=0)
    assert model.jit_compile


class OwnRotation(layers.RandomRotation):
    """May do anything in Python."""


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        (OwnRotation, r"'own' \(OwnRotation\)"),
        (lambda *_, name: layers.RandomCrop(4, 4, name=name), r"'own' \(RandomCrop\)"),
        (lambda *_, name: layers.AugMix((0, 1), chain_depth=1, name=name), r"'own' \(AugMix\)"),
    ],
)
def test_other_layers_run_eagerly_and_say_so(layer: Any, named: str) -> None:
    with mirrored(2).scope():
        model = images(layer(0.1, name="own"))
        model.compile("sgd", "mse")
    message = (
        rf"runs eagerly, because its layers {named} cannot be compiled\. Each of the 2 devices therefore computes every whole "
        r"batch, and they do not share the work\. Apply those layers to the dataset instead: "
        r"dataset.map\(lambda x, y: \(layer\(x\), y\)\)"
    )
    with pytest.warns(UserWarning, match=message):
        model.predict_on_batch(X[:3])
    assert not model.jit_compile


def test_a_model_that_is_told_to_run_eagerly_does_so_silently() -> None:
    with mirrored(2).scope():
        model = images(layers.RandomCrop(4, 4))
        model.compile("sgd", "mse", run_eagerly=True)
    model.train_on_batch(X[:3], Y[:3])
