"""A model that was trained under a strategy is exported like one of one device, and runs in the runtime of its format alone."""

import functools
import importlib.util
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import pytest
from keras import layers

import replicant
from replicant import errors, export

HERE = Path(__file__).parent
TOLERANCE = 1e-6  # absolute, of outputs around 1, against `predict`
STRATEGIES = {
    "one device": lambda: replicant.OneDeviceStrategy("cpu:0"),
    "mirrored": lambda: replicant.MirroredStrategy(["cpu:0", "cpu:1"], fuse_replicas=False),
    "fused": lambda: replicant.MirroredStrategy(["cpu:0", "cpu:1"], fuse_replicas=True),
    "sliced": lambda: replicant.FullyShardedStrategy(["cpu:0", "cpu:1"], min_size=4),
}


def needs(module, package, reason):
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"{reason}: pip install {package}")


ONNX = needs("jax2onnx", "'replicant-jax[onnx]'", "Keras on JAX converts with jax2onnx, and onnxruntime runs the file")
TENSORFLOW = needs("tensorflow", "tensorflow", "Keras writes SavedModel and LiteRT with TensorFlow")
LITERT = needs("ai_edge_litert", "ai-edge-litert", "it runs .tflite files")


@pytest.fixture(scope="module", autouse=True)
def _tensorflow_first():
    """Keras imports TensorFlow where it is installed, which sets environment variables: this comes before any test."""
    if importlib.util.find_spec("tensorflow") is not None:
        with warnings.catch_warnings(action="ignore"):
            importlib.import_module("tensorflow")


def mlp():
    body = [layers.Dense(16, "relu"), layers.BatchNormalization(), layers.Dropout(0.3)]
    return keras.Sequential([keras.Input((6,)), *body, layers.Dense(3, name="out")])


def cnn():
    body = [layers.Conv2D(8, 3, strides=2, activation="relu"), layers.BatchNormalization(), layers.AveragePooling2D(2)]
    return keras.Sequential([keras.Input((12, 12, 2)), *body, layers.Flatten(), layers.Dense(3)])


def max_pooling():
    body = [layers.Conv2D(8, 3, activation="relu"), layers.MaxPooling2D(2)]
    return keras.Sequential([keras.Input((12, 12, 2)), *body, layers.Flatten(), layers.Dense(3)])


def lstm():
    return keras.Sequential([keras.Input((5, 4)), layers.LSTM(8), layers.Dense(3)])


SHAPES = {mlp: (6,), cnn: (12, 12, 2), max_pooling: (12, 12, 2), lstm: (5, 4)}


def trained(make: Any, strategy: Any) -> tuple[keras.Model, np.ndarray]:
    """Train a model for two epochs, so that its batch statistics have moved, and return it with a batch of 14 rows."""
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(14, *SHAPES[make])).astype("float32"), rng.normal(size=(14, 3)).astype("float32")
    with strategy.scope():
        model = make()
        model.compile("adam", "mse")
    model.fit(x, y, batch_size=4, epochs=2, verbose=0)
    return model, x


def run_apart(folder: Path, runtime: str, artefact: Path, x: np.ndarray) -> dict[str, np.ndarray]:
    """Return what an artefact computes for 1, 3 and 14 rows in a process of its own, which has nothing but its runtime."""
    np.save(folder / "x.npy", x)
    answer = folder / f"{runtime}.npz"
    in_process(runtime, artefact, folder / "x.npy", answer)
    return dict(np.load(answer))


def in_process(*arguments: object) -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "_exported.py"), *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def assert_same(found: dict[str, np.ndarray], expected: np.ndarray) -> None:
    assert sorted(found) == ["1", "14", "3"]
    for size, values in found.items():
        np.testing.assert_allclose(values, expected[: int(size)], atol=TOLERANCE)


# jax.export


@pytest.mark.cases("cnn-sliced")
@pytest.mark.parametrize(
    ("make", "name"), [pytest.param(make, name, id=f"{make.__name__}-{name}") for make in SHAPES for name in STRATEGIES]
)
@pytest.mark.long
def test_a_program_of_jax_runs_in_a_process_without_replicant_and_keras(tmp_path, make, name):
    pytest.importorskip("flatbuffers", reason="jax.export writes files with flatbuffers: pip install 'replicant-jax[export]'")
    model, x = trained(make, STRATEGIES[name]())
    program = export.to_jax(model)
    assert (program.platforms, program.nr_devices) == (("cpu", "cuda", "tpu"), 1)
    assert set(re.findall(r"custom_call @(\w+)", program.mlir_module())) <= {"shape_assertion"}
    (tmp_path / "program").write_bytes(program.serialize())
    assert_same(run_apart(tmp_path, "jax", tmp_path / "program", x), model.predict(x, verbose=0))
    model.fit(x, np.zeros((14, 3)), verbose=0)  # and goes on


@pytest.mark.parametrize("make", [max_pooling, lstm])
@pytest.mark.long
def test_a_program_has_no_kernel_of_this_processor(make):
    """The program is that of JAX without Replicant's kernels, and they are on again afterwards."""

    def lines():
        text = export.to_jax(model, platforms=["cpu"]).mlir_module()
        return [line.partition(" loc(")[0] for line in text.splitlines() if not line.startswith("#loc")]

    model, before = make(), replicant.kernels.status()
    with_kernels = lines()
    with replicant.kernels.disabled():
        assert lines() == with_kernels
    assert replicant.kernels.status() == before


def test_the_size_of_a_batch_begins_with_one(tmp_path):
    program = export.to_jax(mlp())
    assert [program.call(np.ones((n, 6), "float32")).shape for n in (1, 2, 7)] == [(1, 3), (2, 3), (7, 3)]
    with pytest.raises(ValueError, match="Expected value >= 1 for dimension variable 'batch'"):
        program.call(np.ones((0, 6), "float32"))


def test_dropout_is_off_and_no_seed_moves():
    model = keras.Sequential([keras.Input((4,)), layers.Dropout(0.5, seed=1)])
    seed = np.asarray(model.layers[0].seed_generator.state.value)
    program, x = export.to_jax(model), np.ones((3, 4), "float32")
    np.testing.assert_array_equal(program.call(x), x)
    np.testing.assert_array_equal(np.asarray(model.layers[0].seed_generator.state.value), seed)


def test_dicts_in_and_two_outputs():
    a, b = keras.Input((3,), name="a"), keras.Input((None,), dtype="int32", name="b")
    embedded = layers.GlobalAveragePooling1D()(layers.Embedding(10, 4)(b))
    model = keras.Model({"a": a, "b": b}, {"sum": layers.Dense(4)(a) + embedded, "last": embedded})
    program = export.to_jax(model)
    for n, length in ((1, 2), (5, 7)):
        batch = {"a": np.full((n, 3), 0.5, "float32"), "b": np.ones((n, length), "int32")}
        found, expected = program.call(batch), model.predict(batch, verbose=0)
        assert sorted(found) == ["last", "sum"]
        for key, value in expected.items():
            np.testing.assert_allclose(found[key], value, atol=TOLERANCE)


class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.layer = layers.Dense(2)

    def call(self, inputs):
        return self.layer(inputs["a"]), inputs["b"]


def test_a_model_of_its_own_class_needs_a_batch():
    model, batch = Own(), {"a": np.ones((4, 3), "float32"), "b": np.ones((4, 2), "int64")}
    with pytest.raises(errors.ArgumentError, match=r"has no weights yet\. Call it on a batch, or fit it, first"):
        export.to_jax(model, batch)
    expected = model(batch)[0]
    with pytest.raises(errors.ArgumentError, match=r"of the type Own, are not known\. Pass a batch: to_jax\(model, batch\)"):
        export.to_jax(model)
    program = export.to_jax(model, batch, platforms=("cpu",))
    np.testing.assert_allclose(program.call(batch)[0], expected, atol=TOLERANCE)
    assert program.call({name: x[:1] for name, x in batch.items()})[1].shape == (1, 2)
    with pytest.raises(errors.ArgumentError, match=r"whose first dimension is the size of the batch; got np\.float32"):
        export.to_jax(model, {"a": np.ones((4, 3)), "b": np.float32(1)})
    size, width = jax.export.symbolic_shape("n, 2*m")
    like = {"a": jax.ShapeDtypeStruct((size, 3), "float32"), "b": jax.ShapeDtypeStruct((size, width), "int32")}
    found = export.to_jax(model, like).call({"a": np.ones((2, 3), "float32"), "b": np.ones((2, 6), "int32")})
    assert [x.shape for x in found] == [(2, 2), (2, 6)]


def test_inputs_and_models_that_no_program_can_have():
    text = keras.Input((), dtype="string")
    model = keras.Model(text, layers.Identity()(text))
    with pytest.raises(errors.ArgumentError, match="the model has an input of strings, which JAX cannot compute with"):
        export.to_jax(model)
    with pytest.raises(errors.ArgumentTypeError, match=r"to_jax takes a keras\.Model or a flax\.nnx\.Module, and got function"):
        export.to_jax(lambda x: x)
    with pytest.raises(errors.ArgumentTypeError, match=r"save_safetensors takes a keras\.Model .* got dict"):
        export.save_safetensors({}, "file")


def test_nothing_is_exported_while_a_step_is_traced(tmp_path):
    strategy = STRATEGIES["mirrored"]()
    with strategy.scope():
        model = mlp()
    calls = {
        "to_jax": lambda: export.to_jax(model),
        "save_safetensors": lambda: export.save_safetensors(model, tmp_path / "file"),
        "load_safetensors": lambda: export.load_safetensors(model, tmp_path / "file"),
        "export": lambda: model.export(tmp_path / "served"),
    }
    for method, call in calls.items():
        for place in (functools.partial(strategy.run, call), replicant.function(call), jax.jit(call)):
            with pytest.raises(errors.ContextError, match=f"^{method} .*was called while a step is traced .* Call it outside"):
                place()
    assert list(tmp_path.iterdir()) == []


class ExportingCallback(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.outputs: list[Any] = []

    def on_epoch_end(self, epoch, logs=None):
        x = np.ones((2, 6), "float32")
        program = export.to_jax(self.model)
        self.outputs.append((program.call(x), self.model(x)))


@pytest.mark.long
def test_in_a_callback_of_fit_it_has_the_values_of_that_moment():
    with STRATEGIES["mirrored"]().scope():
        model = mlp()
        model.compile("adam", "mse")
    callback = ExportingCallback()
    model.fit(np.ones((8, 6)), np.zeros((8, 3)), epochs=2, verbose=0, callbacks=[callback])
    (first, expected), (second, _) = callback.outputs
    np.testing.assert_allclose(first, expected, atol=TOLERANCE)
    assert np.abs(np.asarray(first) - np.asarray(second)).max() > 1e-4


# Safetensors


@pytest.fixture
def library():
    return pytest.importorskip("safetensors.numpy", reason="pip install 'replicant-jax[export]'")


@pytest.mark.cases("sliced")
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.long
def test_weights_as_safetensors(library, tmp_path, name):
    model, x = trained(mlp, STRATEGIES[name]())
    path = tmp_path / "model.safetensors"
    for _ in range(2):  # a file that exists is replaced
        export.save_safetensors(model, path)
    arrays = library.load_file(path)
    assert {"out/kernel", "out/bias"} <= arrays.keys()
    paths = {weight.path.removeprefix(f"{model.name}/"): weight for weight in model.weights}
    assert sorted(arrays) == sorted(paths)
    for path_in_model, weight in paths.items():
        np.testing.assert_array_equal(arrays[path_in_model], keras.ops.convert_to_numpy(weight.value))
    expected = model.predict(x, verbose=0)
    for weight in model.weights:
        weight.assign(np.zeros(weight.shape, "float32"))
    export.load_safetensors(model, path)
    np.testing.assert_array_equal(model.predict(x, verbose=0), expected)
    assert [each.name for each in tmp_path.iterdir()] == ["model.safetensors"]
    (tmp_path / "other").touch()
    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode  # others may read it, as any file


class Tiny(layers.Layer):
    def build(self, shape):
        self.tiny = self.add_weight(name="tiny", shape=(2,), dtype="float8_e4m3fn", initializer="zeros")

    def call(self, inputs):
        return inputs


def test_types_of_weights(library, tmp_path):
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2, dtype="bfloat16"), layers.Dense(2, dtype="float16")])
    before = [np.asarray(weight.value) for weight in model.weights]
    export.save_safetensors(model, tmp_path / "model.safetensors")
    for weight in model.weights:
        weight.assign(weight + 1)
    export.load_safetensors(model, tmp_path / "model.safetensors")
    for mine, theirs in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(np.asarray(mine.value), theirs)
    small = keras.Sequential([keras.Input((3,)), Tiny()])
    with pytest.raises(errors.ArgumentError, match="/tiny' has the dtype float8_e4m3fn, which safetensors cannot give back"):
        export.save_safetensors(small, tmp_path / "small.safetensors")


def test_files_that_do_not_fit_change_nothing(library, tmp_path):
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2, name="out")], name="model")
    path, before = tmp_path / "model.safetensors", [np.asarray(weight.value) for weight in model.weights]
    export.save_safetensors(model, path)
    arrays = library.load_file(path)
    wrong = [
        (
            arrays | {"out/kernel": np.zeros((3, 4), "float32")},
            r"shape \(3, 4\) and the dtype float32 in it, and the shape \(3, 2\)",
        ),
        (arrays | {"out/kernel": np.zeros((3, 2), "float64")}, "and the dtype float64 in it"),
        (arrays | {"more": np.zeros(1)}, r"it lacks \[\], and has \['more'\] which the model lacks"),
        ({"out/kernel": arrays["out/kernel"]}, r"it lacks \['out/bias'\]"),
    ]
    for changed, message in wrong:
        library.save_file(changed, path)
        with pytest.raises(errors.CheckpointError, match=message):
            export.load_safetensors(model, path)
    path.write_bytes(b"nothing of that kind")
    with pytest.raises(errors.CheckpointError, match="is not a safetensors file, or it is damaged"):
        export.load_safetensors(model, path)
    with pytest.raises(errors.CheckpointError, match=r"missing cannot be read: No such file"):
        export.load_safetensors(model, tmp_path / "missing")
    for mine, theirs in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(np.asarray(mine.value), theirs)


def test_platforms_that_are_none():
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    for platforms in ("cpu", [], ["cpu", "gpu"]):
        message = f"platforms must be a list of some of 'cpu', 'cuda', 'tpu', 'rocm'; got {platforms!r}. Write platforms="
        with pytest.raises(errors.ArgumentError, match=re.escape(message)):
            export.to_jax(model, platforms=platforms)


class Twins(keras.Model):
    def __init__(self):
        super().__init__()
        self.pair = [layers.Dense(2, name="twin"), layers.Dense(2, name="twin")]

    def call(self, inputs):
        return self.pair[1](self.pair[0](inputs))


def test_paths_and_names_that_cannot_be(library, tmp_path):
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    for path in ("s3://bucket/model", Path("gs://bucket/model")):
        with pytest.raises(errors.ArgumentError, match="save_safetensors: path must be a path on this machine"):
            export.save_safetensors(model, path)
    for path in (tmp_path, tmp_path / "none" / "model.safetensors"):
        with pytest.raises(errors.CheckpointError, match=f"{re.escape(str(path))} cannot be written: "):
            export.save_safetensors(model, path)
    with pytest.raises(errors.ArgumentError, match="has no weights yet"):
        export.save_safetensors(keras.Sequential([layers.Dense(2)]), tmp_path / "model.safetensors")
    twins = Twins()
    twins(np.ones((1, 2)))
    with pytest.raises(errors.ArgumentError, match=r"several weights of the model 'twins.*' have the name '.*twin/kernel'"):
        export.save_safetensors(twins, tmp_path / "model.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_what_is_missing_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(errors.ConfigurationError, match=r"run pip install 'replicant-jax\[export\]'"):
        export.save_safetensors(keras.Sequential([keras.Input((3,)), layers.Dense(2)]), tmp_path / "file")


# Flax NNX


def nnx_model(nnx):
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.hidden = nnx.Linear(6, 8, rngs=rngs)
            self.norm = nnx.BatchNorm(8, rngs=rngs)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)
            self.layers = nnx.List([nnx.Linear(8, 3, rngs=rngs)])

        def __call__(self, x):
            return self.layers[0](self.dropout(self.norm(nnx.relu(self.hidden(x)))))

    return Model(nnx.Rngs(0))


@pytest.mark.cases("sliced")
@pytest.mark.parametrize("name", ["mirrored", "sliced"])
@pytest.mark.long
def test_modules_of_nnx(library, tmp_path, name):
    nnx, optax = (pytest.importorskip(name, reason="pip install 'replicant-jax[nnx]'") for name in ("flax.nnx", "optax"))
    strategy, x = STRATEGIES[name](), np.random.default_rng(0).normal(size=(8, 6)).astype("float32")
    with strategy.scope():
        model = nnx_model(nnx)
        optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    def step(x):
        def loss_of(model):
            return replicant.compute_average_loss((model(x) ** 2).sum(-1), global_batch_size=8)

        gradients = nnx.grad(loss_of)(model)
        optimizer.update(model, replicant.get_replica_context().all_reduce("SUM", gradients))

    (batch,) = strategy.experimental_distribute_dataset(replicant.data.Dataset.from_tensor_slices(x).batch(8))
    strategy.run(step, args=(batch,))
    program, path = export.to_jax(model, x), tmp_path / "model.safetensors"
    export.save_safetensors(model, path)
    assert model.dropout.deterministic is False  # the module still trains
    assert sorted(library.load_file(path)) == [
        *("hidden.bias", "hidden.kernel", "layers.0.bias", "layers.0.kernel", "norm.bias", "norm.mean", "norm.scale", "norm.var")
    ]
    model.eval()
    expected = np.asarray(model(x))
    assert program.nr_devices == 1
    for n in (1, 3, 8):
        np.testing.assert_allclose(program.call(x[:n]), expected[:n], atol=TOLERANCE)
    model.hidden.kernel[...] = 0 * model.hidden.kernel[...]
    model.norm.mean[...] = 1 + model.norm.mean[...]
    export.load_safetensors(model, path)
    np.testing.assert_array_equal(np.asarray(model(x)), expected)
    with pytest.raises(errors.ArgumentError, match="the inputs of the module Model, of the type Model, are not known"):
        export.to_jax(model)


# Formats of Keras


@ONNX
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("make", [mlp, cnn, lstm])
@pytest.mark.parametrize("name", ["mirrored", "sliced"])
def test_onnx(tmp_path, make, name):
    model, x = trained(make, STRATEGIES[name]())
    model.export(tmp_path / "model.onnx", format="onnx", verbose=False)
    assert_same(run_apart(tmp_path, "onnxruntime", tmp_path / "model.onnx", x), model.predict(x, verbose=0))


@TENSORFLOW
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("make", [mlp, cnn, lstm])
@pytest.mark.parametrize("name", ["mirrored", "sliced"])
def test_saved_model(tmp_path, make, name):
    """With JAX 0.12, TensorFlow 2.21 reads no artefact for batches of any size, but one for batches of one size."""
    model, x = trained(make, STRATEGIES[name]())
    expected = model.predict(x, verbose=0)
    if tuple(map(int, jax.__version__.split(".")[:2])) <= (0, 10):
        model.export(tmp_path / "served", verbose=False)
        assert_same(run_apart(tmp_path, "tensorflow", tmp_path / "served", x), expected)
        return
    import tensorflow as tf

    model.export(tmp_path / "one", verbose=False, input_signature=[keras.InputSpec(shape=x.shape, dtype="float32")])
    served = tf.saved_model.load(str(tmp_path / "one"))
    np.testing.assert_allclose(served.serve(x), expected, atol=TOLERANCE)
    model.fit(x, np.zeros((14, 3)), verbose=0)  # and goes on


@TENSORFLOW
@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "format", "runtime", "name"),
    [
        *[pytest.param(make, "tf_saved_model", "tensorflow", "served", id=f"saved-{make.__name__}") for make in SHAPES],
        *[
            pytest.param(m, "litert", "litert", "m.tflite", marks=LITERT, id=f"litert-{m.__name__}")
            for m in SHAPES
            if m is not lstm
        ],
        pytest.param(
            *(max_pooling, "onnx", "onnxruntime", "model.onnx"),
            marks=[ONNX, needs("tf2onnx", "tf2onnx", "Keras on TensorFlow converts with it")],
            id="onnx-max_pooling",
        ),
    ],
)
def test_by_way_of_keras_on_tensorflow(tmp_path, make, format, runtime, name):  # noqa: A002 - as in Keras
    model, x = trained(make, STRATEGIES["sliced"]())
    model.save(tmp_path / "model.keras")
    in_process(f"keras:{format}", tmp_path / "model.keras", "", tmp_path / name)
    assert_same(run_apart(tmp_path, runtime, tmp_path / name, x), model.predict(x, verbose=0))


def test_what_keras_does_not_export_on_jax(tmp_path):
    """The page on exports shows these messages; older versions of Keras do not know all formats."""
    with pytest.raises((ValueError, ImportError), match=r"LiteRT export requires TensorFlow|Unrecognized format=litert"):
        mlp().export(tmp_path / "model.tflite", format="litert")
    with pytest.raises(ValueError, match=r"Torch export requires PyTorch backend|Unrecognized format=torch"):
        mlp().export(tmp_path / "model.pt2", format="torch")
