"""cache(filename): replay, by other processes too; nothing half-written; nothing of another pipeline."""

import functools
import gc
import itertools
import json
import os
import subprocess
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from replicant.data import Dataset, TextLineDataset
from replicant.errors import DatasetError
from replicant.input.transforms import _cache_file


class Named(NamedTuple):
    x: Any
    y: Any


def plain(elements):
    return [
        jax.tree_util.tree_map(lambda leaf: (np.asarray(leaf).dtype.name, np.asarray(leaf).tolist()), each) for each in elements
    ]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Dataset.range(700),
        lambda: Dataset.range(7).batch(3),
        lambda: Dataset.from_tensor_slices({"a": np.ones((3, 2), np.float16), "b": (["x", "zwölf", ""],)}),
        lambda: Dataset.from_tensor_slices([b"\xff\0", b""]),
        lambda: Dataset.from_tensor_slices(["a", "b", "c"]).batch(2),
        lambda: Dataset.range(3).map(lambda n: Named(np.zeros((n, 2)), [n] * int(n))),
        lambda: Dataset.range(3).map(lambda n: jnp.full((2,), n, jnp.bfloat16)),
        lambda: Dataset.range(3).map(lambda n: np.ones((0, int(n)), ">i4")),
        lambda: Dataset.range(2).map(lambda n: "text" if n else b"bytes"),
        lambda: Dataset.range(2).map(lambda n: ()),
        lambda: Dataset.range(2).map(lambda n: {"flag": n > 0, "z": np.complex64(n)}),
    ],
)
def test_elements_come_back(tmp_path, make):
    expected = plain(make())
    dataset = make().cache(tmp_path / "kept")
    assert plain(dataset) == expected
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert plain(dataset) == plain(make().cache(tmp_path / "kept")) == expected
    assert [type(x) for x in jax.tree_util.tree_leaves(list(dataset))] == [type(x) for x in jax.tree_util.tree_leaves(list(make()))]


def called_dataset(calls, path):
    return Dataset.range(5).map(lambda x: calls.append(int(x)) or x).cache(path)


@pytest.mark.long
def test_functions_are_called_in_the_first_complete_pass_only(tmp_path):
    calls = []
    dataset = called_dataset(calls, tmp_path / "kept")
    next(iter(dataset))
    gc.collect()
    assert list(tmp_path.iterdir()) == []  # an incomplete pass leaves nothing
    calls.clear()
    assert [x.item() for x in dataset.repeat(3)] == [0, 1, 2, 3, 4] * 3
    assert calls == [0, 1, 2, 3, 4]
    calls.clear()
    assert len(list(called_dataset(calls, tmp_path / "kept").batch(2))) == 3
    assert calls in ([], [0])  # one element says how they are structured


def test_two_first_passes_at_once(tmp_path):
    dataset = Dataset.range(5).cache(tmp_path / "kept")
    first, second = iter(dataset), iter(dataset)
    assert [(x.item(), y.item()) for x, y in zip(first, second, strict=True)] == [(i, i) for i in range(5)]
    assert next(second, "end") == "end"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert [x.item() for x in dataset] == [0, 1, 2, 3, 4]


def test_an_empty_pass_is_not_kept(tmp_path):
    dataset = Dataset.range(0).cache(tmp_path / "kept")
    assert list(dataset) == list(dataset) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_another_process_replays_the_file(tmp_path):
    program = f"""
from replicant.data import Dataset
dataset = Dataset.range(4).map(lambda x: print("called") or x * 2).cache({str(tmp_path / "kept")!r})
print([int(x) for x in dataset])
"""
    outputs = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True).stdout for _ in "12"
    ]
    assert outputs[0].count("called") == 4
    assert outputs[1].count("called") <= 1
    assert [output.splitlines()[-1] for output in outputs] == ["[0, 2, 4, 6]"] * 2


def make_cut(path):
    return Dataset.range(9).shuffle(9, seed=1).cache(path).repeat(2).batch(4)


def test_an_iterator_continues_from_every_point(tmp_path):
    whole = plain(make_cut(tmp_path / "whole"))
    for cut in range(len(whole) + 1):
        with iter(make_cut(tmp_path / str(cut))) as iterator:
            assert plain(itertools.islice(iterator, cut)) == whole[:cut]
            state = json.loads(json.dumps(iterator.state()))
        again = iter(make_cut(tmp_path / str(cut)))
        again.restore(state)
        assert plain(again) == whole[cut:], cut
        assert not list(tmp_path.glob("*.tmp"))


def test_a_file_of_another_pipeline_is_refused(tmp_path):
    list(Dataset.range(3).cache(tmp_path / "kept"))
    with pytest.raises(
        DatasetError,
        match=r"kept' was written by another pipeline: 'range\(0, 3, 1\)'. This one is: 'range\(0, 4, 1\)'. Delete the file",
    ):
        list(Dataset.range(4).cache(tmp_path / "kept"))


def test_a_file_of_other_elements_is_refused(tmp_path):
    pair = False

    def fn(x):
        return (x, x) if pair else x

    list(Dataset.range(3).map(fn).cache(tmp_path / "kept"))
    pair = True
    with pytest.raises(DatasetError, match=r"kept' holds elements like \*, but the pipeline makes elements like \(\*, \*\)"):
        list(Dataset.range(3).map(fn).cache(tmp_path / "kept"))


def test_files_that_are_no_cache_or_damaged(tmp_path):
    path = tmp_path / "kept"
    list(Dataset.range(3).cache(path))
    whole = path.read_bytes()
    for broken in (b"", b"short", whole[:-1]):
        path.write_bytes(broken)
        with pytest.raises(DatasetError, match=r"kept' is not a cache file, or was cut off\. Delete the file"):
            list(Dataset.range(3).cache(path))
    path.write_bytes(whole[:20] + b"?" + whole[21:])
    with pytest.raises(DatasetError, match=r"kept' is damaged in the record at byte 0\. Delete the file"):
        list(Dataset.range(3).cache(path))


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(DatasetError, match=r"cache: cannot write '.*no/kept': No such file or directory"):
        list(Dataset.range(3).cache(tmp_path / "no" / "kept"))


SCALE = 1


def scaled(x):
    return x * SCALE


def helped(x, by=None):
    return x + (by or helper)(x)


def helper(x):
    return x + 1


class Adder:
    def __init__(self, number):
        self.number = number

    def __call__(self, x):
        return self.sum(x)

    def sum(self, x):
        return x + self.number


class Table:
    """Looks like an array, as those of pandas do."""

    __slots__ = ("hidden",)

    def __init__(self, number):
        self.hidden = number

    def __array__(self, dtype=None, copy=None):
        return np.array([self.hidden], dtype)


def capturing(value):
    return lambda x: x + value[0]


def drawing(rng):
    return lambda x: x + rng.integers(100)


def with_default(value):
    def fn(x, number=value):
        return x + number

    return fn


def of_code(which):
    def one():
        return lambda x: x + 1

    def other():
        return lambda x: x - 1

    other.__qualname__ = one.__qualname__
    fn = (other if which else one)()
    fn.__qualname__ = "fn"
    return fn


OTHERS = {  # of two pipelines with the same labels: what is told to differ
    "array": (lambda which, folder: Dataset.from_tensor_slices(np.arange(3) + which), "the values of from_tensor_slices("),
    "one value": (
        lambda which, folder: Dataset.from_tensor_slices(np.arange(9000) == 5000 + which),
        "the values of from_tensor_slices(",
    ),
    "text": (lambda which, folder: Dataset.from_tensor_slices(["a", "bc"[which]]), "the values of from_tensor_slices("),
    "one element": (lambda which, folder: Dataset.from_tensors(np.float32(which)), "the values of from_tensors("),
    "code": (lambda which, folder: Dataset.range(3).map(of_code(which)), "the function of map(fn): its code, its"),
    "capture": (lambda which, folder: Dataset.range(3).map(capturing([which])), "the function of map("),
    "captured array": (lambda which, folder: Dataset.range(3).map(capturing(np.full(3, which))), "the function of map("),
    "captured random state": (
        lambda which, folder: Dataset.range(3).map(drawing(np.random.default_rng(which))),
        "the function of map(",
    ),
    "bound method": (lambda which, folder: Dataset.range(3).map(np.full(3, which).__add__), "the function of map("),
    "captured table": (lambda which, folder: Dataset.range(3).map(capturing([Table(which)])), "the function of map("),
    "default": (lambda which, folder: Dataset.range(3).map(with_default(which)), "the function of map("),
    "partial": (lambda which, folder: Dataset.range(3).map(functools.partial(np.add, which)), "the function of map("),
    "object": (lambda which, folder: Dataset.range(3).map(Adder(which)), "the function of map("),
    "method": (lambda which, folder: Dataset.range(3).map(Adder(which).sum), "the function of map("),
    "jitted": (lambda which, folder: Dataset.range(3).map(jax.jit(with_default(which))), "the function of map("),
    "predicate": (lambda which, folder: Dataset.range(3).filter(lambda x: x >= which), "the function of filter("),
    "generator": (lambda which, folder: Dataset.from_generator(lambda: iter([which, 2])), "the function of from_generator("),
    "argument": (lambda which, folder: Dataset.from_generator(range, args=(3 + which,)), "the settings of from_generator(range)"),
    "interleave": (
        lambda which, folder: Dataset.range(3).interleave(lambda n: Dataset.range(n + which)),
        "the function of interleave(",
    ),
    "padding": (
        lambda which, folder: Dataset.range(1, 3).map(lambda n: [n] * n).padded_batch(2, padding_values=which),
        "the settings of padded_batch(2)",
    ),
    "file": (
        lambda which, folder: TextLineDataset(written(folder, "1\n2\n" * (which + 1))),
        "the files that files(1 files) names, their",
    ),
    "time": (lambda which, folder: TextLineDataset(written(folder, "1\n2\n", which)), "the files that files(1 files) names, their"),
}


def written(folder, text, second=0):
    path = folder / "lines.txt"
    path.write_text(text)
    os.utime(path, (1e9 + second, 1e9 + second))
    return str(path)


@pytest.mark.parametrize("name", OTHERS)
def test_a_file_of_other_data_or_functions_is_refused(tmp_path, name):
    make, what = OTHERS[name]
    kept = plain(make(0, tmp_path).cache(tmp_path / "kept"))
    assert plain(make(0, tmp_path).cache(tmp_path / "kept")) == kept
    with pytest.raises(DatasetError) as error:
        list(make(1, tmp_path).cache(tmp_path / "kept"))
    assert f"kept' holds the elements of another pipeline with the same steps: {what}" in str(error.value)
    assert str(error.value).endswith("differ. Delete the file to fill it again, or use another name.")


def test_globals_that_functions_name_belong_to_them(tmp_path, monkeypatch):
    def kept(fn, name):
        return plain(Dataset.range(3).map(fn).cache(tmp_path / name))

    assert kept(scaled, "scaled") == kept(scaled, "scaled")
    assert kept(helped, "helped") == kept(helped, "helped")
    monkeypatch.setitem(globals(), "SCALE", 3)
    monkeypatch.setitem(globals(), "helper", lambda x: x + 2)
    for fn in (scaled, helped):
        with pytest.raises(DatasetError, match=rf"the function of map\({fn.__name__}\)"):
            kept(fn, fn.__name__)


def test_what_functions_change_while_they_are_called_does_not_count(tmp_path):
    def make():
        seen = []
        rng = np.random.default_rng(1)
        return Dataset.range(6).map(lambda x: seen.append(x) or x + rng.integers(100)).cache(tmp_path / "kept")

    dataset = make()
    assert plain(dataset) == plain(dataset) == plain(make())


def test_a_keras_layer_is_its_settings_and_weights(tmp_path):
    def make(number):
        return Dataset.range(3).map(lambda x: [float(x)]).batch(3).map(keras.layers.Normalization(mean=[number], variance=[1.0]))

    kept = plain(make(1.0).cache(tmp_path / "kept"))
    assert plain(make(1.0).cache(tmp_path / "kept")) == kept  # another name, the same layer
    with pytest.raises(DatasetError, match=r"the function of map\(Normalization\)"):
        list(make(2.0).cache(tmp_path / "kept"))


def test_a_file_of_an_older_version_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(_cache_file, "_VERSION", 1)
    list(Dataset.range(3).cache(tmp_path / "kept"))
    monkeypatch.undo()
    with pytest.raises(
        DatasetError, match=r"kept' was written by another version of Replicant \(format 1, not 3\)\. Delete the file"
    ):
        list(Dataset.range(3).cache(tmp_path / "kept"))


def test_a_pass_in_another_order_replaces_the_kept_one(tmp_path):
    """As where the chief's file is in another order than this worker's."""

    def make():
        return Dataset.range(8).shuffle(8).cache(tmp_path / "kept").repeat(2)

    ours = plain(make())
    state = iter(Dataset.range(8).shuffle(8).cache(tmp_path / "another").repeat(2)).state()
    theirs = iter(make())
    theirs.restore({**state, "pipeline": theirs.state()["pipeline"]})
    order = plain(theirs)
    assert order[:8] == order[8:] != ours[:8]
    assert plain(make()) == order
