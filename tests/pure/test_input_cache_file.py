"""cache(filename): replay, by other processes too; nothing half-written; nothing of another pipeline."""

import gc
import itertools
import json
import subprocess
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from replicant.data import Dataset
from replicant.errors import DatasetError


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
    with pytest.raises(DatasetError, match=r"kept' holds elements like \*, but the pipeline makes those like \(\*, \*\)"):
        list(Dataset.range(3).map(fn).cache(tmp_path / "kept"))


def test_files_that_are_no_cache_or_damaged(tmp_path):
    path = tmp_path / "kept"
    list(Dataset.range(3).cache(path))
    whole = path.read_bytes()
    for broken in (b"", b"short", whole[:-1]):
        path.write_bytes(broken)
        with pytest.raises(DatasetError, match=r"kept' is no cache file, or was cut off\. Delete the file"):
            list(Dataset.range(3).cache(path))
    path.write_bytes(whole[:20] + b"?" + whole[21:])
    with pytest.raises(DatasetError, match=r"kept' is damaged in the record at byte 0\. Delete the file"):
        list(Dataset.range(3).cache(path))


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(DatasetError, match=r"cache: cannot write '.*no/kept.*tmp': No such file or directory"):
        list(Dataset.range(3).cache(tmp_path / "no" / "kept"))
