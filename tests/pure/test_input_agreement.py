"""What workers tell each other before they read: that they have the same dataset, and where a pass begins."""

import itertools
import json
import random

import keras
import numpy as np
import pytest

from replicant.data import AutoShardPolicy, Dataset, DistributedDataset, Options, TextLineDataset
from replicant.errors import DatasetError
from replicant.input.distributed._same_order import AlikeDataset
from replicant.input.graph._fingerprint import of_random_states
from replicant.replicas._topology import Topology


def cut(rows, sizes):
    ends = np.cumsum(sizes)
    return [rows[end - size : end].tolist() for end, size in zip(ends, sizes, strict=True)]


def with_policy(dataset, name):
    options = Options()
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy[name]
    return dataset.with_options(options)


def distributed(dataset, worker, exchange, num_workers=2):
    return DistributedDataset(dataset, Topology(num_workers, worker, 1), cut, exchange=exchange)


def rows(steps):
    return [x for step in steps for part in step for x in part]


@pytest.fixture
def errors_of(run_workers):
    """errors_of(make): what the workers say of ``make(worker)``, the dataset of each, when it is read twice."""

    def errors(make, num_workers=2):
        def said(worker, exchange):
            try:
                dataset = distributed(make(worker), worker, exchange, num_workers)
                list(dataset)
                list(dataset)
            except DatasetError as error:
                return str(error)
            return None

        return run_workers(num_workers, said)

    return errors


@pytest.fixture
def lines(tmp_path):
    """lines(name, size): the path of a text file of so many lines, in a folder that is made."""

    def make(name, size=1):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{i}\n" for i in range(size)))
        return str(path)

    return make


def test_one_exchange_when_a_dataset_is_distributed_and_one_for_each_pass(run_workers):
    def counted(worker, exchange):
        told = []
        dataset = Dataset.range(40).shuffle(40, seed=1).batch(4)
        shared = distributed(dataset, worker, lambda value: told.append(value) or exchange(value))
        counts = [len(told)]
        for _ in range(3):
            list(shared)
            counts.append(len(told))
        iter(shared)
        return [*counts, len(told)]

    assert run_workers(2, counted) == [[1, 2, 3, 4, 4]] * 2


def test_all_begin_where_the_chief_does_and_their_counters_follow(run_workers):
    seeded = Dataset.range(12).shuffle(12, seed=3)
    orders = [list(map(int, seeded)) for _ in range(4)]
    assert len(set(map(tuple, orders))) == 4

    def read(worker, exchange):
        dataset = Dataset.range(12).shuffle(12, seed=3)
        for _ in range([1, 3, 0][worker]):
            list(dataset)
        shared = distributed(dataset.batch(12), worker, exchange, 3)
        passes = [rows(shared), rows(shared)]
        return passes, list(map(int, dataset))

    (first, after), (second, _), (third, after_third) = run_workers(3, read)
    assert [a + b + c for a, b, c in zip(first, second, third, strict=True)] == orders[1:3]  # the chief had seen the first order
    assert after == after_third == orders[3]


def test_a_pass_through_functions_has_the_order_of_one_process(run_workers):
    def make():
        inner = Dataset.range(5).shuffle(5, seed=1)
        return Dataset.range(6).interleave(lambda n: inner.map(lambda x: 5 * n + x), 3).shuffle(4, seed=2).batch(4)

    alone = make()
    expected = [[x for batch in alone for x in batch.tolist()] for _ in range(3)]
    assert len({tuple(order) for order in expected}) == 3

    def read(worker, exchange):
        shared = distributed(make(), worker, exchange)
        return [[step[0] for step in shared] for _ in range(3)]

    for epoch, (mine, its) in enumerate(zip(*run_workers(2, read), strict=True)):
        assert [x for a, b in zip(mine, its, strict=True) for x in a + b] == expected[epoch]


def test_positions_that_differ_are_refused(run_workers):
    def restored(worker, exchange):
        shared = distributed(Dataset.range(12).batch(2), worker, exchange)
        iterator = iter(shared)
        list(itertools.islice(iterator, 2 + worker))
        again = iter(shared)
        again.restore(json.loads(json.dumps(iterator.state())))
        iterator.close()
        with pytest.raises(
            DatasetError,
            match=r"different positions in the dataset: worker 0 before step 2, worker 1 before step 3\. Restore the same",
        ):
            next(again)

    run_workers(2, restored)


def test_the_state_of_a_chief_goes_to_all(run_workers):
    """Each worker saves its own position, the other was at another one in the same step."""

    def restored(worker, exchange):
        dataset = Dataset.range(12).shuffle(12)
        state = None
        with iter(DistributedDataset(dataset.batch(4), Topology(), lambda part, sizes: part)) as alone:
            next(alone)
            state = alone.state()  # of an order of its own
        again = iter(distributed(dataset.batch(4), worker, exchange))
        again.restore(state)
        return rows(again)

    first, second = run_workers(2, restored)
    assert len({*first, *second}) == len(first + second) == 8


class Batches(keras.utils.PyDataset):
    def __init__(self, seed):
        super().__init__()
        self.rng = np.random.default_rng(seed)
        self.order = np.arange(8)

    def __len__(self):
        return 2

    def on_epoch_end(self):
        self.rng.shuffle(self.order)

    def __getitem__(self, index):
        return self.order[4 * index : 4 * index + 4]


def test_what_draws_from_other_random_states_is_refused(errors_of):
    def of_seed(seed):
        rng = np.random.default_rng(seed)
        return Dataset.from_generator(lambda: iter(rng.permutation(8))).batch(4)

    def numpys():
        yield from np.random.permutation(8)  # noqa: NPY002 - what users do

    def pythons():
        yield random.randrange(8)

    class Shuffled:
        def __init__(self, seed):
            self.random = random.Random(seed)

        def __call__(self):
            return iter(self.random.sample(range(8), 8))

    message = (
        "draws from a random generator whose state on worker 1 differs from that on worker 0. The workers would read different"
    )
    assert errors_of(lambda worker: of_seed(3)) == [None, None]
    for error in errors_of(of_seed):
        assert error.startswith("from_generator(")
        assert message in error
        assert "`rng = np.random.default_rng(seed)`" in error
    assert all(message in error for error in errors_of(lambda worker: Dataset.from_generator(Shuffled(worker)).batch(4)))
    for error in errors_of(Batches):
        assert error.startswith("adapted(keras PyDataset), part 0 of the pipeline, ")
        assert message in error
    assert errors_of(lambda worker: Batches(1)) == [None, None]
    assert of_random_states(numpys) != of_random_states(pythons)
    for draw in (numpys, pythons):  # these workers share the state of one process
        before = of_random_states(draw)
        list(draw())
        assert None is not before != of_random_states(draw)


@pytest.mark.parametrize("policy", ["AUTO", "FILE", "DATA"])
def test_the_first_of_many_names_that_differs(errors_of, lines, policy):
    names = [lines(f"many/{number:02}.txt") for number in range(50)]
    others = [*names[:37], lines("many/x.txt"), *names[38:]]
    for error in errors_of(lambda worker: with_policy(TextLineDataset(others if worker else names).batch(2), policy)):
        assert "different lists of files (names: 50 on worker 0, 50 on worker 1)" in error
        assert f"file number 37: {names[37]!r} on worker 0, {others[37]!r} on worker 1. Give all workers" in error


def test_names_of_bytes_are_names_of_files(errors_of, lines):
    here, there = ([lines(f"{folder}/{number}.txt", 2).encode() for number in range(4)] for folder in ("here", "there"))

    def make(worker: int) -> Dataset:
        return TextLineDataset(Dataset.from_tensor_slices(there if worker else here)).batch(2)

    assert errors_of(make) == [None, None]
    lines("there/1.txt", 5)
    for error in errors_of(make):
        assert "1.txt' is 4 bytes on worker 0, 10 bytes on worker 1. Copy the data to every worker again" in error


def test_what_may_differ_between_the_lists_of_files(errors_of, lines):
    here, there = ([lines(f"{folder}/part/{number}.txt", 2) for number in range(4)] for folder in ("here", "there"))
    assert errors_of(lambda worker: TextLineDataset(there if worker else here).batch(2)) == [None, None]
    lines("there/part/1.txt", 5)
    for error in errors_of(lambda worker: TextLineDataset(there if worker else here).batch(2)):
        assert "different files with the same name: " in error
        assert "1.txt' is 4 bytes on worker 0, 10 bytes on worker 1. Copy the data to every worker again" in error
    for error in errors_of(lambda worker: with_policy(TextLineDataset(here[: 2 + worker]).batch(2), "OFF")):
        assert error is None  # each worker's own


def test_files_that_are_only_where_they_are_read(errors_of, lines, tmp_path):
    names = [[lines(f"{worker}/{number}.txt") for number in range(2)] for worker in range(2)]
    (tmp_path / "0" / "1.txt").unlink()
    (tmp_path / "1" / "0.txt").unlink()
    assert errors_of(lambda worker: with_policy(TextLineDataset(names[worker]).batch(2), "FILE")) == [None, None]


def test_a_worker_that_cannot_say_what_it_reads_is_named(errors_of, lines):
    name = lines("a.txt")

    def reading(worker):
        def read(_):
            if worker == 1:
                raise ZeroDivisionError
            return TextLineDataset(name)

        return Dataset.from_tensor_slices([name] * 4).interleave(read).batch(2)

    def said(worker):
        try:
            return reading(worker)
        except ZeroDivisionError as error:
            raise AssertionError from error

    with pytest.raises(ZeroDivisionError):
        errors_of(said)


def test_arrays_that_nearly_agree_are_the_same(errors_of):
    data = np.random.default_rng(0).normal(size=(300, 7)).astype(np.float32)

    def make(noise):
        return lambda worker: Dataset.from_tensor_slices((data * (1 + noise * worker), np.arange(300))).batch(50)

    assert errors_of(make(1e-6)) == [None, None]  # another processor rounds otherwise
    assert all("the values of from_tensor_slices(300 x " in error for error in errors_of(make(0.1)))
    assert errors_of(lambda worker: Dataset.from_tensor_slices(np.zeros((0, 3), np.float32)).batch(2)) == [None, None]
    texts = ["a", "b", "c"]
    assert errors_of(lambda worker: Dataset.from_tensor_slices(texts).batch(2)) == [None, None]
    assert all(
        "on worker 2 differ from those" in error
        for error in errors_of(lambda worker: Dataset.from_tensor_slices(texts[::-1] if worker == 2 else texts).batch(2), 3)
    )


def test_names_of_caches_may_differ(errors_of, tmp_path):
    assert errors_of(lambda worker: Dataset.range(8).shuffle(8).cache(tmp_path / f"of-{worker}").batch(4)) == [None, None]


def test_datasets_of_keras_loops_agree_too(run_workers):
    def read(worker, exchange):
        dataset = Dataset.range(8).shuffle(8)
        list(itertools.islice(dataset, 2 * worker))
        if worker:
            list(dataset)
        alike = AlikeDataset(dataset, exchange)
        with iter(alike) as iterator:
            next(iterator)
            state = iterator.state()
            rest = list(map(int, iterator))
        again = iter(alike)
        again.restore(state)
        return rest, list(map(int, again)), list(map(int, alike))

    (rest, again, other), others = run_workers(2, read)
    assert (rest, again, other) == others
    assert rest == again
    assert sorted(other) == list(range(8))


def test_a_keras_loop_whose_workers_draw_differently_reads_nothing_however_often_it_is_asked(run_workers):
    def read(worker, exchange):
        rng = np.random.default_rng(worker)
        iterator = iter(AlikeDataset(Dataset.from_generator(lambda: iter(rng.permutation(8))), exchange))
        for _ in range(2):
            with pytest.raises(DatasetError, match="draws from a random generator whose state on worker 1 differs from that on"):
                next(iterator)

    run_workers(2, read)


def test_a_keras_loop_that_cannot_begin_on_one_worker(run_workers, tmp_path):
    def adding(number, path):
        return Dataset.range(4).map(lambda x: x + number).cache(path)

    list(adding(1, tmp_path / "1"))

    def read(worker, exchange):
        dataset = adding(2, tmp_path / str(worker))
        iterator = iter(AlikeDataset(dataset, exchange))
        if worker:
            with pytest.raises(DatasetError, match="holds the elements of another pipeline"):
                iterator.state()
        try:
            list(iterator)
        except DatasetError as error:
            iterator.close()
            return str(error)

    chief, other = run_workers(2, read)
    assert chief.startswith(
        "Worker 1 could not begin a pass over its dataset, so this worker cannot continue either. It says: Dataset"
    )
    assert "holds the elements of another pipeline with the same steps: the function of map(" in chief
    assert other in chief
