"""What remembers, groups, chooses or leaves out elements: over workers, with hostile functions, and what is refused.

The values of each method are compared with TensorFlow's in `tests/conformance/test_tfdata.py`.
"""

import itertools
import json
import logging
import random
import threading

import numpy as np
import pytest

from replicant.data import AutoShardPolicy, Dataset, DatasetSpec, DistributedDataset, Options, TensorSpec, TextLineDataset
from replicant.errors import ArgumentError, ArgumentTypeError, DatasetError, ElementError
from replicant.input.transforms.mixtures import _sample_from
from replicant.replicas._topology import Topology

NUMBERS = Dataset.range(10)
ZERO = np.int64(0)


def cut(rows, sizes):
    ends = np.cumsum(sizes)
    return [rows[end - size : end].tolist() for end, size in zip(ends, sizes, strict=True)]


def refuse_three(x):
    if x == 3:
        raise ValueError("three")
    return x


def fill(n):
    return np.full(n, n)


def lengths():
    return Dataset.from_tensor_slices([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]).map(fill)


PIPELINES = {
    "take_while": lambda: NUMBERS.batch(4).take_while(lambda x: x[0] < 8),
    "scan": lambda: NUMBERS.scan(ZERO, lambda s, x: (s + x, s + x)).batch(4),
    "unique": lambda: NUMBERS.map(lambda x: x % 4).unique().batch(3),
    "window": lambda: NUMBERS.window(4, 2, drop_remainder=True).flat_map(lambda w: w.batch(4)),
    "group_by_window": lambda: NUMBERS.group_by_window(lambda x: x % 3, lambda key, w: w.batch(2), window_size=2),
    "bucket": lambda: lengths().bucket_by_sequence_length(len, [4], [2, 3]),
    "choose": lambda: Dataset.choose_from_datasets([NUMBERS, Dataset.range(20, 30)], Dataset.range(2).repeat()).batch(4),
    "sample": lambda: Dataset.sample_from_datasets([NUMBERS, Dataset.range(20, 30)]).batch(4),
    "resample": lambda: Dataset.range(40).rejection_resample(lambda x: x % 2, [0.2, 0.8]).map(lambda c, x: x).batch(4),
    "random": lambda: Dataset.random().take(10).map(lambda x: x % 1000).batch(4),
    "counter": lambda: Dataset.counter().take(10).batch(4),
    "ignore_errors": lambda: NUMBERS.map(refuse_three).ignore_errors().batch(4),
    "shuffled windows": lambda: NUMBERS.window(5).flat_map(lambda w: w.shuffle(5)).batch(4),
    "shuffled groups": lambda: NUMBERS.group_by_window(lambda x: x % 2, lambda key, w: w.shuffle(9).batch(3), window_size=4),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_workers_that_share_the_data_see_the_chiefs_elements_once(name, run_workers):
    before = random.getstate()
    datasets = [PIPELINES[name]() for _ in range(2)]  # each draws its own seeds
    list(datasets[1])  # a worker may look at the dataset beforehand

    def passes(worker, exchange):
        dataset = datasets[worker]
        shared = DistributedDataset(dataset, Topology(2, worker, 1), cut, exchange=exchange)
        return [list(shared), list(shared)]

    random.setstate(before)
    alone = PIPELINES[name]()
    told = run_workers(2, passes)
    for number in range(2):
        steps = zip(told[0][number], told[1][number], strict=True)
        together = [[row for part in step for chunk in part for row in chunk] for step in steps]
        expected = [batch.tolist() for batch in alone]
        if "shuffled" in name:  # numbered by iterations, of which the chief has begun more
            assert sorted(map(str, sum(together, []))) == sorted(map(str, sum(expected, [])))
        elif name == "resample":  # the same
            rows = sum(together, [])
            assert rows == sorted({*rows})
            assert len(rows) > 10
        else:
            assert together == expected


@pytest.mark.parametrize("name", ["random", "sample", "resample"])
def test_choices_without_a_seed_need_an_exchange(name):
    with pytest.raises(DatasetError, match=r"because `\w+` has no seed: .* Give it one: `\w+\(\.\.\., seed=1\)`"):
        DistributedDataset(PIPELINES[name](), Topology(2, 0, 1), cut)


@pytest.fixture
def files(tmp_path):
    paths = []
    for number in range(4):
        paths.append(tmp_path / f"{number}.txt")
        paths[-1].write_text("".join(f"{10 * number + i}\n" for i in range(4)))
    return [str(path) for path in paths]


@pytest.mark.parametrize(
    "make",
    [
        lambda lines: lines.scan(0, lambda n, x: (n + 1, x)).batch(4),
        lambda lines: lines.take_while(lambda x: x != "32").batch(4),
        lambda lines: lines.unique().batch(4),
        lambda lines: lines.window(3).flat_map(lambda w: w.batch(3)),
        lambda lines: lines.group_by_window(lambda x: int(x) % 2, lambda key, w: w.batch(4), window_size=4),
        lambda lines: lines.ignore_errors().batch(4),
    ],
)
def test_by_files_each_worker_applies_them_to_its_own_elements(files, make, run_workers):
    options = Options()
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy.FILE

    def rows(worker, exchange):
        dataset = make(TextLineDataset(files)).with_options(options)
        steps = DistributedDataset(dataset, Topology(2, worker, 1), cut, exchange=exchange)
        return [row for step in steps for part in step for row in part]

    own = [[row for batch in make(TextLineDataset(files[worker::2])) for row in batch.tolist()] for worker in range(2)]
    assert run_workers(2, rows) == own


def test_explain_knows_the_batches_behind_them():
    batches = NUMBERS.batch(4)
    assert batches.explain(2).last_batch_size == 2
    for dataset, size, last in [
        (batches.scan(ZERO, lambda s, x: (s, x)), 4, 2),
        (batches.take_while(lambda x: True), 4, None),
        (batches.ignore_errors(), 4, None),
        (Dataset.sample_from_datasets([batches, batches]), 4, None),
        (Dataset.choose_from_datasets([batches, NUMBERS.batch(3)], Dataset.range(2)), None, None),
        (PIPELINES["window"](), None, None),
        (PIPELINES["bucket"](), None, None),
        (NUMBERS.window(4).flat_map(lambda w: w.batch(4, drop_remainder=True)), 4, None),
    ]:
        plan = dataset.explain(num_workers=2)
        assert (plan.batch_size, plan.last_batch_size) == (size, last)
        assert "2 workers" in str(plan)


def test_a_function_cannot_spoil_the_first_state_of_later_passes():
    def add(state, x):
        state += x
        return state, x

    dataset = NUMBERS.scan(np.zeros(2, np.int64), add)
    with pytest.raises(ValueError, match="read-only"):
        list(dataset)
    state = np.zeros(2, np.int64)
    dataset = NUMBERS.scan(state, lambda s, x: (s + x, s))
    state += 100
    assert next(iter(dataset)).tolist() == [0, 0]


def test_a_state_of_any_dtype_and_shape_is_part_of_the_position():
    first = ({"text": "", "n": np.zeros((0, 2), "float16")}, True)

    def step(state, x):
        values, flag = state
        return ({"text": values["text"] + str(x), "n": np.ones((x, 2), "float16")}, not flag), (values["text"], values["n"].sum())

    dataset = NUMBERS.scan(first, step)
    whole = list(dataset)
    iterator = iter(dataset)
    for number in range(10):
        again = iter(dataset)
        again.restore(json.loads(json.dumps(iterator.state())))
        assert list(again) == whole[number:]
        next(iterator)


def test_positions_hold_through_prefetch_repeat_and_nested_windows():
    def make():
        windows = NUMBERS.map(lambda x: x + 1).window(4, 1).shuffle(5, seed=3).flat_map(lambda w: w.shuffle(4).batch(2))
        return windows.filter(lambda x: len(x) == 2).prefetch(3).repeat(2)

    random.seed(5)
    iterator = iter(make())
    positions, elements = [], []
    for element in iterator:
        elements.append(element.tolist())
        positions.append(json.loads(json.dumps(iterator.state())))
    for number in range(0, len(elements), 5):
        with iter(make()) as again:
            again.restore(positions[number])
            assert [element.tolist() for element in again] == elements[number + 1 :]


def test_a_position_holds_the_numbers_of_elements_in_open_windows_not_the_elements():
    dataset = (
        Dataset.range(1000).map(lambda x: (x, fill(1000))).group_by_window(lambda x, _: x % 7, lambda key, w: w, window_size=5)
    )
    iterator = iter(dataset)
    first = [next(iterator) for _ in range(501)]
    text = json.dumps(iterator.state())
    assert len(text) < 5000
    again = iter(dataset)
    again.restore(json.loads(text))
    numbers = [int(x) for x, _ in itertools.chain(first, again)]
    assert numbers == [int(x) for x, _ in dataset]
    assert sorted(numbers) == [*range(1000)]


def test_two_threads_may_iterate_at_once():
    datasets = [PIPELINES[name]() for name in PIPELINES if name not in ("sample", "resample", "random") and "shuffled" not in name]
    expected = [[batch.tolist() for batch in dataset] for dataset in datasets]
    found = [None, None]

    def read(number):
        found[number] = [[batch.tolist() for batch in dataset] for dataset in datasets]

    threads = [threading.Thread(target=read, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected, expected]


def test_windows_have_specs_and_the_elements_of_every_kind():
    assert NUMBERS.window(2).element_spec == DatasetSpec(TensorSpec((), np.int64))
    pairs = Dataset.from_tensor_slices({"x": np.arange(6).reshape(3, 2), "name": ["a", "b", "c"]}).window(2)
    first = next(iter(pairs))
    assert [row.tolist() for row in first["x"]] == [[0, 1], [2, 3]]
    assert list(first["name"]) == ["a", "b"]
    assert first["x"].element_spec == TensorSpec((2,), np.int64)
    assert len(first["x"]) == 2
    assert [row.tolist() for row in first["x"]] == [[0, 1], [2, 3]]  # again, from its beginning


def test_errors_are_left_out_once_and_logged_if_asked_for(caplog):
    dataset = NUMBERS.map(refuse_three).ignore_errors(log_warning=True)
    with caplog.at_level(logging.WARNING, logger="replicant.data"):
        assert list(dataset) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert caplog.messages == ["ignore_errors: an element was left out: ValueError: three"]
    assert list(NUMBERS.map(refuse_three).prefetch(4).shuffle(3).ignore_errors().take(2).repeat(0)) == []


def test_an_error_that_does_not_go_away_is_raised():
    def broken():
        raise OSError("no disk")
        yield 1

    missing = TextLineDataset(["/nowhere/a.txt"])
    assert list(missing.ignore_errors()) == []
    assert list(Dataset.from_generator(broken, TensorSpec((), np.int64)).ignore_errors()) == []

    def all_fail(x):
        raise KeyError("always")

    assert list(NUMBERS.map(all_fail).map(lambda x: x).ignore_errors()) == []


def test_counters_and_random_numbers_can_be_skipped_far():
    assert next(iter(Dataset.counter(1, 2).skip(10**12))) == 1 + 2 * 10**12
    assert Dataset.random(seed=1).skip(10**9).take(1).get_single_element() < 2**32
    numbers = list(Dataset.random(seed=1).take(9))
    assert list(Dataset.random(seed=1).skip(5).take(4)) == numbers[5:]
    again = Dataset.random(seed=1, rerandomize_each_iteration=True).take(9)
    assert list(again) == numbers
    assert list(again) != numbers


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: NUMBERS.window(0), ArgumentError, "window: size must be at least 1. Received: 0"),
        (lambda: NUMBERS.window(2, 0), ArgumentError, "window: shift must be at least 1. Received: 0"),
        (lambda: NUMBERS.window(2, stride=0), ArgumentError, "window: stride must be at least 1. Received: 0"),
        (
            lambda: list(NUMBERS.window(2).batch(2)),
            ElementError,
            "is a dataset, and datasets cannot be stacked.*flat_map",
        ),
        (lambda: list(NUMBERS.window(2).map(lambda w: w)), DatasetError, "the element is a Dataset, which is not a tensor"),
        (lambda: NUMBERS.scan(0, 3), ArgumentTypeError, "scan takes a function of one element. Received: 3"),
        (lambda: list(NUMBERS.scan(ZERO, lambda s, x: s)), ElementError, "scan: .*lambda.* must return a pair: .* It returned .*0"),
        (
            lambda: list(NUMBERS.scan(0, lambda s, x: (s + x, x))),
            ElementError,
            "scan: the state was int32 and became int64",
        ),
        (
            lambda: list(NUMBERS.scan(ZERO, lambda s, x: ((s, s), x))),
            ElementError,
            r"scan: the new state has the structure \(\*, \*\), but the initial state has \*",
        ),
        (
            lambda: list(NUMBERS.scan(ZERO, lambda s, x: (s, (x, x) if x else x)).batch(3)),
            ElementError,
            r"must return the same structure for all elements. It returned \*, then \(\*, \*\)",
        ),
        (lambda: NUMBERS.reduce({"a": 0}, lambda s, x: {"a": "b"}), ElementError, r"component \['a'\] was int32 and became str_"),
        (lambda: Dataset.counter().reduce(0, lambda s, x: s), DatasetError, "reduce: the dataset is infinite.*`take`"),
        (lambda: list(NUMBERS.take_while(lambda x: x)), ArgumentTypeError, "take_while: .* must return one bool per element"),
        (
            lambda: NUMBERS.group_by_window(int, int),
            ArgumentError,
            "give either .* Received: None and None",
        ),
        (
            lambda: NUMBERS.group_by_window(int, int, 0),
            ArgumentError,
            "window_size must be at least 1. Received: 0",
        ),
        (
            lambda: list(NUMBERS.group_by_window(lambda x: 0.5, lambda k, w: w, 2)),
            ArgumentTypeError,
            "group_by_window: .* must return one whole number per element. Received: 0.5",
        ),
        (
            lambda: list(NUMBERS.group_by_window(lambda x: 7, lambda k, w: w, window_size_func=lambda k: 0)),
            ArgumentError,
            "window_size_func must return at least 1. It returned 0 for 7",
        ),
        (
            lambda: list(NUMBERS.group_by_window(lambda x: 7, lambda k, w: w, window_size_func=lambda k: "2")),
            ArgumentTypeError,
            "window_size_func must return one whole number. Received: '2'",
        ),
        (
            lambda: list(NUMBERS.group_by_window(lambda x: 7, lambda k, w: k, 2)),
            ArgumentTypeError,
            "group_by_window: .* must return a Dataset. It returned .*7",
        ),
        (
            lambda: NUMBERS.bucket_by_sequence_length(len, [4], [2]),
            ArgumentError,
            "one size more than bucket_boundaries. Received 1 sizes and 1 boundaries",
        ),
        (
            lambda: NUMBERS.bucket_by_sequence_length(len, [4, 4], [2, 2, 2]),
            ArgumentError,
            r"that grow. Received: \[4, 4\]",
        ),
        (
            lambda: NUMBERS.bucket_by_sequence_length(len, [5, 3], [2, 2, 2]),
            ArgumentError,
            r"must be numbers that grow. Received: \[5, 3\]",
        ),
        (lambda: NUMBERS.bucket_by_sequence_length(len, [4], [2, 0]), ArgumentError, r"must be at least 1. Received: \[2, 0\]"),
        (
            lambda: list(lengths().bucket_by_sequence_length(lambda x: 1.5, [4], [2, 2])),
            ArgumentTypeError,
            "bucket_by_sequence_length: .* must return one whole number per element. Received: 1.5",
        ),
        (
            lambda: list(lengths().bucket_by_sequence_length(len, [4], [2, 2], pad_to_bucket_boundary=True)),
            ArgumentError,
            "must be shorter than the last of bucket_boundaries, which is 4",
        ),
        (lambda: Dataset.choose_from_datasets([], NUMBERS), ArgumentError, "choose_from_datasets: needs at least one dataset"),
        (
            lambda: Dataset.choose_from_datasets(NUMBERS, NUMBERS),
            ArgumentTypeError,
            "takes a list of datasets",
        ),
        (
            lambda: Dataset.choose_from_datasets([NUMBERS], [0]),
            ArgumentTypeError,
            "takes datasets. Received: list",
        ),
        (
            lambda: list(Dataset.choose_from_datasets([NUMBERS, NUMBERS], Dataset.range(2, 4))),
            ElementError,
            "must be whole numbers from 0 to 1, one for each of the 2 datasets. Received: .*2",
        ),
        (
            lambda: Dataset.choose_from_datasets([NUMBERS, Dataset.from_tensors(1.5)], NUMBERS),
            DatasetError,
            "both datasets need the same structure and dtypes",
        ),
        (
            lambda: Dataset.sample_from_datasets([NUMBERS, NUMBERS], [1.0]),
            ArgumentError,
            r"weights must hold one number for each of the 2 datasets. Received: \[1.0\]",
        ),
        (lambda: Dataset.sample_from_datasets([NUMBERS, NUMBERS], [1.0, -1.0]), ArgumentError, "weights must be at least 0"),
        (
            lambda: list(Dataset.sample_from_datasets([NUMBERS, NUMBERS], Dataset.from_tensors([0.0, 0.0]))),
            ElementError,
            "must hold 2 weights, one for each dataset, of at least 0 and not all 0",
        ),
        (lambda: Dataset.sample_from_datasets([NUMBERS], seed=1.5), ArgumentTypeError, "seed must be an integer. Received: 1.5"),
        (
            lambda: NUMBERS.rejection_resample(int, [0.0, 0.0]),
            ArgumentError,
            "target_dist must be one frequency",
        ),
        (lambda: NUMBERS.rejection_resample(int, [0.5, 0.5], "half"), ArgumentError, "initial_dist must be one frequency .*'half'"),
        (
            lambda: NUMBERS.rejection_resample(int, [0.5, 0.5], [1.0]),
            ArgumentError,
            "one frequency per class. Received 1 and 2",
        ),
        (
            lambda: list(NUMBERS.rejection_resample(lambda x: x, [0.5, 0.5])),
            ElementError,
            "must return a whole number from 0 to 1, as target_dist has 2 classes. Received: .*2",
        ),
        (lambda: NUMBERS.apply(lambda d: 3), ArgumentTypeError, "apply: the function must return a Dataset. It returned 3"),
        (NUMBERS.get_single_element, DatasetError, "get_single_element: the dataset has more than one element.*take"),
        (lambda: NUMBERS.take(0).get_single_element(), DatasetError, "get_single_element: the dataset has no element"),
        (lambda: Dataset.counter("1"), ArgumentTypeError, "counter: start must be a number. Received: '1'"),
        (lambda: Dataset.counter(1, None), ArgumentTypeError, "counter: step must be a number. Received: None"),
    ],
)
def test_what_is_refused_and_what_the_message_says(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_elements_that_hold_datasets_are_not_written(tmp_path):
    with pytest.raises(ElementError, match="hold datasets, as `window` makes them, cannot be written to a file"):
        list(NUMBERS.window(2).cache(tmp_path / "cache"))
    assert list(tmp_path.iterdir()) == []
    cached = NUMBERS.window(5).cache()
    assert [len(window) for window in itertools.chain(cached, cached)] == [5, 5, 5, 5]


def test_choices_of_what_has_ended_do_not_loop_for_ever(monkeypatch):
    assert _sample_from._MOST_ENDED == 1_000_000
    monkeypatch.setattr(_sample_from, "_MOST_ENDED", 1_000)
    parts = [Dataset.range(2), Dataset.range(10, 13)]
    chosen = Dataset.from_tensor_slices([1]).concatenate(Dataset.from_tensors(0).repeat())
    iterator = iter(Dataset.choose_from_datasets(parts, chosen, stop_on_empty_dataset=False))
    assert [int(next(iterator)) for _ in range(3)] == [10, 0, 1]
    for _ in range(2):
        with pytest.raises(
            ElementError, match=r"choose_from_datasets: 1,000 choices in a row name only .* ended \(numbers 0\)\. Repeat these"
        ):
            next(iterator)
    assert [int(x) for x in Dataset.choose_from_datasets(parts, chosen)] == [10, 0, 1]
    late = Dataset.from_tensors(0).repeat(1_001).concatenate(Dataset.from_tensor_slices([1, 1]))
    assert [int(x) for x in Dataset.choose_from_datasets(parts, late, stop_on_empty_dataset=False)] == [0, 1, 10, 11]


def test_errors_may_be_ignored_several_times():
    def odd(x):
        if x % 2 == 0:
            raise ValueError(x)
        return x

    dataset = Dataset.range(30)
    for _ in range(8):
        dataset = dataset.map(odd).shuffle(5, seed=1).ignore_errors()
    assert sorted(dataset) == list(range(1, 30, 2))
