"""Code that needs the value of an array while it is compiled gets one error, which names the user's line and what to write."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import keras
import numpy as np
import pytest

import replicant
from replicant.data import Dataset
from replicant.errors import ArgumentError, ArgumentTypeError, ContextError, DatasetError, TracedValueError

X = np.arange(8, dtype=np.float32).reshape(4, 2)


def prints(x: Any) -> None:
    print(float(x.sum()))


def takes_an_item(x: Any) -> float:
    return x.sum().item()


def branches(x: Any) -> Any:
    if x.sum() > 0:
        return x
    return -x


def loops(x: Any) -> Any:
    for _ in range(x.sum().astype("int32")):
        x = x + 1
    return x


def indexes(x: Any) -> Any:
    return [1.0, 2.0][x.sum().astype("int32")]


def uses_numpy(x: Any) -> Any:
    return np.asarray(x) + 1


def calls_numpy(x: Any) -> Any:
    return x.numpy() + 1


def masks(x: Any) -> Any:
    return x[x > 0]


MISTAKES: list[tuple[Callable[..., Any], str, str]] = [
    (prints, "print(float(x.sum()))", r"`float`, `int` and `.item\(\)` need the value. To print it, write jax.debug.print"),
    (takes_an_item, "return x.sum().item()", r"return it from the function"),
    (branches, "if x.sum() > 0:", r"`if`, .* need a Python bool. .*keras.ops.where.*keras.ops.cond or jax.lax.cond"),
    (loops, 'for _ in range(x.sum().astype("int32")):', r"need a Python int. To loop, write keras.ops.fori_loop"),
    (indexes, 'return [1.0, 2.0][x.sum().astype("int32")]', r"keras.ops.take\(array, index, axis=0\)"),
    (calls_numpy, "return x.numpy() + 1", r"`\.numpy\(\)` needs the values. To print it, write jax.debug.print.*return it from"),
    (
        masks,
        "return x[x > 0]",
        r"`array\[mask\]` has as many rows .*keras\.ops\.where\(mask, array, 0\), or choose the rows before",
    ),
    (uses_numpy, "return np.asarray(x) + 1", r"NumPy needs the values. Compute with keras.ops or jax.numpy instead"),
]


def two() -> replicant.Strategy:
    return replicant.MirroredStrategy(["cpu:0", "cpu:1"])


def ways(fn: Callable[..., Any]) -> dict[str, Callable[[], Any]]:
    batch = two().experimental_distribute_values_from_function(lambda _: X)
    return {
        "function": lambda: replicant.function(fn)(X),
        "run": lambda: two().run(fn, args=(batch,)),
        "one replica": lambda: replicant.get_strategy().run(fn, args=(X,)),
        "run in a function": lambda: replicant.function(lambda b: two().run(fn, args=(b,)))(batch),
    }


@pytest.mark.parametrize("way", ["function", "run", "one replica", "run in a function"])
@pytest.mark.parametrize(("fn", "line", "advice"), MISTAKES, ids=[fn.__name__ for fn, *_ in MISTAKES])
def test_the_error_names_the_line_and_says_what_to_write(fn: Any, line: str, advice: str, way: str) -> None:
    with pytest.raises(TracedValueError, match=advice) as caught:
        ways(fn)[way]()
    number = fn.__code__.co_firstlineno + 1
    assert f"when no array has a value yet: {fn.__name__}, {__file__}:{number}, `{line}`. " in str(caught.value)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value.__cause__, (jax.errors.JAXTypeError, jax.errors.JAXIndexError, AttributeError))
    assert "_program.py" not in str(caught.value)


@pytest.mark.long
def test_random_numbers_without_a_seed() -> None:
    def noise() -> Any:
        return keras.random.normal([2])

    compiled, strategies = replicant.function(noise), (two(), replicant.OneDeviceStrategy("cpu:1"), replicant.get_strategy())
    drawn = []
    for strategy in (*strategies, *strategies):  # the generator belongs to no strategy
        drawn += [*strategy.experimental_local_results(strategy.run(noise)), compiled(), noise()]
    assert len(np.unique(np.array(drawn), axis=0)) == len(drawn) == 20
    keras.utils.set_random_seed(5)
    eager = [np.asarray(noise()) for _ in range(3)]
    keras.utils.set_random_seed(5)
    again = replicant.function(noise)
    np.testing.assert_array_equal([again() for _ in range(3)], eager)
    keras.utils.set_random_seed(5)
    replicas = two().run(noise)
    np.testing.assert_array_equal(replicas.values[0], eager[0])  # replica 0 draws the numbers of one device
    with pytest.raises(ValueError, match="JAX RNG"):  # a trace that is not ours
        jax.jit(noise)()
    seed = keras.random.SeedGenerator(1)
    draw = replicant.function(lambda: keras.random.normal([2], seed=seed))
    assert not np.array_equal(draw(), draw())


def test_other_attributes_that_do_not_exist_keep_their_error() -> None:
    def attributes(x: Any) -> Any:
        return x.numbers

    def of_another(_: Any) -> Any:
        return object().numpy()  # type: ignore[attr-defined]

    for fn, message in ((attributes, "numbers"), (of_another, "numpy")):
        for way in ways(fn).values():
            with pytest.raises(AttributeError, match=message):
                way()


def test_whether_an_array_has_a_method_numpy_may_be_asked() -> None:
    def asks(x: Any) -> Any:
        return x.numpy() if hasattr(x, "numpy") else x

    np.testing.assert_array_equal(replicant.function(asks)(X), X)


class Noisy(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        return x + keras.random.normal([2])


def test_random_numbers_without_a_seed_in_functional_code() -> None:
    layer = Noisy()
    layer(X)
    message = r"without a seed in functional code of Keras.*attribute of the model.*keras\.random\.normal\(shape, seed=seed\)"
    with pytest.raises(ArgumentError, match=message):
        replicant.function(lambda: layer.stateless_call([], [], np.ones(2, "float32")))()


class Branching(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        return x if keras.ops.sum(x) > 0 else -x


class Printing(keras.losses.Loss):
    def call(self, y_true: Any, y_pred: Any) -> Any:
        print(float(keras.ops.sum(y_true)))
        return keras.ops.mean(y_pred, axis=-1)


@pytest.mark.parametrize("built", [True, False], ids=["built", "not built"])
@pytest.mark.parametrize("strategy", [None, two], ids=["alone", "two"])
def test_fit(strategy: Any, built: bool) -> None:
    with (strategy() if strategy else replicant.get_strategy()).scope():
        model = keras.Sequential([keras.layers.Dense(2), Branching()], name="net")
        model.compile("sgd", "mse")
        if built:
            model.layers[0].build((None, 2))
            model.layers[1].built = model.built = True
    for call in (lambda: model.fit(X, X, verbose=0), lambda: model.predict(X, verbose=0)):
        with pytest.raises(
            TracedValueError, match=r"the model 'net' uses the value .*Branching\.call, .*`return x if .*jax\.lax\.cond"
        ):
            call()


def test_a_loss_of_ones_own_in_fit() -> None:
    with two().scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
        model.compile("sgd", Printing())
    with pytest.raises(TracedValueError, match=r"^the model .*Printing\.call, .*`print\(float"):
        model.fit(X, X, verbose=0)


def test_an_error_of_ones_own_stays() -> None:
    def fn(x: Any) -> None:
        try:
            float(x.sum())
        except TypeError:
            raise KeyError("mine") from None

    for way in ways(fn).values():
        with pytest.raises(KeyError, match="mine"):
            way()


def made() -> keras.Model:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)], name="net")
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize("loop", ["fit", "evaluate", "predict", "train_on_batch", "predict_on_batch"])
def test_a_loop_inside_run(loop: str) -> None:
    with two().scope():
        model = made()
        before = model.get_weights()
    message = rf"{loop} of the model 'net' was called inside `strategy.run`.*Call model\.{loop}\(\.\.\.\) outside"
    for strategy in (two(), replicant.get_strategy()):
        with pytest.raises(ContextError, match=message):
            strategy.run(lambda: getattr(model, loop)(X))
    for now, then in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(now, then)


def test_a_loop_inside_a_function_runs_as_written() -> None:
    """As a loop over a dataset does: a function may contain a whole training."""
    model = made()
    losses = replicant.function(lambda: model.fit(X, X[:, :1], verbose=0).history["loss"])()
    assert len(losses) == 1


@pytest.mark.parametrize("labels", [X[:, 0], X[:, :1], np.eye(4, dtype=np.float32)], ids=["scalars", "rows", "one hot"])
def test_a_dataset_without_batches(labels: np.ndarray) -> None:
    dataset, model = Dataset.from_tensor_slices((X, labels)).shuffle(4), made()
    for loop in (model.fit, model.evaluate):
        with pytest.raises(
            DatasetError, match=r"yields no batches: .* has shape \(2,\), .*Call `batch\(batch_size\)` on the dataset"
        ):
            loop(dataset, verbose=0)


def rows() -> Iterator[np.ndarray]:
    yield from X


FEATURES: dict[str, Callable[[], Dataset]] = {
    "rows": lambda: Dataset.from_tensor_slices(X),
    "mapped": lambda: Dataset.from_tensor_slices(X).map(lambda x: x + 1),
    "dict": lambda: Dataset.from_tensor_slices({"x": X}),
    "generator": lambda: Dataset.from_generator(rows),
}


@pytest.mark.parametrize("strategy", [two, replicant.get_strategy], ids=["two", "default"])
@pytest.mark.parametrize("features", FEATURES)
def test_features_without_batches(features: str, strategy: Callable[[], Any]) -> None:
    with strategy().scope():
        model = made()
    found = r"component \['x'\]" if features == "dict" else "the element"
    with pytest.raises(
        DatasetError, match=rf"yields no batches: {found} has shape \(2,\), and the model takes shape \(None, 2\)\. fit"
    ):
        model.fit(FEATURES[features](), verbose=0)


class Takes(keras.Model):
    """A model that does not say what it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.dense(x)


def test_features_without_batches_of_a_model_that_takes_anything() -> None:
    model = Takes()
    model.compile("sgd", "mse")
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - of Keras
        model.fit(Dataset.from_tensor_slices(X), verbose=0)
    notes = [note for note in caught.value.__notes__ if "has no `batch`" in note]
    assert len(notes) == 1
    assert "got an element of its source as if it were a batch: the element has shape (2,). fit, evaluate and predict" in notes[0]


def test_errors_of_batches_get_no_such_note() -> None:
    class Stops(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 2:
                raise RuntimeError("enough")

    model = Takes()
    model.compile("sgd", "mse")
    elements = np.ones((6, 4, 2), np.float32)
    for dataset in (Dataset.from_tensor_slices((elements, elements[..., :1])), Dataset.from_tensor_slices((X, X[:, :1])).batch(1)):
        with pytest.raises(RuntimeError, match="enough") as caught:
            model.fit(dataset, verbose=0, callbacks=[Stops()])
        assert not [note for note in getattr(caught.value, "__notes__", ()) if "batch" in note]


def test_a_last_dimension_that_keras_adds() -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    assert model.predict(Dataset.from_tensor_slices(X), verbose=0).shape == (8, 1)


def test_batches_that_nothing_has_made_here_are_fine() -> None:
    def batches() -> Any:
        yield X, X[:, :1]

    model = made()
    model.fit(Dataset.from_generator(batches), steps_per_epoch=1, verbose=0)
    model.fit(Dataset.from_tensors((X, X[:, :1])), verbose=0)
    model.predict(Dataset.from_tensor_slices(X[:, None]), verbose=0)


NAMES = ["cat", "dog", "cat", "dog"]
STRINGS: dict[str, tuple[Any, ...]] = {
    "unicode": (X, np.array(NAMES)),
    "bytes": (X, np.array(NAMES, "S3")),
    "objects": (X, np.array(NAMES, object)),
    "dataset": (Dataset.from_tensor_slices((X, NAMES)).batch(2),),
}


@pytest.mark.parametrize("data", STRINGS.values(), ids=STRINGS)
def test_labels_of_strings(data: tuple[Any, ...]) -> None:
    message = r"labels are strings \(such as b?'cat'\), but a loss needs numbers.*np\.unique\(labels, return_inverse=True\)"
    with pytest.raises(ArgumentTypeError, match=message):
        made().fit(*data, verbose=0)
