"""Datasets against what TensorFlow 2.21 gave. Each case is one expression, which was evaluated in both (`_tfdata_cases.py`)."""

import itertools
import json
import random
import tempfile
from pathlib import Path

import _tfdata_cases
import numpy as np
import pytest
from _tfdata_different import DIFFERENT

from replicant.data import (
    CsvDataset,
    Dataset,
    DatasetSpec,
    FixedLengthRecordDataset,
    TensorSpec,
    TextLineDataset,
    TFRecordDataset,
    TFRecordWriter,
    make_csv_dataset,
)
from replicant.input.graph._structure import STRING

FIGURES = json.loads((Path(__file__).parent / "figures" / "tfdata.json").read_text())
MOST = _tfdata_cases.MOST
AT_LEAST = 20  # cases of each method that tf.data has and other libraries have not

KNOWN = "the cardinality of an empty dataset is 0"
UNKNOWN = -2


def needs_pandas(case):
    return "frame(" in case["call"]


def of_subject(subject, with_elements=False):
    """The cases of a subject; those of pandas are apart."""
    return [case for case in FIGURES[subject] if not needs_pandas(case) and ("elements" in case or not with_elements)]


def failing(x, *bad):
    if any(x == each for each in bad):
        raise ValueError(f"element {x}")
    return x


def plain(value):
    if isinstance(value, Dataset):
        return {"dataset": [plain(element) for element in value]}
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, np.ndarray) and value.dtype == STRING:
        return [plain(each) for each in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def types(spec):
    """The dtypes and ranks of a spec."""
    if isinstance(spec, DatasetSpec):
        return {"dataset": types(spec.element_spec)}
    if isinstance(spec, dict):
        return {key: types(each) for key, each in spec.items()}
    if isinstance(spec, tuple):
        return [types(each) for each in spec]
    return ["string" if spec.dtype == STRING else spec.dtype.name, len(spec.shape)]


def fits(ours, recorded):
    """Whether these are the types of a recorded spec. A shape that TensorFlow did not know says nothing about the rank."""
    if isinstance(recorded, dict):
        return isinstance(ours, dict) and {*ours} == {*recorded} and all(fits(ours[key], recorded[key]) for key in recorded)
    if recorded and isinstance(recorded[0], str):
        dtype, shape = recorded
        return ours[0] == dtype and (shape is None or ours[1] == len(shape))
    return len(ours) == len(recorded) and all(fits(one, other) for one, other in zip(ours, recorded, strict=True))


def names_in(path):
    def records(*contents, form=""):
        name = Path(tempfile.mkdtemp(dir=path)) / "records"
        with TFRecordWriter(name, form) as writer:
            for content in contents:
                writer.write(content.encode())
        return str(name)

    return {
        **_tfdata_cases.Words(Dataset, plain, path).all(),
        "failing": failing,
        "fill": lambda n: np.full(int(n), n),
        "cast": lambda x, dtype: np.asarray(x).astype(dtype)[()],
        "where": np.where,
        "total": lambda x: np.sum(x, dtype=np.asarray(x).dtype),
        "size": lambda x: np.int32(np.size(x)),
        "Spec": TensorSpec,
        "records": records,
        "Csv": CsvDataset,
        "make_csv": make_csv_dataset,
        "Fixed": FixedLengthRecordDataset,
        "Lines": TextLineDataset,
        "Records": TFRecordDataset,
    }


@pytest.fixture
def evaluated(tmp_path, monkeypatch):
    """Evaluate the expression of a case, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    names = names_in(tmp_path)
    return lambda case: eval(case["call"], dict(names))


def first_elements(dataset):
    return [plain(element) for element in itertools.islice(dataset, MOST)]


def outcome(case, evaluated):
    """What Replicant gives, as TensorFlow's was recorded."""
    try:
        got = evaluated(case)
        if isinstance(got, Dataset):
            elements = first_elements(got)
            spec = None if got.element_spec is None else types(got.element_spec)
            return {"elements": elements, "spec": spec, "cardinality": got.cardinality()}
    except (ValueError, TypeError) as error:
        return {"error": str(error)}
    return {"value": plain(got), "dtype": "string" if isinstance(got, str | bytes) else np.asarray(got).dtype.name}


def same(one, other):
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)  # also of NaN, and 1 is not 1.0


def difference(case, ours):
    """What is different: None, the reason KNOWN, or a text that no row explains."""
    kind = next(key for key in ("error", "value", "elements") if key in case)
    text = f"TensorFlow gave {case}, Replicant {ours}"
    if kind not in ours:
        return text
    if kind == "error":
        return None
    if kind == "value":
        return None if same(ours["value"], case["value"]) and case.get("dtype", ours["dtype"]) == ours["dtype"] else text
    if not same(ours["elements"], case["elements"]) or (ours["spec"] is not None and not fits(ours["spec"], case["spec"])):
        return text
    if ours["cardinality"] == case["cardinality"]:
        return None
    return KNOWN if ours["cardinality"] in (len(case["elements"]), UNKNOWN) else text


def as_expected(ours, expected):
    if "error" in expected:
        return expected["error"] in ours.get("error", "")
    return same({key: ours.get(key) for key in expected}, expected)


def unexplained(cases, evaluated, report):
    """The cases that are different without a reason. Counts the others."""
    found = []
    for case in cases:
        ours = outcome(case, evaluated)
        reason = difference(case, ours)
        if case["call"] in DIFFERENT:
            explained, expected = DIFFERENT[case["call"]]
            if reason is None:
                found.append(f"{case['call']} gives what TensorFlow gave, so it needs no reason")
            elif not as_expected(ours, expected):
                found.append(f"{case['call']}: expected {expected}. {reason}")
            reason = explained
        elif reason not in (None, KNOWN):
            found.append(f"{case['call']}: {reason}")
            continue
        report.count(case["call"], reason)
    return found


def test_each_case_was_recorded_and_each_method_has_enough():
    assert {subject: [case["call"] for case in cases] for subject, cases in FIGURES.items()} == _tfdata_cases.all_cases()
    assert [subject for subject, cases in FIGURES.items() if len(cases) < AT_LEAST] == []
    calls = {case["call"] for cases in FIGURES.values() for case in cases}
    assert [call for call in DIFFERENT if call not in calls] == []


@pytest.mark.parametrize("subject", FIGURES)
@pytest.mark.long_cases("rejection_resample")
def test_elements_spec_and_cardinality_are_those_of_tensorflow(subject, evaluated, report):
    assert unexplained(of_subject(subject), evaluated, report) == []


def test_frames_of_pandas_are_taken_as_tensorflow_takes_them(evaluated, report):
    pytest.importorskip("pandas", reason="these cases are about frames of pandas, which nothing else here needs")
    cases = [case for cases in FIGURES.values() for case in cases if needs_pandas(case)]
    assert unexplained(cases, evaluated, report) == []


@pytest.mark.parametrize("subject", FIGURES)
def test_an_iterator_continues_at_every_position_of_a_dataset_made_anew(subject, evaluated):
    for case in of_subject(subject, with_elements=True):
        if "error" not in DIFFERENT.get(case["call"], ("", {}))[1]:
            assert_continues(case, evaluated)


def assert_continues(case, evaluated):
    random.seed(1)  # decides on choices without a seed
    iterator = iter(evaluated(case))
    expected, positions = [], [iterator.state()]
    for element in itertools.islice(iterator, MOST):
        expected.append(plain(element))
        positions.append(iterator.state())
    for number in sorted({0, 1, 2, len(expected) // 2, len(expected) - 1, len(expected)} & {*range(len(positions))}):
        again = iter(evaluated(case))
        again.restore(json.loads(json.dumps(positions[number])))
        rest = [plain(each) for each in itertools.islice(again, len(expected) - number)]
        assert same(rest, expected[number:]), (case["call"], number)


@pytest.mark.parametrize("subject", FIGURES)
def test_elements_do_not_depend_on_how_many_are_pulled_at_a_time(subject, evaluated):
    for case in of_subject(subject, with_elements=True):
        expected = DIFFERENT.get(case["call"], ("", case))[1]
        for limit in (2, 7) if "elements" in expected else ():
            wanted = expected["elements"]
            found = pulled(evaluated(case), limit, len(wanted))
            assert same(found if len(wanted) < MOST else found[:MOST], wanted), (case["call"], limit)


def pulled(dataset, limit, count):
    cursor = dataset.node.open()
    found = []
    while len(found) < count and (block := cursor.pull(limit)) is not None:
        assert 1 <= block.size <= limit
        found += [plain(element) for element in block.elements()]
    cursor.close()
    return found
