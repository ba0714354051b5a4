"""Examples: written, read one by one, read side by side; and what is refused."""

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicant.data import FixedLenFeature, VarLenFeature, encode_example, parse_example, parse_single_example
from replicant.errors import ArgumentError, ArgumentTypeError, ElementError
from replicant.input.files.records import _example, _example_values, _parse
from replicant.input.files.records._examples_together import NotPlainError, find_features

# {"x": [1.5, -2.0], "l": [300, -1], "s": [b"a", b""]} as TensorFlow writes it, keys sorted.
TENSORFLOW_EXAMPLE = bytes.fromhex(
    "0a380a150a016c12101a0e0a0cac02ffffffffffffffffff010a0c0a017312070a050a01610a000a110a0178120c120a0a080000c03f000000c0"
)
FEATURES = {"x": FixedLenFeature((2,), np.float32), "l": VarLenFeature(np.int64), "s": VarLenFeature(str)}


def plain(parsed):
    return {name: (np.asarray(value).dtype.name, np.asarray(value).tolist()) for name, value in parsed.items()}


def test_examples_are_those_of_tensorflow():
    assert encode_example({"l": [300, -1], "s": ["a", b""], "x": [1.5, -2.0]}) == TENSORFLOW_EXAMPLE
    expected = {"x": ("float32", [1.5, -2.0]), "l": ("int64", [300, -1]), "s": ("object", [b"a", b""])}
    assert plain(parse_single_example(TENSORFLOW_EXAMPLE, FEATURES)) == expected
    batch = parse_example([TENSORFLOW_EXAMPLE] * 2, FEATURES)
    assert plain(batch) == {name: (dtype, [value, value]) for name, (dtype, value) in expected.items()}


@pytest.mark.parametrize(
    ("feature", "values", "expected"),
    [
        (FixedLenFeature((), "float32"), [1.5, 2.0], [1.5, 2.0]),
        (FixedLenFeature((), "int64"), [2**62, -(2**63)], [2**62, -(2**63)]),
        (FixedLenFeature((), str), [b"", "zwölf"], [b"", "zwölf".encode()]),
        (FixedLenFeature((), "int64"), [True, np.uint8(3)], [1, 3]),
        (FixedLenFeature((2, 2), "float32"), [np.ones((2, 2)), np.zeros(4)], [[[1, 1], [1, 1]], [[0, 0], [0, 0]]]),
        (FixedLenFeature((2,), "int64"), [[1, 300], [300, 1]], [[1, 300], [300, 1]]),
        (FixedLenFeature((2,), str), [["a", "b"], ["c", "d"]], [[b"a", b"b"], [b"c", b"d"]]),
        (FixedLenFeature((0,), "float32"), [np.zeros(0), np.zeros(0)], [[], []]),
        (FixedLenFeature((), "float32", -1), [None, 2.0], [-1.0, 2.0]),
        (FixedLenFeature((2,), "int64", [7, 8]), [None, [1, 2]], [[7, 8], [1, 2]]),
        (FixedLenFeature((2,), str, "no"), [["a", "b"], []], [[b"a", b"b"], [b"no", b"no"]]),
        (VarLenFeature("float32"), [[1.0], [1.0, 2.0]], [[1.0, 0.0], [1.0, 2.0]]),
        (VarLenFeature("int64"), [[], [1, 2]], [[0, 0], [1, 2]]),
        (VarLenFeature("int64"), [None, None], [[], []]),
        (VarLenFeature(str), [["a"], None], [[b"a"], [b""]]),
        (VarLenFeature("int64"), [range(100), [5]], [list(range(100)), [5, *[0] * 99]]),
    ],
)
def test_values(feature, values, expected):
    records = [encode_example({"other": 1} | ({} if value is None else {"f": value})) for value in values]
    batch = parse_example(records, {"f": feature})["f"]
    assert batch.dtype == feature.dtype
    assert batch.tolist() == expected
    assert batch.flags.writeable or batch.size == 0 or feature.dtype == np.float32
    one_by_one = _parse._stacked("f", feature, [_example.decode_example(record) for record in records])
    assert one_by_one.tolist() == expected
    for record, row in zip(records, expected, strict=True):
        single = parse_single_example(record, {"f": feature})["f"]
        kept = single if np.ndim(single) == 0 or isinstance(feature, FixedLenFeature) else [*single, *row[len(single) :]]
        assert np.asarray(kept, feature.dtype).tolist() == row


def test_an_empty_batch_has_the_shape_of_the_feature():
    parsed = parse_example([], {"f": FixedLenFeature((2,), "float32"), "v": VarLenFeature(str)})
    assert {name: value.shape for name, value in parsed.items()} == {"f": (0, 2), "v": (0, 0)}


numbers = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300), max_size=70)
examples = st.fixed_dictionaries(
    {},
    optional={
        "n": numbers,
        "x": st.lists(st.floats(width=32, allow_nan=False), max_size=5),
        "s": st.lists(st.binary(max_size=200), max_size=3),
        "a longer key": numbers,
    },
)


@given(st.lists(st.tuples(examples, st.randoms()), max_size=6))
@settings(max_examples=300)
@pytest.mark.long
def test_side_by_side_gives_what_one_by_one_gives(rows):
    """In any order of keys, and with any features missing."""
    records = []
    for features, random in rows:
        keys = list(features)
        random.shuffle(keys)
        records.append(encode_example({key: features[key] for key in keys}))
    wanted = {
        "n": VarLenFeature("int64"),
        "x": VarLenFeature("float32"),
        "s": VarLenFeature(str),
        "a longer key": VarLenFeature("int64"),
    }
    data = b"".join(records)
    if data:
        find_features(data, [len(record) for record in records], list(wanted))  # no fallback
    batch = parse_example(records, wanted)
    for i, (features, _) in enumerate(rows):
        for name in wanted:
            values = list(features.get(name, []))
            assert batch[name][i, : len(values)].tolist() == values


@st.composite
def alike(draw):
    """Examples with values of the same sizes, perhaps with one byte changed somewhere."""
    count = draw(st.integers(1, 5))
    small, large = st.integers(0, 127), st.integers(128, 16383)
    kinds = {
        "n": draw(st.sampled_from([small, large, small | large, st.just(-1)])),
        "x": st.floats(width=32, allow_nan=False),
        "s": st.binary(min_size=3, max_size=3),
        "unwanted": st.binary(min_size=1, max_size=1),
    }
    sizes = {name: draw(st.integers(0, 3)) for name in draw(st.permutations(list(kinds)))[draw(st.integers(0, 2)) :]}
    records = [
        encode_example({name: [draw(kinds[name]) for _ in range(size)] for name, size in sizes.items()}) for _ in range(count)
    ]
    if draw(st.booleans()) and records[0]:
        row, at = draw(st.integers(0, count - 1)), draw(st.integers(0, len(records[0]) - 1))
        changed = bytearray(records[row])
        changed[at % len(changed)] ^= draw(st.integers(1, 255))
        records[row] = bytes(changed)
    fixed = {name: FixedLenFeature((size,), DTYPES[name]) for name, size in sizes.items() if name != "unwanted"}
    free = {name: VarLenFeature(DTYPES[name]) for name in DTYPES}
    return records, draw(st.sampled_from([fixed, free]))


DTYPES = {"n": "int64", "x": "float32", "s": str}


def parsed_by(values, data, sizes, features):
    """What one way of reading all records at once gives; None if it leaves them to another."""
    stored = values(data, sizes, {name: _parse._KINDS[feature.dtype] for name, feature in features.items()})
    found = {name: stored and _parse._shaped(stored[name], feature) for name, feature in features.items()}
    return None if any(value is None for value in found.values()) else found


@given(alike())
@settings(max_examples=300)
def test_records_that_are_alike_give_what_any_records_give(case):
    records, features = case
    data, sizes = b"".join(records), list(map(len, records))
    together = parsed_by(_example_values._uniform, data, sizes, features)
    if together is not None:
        side_by_side = parsed_by(_example_values._side_by_side, data, sizes, features)
        assert side_by_side is not None
        assert plain(together) == plain(side_by_side)
        assert all(value.flags.writeable for value in together.values())


LABEL = FixedLenFeature((), "int64")
TEXT = FixedLenFeature((), str)
NUMBERS = VarLenFeature("int64")


@pytest.mark.parametrize(
    ("rows", "features", "expected"),
    [
        ([{"a": "xy", "l": i} for i in range(3)], {"a": TEXT, "l": LABEL}, {"a": [b"xy"] * 3, "l": [0, 1, 2]}),
        ([{"a": ["x", "y"], "l": i} for i in range(3)], {"l": LABEL}, {"l": [0, 1, 2]}),
        ([{"l": 300 + i} for i in range(3)], {"l": LABEL}, {"l": [300, 301, 302]}),
        ([{"l": [1, 300]}, {"l": [7, 301]}], {"l": NUMBERS}, {"l": [[1, 300], [7, 301]]}),
        ([{"x": [[0.5, i]]} for i in range(2)], {"x": FixedLenFeature((1, 2), "float32")}, {"x": [[[0.5, 0]], [[0.5, 1]]]}),
        ([{"l": [1, 300]}, {"l": [300, 1]}], {"l": NUMBERS}, None),  # numbers end elsewhere
        ([{"a": ["x", "y"]}] * 2, {"a": VarLenFeature(str)}, None),  # several strings
        ([{"a": "xy", "b": "z"}, {"a": "x", "b": "yz"}], {"a": TEXT}, None),  # one size, other lengths inside
        ([{"a": "x", "b": "y"}, {"b": "y", "a": "x"}], {"a": TEXT}, None),  # another order
        ([{"l": 1}, {"l": 300}], {"l": LABEL}, None),  # another size
        ([{"l": 1}] * 2, {"l": LABEL, "a": FixedLenFeature((), str, "?")}, None),  # missing
        ([{"l": 1}] * 2, {"l": FixedLenFeature((2,), "int64")}, None),  # wrong
        ([{"l": 1.5}] * 2, {"l": LABEL}, None),  # wrong
    ],
)
def test_which_records_are_alike(rows, features, expected):
    records = [encode_example(row) for row in rows]
    found = parsed_by(_example_values._uniform, b"".join(records), list(map(len, records)), features)
    assert (found and {name: value.tolist() for name, value in found.items()}) == expected


def field(number, data):
    return _example._sized(number, data)


def example(*entries):
    return field(1, b"".join(field(1, entry) for entry in entries))


def entry(key, feature):
    return field(1, key) + field(2, feature)


UNUSUAL = {
    "integers that are not packed": example(entry(b"f", field(3, b"\x08\x05\x08\x07"))),
    "integers in two packs": example(entry(b"f", field(3, field(1, b"\x05") + field(1, b"\x07")))),
    "an unknown field of the example": example(entry(b"f", field(3, field(1, b"\x05\x07")))) + field(9, b"?"),
    "an unknown fixed field": b"\x4d1234\x511" + bytes(7) + example(entry(b"f", field(3, field(1, b"\x05\x07")))),
    "the value before the key": example(field(2, field(3, field(1, b"\x05\x07"))) + field(1, b"f")),
    "the feature twice": example(entry(b"f", field(2, field(1, b"1234"))), entry(b"f", field(3, field(1, b"\x05\x07")))),
    "features in two parts": example(entry(b"g", b"")) + example(entry(b"f", field(3, field(1, b"\x05\x07")))),
    "a long key": example(entry(b"k" * 200, b""), entry(b"f", field(3, field(1, b"\x05\x07")))),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_writers_rarely_produce(name):
    feature = {"f": FixedLenFeature((2,), "int64")}
    assert parse_example([UNUSUAL[name], encode_example({"f": [1, 2]})], feature)["f"].tolist() == [[5, 7], [1, 2]]
    assert parse_single_example(UNUSUAL[name], feature)["f"].tolist() == [5, 7]


def test_floats_that_are_not_packed():
    record = example(entry(b"f", field(2, b"\x0d" + np.float32(1.5).tobytes() + b"\x0d" + np.float32(2).tobytes())))
    assert parse_example([record], {"f": FixedLenFeature((2,), "float32")})["f"].tolist() == [[1.5, 2.0]]


GOOD = encode_example({"f": [1, 2]})


@pytest.mark.parametrize(
    ("record", "feature", "message"),
    [
        (
            encode_example({"g": 1, "h": 2}),
            FixedLenFeature((), "int64"),
            r"Feature 'f' is missing from record {}, which has \['g', 'h'\]",
        ),
        (GOOD, FixedLenFeature((), "int64"), r"Feature 'f' of record {} has 2 values, but shape \(\) needs 1. Use VarLenFeature"),
        (GOOD, FixedLenFeature((3, 1), "int64"), r"of record {} has 2 values, but shape \(3, 1\) needs 3"),
        (GOOD, FixedLenFeature((2,), "float32"), "of record {} is a list of int64, but the feature says float32"),
        (encode_example({"f": [1.0]}), VarLenFeature(str), "of record {} is a list of floats, but the feature says str"),
        (encode_example({"f": "a"}), VarLenFeature("int64"), "of record {} is a list of byte strings, but the feature says int64"),
        (b"no example", VarLenFeature("int64"), r"record {} \(10 bytes, b'no example'...\) is not a serialized tf.train.Example"),
        (GOOD[:-1], VarLenFeature("int64"), "record {} .* is not a serialized tf.train.Example: a field needs 1 more bytes"),
        (example(entry(b"f", field(3, field(1, b"\x80")))), VarLenFeature("int64"), "record {} .* a number is cut off"),
        (example(entry(b"f", field(3, field(1, b"\x80" * 90)))), VarLenFeature("int64"), "a number is cut off"),
        (example(entry(b"f", field(2, field(1, b"\x80")))), VarLenFeature("float32"), "record {}.* a list of floats has 1 bytes"),
        (b"\x0b", VarLenFeature("int64"), "record {} .* unknown wire type 3"),
        (b"\x0a\xff", VarLenFeature("int64"), "record {} .* bytes end in the middle"),
    ],
)
def test_records_that_do_not_fit(record, feature, message):
    with pytest.raises(ElementError, match=message.format(0)):
        parse_single_example(record, {"f": feature})
    good = np.ones(getattr(feature, "shape", ()), feature.dtype if feature.dtype != object else "S1")
    records = [encode_example({"f": good}), record]
    with pytest.raises(ElementError, match=message.format(1)):
        parse_example(records, {"f": feature})


@given(st.binary(max_size=60) | st.integers(0, len(TENSORFLOW_EXAMPLE)).map(lambda n: TENSORFLOW_EXAMPLE[:n]))
@settings(max_examples=300)
def test_any_bytes_are_an_example_or_refused(data):
    with contextlib.suppress(ElementError):
        parse_example([data], FEATURES)
    with contextlib.suppress(ElementError):
        parse_single_example(data, FEATURES)
    with contextlib.suppress(NotPlainError):
        find_features(data, [len(data)], ["x"])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: FixedLenFeature((), "int32"), ArgumentError, "FixedLenFeature: dtype must be float32, int64 or str.*'int32'"),
        (lambda: VarLenFeature("no type"), ArgumentError, "VarLenFeature: dtype must be float32, int64 or str.*'no type'"),
        (
            lambda: FixedLenFeature((None,), str),
            ArgumentError,
            r"the shape must consist of known sizes. Received: \(None,\). Use VarLen",
        ),
        (
            lambda: FixedLenFeature((2,), "int64", [1, 2, 3]),
            ArgumentError,
            r"default_value \[1, 2, 3\] is not an array of int64 with shape",
        ),
        (lambda: FixedLenFeature((), "int64", "x"), ArgumentError, "default_value 'x' is not an array of int64"),
        (lambda: parse_example(GOOD, {}), ArgumentTypeError, "parse_example takes a batch. Use `parse_single_example`"),
        (lambda: parse_example(["text"], {}), ArgumentTypeError, "parse_example takes serialized Examples as bytes. Received: str"),
        (lambda: parse_single_example("text", {}), ArgumentTypeError, "parse_single_example takes serialized Examples as bytes"),
        (lambda: parse_single_example(GOOD, ["f"]), ArgumentTypeError, r"features must be a dict of FixedLenFeature.*\['f'\]"),
        (lambda: parse_example([GOOD], {"f": "int64"}), ArgumentTypeError, "parse_example: features must be a dict"),
        (lambda: encode_example({"f": object()}), ArgumentTypeError, "feature 'f' must hold bytes, strings, floats or integers"),
        (lambda: encode_example({"f": 1j}), ArgumentTypeError, "feature 'f' must hold bytes, strings.*1j"),
    ],
)
def test_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
