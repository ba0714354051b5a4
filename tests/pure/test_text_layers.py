"""The layers for text and categories without TensorFlow: messages, files, datasets, saved models."""

import json
import re

import jax
import keras
import numpy as np
import pytest

from replicant import errors
from replicant.data import Dataset
from replicant.keras import layers
from replicant.keras.layers import HashedCrossing, Hashing, IntegerLookup, StringLookup, TextVectorization


def in_program(layer, x):
    return jax.jit(layer)(x)


MESSAGES = [
    (lambda: StringLookup(max_tokens=1), "max_tokens=1: StringLookup needs at least 2, or None for no limit."),
    (lambda: IntegerLookup(max_tokens=0), "max_tokens=0: IntegerLookup needs at least 2, or None for no limit."),
    (lambda: StringLookup(pad_to_max_tokens=True), "pad_to_max_tokens=True needs max_tokens, the width of the output."),
    (lambda: StringLookup(num_oov_indices=-1), "num_oov_indices=-1 must not be negative."),
    (lambda: StringLookup(invert=True, output_mode="count"), "so StringLookup needs output_mode='int'; got 'count'."),
    (lambda: StringLookup(vocabulary=["a"], idf_weights=[1.0]), "idf_weights need output_mode='tf_idf'; got 'int'."),
    (lambda: StringLookup(vocabulary=["a"], output_mode="tf_idf"), "output_mode='tf_idf' with a vocabulary needs idf_weights"),
    (
        lambda: StringLookup(vocabulary=["a"], output_mode="tf_idf", idf_weights=[1.0, 2.0]),
        "idf_weights of shape (2,) for 1 tokens; give one number per token.",
    ),
    (lambda: StringLookup(output_mode="tf_idf").set_vocabulary(["a"]), "output_mode='tf_idf' with idf_weights=None"),
    (lambda: StringLookup(output_mode="x"), "output_mode='x' is unknown to StringLookup. Use one of 'int', 'one_hot',"),
    (lambda: StringLookup(oov_method="x"), "oov_method='x' is unknown to StringLookup. Use one of 'floormod', 'farmhash'."),
    (
        lambda: StringLookup(sparse=True),
        "sparse=True: StringLookup gives dense arrays, as all layers do on JAX.",
    ),
    (lambda: IntegerLookup(salt=1), "salt=1 needs oov_method='farmhash'; got oov_method='floormod'."),
    (lambda: StringLookup(salt="x"), "salt='x': StringLookup takes an integer or a pair of integers."),
    (lambda: StringLookup(nonsense=1, other=2), "StringLookup has no argument 'nonsense', 'other'. See help(StringLookup)."),
    (lambda: StringLookup(vocabulary=[]), "a vocabulary must have at least one token; got an empty one."),
    (lambda: StringLookup(vocabulary=["a", "b", "a"]), "these occur several times: ['a']."),
    (
        lambda: StringLookup(vocabulary=["a", "", "b"], mask_token=""),
        "'' stands for mask or OOV, but it is token 1 of the vocabulary. Leave such tokens out, or give all 2 at the start",
    ),
    (
        lambda: StringLookup(vocabulary=["a", "b"], max_tokens=2),
        "the vocabulary has 3 tokens, with those for mask and OOV;",
    ),
    (lambda: StringLookup(vocabulary="/nowhere/x.txt"), "there is no vocabulary file '/nowhere/x.txt'."),
    (lambda: StringLookup(vocabulary=["a"]).adapt(["a"]), "cannot adapt: it was made with a vocabulary. Leave `vocabulary` out."),
    (
        lambda: StringLookup(mask_token="", name="l").adapt([""]),
        "learned no token. The data held none except '' and '[UNK]'",
    ),
    (lambda: StringLookup(name="l").adapt([]), "the layer 'l' has learned no token."),
    (lambda: StringLookup(name="l")(["a"]), "the layer 'l' has no vocabulary yet. Call adapt(), or make it with vocabulary=[...]."),
    (
        lambda: StringLookup(vocabulary=["a"], num_oov_indices=0, name="l")(["a", "q"]),
        "['q'] are not in the vocabulary of 'l', and num_oov_indices=0 leaves no index for them. Use num_oov_indices=1.",
    ),
    (
        lambda: StringLookup(vocabulary=["a"])([1, 2]),
        "a layer for strings got a int (1). It runs on the host",
    ),
    (lambda: StringLookup(vocabulary=["a"])([["a"], ["b", "c"]]), "a layer for strings got a list (['a'])."),
    (
        lambda: IntegerLookup(vocabulary_dtype="int32"),
        "vocabulary_dtype='int32': IntegerLookup supports only 'int64', as in Keras.",
    ),
    (
        lambda: IntegerLookup(vocabulary=[1], name="l")(["a"]),
        "looks up integers; got dtype <U1. For strings, use StringLookup.",
    ),
    (lambda: TextVectorization(standardize="x"), "standardize='x' is unknown to TextVectorization."),
    (lambda: TextVectorization(split="x"), "split='x' is unknown to TextVectorization. Use one of 'whitespace', 'character'."),
    (lambda: TextVectorization(ngrams="2"), "ngrams='2': give an integer, a tuple of integers or None."),
    (lambda: TextVectorization(ragged=True), "ragged=True: JAX has no ragged arrays. Leave `ragged` out"),
    (
        lambda: TextVectorization(output_mode="count", output_sequence_length=2),
        "output_sequence_length=2 needs output_mode='int'; got 'count'.",
    ),
    (lambda: TextVectorization(output_sequence_length="3"), "output_sequence_length='3': give an integer, or None for the length"),
    (
        lambda: TextVectorization(vocabulary=["a"])([["a", "b"]]),
        "texts of shape (1, 2): to split them, give an array of rank 1, or one whose last axis has size 1.",
    ),
    (
        lambda: TextVectorization(vocabulary=["a"], split=lambda texts: ["a"])(["a", "b"]),
        "the function `split` must return a list of tokens for each of the 2 texts; got ['a'].",
    ),
    (lambda: Hashing(0), "num_bins=0: give the number of bins, at least 1."),
    (lambda: Hashing(3, dtype="float32"), "dtype='float32': bins are integers, so output_mode='int' needs 'int32' or 'int64'."),
    (lambda: HashedCrossing(3)(["a"]), "HashedCrossing takes a tuple of at least two features; got ['a']."),
    (
        lambda: HashedCrossing(3)((["a", "b"], [1])),
        "the features have the shapes [(2,), (1,)]; all must have the same",
    ),
    (lambda: HashedCrossing(3)(([1.5], [1])), "the features have the dtypes ['float64', 'int64']; give strings or integers."),
    (lambda: layers.Discretization([1.0], name="l").adapt([1.0]), "the layer 'l' cannot adapt: it was made with bin_boundaries."),
]


@pytest.mark.parametrize(("call", "message"), MESSAGES)
def test_messages(call, message):
    with pytest.raises(errors.ReplicantError, match=re.escape(message)):
        call()


def test_a_compiled_program_holds_no_strings():
    layer = StringLookup(vocabulary=["a"], invert=True, name="l")
    with pytest.raises(errors.ArgumentTypeError, match="the layer 'l' gives strings, which no compiled program holds"):
        in_program(layer, np.array([1]))


def test_numbers_are_looked_up_inside_a_compiled_program():
    x = np.array([[3, 5], [7, 9]])
    for layer in (
        IntegerLookup(vocabulary=[3, 7]),
        IntegerLookup(vocabulary=[3, 7], output_mode="multi_hot"),
        IntegerLookup(vocabulary=[3, 7], output_mode="tf_idf", idf_weights=[0.5, 2.0]),
        Hashing(5),
        Hashing(5, output_mode="one_hot"),
        Hashing(5, output_mode="count"),
    ):
        assert in_program(layer, x).tolist() == layer(x).tolist()
    crossing = HashedCrossing(7, output_mode="one_hot")
    assert in_program(lambda a: crossing((a, a + 1)), x[0]).tolist() == crossing((x[0], x[0] + 1)).tolist()


def test_the_size_of_a_vocabulary_that_a_model_depends_on_stays():
    layer = StringLookup(vocabulary=["a", "b"], output_mode="multi_hot", name="l")
    layer.set_vocabulary(["c", "d"])
    with pytest.raises(errors.ContextError, match="the vocabulary of 'l' had 3 indices and would get 2"):
        layer.set_vocabulary(["c"])
    free = StringLookup(vocabulary=["a", "b"], output_mode="multi_hot", max_tokens=5, pad_to_max_tokens=True)
    free.set_vocabulary(["c"])
    assert free(["c"]).tolist() == [0, 1, 0, 0, 0]


def test_layers_in_a_dataset():
    texts = Dataset.from_tensor_slices((["A cat", "a dog, a dog"], [0, 1])).batch(2)
    layer = TextVectorization(output_sequence_length=3)
    layer.adapt(texts.map(lambda text, label: text))
    assert layer.get_vocabulary() == ["", "[UNK]", "a", "dog", "cat"]
    (numbers, labels), *_ = texts.map(lambda text, label: (layer(text), label))
    assert np.asarray(numbers).tolist() == [[2, 4, 0], [2, 3, 2]]
    assert np.asarray(labels).tolist() == [0, 1]
    words = Dataset.from_tensor_slices(["a", "c", "e"]).repeat().batch(4).map(StringLookup(vocabulary=["a", "b", "c"])).take(2)
    assert [np.asarray(x).tolist() for x in words] == [[1, 3, 0, 1], [3, 0, 1, 3]]
    endless = StringLookup()
    endless.adapt(Dataset.from_tensor_slices(["a", "b", "b"]).repeat().batch(2), steps=3)
    assert endless.get_vocabulary() == ["[UNK]", "b", "a"]
    bins = layers.Discretization(num_bins=2)
    bins.adapt(Dataset.from_tensor_slices(np.arange(8.0, dtype=np.float32)).batch(4))
    assert np.asarray(bins([0.0, 7.0])).tolist() == [0, 1]


@pytest.mark.parametrize("x", [np.zeros((0,), object), np.zeros((0, 1), object), np.zeros((0, 3), object)])
def test_no_rows(x):
    assert StringLookup(vocabulary=["a"])(x).shape == x.shape
    assert StringLookup(vocabulary=["a"], output_mode="one_hot")(x).shape[-1] == 2
    assert Hashing(3)(x).shape == x.shape
    if x.shape[-1] != 3:
        assert TextVectorization(vocabulary=["a"])(x).shape == (0, 0)
        assert TextVectorization(vocabulary=["a"], output_sequence_length=4)(x).shape == (0, 4)
        assert TextVectorization(vocabulary=["a"], output_mode="count")(x).shape == (0, 2)


def test_vocabulary_files(tmp_path):
    file = tmp_path / "words.txt"
    file.write_bytes("a\r\né\nthe end\n".encode())
    layer = StringLookup(vocabulary=str(file), num_oov_indices=2, mask_token="")
    assert layer.get_vocabulary() == ["", "[UNK]", "[UNK]", "a", "é", "the end"]
    assert layer(["é", ""]).tolist() == [4, 0]
    assert layer.get_config()["vocabulary"] is None
    file.write_text("7\n-3")
    assert IntegerLookup(vocabulary=str(file))([-3, 7, 0]).tolist() == [2, 1, 0]
    file.write_text("a\n\nb")
    with pytest.raises(errors.ArgumentError, match=r"line 2 of the vocabulary file .* is empty. Each line is a token"):
        StringLookup(vocabulary=str(file))
    file.write_text("a\na\n")
    with pytest.raises(errors.ArgumentError, match=r"these occur several times: \['a'\]"):
        StringLookup(vocabulary=str(file))


def test_a_saved_configuration_reads_no_file_of_this_machine(tmp_path):
    file = tmp_path / "secret.txt"
    file.write_text("a\nb\n")
    config = keras.saving.serialize_keras_object(StringLookup(vocabulary=["a"]))
    config["config"]["vocabulary"] = str(file)
    with pytest.raises(TypeError, match="the configuration names the vocabulary file"):  # Keras makes a TypeError of every error
        keras.saving.deserialize_keras_object(config)
    assert keras.saving.deserialize_keras_object(config, safe_mode=False).get_vocabulary() == ["[UNK]", "a", "b"]


def test_bytes_and_other_encodings():
    layer = StringLookup(encoding="latin-1")
    layer.adapt(np.array([b"\xe9t\xe9", b"\xe9t\xe9", b"a"], object))
    assert layer.get_vocabulary() == ["[UNK]", "été", "a"]
    assert layer([b"\xe9t\xe9", "été"]).tolist() == [1, 0]
    assert TextVectorization(vocabulary=["\ufffd", "b"], split="character")([b"\xffb"]).tolist() == [[2, 3]]


def test_functions_of_your_own():
    layer = TextVectorization(standardize=np.char.upper, split=lambda texts: [text.split("-") for text in texts])
    layer.adapt(["a-b", "b-c"])
    assert layer.get_vocabulary() == ["", "[UNK]", "B", "C", "A"]
    assert layer([["c-b-x"], ["A"]]).tolist() == [[3, 2, 1], [4, 0, 0]]
    assert layer("a-b").tolist() == [4, 2]


def test_copies_have_the_vocabulary_that_was_given():
    layer = TextVectorization(vocabulary=["x", "y"], ngrams=(1, 2), output_mode="tf_idf", idf_weights=[1.0, 2.0])
    copy = TextVectorization.from_config(json.loads(json.dumps(layer.get_config())))
    assert copy.get_vocabulary() == layer.get_vocabulary()
    assert copy(["x y"]).tolist() == layer(["x y"]).tolist()


def save_and_load(layer, folder):
    layer.save_assets(str(folder))
    store = {}
    layer.save_own_variables(store)
    new = type(layer).from_config(layer.get_config())
    new.load_own_variables(store)
    new.load_assets(str(folder))
    return new


@pytest.mark.parametrize(
    "layer",
    [
        StringLookup(),
        StringLookup(oov_token=None, num_oov_indices=2),
        StringLookup(mask_token="", output_mode="count"),
        TextVectorization(output_mode="tf_idf", max_tokens=9, pad_to_max_tokens=True),
        TextVectorization(output_mode="tf_idf", split="character"),
    ],
    ids=lambda layer: json.dumps({key: layer.get_config()[key] for key in ("output_mode", "max_tokens")}),
)
def test_a_learned_vocabulary_is_saved_and_loaded(layer, tmp_path):
    layer.adapt(["a b", "a", "a", "\u2028", "\x0bz", ""])
    new = save_and_load(layer, tmp_path)
    assert new.get_vocabulary() == layer.get_vocabulary()
    assert new(["a b", "", "q"]).tolist() == layer(["a b", "", "q"]).tolist()


def test_a_line_break_in_a_token_is_not_lost_when_saving(tmp_path):
    layer = TextVectorization(split="character", name="l")
    layer.adapt(["a\nb"])
    with pytest.raises(errors.ArgumentError, match="cannot be saved: Keras's format has one token per line"):
        layer.save_assets(str(tmp_path))
    given = TextVectorization(split="character", vocabulary=layer.get_vocabulary())
    assert save_and_load(given, tmp_path).get_vocabulary() == layer.get_vocabulary()


def test_keras_s_own_layers_keep_their_names():
    saved = keras.saving.serialize_keras_object(keras.layers.Dense(1))
    assert (saved["module"], saved["class_name"]) == ("keras.layers", "Dense")
    assert layers.CategoryEncoding is keras.layers.CategoryEncoding
    kind = type("Mine", (StringLookup,), {})
    assert keras.saving.serialize_keras_object(kind())["registered_name"] == "Mine"
