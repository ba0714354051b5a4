"""Weights of Keras 2, TensorFlow and other libraries in Keras models, under strategies: predictions as recorded, and errors."""

import json
import os
import re
import shutil
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
from keras import layers

import replicant
from replicant.cluster import ClusterSpec, SimpleClusterResolver
from replicant.coordinator import ClusterCoordinator, FixedShardsPartitioner
from replicant.errors import ArgumentError, ArgumentTypeError, CheckpointError, ContextError, DamagedCheckpointError
from replicant.keras import load_weights

from ._tensorflow_checkpoints import MODELS, functional, inputs, sequential
from ._written_bundle import write_bundle

FILES = Path(__file__).parents[1] / "tensorflow_files" / "weights"
TRUTH = json.loads((FILES / "truth.json").read_text())


def given(which):
    """The inputs of the predictions that were recorded."""
    found = inputs(which, 99)
    return found if len(found) > 1 else found[0]


def made(which):
    model = MODELS[which]()
    if not model.built:
        model(given(which))
    return model


def outputs(model, which):
    """The predictions of a model, flat, one for each output."""
    found = model(given(which), training=False)
    return [np.asarray(each).ravel() for each in (found if isinstance(found, list | tuple) else [found])]


def assert_as_recorded(model, name):
    for found, expected in zip(outputs(model, TRUTH[name]["model"]), TRUTH[name]["predictions"], strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("name", TRUTH)
@pytest.mark.long_cases("text.h5", "subclass.keras", "nested.h5")
def test_predictions_are_those_recorded(name):
    model = made(TRUTH[name]["model"])
    report = load_weights(model, FILES / name)
    assert_as_recorded(model, name)
    assert (len(report.taken), report.missing, report.mismatched) == (TRUTH[name]["num_weights"], (), {})


DEVICES = ["cpu:0", "cpu:1"]
STRATEGIES = {
    "fused": lambda: replicant.MirroredStrategy(DEVICES),
    "apart": lambda: replicant.MirroredStrategy(DEVICES, fuse_replicas=False),
    "sharded": lambda: replicant.FullyShardedStrategy(DEVICES, min_size=8),
}


def training(make, name):
    """The losses of a model that was made and loaded under a strategy. They see all copies and slices of its weights."""
    which = TRUTH[name]["model"]
    with make().scope():
        model = made(which)
        model.compile(keras.optimizers.SGD(0.1), ["mse"] * len(model.outputs))
    load_weights(model, FILES / name)
    assert_as_recorded(model, name)
    y = [np.ones((8, len(each) // 8), "float32") for each in TRUTH[name]["predictions"]]
    return model.fit(given(which), y if len(y) > 1 else y[0], batch_size=8, epochs=2, verbose=0).history["loss"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_under_a_strategy(strategy):
    with STRATEGIES[strategy]().scope():
        model = functional()
    load_weights(model, FILES / "functional")
    assert_as_recorded(model, "functional")


@pytest.mark.long
def test_on_parameter_servers():
    """In shards, each half of a kernel on its server."""
    spec = ClusterSpec({"ps": ["127.0.0.1:0"] * 2, "worker": ["127.0.0.1:0"] * 2})
    strategy = replicant.ParameterServerStrategy(SimpleClusterResolver(spec), FixedShardsPartitioner(2), transport="threads")
    ClusterCoordinator(strategy)
    try:
        for name in ("functional.h5", "functional"):
            with strategy.scope():
                model = functional()
            load_weights(model, FILES / name)
            assert_as_recorded(model, name)
    finally:
        strategy.close()


@pytest.mark.long
@pytest.mark.parametrize("name", ["functional.h5", "functional", "sequential.keras"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_training_goes_on_as_on_one_device(strategy, name):
    np.testing.assert_allclose(training(STRATEGIES[strategy], name), training(replicant.get_strategy, name), rtol=1e-5)


def test_what_the_report_says():
    model = functional()
    model.compile("adam", ["mse", "mse"])
    report = load_weights(model, FILES / "functional")
    assert report.taken == {
        f"{layer}/{name}": f"layer_with_weights-{i}/{name}"
        for i, layer in enumerate(("shared", "hidden", "first", "second"))
        for name in ("kernel", "bias")
    }
    assert {name.partition("/")[0] for name in report.left} == {"optimizer"}
    assert str(report).splitlines()[0] == f"{FILES / 'functional'}: 8 weight(s) taken"
    assert str(report).splitlines()[1].startswith(f"  {len(report.left)} left in the file: 'optimizer/")
    assert int(model.optimizer.iterations.numpy()) == 0


def other_head(units=3):
    """The functional model with another head."""
    a, b = keras.Input((4,)), keras.Input((4,))
    shared = layers.Dense(5, activation="relu", name="shared")
    y = layers.Dense(4, activation="tanh", name="hidden")(layers.Concatenate()([shared(a), shared(b)]))
    return keras.Model([a, b], [layers.Dense(units, name="first")(y), layers.Dense(1, name="new")(y)])


@pytest.mark.parametrize("name", ["functional.h5", "functional"])
def test_another_head_by_name(name):
    """Layers of the same name are taken, those with another shape are told, and the others keep their values."""
    model, right = other_head(), functional()
    load_weights(right, FILES / name)
    before = {weight.path: weight.numpy() for weight in model.weights}
    with pytest.raises(CheckpointError, match=r"for 'first/kernel', '\S+' has the shape \(4, 2\) in the file, and \(4, 3\) in the"):
        load_weights(model, FILES / name, by_name=True)
    assert all(np.array_equal(weight.numpy(), before[weight.path]) for weight in model.weights)  # nothing was changed
    report = load_weights(model, FILES / name, by_name=True, skip_mismatch=True)
    assert list(report.taken) == ["shared/kernel", "shared/bias", "hidden/kernel", "hidden/bias"]
    assert list(report.mismatched) == ["first/kernel", "first/bias"]
    assert report.missing == ("new/kernel", "new/bias")
    for weight in model.weights:
        expected = {each.path: each.numpy() for each in right.weights} if weight.path in report.taken else before
        np.testing.assert_array_equal(weight.numpy(), expected[weight.path])


def test_taking_nothing_is_an_error():
    """Where Keras's own by_name says nothing, because it has numbered the layers otherwise."""
    model = keras.Sequential([keras.Input((7,), dtype="int32"), layers.Embedding(11, 4, name="e")])
    model.load_weights(FILES / "text.h5", by_name=True)
    with pytest.raises(CheckpointError, match=r"Nothing of \S+text\.h5 was taken: .* layers of the file are 'embedding', 'lstm'"):
        load_weights(model, FILES / "text.h5", by_name=True)
    with pytest.raises(CheckpointError, match=r"Nothing of \S+functional was taken: .* It has 'shared/bias', .* and the"):
        load_weights(model, FILES / "functional", by_name=True)


def test_names_that_begin_with_the_model(tmp_path):
    """As Keras 3 calls variables; its list of them is in the file twice."""
    made = [layers.Dense(8, activation="relu", name="dense"), layers.BatchNormalization(name="batch_normalization")]
    model = keras.Sequential([keras.Input((6,)), *made, layers.Dense(3, name="dense_1")], name="other")
    assert len(load_weights(model, FILES / "export_keras3", by_name=True).taken) == 8
    assert_as_recorded(model, "export_keras3")


def test_names_of_layers_in_files_of_keras_3(tmp_path):
    def named(name):
        return keras.Sequential([keras.Input((3,)), layers.Dense(4, name=name), layers.Dense(2, name="head")])

    saved, model = named("old"), named("new")
    saved.save_weights(tmp_path / "a.weights.h5")
    report = load_weights(model, tmp_path / "a.weights.h5", by_name=True)
    assert report.taken == {"head/kernel": "layers/dense_1/vars/0", "head/bias": "layers/dense_1/vars/1"}
    np.testing.assert_array_equal(model.layers[1].kernel.numpy(), saved.layers[1].kernel.numpy())
    with pytest.raises(CheckpointError, match="does not say how its layers are called"):
        load_weights(sequential(), FILES / "sequential.keras", by_name=True)
    twice = keras.Sequential([keras.Input((3,)), layers.Dense(4, name="head"), keras.Sequential([layers.Dense(2, name="head")])])
    with pytest.raises(CheckpointError, match="several layers have the name 'head'"):
        load_weights(twice, tmp_path / "a.weights.h5", by_name=True)
    without = keras.Sequential([keras.Input((4,)), layers.Dense(2, name="head", use_bias=False)])
    with pytest.raises(CheckpointError, match="the layer 'head' has 2 weights in the file, and 1 in the model"):
        load_weights(without, tmp_path / "a.weights.h5", by_name=True)


BERT = {
    "bert/embeddings/word_embeddings": (13, 4),
    "bert/encoder/layer_0/attention/self/query/kernel": (4, 4),
    "bert/encoder/layer_0/attention/self/query/bias": (4,),
    "bert/encoder/layer_0/output/LayerNorm/gamma": (4,),
    "bert/encoder/layer_0/output/LayerNorm/beta": (4,),
    "bert/pooler/dense/kernel": (4, 4),
    "bert/pooler/dense/bias": (4,),
    "cls/predictions/output_bias": (13,),
}


def bert():
    tokens = keras.Input((5,), dtype="int32")
    y = layers.Embedding(13, 4, name="words")(tokens)
    y = layers.LayerNormalization(name="norm")(y + layers.Dense(4, name="query")(y))
    return keras.Model(tokens, layers.Dense(2, name="classifier")(layers.Dense(4, activation="tanh", name="pooler")(y[:, 0])))


def of_bert(name):
    """What a user writes for the names of TensorFlow 1."""
    name = re.sub(r"^bert/embeddings/word_embeddings$", "words/embeddings", name)
    name = re.sub(
        r"^bert/encoder/layer_0/(?:attention/self/query|output/LayerNorm)/",
        lambda m: "query/" if "query" in m[0] else "norm/",
        name,
    )
    name = name.replace("bert/pooler/dense", "pooler")
    return None if name.startswith("cls/") else name


@pytest.mark.parametrize("form", ["function", "dict"])
def test_names_of_tensorflow_1(tmp_path, form):
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=shape).astype("float32") for name, shape in BERT.items()}
    path, model = write_bundle(tmp_path / "bert_model.ckpt", arrays), bert()
    with pytest.raises(
        CheckpointError, match=r"is a checkpoint of TensorFlow, which has names and no structure\. Pass by_name=True"
    ):
        load_weights(model, path)
    with pytest.raises(CheckpointError, match=r"Nothing of .* was taken"):
        load_weights(model, path, by_name=True)
    before = model.get_layer("classifier").kernel.numpy()
    report = load_weights(model, path, rename=of_bert if form == "function" else {name: of_bert(name) for name in BERT})
    assert report.left == ("cls/predictions/output_bias",)
    assert report.missing == ("classifier/kernel", "classifier/bias")
    assert {weight: BERT[name] for weight, name in report.taken.items()} == {
        "words/embeddings": (13, 4),
        "query/kernel": (4, 4),
        "query/bias": (4,),
        "norm/gamma": (4,),
        "norm/beta": (4,),
        "pooler/kernel": (4, 4),
        "pooler/bias": (4,),
    }
    for weight in model.weights:
        if weight.path in report.taken:
            np.testing.assert_array_equal(weight.numpy(), arrays[report.taken[weight.path]])
    np.testing.assert_array_equal(model.get_layer("classifier").kernel.numpy(), before)


@pytest.mark.parametrize("path", ["v1/model.ckpt-3000", "v1/model_v1.ckpt"])
def test_recorded_checkpoints_of_a_saver(path):
    rows, units = (4, 3) if path.endswith("3000") else (3, 2)
    model = keras.Sequential([keras.Input((rows,)), layers.Dense(units, name="dense", use_bias=False)], name="model")
    assert load_weights(model, FILES / path, by_name=True).taken == {"dense/kernel": "dense/kernel"}
    np.testing.assert_array_equal(model.weights[0].numpy(), replicant.load_variable(FILES / path, "dense/kernel"))


def test_a_state_dict_of_torch(tmp_path):
    """Kernels are taken only with a function that says how their axes lie: a square one would fit in the wrong order."""
    numpy = pytest.importorskip("safetensors.numpy")
    rng = np.random.default_rng(0)
    state = {"0.weight": rng.normal(size=(4, 4)), "0.bias": rng.normal(size=4), "1.weight": rng.normal(size=(2, 4))}
    state = {name: array.astype("float32") for name, array in state.items()}
    path = tmp_path / "model.safetensors"
    numpy.save_file(state, path)
    model = keras.Sequential([keras.Input((4,)), layers.Dense(4, name="a"), layers.Dense(2, name="b", use_bias=False)])
    kernels = {"0.weight": "a/kernel", "0.bias": "a/bias", "1.weight": "b/kernel"}
    with pytest.raises(CheckpointError, match=r"torch keeps '0\.weight' in another order of axes than Keras keeps 'a/kernel'"):
        load_weights(model, path, rename=kernels)
    turned = {name: (to, np.transpose) if name.endswith("weight") else to for name, to in kernels.items()}
    report = load_weights(model, path, rename=turned)
    assert (report.left, report.missing) == ((), ())
    x = rng.normal(size=(3, 4)).astype("float32")
    expected = (x @ state["0.weight"].T + state["0.bias"]) @ state["1.weight"].T
    np.testing.assert_allclose(model(x), expected, atol=1e-6)
    with pytest.raises(
        CheckpointError, match=r"the function for '1\.weight' makes the shape \(8,\) of \(2, 4\), and the model has"
    ):
        load_weights(model, path, rename={"1.weight": ("b/kernel", np.ravel)})
    numpy.save_file({"1.weight": state["1.weight"], "kernel": state["1.weight"]}, path)
    with pytest.raises(CheckpointError, match=r"'kernel' has the shape .* Its axes are in another order: pass rename="):
        load_weights(model, path, rename={"kernel": "b/kernel"})


RECORDINGS = os.environ.get("REPLICANT_TEST_DATA")


def recordings():
    """Everything that was recorded with a model and its predictions, in the folder that REPLICANT_TEST_DATA names."""
    root = Path(RECORDINGS or "/none")
    for truth in sorted(root.rglob("truth.json")):
        found = json.loads(truth.read_text())
        if found.get("model") in MODELS and "predictions" in found:
            files = [each for each in truth.parent.rglob("*") if each.suffix in (".h5", ".keras", ".index")]
            yield from ((found, each.with_suffix("") if each.suffix == ".index" else each) for each in sorted(files))


@pytest.mark.long
@pytest.mark.skipif(not any(recordings()), reason="REPLICANT_TEST_DATA names no folder with recordings of TensorFlow")
def test_all_recordings():
    """Keras 3 leaves layers in lists out of checkpoints: what the file lacks is an error that says so."""
    for truth, path in recordings():
        model = made(truth["model"])
        if truth["kind"] == "keras3" and truth["model"] == "subclass" and path.suffix != ".keras":
            with pytest.raises(CheckpointError, match=r"has no array for 6 of the 12 weights .* in lists and dicts"):
                load_weights(model, path)
            continue
        load_weights(model, path)
        for found, expected in zip(outputs(model, truth["model"]), truth["predictions"], strict=True):
            np.testing.assert_allclose(found, expected["values"], atol=1e-6, err_msg=str(path))


def test_files_of_another_model(tmp_path):
    """Nothing is matched where the numbers of layers or weights differ, or where frozen layers have changed the order."""
    with pytest.raises(CheckpointError, match=r"has 4 layers with weights \('shared', .*\), and the model '\w+' has 3"):
        load_weights(sequential(), FILES / "functional.h5")
    without = functional()
    model = keras.Model(without.inputs, [layers.Dense(2, use_bias=False)(without.layers[4].output), without.outputs[1]])
    with pytest.raises(CheckpointError, match=r"the layer 'first' has 2 weights in the file, and 'dense.*' in its place has 1"):
        load_weights(model, FILES / "functional.h5")
    deeper = keras.Sequential([keras.Input((6,)), *sequential().layers, layers.Dense(1, name="extra")])
    with pytest.raises(
        CheckpointError, match=r"has no array for 2 of the 10 weights .*/kernel.*Keras says: Layer 'extra' expected 2"
    ):
        load_weights(deeper, FILES / "sequential.keras")
    report = load_weights(deeper, FILES / "sequential.keras", skip_mismatch=True)
    assert report.missing == ("extra/kernel", "extra/bias")
    wider = keras.Sequential([keras.Input((6,)), layers.Dense(8), layers.BatchNormalization(), layers.Dense(4, name="wide")])
    with pytest.raises(CheckpointError, match=r"for 'wide/kernel', 'layers/dense_1/vars/0' has the shape \(8, 3\) in the file"):
        load_weights(wider, FILES / "sequential.keras")
    assert list(load_weights(wider, FILES / "sequential.keras", skip_mismatch=True).mismatched) == ["wide/kernel", "wide/bias"]


def test_layers_that_were_frozen_elsewhere(tmp_path):
    def half(frozen):
        norm = layers.BatchNormalization(name="norm")
        inner = keras.Sequential([keras.Input((3,)), layers.Dense(3, use_bias=False, trainable=not frozen), norm], name="inner")
        return keras.Sequential([inner, layers.Dense(2)])

    half(False).save(tmp_path / "model.h5")
    with pytest.raises(CheckpointError, match=r"the layer 'inner' has its weights in the order 'kernel', 'gamma', .*frozen"):
        load_weights(half(True), tmp_path / "model.h5")


def test_exported_lists_of_another_model():
    small = keras.Sequential([keras.Input((6,)), layers.Dense(8)])
    with pytest.raises(CheckpointError, match=r"lists 8 exported variables, and the model '\w+' has 2 weights"):
        load_weights(small, FILES / "export_keras3")
    turned = keras.Sequential([keras.Input((6,)), layers.BatchNormalization(), layers.Dense(8), layers.Dense(3)])
    with pytest.raises(
        CheckpointError, match=r"'variables/0' was called 'sequential/dense/kernel', and in its place the model has 'bat"
    ):
        load_weights(turned, FILES / "export_keras3")


def test_dtypes_keep_their_kind(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy")
    model = keras.Sequential([keras.Input((2,)), layers.Dense(2, name="a", use_bias=False)])
    numpy.save_file({"a/kernel": np.arange(4.0).reshape(2, 2)}, tmp_path / "wide.safetensors")
    load_weights(model, tmp_path / "wide.safetensors", by_name=True)
    np.testing.assert_array_equal(model.weights[0].numpy(), [[0, 1], [2, 3]])
    numpy.save_file({"a/kernel": np.arange(4).reshape(2, 2)}, tmp_path / "whole.safetensors")
    with pytest.raises(CheckpointError, match="'a/kernel' has the dtype int64 in the file, and 'a/kernel' has float32"):
        load_weights(model, tmp_path / "whole.safetensors", by_name=True)


def test_integers_stay_what_they_are(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy")
    model = keras.Sequential([keras.Input((2,)), layers.Normalization(name="n")])
    arrays = {"n/mean": np.ones(2, "float32"), "n/variance": np.ones(2, "float32"), "n/count": np.array(7)}
    numpy.save_file(arrays, tmp_path / "a.safetensors")
    load_weights(model, tmp_path / "a.safetensors", by_name=True)
    assert int(model.weights[2].numpy()) == 7
    numpy.save_file(arrays | {"n/count": np.array(2**40)}, tmp_path / "a.safetensors")
    with pytest.raises(CheckpointError, match=r"'n/count' has integers of int64 that 'n/count' of the dtype int32 cannot hold"):
        load_weights(model, tmp_path / "a.safetensors", by_name=True)


def test_bfloat16_of_keras(tmp_path):
    def built():
        return keras.Sequential([keras.Input((2,)), layers.Dense(2, dtype="bfloat16")])

    saved, model = built(), built()
    saved.save_weights(tmp_path / "a.weights.h5")
    load_weights(model, tmp_path / "a.weights.h5")
    np.testing.assert_array_equal(np.asarray(model.weights[0].value), np.asarray(saved.weights[0].value))


def test_renames_that_cannot_be(tmp_path):
    path, model = FILES / "v1" / "model.ckpt-3000", keras.Sequential([keras.Input((4,)), layers.Dense(3, name="dense")])
    for rename, error, message in (
        (
            {"dense/kernel": "dense/kernal"},
            ArgumentError,
            "rename makes 'dense/kernal' of 'dense/kernel', but the model .* 'dense/ker",
        ),
        ({"dense/kernel": 7}, ArgumentError, "rename makes 7 of 'dense/kernel'. It makes a name, a pair of"),
        ({"dens/kernel": "dense/kernel"}, CheckpointError, r"has no array 'dens/kernel'\. It has 'dense/kernel'"),
        ({"dense/kernel": "dense/kernel", "dense/bias": "dense/kernel"}, ArgumentError, "makes 'dense/kernel' of both 'dense/"),
        (lambda name: None, CheckpointError, r"Nothing of .* was taken: .* Look at the names that rename makes"),
        ("dense", ArgumentError, "rename must be a dict or a function of the names in the file. Received: str"),
    ):
        with pytest.raises(error, match=message):
            load_weights(model, path, rename=rename)
    with pytest.raises(ArgumentError, match="by_name=True or rename=, not both"):
        load_weights(model, path, rename={}, by_name=True)


def test_wrong_calls(tmp_path):
    with pytest.raises(ArgumentTypeError, match=r"load_weights takes a keras\.Model\. Received: dict"):
        load_weights({}, FILES / "functional")
    with pytest.raises(ArgumentError, match=r"has no weights yet\. Call it on a batch"):
        load_weights(keras.Sequential([layers.Dense(2)]), FILES / "functional")
    with pytest.raises(CheckpointError, match=r"There is no .* Weights can be in a checkpoint of Replicant"):
        load_weights(functional(), tmp_path / "none")
    model = functional()

    @replicant.function
    def step():
        load_weights(model, FILES / "functional")

    with pytest.raises(ContextError, match="load_weights was called while a step is traced"):
        step()


def test_two_names_for_one_weight(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy")
    numpy.save_file({"a/kernel": np.ones((2, 2), "float32"), "a/kernel:0": np.zeros((2, 2), "float32")}, tmp_path / "a.safetensors")
    model = keras.Sequential([keras.Input((2,)), layers.Dense(2, name="a")])
    with pytest.raises(CheckpointError, match="the name 'a/kernel' belongs to both 'a/kernel' and 'a/kernel:0'"):
        load_weights(model, tmp_path / "a.safetensors", by_name=True)


def test_an_array_that_is_damaged(tmp_path):
    """Nothing is loaded if one array cannot be read, also with skip_mismatch."""
    path = tmp_path / "a.weights.h5"
    shutil.copy(FILES / "sequential_keras3.weights.h5", path)
    with h5py.File(path, "r+") as file:
        del file["layers/dense/vars/0"]
        file["layers/dense/vars"].create_dataset("0", shape=(6, 8), chunks=(6, 8), dtype="f4")  # nothing is stored
    model = sequential()
    before = model.get_weights()
    with pytest.raises(DamagedCheckpointError, match=r"'layers/dense/vars/0' has the shape \(6, 8\), so 192 bytes, and only 0"):
        load_weights(model, path, skip_mismatch=True)
    assert all(np.array_equal(a, b) for a, b in zip(model.get_weights(), before, strict=True))


class Scaled(keras.Model):
    """A model with a weight of its own."""

    def __init__(self):
        super().__init__()
        self.head = layers.Dense(2, name="head")
        self.scale = self.add_weight(shape=(), name="scale", initializer="ones")

    def call(self, x):
        return self.head(x) * self.scale


@pytest.mark.parametrize("options", [{}, {"by_name": True}])
def test_weights_that_belong_to_no_layer(tmp_path, options):
    """As Keras 2 writes them into .h5 files; Keras 3 does not write a model of one's own there."""
    saved, model = Scaled(), Scaled()
    x = np.ones((2, 3), "float32")
    saved(x), model(x)
    saved.scale.assign(3.0)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for group, weights in (("head", saved.head.weights), ("top_level_model_weights", [saved.scale])):
            names = [f"{group}/{weight.name}:0" for weight in weights]
            file.create_group(group).attrs["weight_names"] = [name.encode() for name in names]
            for name, weight in zip(names, weights, strict=True):
                file[group].create_dataset(name, data=weight.numpy())
        file.attrs["layer_names"] = [b"head"]
    report = load_weights(model, tmp_path / "a.h5", **options)
    assert len(report.taken) == 3
    np.testing.assert_array_equal(model(x), saved(x))


def test_normalization_computes_with_what_it_has_got(tmp_path):
    def built():
        return keras.Sequential([keras.Input((2,)), layers.Normalization(name="n")])

    saved, model = built(), built()
    saved.layers[0].adapt(np.array([[1.0, 5.0], [3.0, 9.0]]))
    for name in ("a.weights.h5", "a.h5"):
        saved.save(tmp_path / name) if name == "a.h5" else saved.save_weights(tmp_path / name)
        load_weights(model, tmp_path / name)
        np.testing.assert_allclose(model(np.array([[3.0, 5.0]])), [[1.0, -1.0]], atol=1e-6)
    other = keras.Sequential([keras.Input((2,)), layers.Normalization(name="n"), layers.Dense(1)])
    before = np.asarray(other(np.array([[3.0, 5.0]])))
    with pytest.raises(CheckpointError, match="has no array for 2 of the 5 weights"):
        load_weights(other, tmp_path / "a.weights.h5")
    np.testing.assert_array_equal(other(np.array([[3.0, 5.0]])), before)  # nothing was changed
