"""Arrays that mean something else on a device, where they are given to strategies, variables and Keras."""

import keras
import numpy as np
import pytest

import replicant
from replicant.errors import ArgumentTypeError, DatasetError

MASKED = np.ma.masked_array(np.float32([[1], [-999], [3], [4]]), mask=[[0], [1], [0], [0]])
IS_MASKED = r"is a masked array, in which 1 of 4 values are masked, the first at \(1, 0\)\. Fill them in"
RECORDS = np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "i4"), ("b", "f4")])
SWAPPED = np.float32([[1], [2], [3], [4]]).astype(">f4")


@pytest.fixture(params=[1, 2, "one each"], ids=["one", "two", "two of their own"])
def strategy(request):
    if request.param == 1:
        return replicant.MirroredStrategy(["cpu:0"])
    return replicant.MirroredStrategy(["cpu:0", "cpu:1"], fuse_replicas=request.param == 2)


def twice(x):
    return 2 * x


def test_run_names_the_argument(strategy):
    n = strategy.num_replicas_in_sync
    with pytest.raises(ArgumentTypeError, match=rf"^args\[0\]\['x'\] {IS_MASKED}"):
        strategy.run(lambda batch: batch["x"], args=({"x": MASKED},))
    with pytest.raises(ArgumentTypeError, match=rf"^kwargs\['x'\] {IS_MASKED}"):
        strategy.run(twice, kwargs={"x": MASKED})
    with pytest.raises(ArgumentTypeError, match=rf"^args\[0\]\.values\[0\] {IS_MASKED}"):
        strategy.run(twice, args=(replicant.PerReplica([MASKED, np.zeros((4, 1))][:n]),))
    with pytest.raises(ArgumentTypeError, match=r"^args\[0\] holds records"):
        strategy.run(twice, args=(RECORDS,))
    compiled = replicant.function(lambda x: strategy.run(twice, args=(x,)))
    with pytest.raises(ArgumentTypeError, match=rf"^args\[0\] {IS_MASKED}"):
        compiled(MASKED)
    captures = replicant.function(lambda: strategy.run(twice, args=(MASKED,)))
    with pytest.raises(ArgumentTypeError, match=rf"^args\[0\] {IS_MASKED}"):
        captures()


def test_a_masked_array_after_one_without_a_mask(strategy):
    plain = np.ma.masked_array(MASKED.data.copy())
    local = strategy.experimental_local_results(strategy.run(twice, args=(plain,)))
    assert np.asarray(local[0]).tolist() == [[2], [-1998], [6], [8]]
    with pytest.raises(ArgumentTypeError, match=IS_MASKED):
        strategy.run(twice, args=(MASKED,))


def test_the_byte_order_makes_no_difference(strategy):
    result = strategy.experimental_local_results(strategy.run(twice, args=(SWAPPED,)))[0]
    assert np.asarray(result).tolist() == [[2], [4], [6], [8]]
    batches = strategy.experimental_distribute_dataset(replicant.data.Dataset.from_tensor_slices(SWAPPED).batch(4))
    (batch,) = [strategy.gather(each, axis=0) for each in batches]
    assert np.asarray(batch).tolist() == [[1], [2], [3], [4]]
    (batch,) = [strategy.gather(each, axis=0) for each in strategy.experimental_distribute_dataset([SWAPPED])]
    assert np.asarray(batch).tolist() == [[1], [2], [3], [4]]
    assert replicant.Variable(SWAPPED).numpy().tolist() == [[1], [2], [3], [4]]


def test_other_ways_in(strategy):
    with pytest.raises(DatasetError, match=IS_MASKED):
        list(strategy.experimental_distribute_dataset([MASKED]))
    with pytest.raises(ArgumentTypeError, match=f"^value_fn's value for replica 0 {IS_MASKED}"):
        strategy.experimental_distribute_values_from_function(lambda _: MASKED)
    with pytest.raises(ArgumentTypeError, match=f"^reduce: the value {IS_MASKED}"):
        strategy.reduce("SUM", MASKED, axis=0)
    with pytest.raises(ArgumentTypeError, match=f"^gather: the value {IS_MASKED}"):
        strategy.gather(replicant.PerReplica([MASKED] * strategy.num_replicas_in_sync), axis=0)


def test_variables():
    with pytest.raises(ArgumentTypeError, match=f"^The initial value of Variable 'Variable' {IS_MASKED}"):
        replicant.Variable(MASKED)
    variable = replicant.Variable(np.zeros((4, 1), np.float32), name="v")
    with pytest.raises(ArgumentTypeError, match=rf"^assign\w* of variable 'v': the value {IS_MASKED}"):
        variable.assign(MASKED)
    with pytest.raises(ArgumentTypeError, match=f"^scatter_update of variable 'v': `updates` {IS_MASKED}"):
        variable.scatter_update(np.arange(4), MASKED)
    with pytest.raises(ArgumentTypeError, match=f"^The initial value of a variable {IS_MASKED}"):
        keras.Variable(MASKED)
    variable = keras.Variable(np.zeros((4, 1), np.float32))
    with pytest.raises(ArgumentTypeError, match=f"^The value for variable '{variable.path}' {IS_MASKED}"):
        variable.assign(MASKED)
    with pytest.raises(ArgumentTypeError, match=f"^The value for variable '{variable.path}' {IS_MASKED}"):
        variable.assign_add(MASKED)


@pytest.fixture
def model(strategy):
    with strategy.scope():
        inputs = keras.Input((1,))
        model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(inputs))
        model.compile(keras.optimizers.SGD(0.0), "mse")
    return model


def test_keras_names_the_argument(model):
    ones = np.ones((4, 1), np.float32)
    calls = {
        r"^x": [
            lambda: model.fit(MASKED, ones, verbose=0),
            lambda: model.evaluate(MASKED, ones, verbose=0),
            lambda: model.predict(MASKED, verbose=0),
            lambda: model.train_on_batch(MASKED, ones),
            lambda: model.test_on_batch(MASKED, ones),
            lambda: model.predict_on_batch(MASKED),
            lambda: model.fit(ones, ones, validation_data=(MASKED, ones), verbose=0),
        ],
        r"^y": [
            lambda: model.fit(ones, MASKED, verbose=0),
            lambda: model.evaluate(ones, y=MASKED, verbose=0),
            lambda: model.train_on_batch(ones, y=MASKED),
        ],
        r"^sample_weight": [lambda: model.fit(ones, ones, sample_weight=MASKED, verbose=0)],
        r"^x\[0\]": [lambda: model.predict([MASKED], verbose=0)],
        r"^batch\[0\]": [lambda: model.fit((each for each in [(MASKED, ones)]), shuffle=False, verbose=0)],
        r"^batch\[1\]": [lambda: model.fit((each for each in [(ones, MASKED)]), shuffle=False, verbose=0)],
    }
    for name, its in calls.items():
        for call in its:
            with pytest.raises(ArgumentTypeError, match=f"{name} {IS_MASKED}"):
                call()
    with pytest.raises(ArgumentTypeError, match=r"^x is of dtype .*, which no device computes with"):
        model.predict(ones.astype(np.longdouble), verbose=0)


def test_keras_takes_the_other_byte_order_and_arrays_in_which_nothing_is_masked(model):
    for x in (SWAPPED, np.ma.masked_array(np.float32([[1], [2], [3], [4]]))):
        assert model.predict(x, verbose=0).tolist() == [[1], [2], [3], [4]]
        assert model.predict_on_batch(x).tolist() == [[1], [2], [3], [4]]
        assert model.evaluate(x, x, verbose=0) == 0
        assert model.fit(x, np.zeros((4, 1)), verbose=0).history["loss"] == [7.5]
        assert model.train_on_batch(x, x + 2) == 4
        batches = (each for each in [(x, x)])
        assert model.fit(batches, steps_per_epoch=1, shuffle=False, verbose=0).history["loss"] == [0]


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return MASKED, np.ones((4, 1))


def test_a_dataset_of_keras(model):
    with pytest.raises(ArgumentTypeError, match=rf"^batch\[0\] {IS_MASKED}"):
        model.fit(Batches(), shuffle=False, verbose=0)
