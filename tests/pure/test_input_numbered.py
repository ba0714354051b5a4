"""Files whose elements have numbers: positions, shares, shuffles, URLs, and files that are missing, damaged or changed."""

import itertools
import json
import struct

import fsspec
import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from replicant.data import (
    ArrayRecordDataset,
    AutoShardPolicy,
    Dataset,
    DistributedDataset,
    MegatronDataset,
    NumpyDataset,
    TokenDataset,
)
from replicant.errors import DatasetError
from replicant.replicas._topology import Topology
from replicant.storage._retry import RemoteError
from replicant.storage._store import Store

from ._division import autoshard

SIZES = (5, 0, 1, 7)  # elements of four files, which count up


def megatron(path, sequences, code=8):
    """Write the two files of an indexed dataset."""
    dtype = {3: "<i2", 4: "<i4", 8: "<u2"}[code]
    sizes = np.array([len(each) for each in sequences], "<i4")
    begins = np.cumsum([0, *sizes[:-1].tolist()])[: len(sizes)] * np.dtype(dtype).itemsize
    documents = np.arange(len(sizes) + 1, dtype="<i8")
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(sizes), len(documents))
    path.with_suffix(".idx").write_bytes(head + sizes.tobytes() + begins.astype("<i8").tobytes() + documents.tobytes())
    path.with_suffix(".bin").write_bytes(b"".join(np.array(each, dtype).tobytes() for each in sequences))
    return path.with_suffix(".bin")


def npy(path, start, stop):
    with path.open("wb") as file:
        np.save(file, np.arange(start, stop, dtype=np.int32))
    return path


def columns(path, start, stop):
    with path.open("wb") as file:  # np.save would write (0, 2) in C's order
        np.lib.format.write_array(file, np.asfortranarray(np.stack([np.arange(start, stop)] * 2, 1)))
    return path


def npz(path, start, stop, save=np.savez):
    with path.open("wb") as file:
        save(file, x=np.arange(start, stop), y=np.zeros((stop - start, 3), np.float32))
    return path


def tokens(path, start, stop):
    np.repeat(np.arange(start, stop, dtype=np.uint16), 3).tofile(path)
    return path


def llm_c(path, start, stop):
    ids = np.repeat(np.arange(start, stop, dtype=np.uint16), 3)
    path.write_bytes(np.array([20240520, 1, len(ids), *[0] * 253], "<i4").tobytes() + ids.tobytes())
    return path


def array_record(path, start, stop, options="group_size:1"):
    writer = ArrayRecordWriter(str(path), options)
    for i in range(start, stop):
        writer.write(b"%d" % i)
    writer.close()
    return path


KINDS = {  # how a file is written, how files are read, the number of an element, and whether elements have numbers
    "array_record": (array_record, ArrayRecordDataset, int, True),
    "array_record, in groups": (lambda *args: array_record(*args, "group_size:4"), ArrayRecordDataset, int, True),
    "npy": (npy, NumpyDataset, int, True),
    "npy in columns": (columns, NumpyDataset, lambda row: int(row[1]), False),
    "npz": (npz, NumpyDataset, lambda row: int(row["x"]), False),
    "npz, compressed": (lambda *args: npz(*args, np.savez_compressed), NumpyDataset, lambda row: int(row["x"]), False),
    "tokens": (tokens, lambda files, **more: TokenDataset(files, 3, dtype="uint16", **more), lambda row: int(row[2]), True),
    "tokens of llm.c": (llm_c, lambda files, **more: TokenDataset(files, 3, **more), lambda row: int(row[2]), True),
    "megatron": (
        lambda path, start, stop: megatron(path, [[i] * (1 + i % 3) for i in range(start, stop)]),
        MegatronDataset,
        lambda row: int(row[-1]),
        True,
    ),
}


class Kind:
    """Four files of one kind."""

    def __init__(self, name, folder):
        self.write, self.read, self.number, self.has_numbers = KINDS[name]
        bounds = itertools.pairwise(itertools.accumulate(SIZES, initial=0))
        self.files = [self.write(folder / f"{i}.bin", *each) for i, each in enumerate(bounds)]

    def make(self, **settings):
        return self.read(self.files, **settings)

    def numbers(self, elements):
        return [self.number(each) for each in elements]


@pytest.fixture(params=KINDS)
def kind(request, tmp_path):
    return Kind(request.param, tmp_path)


def test_elements_and_their_number(kind):
    dataset = kind.make()
    assert kind.numbers(dataset) == list(range(13))
    assert len(dataset) == 13
    assert kind.numbers(dataset.skip(4).take(3)) == [4, 5, 6]
    assert sorted(kind.numbers(kind.make(num_parallel_reads=2))) == list(range(13))
    assert kind.numbers(kind.read(kind.files[0])) == list(range(5))
    assert kind.numbers(kind.read(Dataset.from_tensor_slices([str(each) for each in kind.files]))) == list(range(13))


@pytest.mark.parametrize("order", ["in order", "shuffled", "in windows"])
def test_every_position_is_exact(kind, order):
    def make():
        dataset = kind.make()
        if order == "shuffled" and kind.has_numbers:
            dataset = dataset.global_shuffle(seed=3)
        elif order != "in order":
            dataset = dataset.global_shuffle(seed=3, window=3)
        return dataset.repeat(2)

    with iter(make()) as iterator:
        whole, states = [], []
        for element in iterator:
            whole.append(kind.number(element))
            states.append(json.loads(json.dumps(iterator.state())))
    assert sorted(whole[:13]) == sorted(whole[13:]) == list(range(13))
    assert (whole == [*range(13)] * 2) == (order == "in order")
    for cut, state in enumerate(states, 1):
        again = iter(make())
        again.restore(state)
        assert kind.numbers(again) == whole[cut:]


@pytest.mark.parametrize("num_workers", [1, 2, 4, 9])
def test_workers_share_files_or_batches(kind, num_workers):
    node = kind.make().node
    policy = AutoShardPolicy.FILE if num_workers <= 4 else AutoShardPolicy.DATA
    plan = kind.make().padded_batch(2).explain(num_workers)
    assert plan.policy is (policy if num_workers > 1 else AutoShardPolicy.DATA)
    sizes = [range(5), range(0), range(5, 6), range(6, 13)]
    for worker in range(num_workers):
        own = Dataset(autoshard(node, num_workers, worker, policy)[0])
        wanted = [*itertools.chain(*sizes[worker::num_workers])] if policy is AutoShardPolicy.FILE else [*range(13)]
        assert kind.numbers(own) == wanted
        assert len(own) == len(wanted)
    if kind.has_numbers:
        assert kind.make().global_shuffle(seed=1).padded_batch(2).explain(num_workers).is_elastic


def test_elements_without_numbers_are_shuffled_in_windows(kind):
    if kind.has_numbers:
        assert sorted(kind.numbers(kind.make().global_shuffle())) == list(range(13))
        dataset = kind.make(on_error="skip")  # what is left out is known only when it is read
    else:
        dataset = kind.make()
    with pytest.raises(DatasetError, match=r"can only give them in order\. Call `global_shuffle\(window=8\)`"):
        dataset.global_shuffle()


def test_a_position_of_another_file_is_refused(kind):
    def state(dataset):
        with iter(dataset) as iterator:
            _ = list(itertools.islice(iterator, 3))
            return iterator.state()

    def rest(dataset, state):
        iterator = iter(dataset)
        iterator.restore(state)
        return list(iterator)

    in_order, in_windows = state(kind.make()), state(kind.make().global_shuffle(seed=1, window=4))
    shuffled = state(kind.make().global_shuffle(seed=1)) if kind.has_numbers else None
    kind.write(kind.files[0], 0, 4)
    with pytest.raises(DatasetError, match=r"has changed since the position was saved: it was 5 .*, and is now 4 "):
        rest(kind.make(), in_order)
    with pytest.raises(DatasetError, match="the files have changed since the position was saved"):
        rest(kind.make().global_shuffle(seed=1, window=4), in_windows)
    if shuffled:
        with pytest.raises(DatasetError, match="global_shuffle: the files have changed since the position was saved"):
            rest(kind.make().global_shuffle(seed=1), shuffled)


def test_a_file_that_changes_while_it_is_shuffled_is_an_error(kind):
    if not kind.has_numbers:
        return
    iterator = iter(kind.make().global_shuffle(seed=1))
    next(iterator)
    for path in kind.files:
        for each in path.parent.iterdir():
            if each.stat().st_size > 4:
                each.write_bytes(each.read_bytes()[:-2])
    with pytest.raises(DatasetError, match=r"'.*\.bin' has changed since its index was made\. Put the file back as it was"):
        list(iterator)


def test_files_that_are_missing(kind):
    kind.files[2].unlink()
    for dataset in (kind.make(), kind.make().global_shuffle(window=1)):
        with pytest.raises(DatasetError, match=r"Dataset: cannot open '.*2\.bin': No such file or directory\. Check the path\."):
            list(dataset)
    iterator = iter(kind.make())
    assert kind.numbers(itertools.islice(iterator, 5)) == [0, 1, 2, 3, 4]
    lenient = iter(kind.make(on_error="skip"))
    assert kind.numbers(lenient) == [n for n in range(13) if n != 5]
    assert lenient.num_skipped == 1
    assert kind.make(on_error="skip").cardinality() == -2
    with pytest.raises(DatasetError, match="cannot open"):  # if all are, a name is more likely to be wrong
        list(kind.read([kind.files[2]], on_error="skip"))


def test_files_that_are_cut_off(kind):
    path = kind.files[3]
    path.write_bytes(path.read_bytes()[:-1])
    datasets = [kind.make(), kind.make().global_shuffle(window=1)]
    datasets += [kind.make().global_shuffle(seed=1)] if kind.has_numbers else []
    for dataset in datasets:
        with pytest.raises(DatasetError, match=r"Dataset: '.*3\.bin' (has \d+ bytes|is not a complete archive|is damaged)"):
            list(dataset)
    lenient = iter(kind.make(on_error="skip"))
    found = kind.numbers(lenient)
    assert found in ([*range(6)], [*range(12)])  # of Megatron's, only the sequence that is cut off is missing
    assert lenient.num_skipped >= 1


def test_files_at_urls(kind, monkeypatch):
    if kind.read is ArrayRecordDataset:
        with pytest.raises(DatasetError, match=r"'memory://a/b' is an ArrayRecord file, which can only be read from a disk"):
            list(kind.read("memory://a/b"))
        return
    memory = fsspec.filesystem("memory")
    for path in kind.files[0].parent.iterdir():
        memory.pipe(f"/numbered/{path.name}", path.read_bytes())
    urls = [f"memory://numbered/{path.name}" for path in kind.files]
    assert kind.numbers(kind.read(urls)) == list(range(13))
    assert len(kind.read(urls)) == 13
    iterator = iter(kind.read(urls))
    assert kind.numbers(itertools.islice(iterator, 8)) == list(range(8))
    state = iterator.state()
    again = iter(kind.read(urls))
    again.restore(state)
    assert kind.numbers(again) == [8, 9, 10, 11, 12]
    lenient = kind.read(urls, on_error="skip")
    shuffled, iterator = iter(lenient.global_shuffle(seed=1, window=2)), iter(lenient)

    def read(*args):
        raise RemoteError("could not read it")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "read", read)
        for each in [shuffled, iterator] * 2:
            with pytest.raises(DatasetError, match="could not read it"):
                next(each)
    assert sorted(kind.numbers(shuffled)) == kind.numbers(iterator) == list(range(13))
    assert shuffled.num_skipped == iterator.num_skipped == 0
    memory.pipe("/numbered/3.bin", memory.cat("/numbered/3.bin"))
    changed = iter(kind.read(urls))
    changed.restore(state)
    with pytest.raises(DatasetError, match="has changed since the position was saved"):
        list(changed)
    with pytest.raises(
        DatasetError, match=r"Dataset: cannot open 'memory://numbered/none.(bin|idx)': .*Check the URL and the store"
    ):
        list(kind.read("memory://numbered/none.bin"))


def test_what_was_read_is_counted(kind):
    with iter(DistributedDataset(kind.make(), Topology(1, 0, 1), lambda rows, sizes: rows)) as iterator:
        list(iterator)
        assert 13 <= iterator.stats().num_file_bytes <= 1 << 14


def test_elements_may_be_changed_in_place(kind):
    """A function of the user that writes into its argument changes nothing else."""

    def changed(element):
        number = kind.number(element)
        for leaf in element.values() if isinstance(element, dict) else [element]:
            if isinstance(leaf, np.ndarray) and leaf.ndim:
                leaf[...] = 99
        return number

    datasets = [kind.make(), *([kind.make().global_shuffle(seed=1)] if kind.has_numbers else [])]
    for dataset in datasets:
        assert sorted(int(each) for each in dataset.map(changed).repeat(2)) == sorted([*range(13)] * 2)
