"""Language models of keras-hub, from tiny configurations: they train as on one device."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import keras_hub as hub
import numpy as np
import pytest

import replicant
from replicant.data import Dataset

ROWS, LENGTH, WORDS, BATCH = 20, 8, 64, 8
MIN_SIZE = 32  # of variables that are cut


def gpt2() -> keras.Model:
    sizes = {"vocabulary_size": WORDS, "num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}
    return hub.models.GPT2CausalLM(hub.models.GPT2Backbone(**sizes, max_sequence_length=LENGTH, dropout=0.0))


def llama() -> keras.Model:
    heads = {"num_query_heads": 4, "num_key_value_heads": 2}
    sizes = {"vocabulary_size": WORDS, "num_layers": 2, "hidden_dim": 16, "intermediate_dim": 32}
    return hub.models.LlamaCausalLM(hub.models.LlamaBackbone(**heads, **sizes))


def gemma() -> keras.Model:
    heads = {"num_query_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    sizes = {"vocabulary_size": WORDS, "num_layers": 2, "hidden_dim": 16, "intermediate_dim": 32}
    return hub.models.GemmaCausalLM(hub.models.GemmaBackbone(**heads, **sizes))


def bert() -> keras.Model:
    sizes = {"vocabulary_size": WORDS, "num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}
    backbone = hub.models.BertBackbone(**sizes, max_sequence_length=LENGTH, dropout=0.0)
    return hub.models.BertMaskedLM(backbone)


def with_lora(make: Callable[[], keras.Model]) -> Callable[[], keras.Model]:
    def made() -> keras.Model:
        model = make()
        model.backbone.enable_lora(2)
        return model

    return made


MODELS = {"gpt2": gpt2, "llama": llama, "gemma": gemma, "bert": bert}
MODELS |= {f"{name} with LoRA": with_lora(MODELS[name]) for name in ("gpt2", "llama", "gemma")}


def sharded(n: int) -> replicant.FullyShardedStrategy:
    return replicant.FullyShardedStrategy([f"cpu:{i}" for i in range(n)], min_size=MIN_SIZE)


def texts(model: str) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Return inputs, labels and weights of the labels. Some texts are shorter than others."""
    draw = np.random.default_rng(0)
    tokens = draw.integers(1, WORDS, (ROWS, LENGTH + 1)).astype("int32")
    present = np.arange(LENGTH) < draw.integers(3, LENGTH + 1, (ROWS, 1))
    given = {"token_ids": tokens[:, :-1], "padding_mask": present}
    if model != "bert":
        return given, tokens[:, 1:], present.astype("float32")
    masked = np.tile(np.arange(3, dtype="int32"), (ROWS, 1))
    given |= {"segment_ids": np.zeros_like(tokens[:, :-1]), "mask_positions": masked}
    return given, tokens[:, :3], np.ones(masked.shape, "float32")


def fit(strategy: Any, name: str, epochs: int = 2) -> Any:
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = MODELS[name]()
        model.compile(keras.optimizers.AdamW(0.01, epsilon=1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y, weights = texts(name)
    history = model.fit(x, y, sample_weight=weights, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0)
    return history.history["loss"], model


def loop(strategy: Any, name: str, epochs: int = 2) -> Any:
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model, optimizer = MODELS[name](), keras.optimizers.AdamW(0.01, epsilon=1e-3)
        losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def step(batch: Any) -> Any:
        x, y, weights = batch
        with replicant.GradientTape() as tape:
            each = keras.ops.mean(losses(y, model(x, training=True)) * weights, axis=-1)
            loss = replicant.compute_average_loss(each, global_batch_size=BATCH)
        pairs = zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        optimizer.apply_gradients([(g, v) for g, v in pairs if g is not None])  # BERT's pooling takes no part in this task
        return loss

    total = replicant.function(lambda batch: strategy.reduce("SUM", strategy.run(step, args=(batch,))))
    batches = strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(texts(name)).batch(BATCH))
    return [float(total(batch)) for _ in range(epochs) for batch in batches], model


def is_cut(variable: Any) -> bool:
    return not variable._value.sharding.is_fully_replicated


def large(model: Any) -> list[Any]:
    """Return the weights that are large enough to be cut."""
    return [v for v in model.weights if math.prod(v.shape) >= MIN_SIZE]


def assert_equal(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-5, atol=1e-5)
    for variable, mine, wanted in zip(actual[1].weights, actual[1].get_weights(), expected[1].get_weights(), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-5, err_msg=variable.path)


def test_replicants_datasets_go_past_the_preprocessing_of_keras_hub() -> None:
    weights = []
    for whole in (True, False):
        keras.utils.set_random_seed(3)
        with sharded(2).scope():
            model = gpt2()
            model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        if whole:
            x, y, each = texts("gpt2")
            model.fit(x, y, sample_weight=each, batch_size=BATCH, shuffle=False, verbose=0)
        else:
            keras.Model.fit(model, Dataset.from_tensor_slices(texts("gpt2")).batch(BATCH), verbose=0)
        weights.append(model.get_weights())
    for mine, wanted in zip(*weights, strict=True):
        np.testing.assert_array_equal(mine, wanted)


@pytest.mark.parametrize("name", ["llama", pytest.param("bert", marks=pytest.mark.slow)])
def test_a_preset_is_loaded_in_slices_one_tensor_after_the_other(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keras.utils.set_random_seed(3)
    alone = MODELS[name]()
    alone.backbone.save_to_preset(str(tmp_path))
    monkeypatch.setattr("replicant.keras.state._variables.LARGE", 1)  # new variables are never whole
    whole, assign = set[str](), keras.Variable.assign

    with sharded(4).scope():
        backbone = type(alone.backbone).from_preset(str(tmp_path))

        def counting(variable: Any, value: Any) -> Any:
            result = assign(variable, value)
            whole.update(v.path for v in large(backbone) if not is_cut(v))
            return result

        with monkeypatch.context() as patched:
            patched.setattr(keras.Variable, "assign", counting)
            backbone.load_weights(str(tmp_path / "model.weights.h5"))
    assert whole == set()  # after each assignment, all weights lie in slices
    assert len(large(backbone)) >= 2 * 6  # the kernels of two layers
    assert all(map(is_cut, large(backbone)))
    for mine, wanted in zip(backbone.get_weights(), alone.backbone.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, wanted)


TRAIN = {"fit": fit, "loop": loop}


@pytest.mark.parametrize(
    ("train", "name"), [("fit", "gpt2"), ("fit", "gemma"), ("loop", "llama with LoRA"), ("loop", "bert")], ids=str
)
def test_trains_as_on_one_device(strategy: Any, train: str, name: str) -> None:
    assert_equal(TRAIN[train](strategy, name), TRAIN[train](replicant.OneDeviceStrategy("cpu:0"), name))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("train", TRAIN)
def test_models_in_slices_train_as_on_one_device(train: str, n: int, name: str) -> None:
    assert_equal(TRAIN[train](sharded(n), name), TRAIN[train](replicant.OneDeviceStrategy("cpu:0"), name))
