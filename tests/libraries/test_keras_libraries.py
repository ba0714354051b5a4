"""KerasRS, BayesFlow, scikeras and HGQ2 train as on one device, without a strategy. The last batch divides unevenly."""

import contextlib
from collections.abc import Callable
from typing import Any

import bayesflow
import hgq.config
import hgq.layers
import keras
import keras_rs
import numpy as np
import pytest
import scikeras.wrappers

ROWS, BATCH, EPOCHS = 21, 8, 2  # batches of 8, 8 and 5 rows; the last is cut into 3 and 2
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 4)).astype(np.float32)
Y = RNG.integers(0, 3, ROWS).astype(np.int32)
IDS = RNG.integers(0, 16, (ROWS, 3)).astype(np.int32)
RATED = RNG.normal(size=(ROWS, 5)).astype(np.float32)  # five items in each row

Trained = tuple[list[float], list[np.ndarray]]


def fitted(model: keras.Model, x: Any, y: Any) -> Trained:
    history = model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0)
    return history.history["loss"], model.get_weights()


def compiled(model: keras.Model, loss: Any, **options: Any) -> keras.Model:
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, **options)
    return model


def keras_rs_cross() -> Trained:
    """Embeddings, their crosses and their dot products: a ranking model in the manner of DCN and DLRM."""
    given = keras.Input((3,), dtype="int32")
    features = [keras.layers.Embedding(16, 4)(given[:, i]) for i in range(3)]
    crossed = keras.layers.concatenate(features)
    crossed = keras_rs.layers.FeatureCross()(crossed, keras_rs.layers.FeatureCross(projection_dim=2)(crossed))
    dots = keras_rs.layers.DotInteraction()(features)
    model = keras.Model(given, keras.layers.Dense(3)(keras.layers.concatenate([crossed, dots])))
    return fitted(compiled(model, keras.losses.SparseCategoricalCrossentropy(from_logits=True)), IDS, Y)


def keras_rs_ranking() -> Trained:
    """Lists of five items, which a pairwise loss ranks."""
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(5)])
    return fitted(compiled(model, keras_rs.losses.PairwiseHingeLoss()), RATED, (RATED > 0).astype(np.float32))


def bayesflow_flow() -> Trained:
    """A coupling flow for the posterior, which BayesFlow's own loop trains with its own data sets."""
    adapter = bayesflow.Adapter().rename("theta", "inference_variables").rename("x", "inference_conditions")
    network = bayesflow.networks.CouplingFlow(depth=2, subnet_kwargs={"widths": (8, 8), "dropout": 0.0})
    model = bayesflow.ContinuousApproximator(adapter=adapter, inference_network=network, standardize=None)
    model.compile(optimizer=keras.optimizers.SGD(0.01))
    data = bayesflow.datasets.OfflineDataset({"theta": X[:, :2], "x": RATED}, batch_size=BATCH, adapter=adapter, shuffle=False)
    history = model.fit(dataset=data, epochs=EPOCHS, verbose=0)
    return history.history["loss"], model.get_weights()


def scikeras_classifier() -> Trained:
    def make(meta: dict[str, Any]) -> keras.Model:
        assert meta["n_classes_"] == 3
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(3, "softmax")])

    options = {"optimizer": keras.optimizers.SGD, "optimizer__learning_rate": 0.1, "loss": "sparse_categorical_crossentropy"}
    found = scikeras.wrappers.KerasClassifier(
        make, **options, batch_size=BATCH, epochs=EPOCHS, fit__shuffle=False, verbose=0, random_state=0
    )
    found.fit(X, Y)
    return [*found.history_["loss"], found.score(X, Y)], [*found.model_.get_weights(), found.predict_proba(X)]


def hgq_layers() -> Trained:
    """Quantized layers that learn their widths, with the penalty for the bits that they use."""
    with hgq.config.QuantizerConfigScope(default_q_type="kbi"), hgq.config.LayerConfigScope(enable_ebops=True, beta0=1e-5):
        layers = [hgq.layers.QDense(8, activation="relu"), hgq.layers.QDense(3)]
        model = keras.Sequential([keras.Input((4,)), *layers])
    return fitted(compiled(model, keras.losses.SparseCategoricalCrossentropy(from_logits=True)), X, Y)


CASES: dict[str, Callable[[], Trained]] = {
    "keras_rs_cross": keras_rs_cross,
    "keras_rs_ranking": keras_rs_ranking,
    "bayesflow": bayesflow_flow,
    "scikeras": scikeras_classifier,
    "hgq2": hgq_layers,
}


def train(case: Callable[[], Trained], strategy: Any = None) -> Trained:
    keras.utils.set_random_seed(0)
    with strategy.scope() if strategy else contextlib.nullcontext():
        return case()


@pytest.mark.parametrize("name", CASES)
def test_trains_as_on_one_device(strategy: Any, name: str) -> None:
    expected, found = train(CASES[name]), train(CASES[name], strategy)
    assert expected[0][-1] != expected[0][0]
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-5)
    for mine, wanted in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-5)
