"""After an error, nothing is passed over: whoever asks again gets the error again, or goes on there once the cause is gone."""

import itertools
import json
import os

import numpy as np
import pytest

from replicant.data import Dataset, DistributedDataset, TextLineDataset
from replicant.errors import DatasetError
from replicant.input import _iterator
from replicant.replicas._topology import Topology

HOLDING = {"fails": True}
SPEC = Dataset.range(1).element_spec


def five(x):
    if x == 5 and HOLDING["fails"]:
        raise ValueError("five")
    return x


def numbers():
    return (five(i) for i in range(10))


@pytest.fixture(autouse=True)
def failing(monkeypatch):
    monkeypatch.setitem(HOLDING, "fails", True)


PIPELINES = {
    "map": lambda: Dataset.range(10).map(five).batch(1),
    "map, batch": lambda: Dataset.range(10).map(five).batch(4),
    "batch, prefetch": lambda: Dataset.range(10).map(five).batch(4).prefetch(2),
    "threads": lambda: Dataset.range(10).map(five, num_parallel_calls=2).batch(4),
    "shuffle": lambda: Dataset.range(10).map(five).shuffle(3).batch(2),
    "filter": lambda: Dataset.range(10).filter(lambda x: five(x) >= 0).batch(4),
    "generator": lambda: Dataset.from_generator(numbers, output_signature=SPEC).batch(4),
    "zip": lambda: Dataset.zip(Dataset.range(10).map(five), Dataset.range(10)).map(lambda x, y: x).batch(4),
    "repeat": lambda: Dataset.range(10).map(five).repeat(2).batch(4),
    "scan": lambda: Dataset.range(10).map(five).scan(np.int64(0), lambda s, x: (s + x, s + x)).batch(4),
    "windows": lambda: Dataset.range(10).map(five).window(3).flat_map(lambda window: window.batch(3)),
    "cache": lambda: Dataset.range(10).map(five).cache().batch(4),
    "interleave": lambda: Dataset.range(10).interleave(lambda i: Dataset.range(i, i + 1).map(five), cycle_length=2).batch(4),
}


def distributed(dataset):
    return DistributedDataset(dataset, Topology(), lambda rows, sizes: rows)


def before_error(iterator):
    came = []
    with pytest.raises(ValueError, match="five"):
        came.extend(iterator)
    return came


@pytest.mark.parametrize("kind", [lambda dataset: dataset, distributed], ids=["alone", "distributed"])
@pytest.mark.parametrize("name", PIPELINES)
def test_the_error_comes_again_until_its_cause_is_gone(name, kind):
    iterator = iter(kind(PIPELINES[name]()))
    came = before_error(iterator)
    for _ in range(3):
        assert before_error(iterator) == []
    position = json.loads(json.dumps(iterator.state()))
    HOLDING["fails"] = False
    rest = list(iterator)
    everything = sorted(np.concatenate([*came, *rest]).tolist())
    again = iter(kind(PIPELINES[name]()))
    again.restore(position)
    assert [x.tolist() for x in again] == [x.tolist() for x in rest]
    expected = np.cumsum(np.arange(10)) if name == "scan" else np.tile(np.arange(10), 2 if name == "repeat" else 1)
    assert everything == sorted(expected.tolist())
    for each in (iterator, again):
        each.close()


@pytest.mark.parametrize("num_elements", [0, 1, 2, 3, 4, 5, 9])
def test_one_goes_back_from_every_place(monkeypatch, num_elements):
    monkeypatch.setattr(_iterator, "_NOTED_EVERY", 3)

    def at(x):
        if x == num_elements and HOLDING["fails"]:
            raise ValueError("five")
        return x

    dataset = Dataset.range(10).shuffle(4).map(lambda x: x)
    numbered = dataset.enumerate().map(lambda i, x: (at(i), x))
    iterator = iter(numbered)
    came = before_error(iterator)
    assert before_error(iterator) == []
    HOLDING["fails"] = False
    came += list(iterator)
    assert [int(i) for i, _ in came] == list(range(10))
    assert sorted(int(x) for _, x in came) == list(range(10))


@pytest.mark.parametrize("kind", [lambda dataset: dataset, distributed], ids=["alone", "distributed"])
@pytest.mark.parametrize(
    "read",
    [
        TextLineDataset,
        lambda names: TextLineDataset(names, num_parallel_reads=2),
        lambda names: TextLineDataset(names).prefetch(2),
        lambda names: Dataset.from_tensor_slices(names).interleave(TextLineDataset, cycle_length=2),
    ],
)
def test_a_file_that_cannot_be_opened_is_not_passed_over(tmp_path, read, kind):
    names = [str(tmp_path / name) for name in "abc"]
    for name in "ac":
        (tmp_path / name).write_text(f"{name}0\n{name}1\n")
    iterator, came = iter(kind(read(names).batch(1))), []
    for _ in range(3):
        with pytest.raises(DatasetError, match=r"cannot open '.*b'"):
            came.extend(x[0] for x in iterator)
    (tmp_path / "b").write_text("b0\nb1\n")
    came.extend(x[0] for x in iterator)
    assert sorted(came) == ["a0", "a1", "b0", "b1", "c0", "c1"]


def test_ctrl_c_in_the_middle_of_an_element_loses_nothing():
    calls = itertools.count()

    def interrupted(x):
        if next(calls) == 6:
            raise KeyboardInterrupt
        return x

    iterator, came = iter(Dataset.range(12).map(interrupted).batch(4)), []
    with pytest.raises(KeyboardInterrupt):
        came.extend(iterator)
    came.extend(iterator)
    assert np.concatenate(came).tolist() == list(range(12))


def test_data_that_have_become_shorter_are_told(tmp_path):
    (tmp_path / "a").write_text("".join(f"{i}\n" for i in range(8)))
    iterator = iter(TextLineDataset(tmp_path / "a").map(lambda line: five(int(line))))
    assert [int(x) for x in before_error(iterator)] == [0, 1, 2, 3, 4]
    (tmp_path / "a").write_text("0\n1\n")
    with pytest.raises(DatasetError, match=r"before it, only 1 are there now|The file has changed since the position was saved"):
        next(iterator)


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_fork_does_not_go_on_after_an_error():
    iterator = iter(Dataset.range(10).map(five).prefetch(1))
    assert len(before_error(iterator)) == 5
    told, tell = os.pipe()
    if not (child := os.fork()):
        try:
            next(iterator)
        except DatasetError as error:
            os.write(tell, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert b"Make the iterator after the fork" in os.read(told, 1000)
    assert before_error(iterator) == []
