"""replicant.keras.utils against what Keras's functions of the same names gave with TensorFlow.

A case is a call: the function, the files in the folder (or the data), its arguments, and its result or the type of its error. Of
what is shuffled in each pass, the elements of one pass were recorded: the same examples must come, in batches of the same sizes.

The pictures under "resized" were resized by tf.image.resize and resize_with_pad; only sizes that these refuse have no "padded".
"""

import base64
import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest

from replicant.data import Dataset
from replicant.input.graph._structure import STRING
from replicant.keras import utils
from replicant.keras.utils._resize import resize, resize_with_pad

FIGURES = json.loads((Path(__file__).parent / "figures" / "folders.json").read_text())
CASES = [pytest.param(case, id=f"{case['function'].partition('_')[0]}-{i}") for i, case in enumerate(FIGURES["cases"])]
EXACT, LEVELS = 4e-4, 4.5  # of 255, by which pixels may differ: in general, and from two decoders

DECODER = "pictures are decoded by Pillow"
MORE = "more pictures can be read"
TEXTS = "texts are `str`"
LABELS = "labels must fit the classes"
NO_VALIDATION = "a part without files is an error"
WINDOWS = "windows have rows"
ERRORS = (ValueError, TypeError)
SPLIT_NAMES = {"np": np, "D": Dataset}


def plant(folder, tree):
    """Make the folder of a case, beside another one."""
    (folder / "other").mkdir()
    (folder / "other" / "o.png").write_bytes(base64.b64decode(FIGURES["files"]["grey"]))
    base = folder / "data"
    base.mkdir()
    for path, what in tree.items():
        place = base / path
        (place if what is None else place.parent).mkdir(parents=True, exist_ok=True)
        if isinstance(what, dict):
            place.symlink_to(what["link"])
        elif what is not None:
            place.write_bytes(base64.b64decode(FIGURES["files"][what]))


def called(case, folder):
    arguments = dict(case["args"])
    if "tree" not in case:
        targets = None if case["targets"] is None else eval(case["targets"])
        return utils.timeseries_dataset_from_array(eval(case["data"]), targets, **arguments)
    if case["tree"] != "missing" and not (folder / "data").exists():
        plant(folder, FIGURES["trees"][case["tree"]])
    if isinstance(arguments.get("image_size"), list):
        arguments["image_size"] = tuple(arguments["image_size"])
    return getattr(utils, case["function"])(folder / "data", verbose=False, **arguments)


def listed(made):
    return list(made) if isinstance(made, list | tuple) else [made]


def is_pair(spec):
    return isinstance(spec[0], list)


def types(spec):
    """The dtypes and ranks of a spec."""
    if isinstance(spec, tuple):
        return [types(each) for each in spec]
    return ["string" if spec.dtype == STRING else spec.dtype.name, len(spec.shape)]


def ranks(recorded):
    return [ranks(each) for each in recorded] if is_pair(recorded) else [recorded[0], len(recorded[1])]


def texts(value):
    """A recorded value. What is no UTF-8 was recorded as bytes, of which the last character is incomplete."""
    if isinstance(value, list):
        return [texts(each) for each in value]
    return base64.b64decode(value["bytes"]).decode(errors="ignore") if isinstance(value, dict) else value


def components(elements, pair):
    """For each element, an array for each component."""
    return [[array(each) for each in (element if pair else [element])] for element in elements]


def array(value):
    value = texts(value)
    return np.asarray(value, object) if is_text(value) else np.asarray(value)


def is_text(value):
    while isinstance(value, list) and value:
        value = value[0]
    return isinstance(value, str)


def close(ones, others, levels):
    return len(ones) == len(others) and all(map(lambda one, other: _close(one, other, levels), ones, others))


def _close(one, other, levels):
    if one.shape != other.shape:
        return one.size == other.size == 0
    if one.dtype.kind in "OU":
        return one.tolist() == other.tolist()
    return np.allclose(one.astype(np.float64), other.astype(np.float64), rtol=1e-5, atol=levels)


def rows(elements, batched):
    return [list(map(np.asarray, row)) for element in elements for row in zip(*element, strict=True)] if batched else elements


def check_elements(dataset, recorded, batched, levels):
    pair = is_pair(recorded["spec"])
    expected, found = components(recorded["elements"], pair), components(dataset, pair)
    if "shuffled" not in recorded:
        assert len(found) == len(expected)
        for i, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert close(one, other, levels), (i, one, other)
        return
    if batched:
        assert [len(each[0]) for each in found] == [len(each[0]) for each in expected]
    missing = rows(expected, batched)
    for row in rows(found, batched):
        missing.pop(next(i for i, each in enumerate(missing) if close(row, each, levels)))
    assert not missing


def check(made, case, base, levels):
    result = case["result"]
    kind = {"list": list, "tuple": tuple}.get(result["kind"])
    assert kind is None or type(made) is kind
    assert len(listed(made)) == len(result["datasets"])
    for dataset, recorded in zip(listed(made), result["datasets"], strict=True):
        if "class_names" in recorded:
            assert dataset.class_names == recorded["class_names"]
        if "file_paths" in recorded:
            assert [os.path.relpath(path, base) for path in dataset.file_paths] == recorded["file_paths"]
        assert types(dataset.element_spec) == ranks(recorded["spec"])
        check_elements(dataset, recorded, case["args"].get("batch_size", 1) is not None, levels)


def fails(case, folder):
    """Whether the call, or a pass over its datasets, raises an error."""
    try:
        for dataset in listed(called(case, folder)):
            list(dataset)
    except ERRORS:
        return True
    return False


def difference(case):
    """The row of docs/differences.md that explains a result of its own, and whether an error is raised."""
    tree, arguments, error = case.get("tree"), case["args"], case["result"].get("error")
    if tree == "not_text":
        return TEXTS, True
    if tree == "unicode" and arguments.get("max_length"):
        return TEXTS, False
    if arguments.get("labels") == [3, 7, 3, 7]:
        return LABELS, True
    if 0 < arguments.get("validation_split", 0) < 0.1 and arguments["subset"] != "both":
        return NO_VALIDATION, arguments["subset"] == "validation"
    if arguments.get("sequence_length") == 0:
        return WINDOWS, True
    files = [] if tree in (None, "missing") else [str(path) for path in FIGURES["trees"][tree]]
    if error is None and (any(path.endswith((".jpg", ".jpeg")) for path in files) or tree == "wrong_ending"):
        return DECODER, False
    if tree == "kinds" and arguments["color_mode"] in ("grayscale", "rgba"):
        return DECODER, False
    if error == "InvalidArgumentError" and arguments.get("color_mode") in ("grayscale", "rgba"):
        return DECODER, False
    return None, error is not None


def with_opaque(case, dataset):
    """The recorded elements of pictures to which TensorFlow adds an alpha of 1 or 15."""
    if case.get("tree") == "kinds" and case["args"]["color_mode"] == "rgba":
        for each in (4, 6):
            for pixel in itertools.chain.from_iterable(dataset["elements"][0][0][each]):
                pixel[3] = 255.0


@pytest.mark.parametrize("case", CASES)
def test_case(case, tmp_path, report, request):
    reason, is_error = difference(case)
    if is_error or "error" in case["result"]:
        assert fails(case, tmp_path) == is_error
    else:
        for each in case["result"]["datasets"]:
            with_opaque(case, each)
        check(called(case, tmp_path), case, tmp_path / "data", LEVELS if reason == DECODER else EXACT)
    report.count(request.node.callspec.id, reason)


def split(value):
    """What a part of a split dataset holds."""
    if isinstance(value, dict):
        return {key: split(each) for key, each in value.items()}
    return [split(each) for each in value] if isinstance(value, tuple) else np.asarray(value).tolist()


@pytest.mark.parametrize("number", range(len(FIGURES["splits"])))
def test_split(number, report):
    case = FIGURES["splits"][number]
    if "error" in case["result"]:
        with pytest.raises(ERRORS):
            utils.split_dataset(eval(case["data"], SPLIT_NAMES), **case["args"])
    else:
        made = utils.split_dataset(eval(case["data"], SPLIT_NAMES), **case["args"])
        assert [[split(element) for element in part] for part in made] == case["result"]["parts"]
    report.passed(f"split-{number}")


def picture(height, width):
    """The picture that was resized."""
    y, x = np.mgrid[0:height, 0:width]
    return ((x * 37 + y * 61 + (x * y) % 23 * 5) % 256).astype(np.uint8)[..., None]


@pytest.mark.parametrize("number", range(len(FIGURES["resized"])))
def test_resize(number, report):
    case = FIGURES["resized"][number]
    for name, function in (("resized", resize), ("padded", resize_with_pad)):
        if name in case:
            made = function(picture(*case["size"]), *case["new"], case["method"])
            assert np.allclose(made[..., 0], case[name], rtol=0, atol=EXACT), (case["size"], case["new"], case["method"], name)
    report.passed(f"resized-{number}")


def test_at_least_20_cases_of_each_function_are_equal(counted, report):
    for name in ("audio", "image", "resized", "split", "text", "timeseries"):
        assert sum(key.startswith(name) and outcome == "passed" for key, outcome in report.outcomes.items()) >= 40
    assert len(counted) == len(CASES) + len(FIGURES["splits"]) + len(FIGURES["resized"])
