"""Arrays of NumPy that mean something else on a device, such as masked ones, and those in another byte order."""

import re

import numpy as np
import pytest

from replicant.data import Dataset, TensorSpec
from replicant.errors import DatasetError
from replicant.runtime._own_memory import own
from replicant.runtime._usable_arrays import usable

RECORDS = np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "i4"), ("b", "f4")])
TEXTS = np.dtypes.StringDType
MASKED = np.ma.masked_array([1.0, -999.0, 3.0], mask=[0, 1, 0])
REFUSED = {
    "masked": (
        MASKED,
        r"is a masked array, in which 1 of 3 values are masked, the first at \(1,\)\. Fill them in: `array\.filled\(0\)`",
    ),
    "records": (RECORDS, r"holds records, of dtype .*'a'.*Pass their fields as components: `\{name: array\[name\]"),
    "bytes": (
        np.array([b"ab", b"cd"], "V2"),
        r"holds raw bytes, of dtype \|V2\. Pass them as numbers: `array\[\.\.\., None\]\.view",
    ),
    "longdouble": (
        np.array([1.5], np.longdouble),
        r"is of dtype \w+, which no device computes with.*`array\.astype\(np\.float64\)`",
    ),
    "clongdouble": (np.array([1.5], np.clongdouble), r"is of dtype \w+, which no device.*`array\.astype\(np\.complex128\)`"),
    "missing text": (
        np.array(["ab", None], TEXTS(na_object=None)),
        r"is of dtype StringDType\(na_object=None\), and 1 of its 2 texts are missing, the first at \((0, )?1,?\)\. Fill them in",
    ),
    "missing text, NaN": (
        np.array([["ab", np.nan]], TEXTS(na_object=np.nan)),
        r"1 of its 2 texts are missing, the first at \((0, )?0, 1\)",
    ),
}
refused = pytest.mark.parametrize(("array", "message"), REFUSED.values(), ids=REFUSED)

SOURCES = {
    "from_tensor_slices": lambda array: Dataset.from_tensor_slices({"x": array}),
    "from_tensors": lambda array: Dataset.from_tensors({"x": array}),
    "from_generator": lambda array: Dataset.from_generator(lambda: iter([{"x": array}])),
    "output_signature": lambda array: Dataset.from_generator(lambda: iter([{"x": array}]), {"x": TensorSpec((None,), np.float32)}),
    "map": lambda array: Dataset.range(1).map(lambda _: {"x": array}),
    "a list of arrays": lambda array: Dataset.from_tensors({"x": [array]}),
    "flat_map": lambda array: Dataset.range(1).flat_map(lambda _: Dataset.from_tensors({"x": array})),
}


@refused
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_sources_refuse_them(source, array, message):
    with pytest.raises(DatasetError, match=rf"component \['x'\].*{message}"):
        list(source(array))


@pytest.mark.parametrize(
    "values", [[1.0, np.ma.masked], [np.ma.masked, 1], [[1.0], [np.ma.masked]], [[2.0, 1.0], list(MASKED[:2])]]
)
def test_values_that_are_masked_in_lists(values):
    """NumPy makes NaN of them."""
    with pytest.raises(DatasetError, match=r"is a masked array, in which 1 of 1 values are masked, the first at \(\)"):
        Dataset.from_tensors(values)


@pytest.mark.parametrize("mask", [False, [0, 0, 0]])
def test_an_array_in_which_nothing_is_masked_is_its_values(mask):
    array = np.ma.masked_array(np.float32([1, 2, 3]), mask=mask)
    for dataset in (Dataset.from_tensor_slices(array), Dataset.range(1).map(lambda _: array).unbatch()):
        assert [(type(x), float(x)) for x in dataset] == [(np.float32, 1), (np.float32, 2), (np.float32, 3)]


def test_what_the_errors_advise_works():
    assert list(Dataset.from_tensor_slices(MASKED.filled(0))) == [1, 0, 3]
    fields = {name: RECORDS[name] for name in RECORDS.dtype.names}
    assert list(Dataset.from_tensor_slices(fields)) == [{"a": 1, "b": 2.5}, {"a": 3, "b": 4.5}]
    array = np.array([b"ab", b"cd"], "V2")
    assert [x.tolist() for x in Dataset.from_tensor_slices(array[..., None].view(np.uint8))] == [[97, 98], [99, 100]]
    array = np.array(["ab", None], TEXTS(na_object=None))
    filled = np.vectorize(lambda text: text if isinstance(text, str) else "", otypes=[object])(array)
    assert list(Dataset.from_tensor_slices(filled)) == ["ab", ""]


@pytest.mark.parametrize("dtype", [">i2", ">i4", ">u8", ">f4", ">f8", ">c8"])
def test_the_byte_order_makes_no_difference(dtype):
    array = np.arange(6).reshape(3, 2).astype(dtype)
    native = array.dtype.newbyteorder("=")
    assert Dataset.from_tensor_slices(array).element_spec == TensorSpec((2,), native) == TensorSpec((2,), dtype)
    sources = [
        Dataset.from_tensor_slices(array).batch(3),
        Dataset.from_tensors(array),
        Dataset.from_generator(lambda: iter([array])),
        Dataset.from_generator(lambda: iter([array]), TensorSpec((None, 2), dtype)),
        Dataset.range(1).map(lambda _: array),
        Dataset.from_tensor_slices(np.asfortranarray(array)).batch(3),
        Dataset.from_tensor_slices(array).shuffle(3, seed=1).batch(1).unbatch().batch(3).map(lambda x: x[np.argsort(x[:, 0].real)]),
    ]
    for dataset in sources:
        (found,) = dataset
        assert found.dtype.str == native.str
        assert found.tolist() == [[0, 1], [2, 3], [4, 5]]
    scalars = list(Dataset.from_tensor_slices(array[:, 0]))
    assert [(x.dtype.str, x.item()) for x in scalars] == [(native.str, 0), (native.str, 2), (native.str, 4)]


def test_a_file_in_the_other_byte_order_is_not_copied_as_a_whole(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(4.0).astype(">f4"))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    dataset = Dataset.from_tensor_slices(mapped)
    assert np.shares_memory(dataset.node.tables[0], mapped)
    assert [(x.dtype.str, float(x)) for x in dataset] == [("<f4", 0), ("<f4", 1), ("<f4", 2), ("<f4", 3)]


def test_texts_of_variable_width():
    array = np.array(["ab", "c" * 2000, ""], TEXTS())
    assert Dataset.from_tensor_slices(array).element_spec == TensorSpec((), object) == TensorSpec((), TEXTS())
    for dataset in (Dataset.from_tensor_slices(array), Dataset.from_generator(lambda: iter([array])).unbatch()):
        assert list(dataset) == ["ab", "c" * 2000, ""]


def test_copies_keep_masks_and_lose_the_byte_order():
    assert own(MASKED).mask.tolist() == [False, True, False]
    for size in (3, 5000):
        copy = own(np.arange(size).astype(">f4"))
        assert copy.dtype.str == "<f4"
        assert copy[-1] == size - 1
    texts = np.array(["ab"] * 5000, TEXTS())
    assert own(texts).tolist() == ["ab"] * 5000


@pytest.mark.parametrize("value", [3, "a", None, np.float32(1), np.array(["a"], object), np.array(["2020"], "M8[D]"), np.zeros(2)])
def test_all_else_stays_as_it_is(value):
    assert usable(value, ValueError) is value


def test_the_whole_message():
    message = (
        "from_tensor_slices: the element is a masked array, in which 1 of 3 values are masked, the first at (1,). Fill them "
        "in: `array.filled(0)`. To train without them, pass `~np.ma.getmaskarray(array)` as weights, too."
    )
    with pytest.raises(DatasetError, match=f"^{re.escape(message)}$"):
        Dataset.from_tensor_slices(MASKED)
