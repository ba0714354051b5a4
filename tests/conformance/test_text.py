"""replicant.keras.layers against what Keras's layers of the same names gave with TensorFlow.

The figures were recorded with Keras's TensorFlow backend. Each case is a layer: its arguments, the data it was adapted to if any
(an array, or batches and the number of steps), pairs of an input and the result or error of a call, its vocabulary with and without
special tokens, and its saved configuration. Inputs were tensors: strings, int64 or float32. Where a constructor or `adapt` raised,
the case has the type of the error instead. ``text_model.keras`` was saved with TensorFlow as well.
"""

import json
from collections import defaultdict
from pathlib import Path

import keras
import numpy as np
import pytest
from _compare import is_error, plain, same

from replicant.keras import layers

CASES = json.loads((Path(__file__).parent / "figures" / "text.json").read_text())["cases"]
BY_LAYER = defaultdict(list)
for number, recorded in enumerate(CASES):
    BY_LAYER[recorded["layer"]].append((number, recorded))

DENSE = "no ragged or sparse tensors, no datasets inside datasets"
SCALARS = '`Hashing` of a single value in "one_hot"'
OUT_OF_RANGE = "`CategoryEncoding` of an index that is out of range"
ERRORS = {
    "ValueError": ValueError,
    "TypeError": TypeError,
    "RuntimeError": RuntimeError,
    "InvalidArgumentError": ValueError,
    "FailedPreconditionError": RuntimeError,
    "IndexError": IndexError,
}
ARGUMENTS = {"ngrams": lambda value: tuple(value) if isinstance(value, list) else value}


def made(case):
    return getattr(layers, case["layer"])(**{key: ARGUMENTS.get(key, lambda v: v)(value) for key, value in case["args"].items()})


def values(recorded):
    """What TensorFlow got: float32, int64 or strings."""
    if isinstance(recorded, dict):
        return tuple(values(each) for each in recorded["tuple"])
    array = np.array(recorded, object)
    kinds = {type(item) for item in array.ravel()}
    return array if str in kinds else array.astype(np.float32 if float in kinds else np.int64)


def adapt(layer, data):
    if isinstance(data, dict):
        layer.adapt((values(batch) for batch in data["batches"]), **({"steps": data["steps"]} if "steps" in data else {}))
    else:
        layer.adapt(values(data))


def difference(case, inputs, expected):
    """The row of docs/differences.md that explains a result of its own."""
    if "ragged" in expected:
        return DENSE
    if case["layer"] == "Hashing" and is_error(expected):
        return SCALARS
    if case["layer"] == "CategoryEncoding" and expected.get("error") == "InvalidArgumentError":
        return OUT_OF_RANGE
    return None


def check_call(layer, case, call):
    inputs, expected, *weights = call
    options = {"count_weights": np.array(weights[0], np.float32)} if weights else {}
    reason = difference(case, inputs, expected)
    if reason is None and is_error(expected):
        with pytest.raises(ERRORS[expected["error"]]):
            layer(values(inputs), **options)
        return None
    result = np.asarray(layer(values(inputs), **options))
    if reason is None:
        name = "string" if result.dtype == object else result.dtype.name
        assert name == expected["dtype"] or case["layer"] in ("Discretization", "CategoryEncoding"), "the dtype"
        assert same(plain(result), expected["value"]), (case["args"], inputs, plain(result), expected["value"])
    return reason


@pytest.mark.parametrize("name", sorted(BY_LAYER))
def test_layer(name, report):
    for number, case in BY_LAYER[name]:
        if "error" in case:
            with pytest.raises(ERRORS[case["error"]["error"]]):
                made(case)
            report.passed(f"{number}: error")
            continue
        layer = made(case)
        if "adapt_error" in case:
            with pytest.raises(ERRORS[case["adapt_error"]["error"]]):
                adapt(layer, case["adapt"])
            report.passed(f"{number}: error of adapt")
            continue
        if "adapt" in case:
            adapt(layer, case["adapt"])
        for at, call in enumerate(case["calls"]):
            report.count(f"{number}: call {at}", check_call(layer, case, call))
        if "vocabulary" in case:
            assert layer.get_vocabulary() == case["vocabulary"]
            assert layer.get_vocabulary(include_special_tokens=False) == case["tokens"]
            assert layer.vocabulary_size() == case["size"]
            report.passed(f"{number}: vocabulary")


def without(config, keys):
    return {key: value for key, value in config.items() if key not in keys}


@pytest.mark.parametrize("name", sorted(BY_LAYER))
def test_configuration(name):
    for _, case in BY_LAYER[name]:
        if "config" not in case:
            continue
        layer = made(case)
        if "adapt" in case:
            adapt(layer, case["adapt"])
        saved, expected = json.loads(json.dumps(keras.saving.serialize_keras_object(layer))), case["config"]
        for config in (saved, expected):
            config.pop("build_config", None)
            config["config"].pop("name")
        assert saved == expected
        if case["layer"] != "CategoryEncoding":
            loaded = keras.saving.deserialize_keras_object(expected)
            assert type(loaded) is getattr(layers, name)
            varying = ["name", "vocabulary_size"] if "adapt" in case else ["name"]  # a learned vocabulary is a file beside it
            assert without(loaded.get_config(), varying) == without(layer.get_config(), varying)


def test_a_model_that_keras_saved_with_tensorflow():
    """It has two TextVectorization, a StringLookup, an IntegerLookup, Hashing, HashedCrossing and Discretization, all adapted."""
    model = keras.models.load_model(Path(__file__).parent / "figures" / "text_model.keras")
    inputs = {
        "text": np.array(["the cat", "a zebra sat"], object),
        "color": np.array([["red"], ["green"]], object),
        "number": np.array([[3], [8]]),
        "size": np.array([[1.0], [8.0]], np.float32),
    }
    tensorflow = [[-0.27791470289230347], [-0.7387974262237549]]
    assert np.allclose(model.predict(inputs, verbose=0), tensorflow, atol=1e-6)
    assert np.allclose(model([*inputs.values()]), tensorflow, atol=1e-6)


def test_at_least_200_cases_are_equal(counted, report):
    assert sum(outcome == "passed" for outcome in report.outcomes.values()) >= 200
    assert len(counted) == 753
