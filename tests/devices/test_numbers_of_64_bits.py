"""Numbers of 64 bits that JAX's 32 cannot hold are refused wherever they enter, and arrive as they are with ``jax_enable_x64``."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import replicant
from replicant.data import Dataset
from replicant.errors import ArgumentError, DatasetError

IDS = np.array([7, 1_700_000_000_123, 2**40, 3])
SIZES = np.array([1.0, 2.0, 1e39, 4.0])
BEYOND_INTEGER = ": 1700000000123 at [1], of int64, is beyond int32 (-2147483648 to 2147483647), the dtype in which JAX computes."
BEYOND_FLOAT = ": 1e+39 at [2], of float64, is beyond float32 (-3.4028235e+38 to 3.4028235e+38), the dtype in which JAX computes."


@pytest.fixture(params=["one device", "two, fused", "two of their own"])
def strategy(request: pytest.FixtureRequest) -> replicant.MirroredStrategy:
    devices = ["cpu:0", "cpu:1"][: 1 if request.param == "one device" else 2]
    return replicant.MirroredStrategy(devices, fuse_replicas=request.param != "two of their own")


def refuses(call: Callable[[], Any], *parts: str, error: type[Exception] = ArgumentError) -> None:
    with pytest.raises(error) as caught:
        call()
    for part in parts:
        assert part in str(caught.value)


def test_datasets(strategy: Any) -> None:
    def read(data: Dataset) -> Any:
        return list(strategy.experimental_distribute_dataset(data))

    of = Dataset.from_tensor_slices
    mend = "Or hash them or split them into two integers in the dataset, with `map`."
    refuses(lambda: read(of({"id": IDS}).batch(4)), "component ['id'] of the dataset" + BEYOND_INTEGER, mend, error=DatasetError)
    refuses(lambda: read(of((SIZES, SIZES * 0)).batch(4)), "component [0] of the dataset" + BEYOND_FLOAT, error=DatasetError)
    refuses(
        lambda: list(strategy.distribute_datasets_from_function(lambda context: of(IDS).batch(4))),
        BEYOND_INTEGER,
        error=DatasetError,
    )
    # The batches before it arrive.
    batches = iter(strategy.experimental_distribute_dataset(of(np.array([1, 2, 2**31 - 1, -(2**31), 5, 2**31])).batch(2)))
    assert strategy.gather(next(batches), axis=0).tolist() == [1, 2]
    assert strategy.gather(next(batches), axis=0).tolist() == [2**31 - 1, -(2**31)]
    refuses(lambda: next(batches), "2147483648 at [1]", error=DatasetError)


def test_arguments_of_run(strategy: Any) -> None:
    refuses(lambda: strategy.run(lambda x, y: y, (1, {"id": IDS})), "args[1]['id']" + BEYOND_INTEGER, "before you pass it")
    refuses(lambda: strategy.run(lambda x: x, kwargs={"x": np.int64(2**31)}), "kwargs['x']: 2147483648, of int64, is beyond int32")
    refuses(lambda: replicant.function(lambda x: x)(SIZES), "args[0]" + BEYOND_FLOAT, "Or scale or clip them before you pass it")
    n = strategy.num_replicas_in_sync
    refuses(lambda: strategy.run(lambda x: x, (replicant.PerReplica([IDS] * n),)), BEYOND_INTEGER)
    refuses(lambda: strategy.gather(replicant.PerReplica([IDS] * n), axis=0), "gather: the value" + BEYOND_INTEGER)
    refuses(lambda: strategy.reduce("SUM", replicant.PerReplica([IDS] * n), axis=None), "reduce: the value" + BEYOND_INTEGER)
    refuses(
        lambda: strategy.experimental_distribute_values_from_function(lambda context: {"id": IDS}),
        "value_fn's value['id'] for replica 0" + BEYOND_INTEGER,
    )


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (np.array([2**31 - 1, -(2**31)]), "int32"),
        (np.array([2**32 - 1, 0], np.uint64), "uint32"),
        (np.array([3.4028235e38, -3.4028235e38, np.inf, -np.inf, np.nan, 0.0]), "float32"),
        (np.array([1, 2], ">i4"), "int32"),
        (np.array([1.5, 2.5], ">f8"), "float32"),
        (np.array([1 + 2j]), "complex64"),
        (np.zeros((0, 3), np.int64), "int32"),
        (np.int64(5), "int32"),
    ],
)
def test_what_fits_arrives(strategy: Any, given: Any, dtype: str) -> None:
    got = strategy.experimental_local_results(strategy.run(lambda x: x, (given,)))[0]
    assert got.dtype == dtype
    np.testing.assert_array_equal(np.asarray(got), given.astype(dtype))
    if given.ndim:
        twice = np.concatenate([given, given])
        dataset = strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(twice).batch(len(twice) or 1))
        for batch in dataset:
            np.testing.assert_array_equal(np.asarray(strategy.gather(batch, axis=0)), twice.astype(dtype))


def test_variables(strategy: Any) -> None:
    with strategy.scope():
        variable = replicant.Variable(np.zeros(4, int), name="count")
        weight = keras.Variable(np.zeros(4), name="weight")
    refuses(lambda: replicant.Variable(IDS, name="ids"), "The initial value of Variable 'ids'" + BEYOND_INTEGER)
    refuses(lambda: variable.assign(IDS), "assign of variable 'count': the value" + BEYOND_INTEGER)
    row = np.array([2**32])
    refuses(lambda: variable.scatter_add(row, np.array([1])), "scatter_add of variable 'count': `indices`: 4294967296 at [0]")
    refuses(lambda: weight.assign(SIZES), f"The value for variable {weight.path!r}" + BEYOND_FLOAT)
    refuses(lambda: weight.assign_add(SIZES), BEYOND_FLOAT)
    assert variable.numpy().tolist() == [0, 0, 0, 0]
    weight.assign(IDS)  # of floats
    assert np.asarray(weight).tolist() == np.float32(IDS).tolist()
    assert np.asarray(replicant.Variable(IDS, dtype="float32")).tolist() == np.float32(IDS).tolist()


def test_fit(strategy: Any) -> None:
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,), dtype="int32"), keras.layers.Embedding(4, 2), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    few, ids = np.array([[0], [1], [2], [3]]), IDS[:, None]
    y = np.zeros((4, 1, 1))
    beyond = ": 1700000000123 at [1, 0], of int64, is beyond int32"
    refuses(lambda: model.fit(ids, y, shuffle=False, verbose=0), "x" + beyond)
    refuses(lambda: model.predict(ids, verbose=0), "x" + beyond)
    refuses(lambda: model.train_on_batch(ids, y), "x" + beyond)
    refuses(lambda: model.evaluate(few, ids[:, None], verbose=0), "y: 1700000000123 at [1, 0, 0], of int64, is beyond int32")
    refuses(lambda: model.predict(Dataset.from_tensor_slices(ids).batch(4), verbose=0), "1700000000123 at [1, 0]", error=ValueError)
    refuses(
        lambda: model.fit(few, y, sample_weight=SIZES, verbose=0),
        "sample_weight holds 1e+39, which is beyond float32, the dtype in which Keras computes. Scale or clip the numbers.",
    )
    with np.errstate(all="raise"):
        assert model.predict(few, verbose=0).shape == (4, 1, 1)


_EXACT = """
import jax
jax.config.update("jax_enable_x64", True)
import keras
import numpy as np
import replicant
from replicant.data import Dataset
replicant.set_virtual_devices(2)
ids = np.array([1_700_000_000_123, 2**40, 3_000_000_000, 7])
for fused in (True, False):
    strategy = replicant.MirroredStrategy(fuse_replicas=fused)
    (batch,) = strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(ids).batch(4))
    assert strategy.gather(strategy.run(lambda x: x % 1000, (batch,)), axis=0).tolist() == [123, 776, 0, 7]
    assert strategy.experimental_local_results(strategy.run(lambda x: x + 1, (ids,)))[1].tolist() == (ids + 1).tolist()
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,), dtype="int64"), keras.layers.Lambda(lambda x: x)])
        dense = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        dense.compile("adam", "mse")
    assert model.predict(ids[:, None], verbose=0).ravel().tolist() == ids.tolist()
    dense.fit(np.ones((4, 1)), np.ones((4, 1)), verbose=0)
    assert {str(x.dtype) for x in dense.weights} == {"float32"}
print("exact")
"""


def test_x64_keeps_them() -> None:
    done = subprocess.run([sys.executable, "-c", _EXACT], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "exact\n", done.stderr[-2000:]
