"""Models that begin with layers for text: fit, evaluate and predict take strings."""

import gc
import weakref

import keras
import numpy as np
import pytest

import replicant
from replicant import errors
from replicant.data import Dataset
from replicant.keras.layers import Hashing, IntegerLookup, StringLookup, TextVectorization

TEXTS = np.array(["a good film", "bad film", "good good", "so bad a thing", "nice", "awful", "a film"], object)
LABELS = np.array([1, 0, 1, 0, 1, 0, 1], np.float32)


def mirrored(n):
    return replicant.MirroredStrategy([f"cpu:{i}" for i in range(n)])


def vectorization():
    layer = TextVectorization(output_sequence_length=4)
    layer.adapt(TEXTS)
    return layer


def after_the_text(size):
    return [
        keras.layers.Embedding(size, 3, mask_zero=True),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(1),
    ]


def make_model(**options):
    keras.utils.set_random_seed(1)
    text = vectorization()
    model = keras.Sequential([keras.Input((), dtype="string"), text, *after_the_text(text.vocabulary_size())], name="net")
    model.compile(keras.optimizers.SGD(0.5), "mse", **options)
    return model


@pytest.fixture(scope="module")
def expected():
    """A model that gets numbers: its layer for text was used before. On one device."""
    keras.utils.set_random_seed(1)
    text = vectorization()
    numbers = text(TEXTS)
    model = keras.Sequential([keras.Input((4,)), *after_the_text(text.vocabulary_size())])
    model.compile(keras.optimizers.SGD(0.5), "mse")
    losses = model.fit(numbers, LABELS, batch_size=3, epochs=2, shuffle=False, verbose=0).history["loss"]
    return losses, model.predict(numbers, verbose=0), model.evaluate(numbers, LABELS, verbose=0)


def batches():
    for at in range(0, 7, 3):
        yield TEXTS[at : at + 3], LABELS[at : at + 3]


DATA = {
    "arrays": (TEXTS, LABELS),
    "lists": (TEXTS.tolist(), LABELS),
    "dataset": (Dataset.from_tensor_slices((TEXTS, LABELS)).batch(3), None),
}


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("kind", DATA)
@pytest.mark.long_cases("arrays-1", "arrays-2")
@pytest.mark.long_cases("lists-1", "lists-2")
def test_training_from_strings_equals_training_from_numbers(expected, kind, n):
    losses, predictions, loss = expected
    x, y = DATA[kind]
    with mirrored(n).scope():
        model = make_model()
    options = {"batch_size": 3, "shuffle": False} if y is not None else {}
    history = model.fit(x, y, epochs=2, verbose=0, validation_data=x if y is None else (x, y), **options).history
    assert np.allclose(history["loss"], losses, atol=1e-6)
    assert np.isclose(history["val_loss"][-1], loss, atol=1e-6)
    assert np.allclose(model.predict(x, verbose=0), predictions, atol=1e-6)
    assert np.isclose(model.evaluate(x, y, verbose=0), loss, atol=1e-6)
    assert np.allclose(model(TEXTS), predictions, atol=1e-6)


@pytest.mark.long
def test_a_generator_and_single_batches(expected):
    model = make_model()
    for _ in range(2):
        model.fit(batches(), steps_per_epoch=3, shuffle=False, verbose=0)
    assert np.allclose(model.predict(TEXTS, verbose=0), expected[1], atol=1e-6)
    assert np.allclose(model.predict(((x,) for x, _ in batches()), steps=3, verbose=0), expected[1], atol=1e-6)
    model.reset_metrics()  # older versions of Keras count on
    assert np.isclose(model.test_on_batch(TEXTS, LABELS), expected[2], atol=1e-6)
    assert np.allclose(model.predict_on_batch(TEXTS), expected[1], atol=1e-6)
    model.reset_metrics()
    assert np.isclose(model.train_on_batch(TEXTS, LABELS), expected[2], atol=1e-6)


class Scaled(keras.Model):
    def train_step(self, state, data):
        x, y = data
        return super().train_step(state, (x, {"a": y["a"] * 2}))


def test_several_inputs_and_a_train_step_of_your_own():
    text, color = (keras.Input((), dtype="string", name=name) for name in "tc")
    number = keras.Input((), dtype="int32", name="n")
    shared = StringLookup(vocabulary=["red", "blue"], output_mode="one_hot")
    lookup = IntegerLookup(vocabulary=[1, 2], output_mode="one_hot")
    parts = [shared(color), shared(text), Hashing(3, output_mode="one_hot")(color), lookup(number)]
    features = keras.layers.Concatenate()(parts)
    outputs = {"a": keras.layers.Dense(1, name="a")(features), "features": features}
    inputs = {"t": text, "c": color, "n": number}
    x = {"t": np.array(["red", "q"], object), "c": np.array(["blue", "red"], object), "n": np.array([1, 7])}
    keras.utils.set_random_seed(1)
    model = Scaled(inputs, outputs)
    direct = [shared(x["c"]), shared(x["t"]), Hashing(3, output_mode="one_hot")(x["c"]), np.array([[0, 1, 0], [1, 0, 0]])]
    assert np.asarray(model.predict(x, verbose=0)["features"]).tolist() == np.concatenate(direct, 1).tolist()
    with mirrored(2).scope():
        model.compile(keras.optimizers.SGD(0.1), {"a": "mse", "features": None})
    first, last = (model.fit(x, {"a": np.ones((2, 1))}, verbose=0).history["loss"][0] for _ in range(2))
    assert last < first
    reordered = Dataset.from_tensor_slices({name: x[name] for name in ("n", "t", "c")}).batch(2)
    assert np.asarray(model.predict(reordered, verbose=0)["features"]).tolist() == np.concatenate(direct, 1).tolist()


@pytest.mark.both_ways
def test_numbers_are_looked_up_inside_run():
    strategy = mirrored(2)
    lookup = IntegerLookup(vocabulary=[5, 7])

    @replicant.function
    def step(batch):
        return strategy.run(lambda x: (lookup(x), Hashing(3, salt=2)(x)), args=(batch,))

    dataset = Dataset.from_tensor_slices([7, 5, 3, 9, 7]).batch(4)
    found = [step(batch) for batch in strategy.experimental_distribute_dataset(dataset)]
    indices = [np.concatenate(strategy.experimental_local_results(each[0])).tolist() for each in found]
    bins = [np.concatenate(strategy.experimental_local_results(each[1])).tolist() for each in found]
    assert indices == [[2, 1, 0, 0], [2]]
    assert sum(bins, []) == Hashing(3, salt=2)([7, 5, 3, 9, 7]).tolist()


def test_a_model_of_nothing_but_layers_for_text():
    words = keras.Input((), dtype="string")
    bins, hot = Hashing(3)(words), StringLookup(vocabulary=["nice"], output_mode="one_hot")(words)
    both = keras.Model(words, [bins, hot])
    assert [np.asarray(each).tolist() for each in both.predict(TEXTS, verbose=0)] == [
        Hashing(3)(TEXTS).tolist(),
        StringLookup(vocabulary=["nice"], output_mode="one_hot")(TEXTS).tolist(),
    ]
    one = keras.Model(words, bins)
    assert one(TEXTS).shape == one.predict(TEXTS, verbose=0).shape == (7,)
    mixed = keras.Model(words, {"bins": bins, "dense": keras.layers.Dense(2)(hot)})
    assert {name: value.shape for name, value in mixed.predict(TEXTS, verbose=0).items()} == {"bins": (7,), "dense": (7, 2)}


def test_a_saved_model_takes_strings(tmp_path):
    model = make_model()
    model.fit(TEXTS, LABELS, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.layers[0]) is TextVectorization
    assert np.allclose(loaded.predict(TEXTS, verbose=0), model.predict(TEXTS, verbose=0), atol=1e-6)


def test_a_layer_is_added_after_a_call():
    model = make_model()
    assert model.predict(TEXTS, verbose=0).shape == (7, 1)
    model.add(keras.layers.Dense(2))
    assert model(TEXTS).shape == (7, 2)


@pytest.mark.long
def test_a_model_is_not_kept():
    model = make_model()
    model(TEXTS)
    kept = weakref.ref(model)
    del model
    gc.collect()
    assert kept() is None


class Numbered(keras.utils.PyDataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return TEXTS, LABELS


def test_what_cannot_work_is_said():
    model = make_model()
    with pytest.raises(errors.ArgumentTypeError, match=r"the model 'net' begins with layers for text, .* It got a Numbered"):
        model.fit(Numbered(), verbose=0)
    dataset = mirrored(2).experimental_distribute_dataset(Dataset.from_tensor_slices(TEXTS).batch(2))
    with pytest.raises(errors.ArgumentTypeError, match=r"It got a DistributedDataset: give it a .* arrays or a generator"):
        model.predict(dataset, verbose=0)
    outer = keras.Input((), dtype="string", name="words")
    nested = keras.Model(outer, model(outer), name="nested")
    with pytest.raises(errors.ArgumentError, match="the model 'nested' uses the strings 'words' in a compiled program"):
        nested.predict(TEXTS, verbose=0)
    two = [keras.Input((), dtype="string", name=name) for name in "ab"]
    lookup = StringLookup(vocabulary=["x"])
    pair = keras.Model(two, [lookup(each) for each in two], name="pair")
    with pytest.raises(errors.ArgumentError, match=r"the model 'pair' needs the inputs \['b'\], which are not among \['a'\]"):
        pair.predict({"a": TEXTS}, verbose=0)
    with pytest.raises(errors.ArgumentError, match="the model 'pair' has 2 inputs; got 3"):
        pair.predict([TEXTS] * 3, verbose=0)


def test_axes_are_added_to_strings_and_taken_away():
    word = keras.Input((), dtype="string", name="word")
    lookup = StringLookup(vocabulary=["x", "y"], output_mode="multi_hot", num_oov_indices=0)
    column = keras.ops.expand_dims(word, -1)
    pair = keras.ops.reshape(keras.ops.squeeze(keras.ops.expand_dims(column, 1), 2), (-1, 1))
    model = keras.Model(word, [lookup(column), lookup(pair)])
    found = model.predict(np.array(["y", "x"], object), verbose=0)
    for each in found:
        np.testing.assert_array_equal(each, [[0, 1], [1, 0]])
    dataset = Dataset.from_tensor_slices(["y", "x"]).map(lambda text: keras.ops.expand_dims(text, 0)).map(lookup)
    np.testing.assert_array_equal(list(dataset), [[0, 1], [1, 0]])
