"""Batches that the loop makes itself, without a thread: the same batches, positions and errors as with one."""

import gc
import importlib
import itertools
import os
import signal
import threading
import time
import weakref

import jax
import numpy as np
import pytest

import replicant
from replicant.data import Dataset, InputOptions
from replicant.errors import DatasetError, ElementError
from replicant.input.distributed import _direct
from replicant.replicas import _quick_put
from replicant.strategies import _place_batches

SECONDS = 20


@pytest.fixture(scope="module", params=["one", "fused", "apart"])
def strategy(request):
    if request.param == "one":
        return replicant.MirroredStrategy(["cpu:0"])
    return replicant.MirroredStrategy(["cpu:0", "cpu:1"], fuse_replicas=request.param == "fused")


@pytest.fixture
def one():
    return replicant.OneDeviceStrategy("cpu:0")


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("replicant-input")]


def distributed(strategy, dataset, *, threaded=False):
    """Distribute; `threaded` reads ahead as always, because it asks for a larger buffer."""
    options = InputOptions(experimental_per_replica_buffer_size=3) if threaded else None
    return strategy.experimental_distribute_dataset(dataset, options)


def seen(strategy, batch):
    """Everything that a program can see of a batch."""
    leaves = [
        (x.dtype, x.weak_type, x.shape, x.committed, x.sharding, np.asarray(x).tobytes())
        if isinstance(x, jax.Array)
        else x.tolist()
        for x in jax.tree.leaves(batch)
    ]
    return jax.tree.structure(batch), leaves


def rows(strategy, batch):
    return [np.asarray(x).tolist() for x in strategy.experimental_local_results(batch)]


FLOATS = np.random.default_rng(0).normal(size=(600, 3)).astype(np.float32)
PIPELINES = {
    "shuffled": lambda: Dataset.from_tensor_slices((FLOATS, np.arange(600))).shuffle(100, seed=3).batch(4),
    "no seed, but one order": lambda: Dataset.range(600).shuffle(600, seed=5, reshuffle_each_iteration=False).batch(4),
    "short last batch": lambda: Dataset.range(203).batch(4),
    "batches of two sizes": lambda: Dataset.range(100).batch(4).concatenate(Dataset.range(100).batch(3)),
    "passes": lambda: Dataset.range(10).shuffle(4, seed=1).repeat(30).batch(4),
    "chosen": lambda: Dataset.range(900).skip(10).shard(3, 1).take(200).enumerate().batch(4),
    "zipped": lambda: Dataset.zip(Dataset.range(200), Dataset.range(200, 400)).batch(4).unbatch().batch(4),
    "wide": lambda: Dataset.from_tensor_slices({"x": FLOATS.astype(np.float64) * 1e30, "n": np.arange(600) << 20}).batch(4),
    "other dtypes": lambda: Dataset.from_tensor_slices((FLOATS.astype(np.float16), FLOATS > 0, FLOATS.astype(np.complex64))).batch(
        4
    ),
    "strings": lambda: Dataset.from_tensor_slices((["a", "b", "c", "d"] * 50, np.arange(200))).batch(4),
    "special numbers": lambda: Dataset.from_tensor_slices(np.float32([np.nan, -0.0, np.inf, 1e-42] * 50)).batch(4),
    "no rows": lambda: Dataset.range(0).batch(4),
}


@pytest.mark.cases(
    "one-shuffled",
    "apart-short last batch",
    "fused-batches of two sizes",
    "one-other dtypes",
    "apart-wide",
    "one-strings",
    "fused-passes",
    "one-no rows",
    "apart-zipped",
)
@pytest.mark.parametrize("name", PIPELINES)
def test_the_same_batches_and_positions_as_with_a_thread(strategy, name):
    direct, read_ahead = (
        iter(distributed(strategy, PIPELINES[name]())),
        iter(distributed(strategy, PIPELINES[name](), threaded=True)),
    )
    for ours, theirs in itertools.zip_longest(direct, read_ahead):
        assert seen(strategy, ours) == seen(strategy, theirs)
        assert direct.state() == read_ahead.state()
    assert next(direct, "end") == next(direct, "end") == "end"
    assert direct.state() == read_ahead.state()


@pytest.fixture
def runs(monkeypatch):
    """Read tiny batches in runs from the tenth on. Gives the numbers of batches that were read and placed at once."""
    cut = []
    place = _place_batches.PlacesAtOnce.run

    def counted(self, columns, count, sizes):
        placed = place(self, columns, count, sizes)
        cut.append(count if placed else 0)
        return placed

    monkeypatch.setattr(_place_batches.PlacesAtOnce, "run", counted)
    monkeypatch.setattr(_direct, "_RUNS_AFTER", 2)
    return cut


# The batches that are placed at once: eights after the first eight; if passes begin with a batch, within one, after its first.
IN_RUNS = {
    "shuffled": 136,
    "no seed, but one order": 136,
    "short last batch": 40,
    "passes": 64,
    "chosen": 40,
    "other dtypes": 136,
    "special numbers": 40,
    "repeated after batching": 5 * 32,
    "endless": 408,
}


def pipeline(name):
    more = {
        "repeated after batching": lambda: Dataset.range(162).shuffle(9, seed=2).batch(4).repeat(5),
        "endless": lambda: Dataset.range(10).shuffle(4, seed=1).repeat().batch(4),
        "shapes that change": lambda: (
            Dataset.from_tensor_slices(FLOATS[:202]).concatenate(Dataset.from_tensor_slices(FLOATS[:30, :2])).batch(4)
        ),
        "a batch of all": lambda: Dataset.range(600).batch(600).repeat(40),
    }
    return (PIPELINES | more)[name]()


@pytest.mark.cases("one-shuffled", "fused-passes", "fused-repeated after batching", "apart-shuffled", "one-strings", "one-endless")
@pytest.mark.parametrize("name", [*PIPELINES, "repeated after batching", "endless", "a batch of all"])
def test_runs_give_the_same_batches(strategy, name, runs):
    direct, read_ahead = iter(distributed(strategy, pipeline(name))), iter(distributed(strategy, pipeline(name), threaded=True))
    for _ in range(410):
        ours, theirs = next(direct, "end"), next(read_ahead, "end")
        if ours == "end" or theirs == "end":
            assert ours == theirs
            break
        assert seen(strategy, ours) == seen(strategy, theirs)
    assert sum(runs) == (IN_RUNS.get(name, 0) if strategy.placement.on_one_device else 0)
    direct.close(), read_ahead.close()


@pytest.mark.cases("one-seeded", "fused-no seed")
@pytest.mark.parametrize("seed", [3, None], ids=["seeded", "no seed"])
@pytest.mark.long_cases("fused-no seed")
def test_every_position_within_a_run_continues_with_and_without_a_thread(strategy, runs, seed):
    def dataset():
        return Dataset.range(97).shuffle(20, seed=seed).repeat(3).batch(4)

    iterator, positions, whole = iter(distributed(strategy, dataset())), [], []
    for batch in iterator:
        positions.append(iterator.state())
        whole.append(rows(strategy, batch))
    assert len(whole) == 73
    assert any(position["position"]["share"]["step"] for position in positions) is strategy.placement.on_one_device
    for number, position in [*list(enumerate(positions))[::5], (31, positions[31])]:
        for threaded in (False, True):
            again = iter(distributed(strategy, dataset(), threaded=threaded))
            again.restore(position)
            assert again.state()["position"]["step"] == number + 1
            assert [rows(strategy, batch) for batch in again] == whole[number + 1 :], (number, threaded)


def test_a_position_within_a_run_moves_to_other_numbers_of_replicas(one, runs):
    fused = replicant.MirroredStrategy(["cpu:0", "cpu:1"])

    def dataset():
        return Dataset.range(400).shuffle(400, seed=3).batch(4)

    iterator = iter(distributed(one, dataset()))
    for _ in range(29):
        next(iterator)
    again = iter(distributed(fused, dataset()))
    again.restore(iterator.state())
    rest = [np.asarray(batch).tolist() for batch in iterator]
    assert [np.concatenate(rows(fused, batch)).tolist() for batch in again] == rest
    assert len(rest) == 71


@pytest.mark.cases("one", "fused")
def test_an_error_in_a_run_comes_with_its_batch(strategy, runs):
    """Batches 0 to 49 have rows of three numbers, and batch 50 rows of both kinds."""
    iterator = iter(distributed(strategy, pipeline("shapes that change")))
    for number in range(50):
        batch = [np.asarray(x) for x in strategy.experimental_local_results(next(iterator))]
        assert np.concatenate(batch).tolist() == FLOATS[4 * number : 4 * number + 4].tolist()
    before = iterator.state()
    for _ in range(2):
        with pytest.raises(ElementError, match="elements of one batch need the same shape"):
            next(iterator)
        assert iterator.state() == before
    assert sum(runs) >= 32 or not strategy.placement.on_one_device


@pytest.mark.cases("KeyboardInterrupt-place", "ZeroDivisionError-pull")
@pytest.mark.parametrize("where", ["pull", "place"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_what_a_signal_raises_within_a_run_loses_and_repeats_nothing(one, monkeypatch, runs, error, where):
    def dataset():
        return Dataset.range(400).shuffle(37, seed=2).repeat(2).batch(4)

    expected = [np.asarray(batch).tolist() for batch in distributed(one, dataset(), threaded=True)]
    iterator = iter(distributed(one, dataset()))
    got = [np.asarray(next(iterator)).tolist() for _ in range(8 + 8)]  # the next one begins a run
    for _ in range(3):
        direct, position = iterator._now.source.reader, iterator.state()
        assert direct.num_ready == 0
        with monkeypatch.context() as patch:
            if where == "place":
                patch.setattr(direct._pace.place, "_put", lambda *_: (_ for _ in ()).throw(error()))
            else:
                source = direct._cursor.source.source  # half of the run has been read
                patch.setattr(
                    source, "pull", lambda limit, pull=source.pull: (pull(min(limit, 9)), (_ for _ in ()).throw(error()))[1]
                )
            with pytest.raises(error):
                next(iterator)
        assert iterator.state() == position
        got += [np.asarray(next(iterator)).tolist() for _ in range(8)]
    assert got + [np.asarray(batch).tolist() for batch in iterator] == expected


def test_runs_end_with_the_loop(one, runs):
    iterator = iter(distributed(one, Dataset.range(400).batch(4)))
    for _ in range(20):
        next(iterator)
    assert iterator.stats().num_ready > 0
    assert iterator.stats().num_steps == 20
    iterator.close()
    assert next(iterator, "end") == "end"


def test_large_batches_are_not_read_in_runs(one, runs):
    rows_ = np.zeros((4000, 300), np.float32)
    assert len(list(distributed(one, Dataset.from_tensor_slices(rows_).batch(40)))) == 100
    assert runs == []


def test_no_thread_is_started_and_stats_count(strategy):
    with iter(distributed(strategy, Dataset.range(400).batch(4))) as iterator:
        for _ in range(50):
            next(iterator)
        assert threads() == []
        stats = iterator.stats()
    assert (stats.num_steps, stats.num_examples, stats.num_ready) == (50, 200, 0)


@pytest.mark.parametrize(
    "dataset",
    [
        lambda: Dataset.range(80).map(lambda x: x).batch(4),
        lambda: Dataset.range(80).filter(lambda x: True).batch(4),
        lambda: Dataset.from_generator(lambda: iter(range(80)), output_signature=replicant.data.TensorSpec((), np.int32)).batch(4),
        lambda: Dataset.range(80).batch(4).prefetch(2),
        lambda: Dataset.range(80).cache().batch(4),
    ],
)
def test_code_of_the_user_and_what_may_wait_stays_on_a_thread(one, dataset):
    with iter(distributed(one, dataset())) as iterator:
        next(iterator)
        assert isinstance(iterator._now.source.reader, _direct.Background)


def test_arrays_in_a_file_are_read_ahead(one, tmp_path):
    mapped = np.memmap(tmp_path / "rows", np.float32, "w+", shape=(40, 3))
    for table in (mapped, mapped[::2], np.asarray(mapped)[:, 1:]):
        with iter(distributed(one, Dataset.from_tensor_slices(table).batch(4))) as iterator:
            next(iterator)
            assert isinstance(iterator._now.source.reader, _direct.Background)


@pytest.mark.parametrize("option", ["experimental_fetch_to_device", "experimental_prefetch_to_device"])
def test_what_the_options_ask_for_is_done(one, option):
    dataset = one.experimental_distribute_dataset(Dataset.range(80).batch(4), InputOptions(**{option: False}))
    with iter(dataset) as iterator:
        next(iterator)
        assert isinstance(iterator._now.source.reader, _direct.Background)


def test_large_batches_are_read_ahead_from_the_first_on(one):
    big = np.zeros((8, _direct.MOST_BYTES // 8 + 8), np.float32)
    dataset = distributed(one, Dataset.from_tensor_slices(big).batch(2))
    with iter(dataset) as iterator:
        next(iterator)
        next(iterator)
        assert iterator._now.source.reader._background is not None
    assert [np.asarray(batch).shape for batch in dataset] == [(2, big.shape[1])] * 4


def test_a_dataset_that_becomes_slow_gets_a_thread_and_loses_nothing(strategy, monkeypatch):
    dataset = distributed(strategy, Dataset.range(400).shuffle(400, seed=1).batch(4))
    expected = [
        rows(strategy, batch) for batch in distributed(strategy, Dataset.range(400).shuffle(400, seed=1).batch(4), threaded=True)
    ]
    iterator, got = iter(dataset), []
    for number, batch in enumerate(iterator):
        got.append(rows(strategy, batch))
        if number == 40:
            monkeypatch.setattr(_direct, "SECONDS", 1e-9)
            dataset._pace._to_time = 0  # as after many quick ones
        # One is seen to be slow by the clock, and then the processor time of five.
        assert (iterator._now.source.reader._background is not None) == (number > 46), number
    assert got == expected
    assert dataset._pace.is_slow
    with iter(dataset) as again:
        next(again)
        assert again._now.source.reader._background is not None  # known from the last pass


def test_a_few_slow_batches_do_not_matter(one):
    pace = _direct.Pace(_direct.OneByOne())
    for _ in range(100):
        for seconds in (1.0, 0.0, 0.0, 0.0):
            pace.note(seconds)
    assert not pace.is_slow
    for _ in range(6):
        pace.note(1.0)
    assert pace.is_slow


@pytest.mark.parametrize(("every", "is_slow"), [(1, True), (2, True), (40, False)])
def test_slow_batches_are_found_among_quick_ones(every, is_slow):
    pace = _direct.Pace(_direct.OneByOne())
    for number in range(120):
        pace.measured(pace.clock(), 0.0 if number % every else 1.0)
    assert pace.is_slow is is_slow


def test_a_batch_that_only_waited_is_not_slow():
    """On a machine with other programs, the clock goes on while the processor does something else."""
    pace = _direct.Pace(_direct.OneByOne())
    for _ in range(120):
        clock = pace.clock()
        pace.measured(clock, 0.0 if clock is time.thread_time else 1.0)
    assert not pace.is_slow


@pytest.mark.long_cases("apart", "fused")
def test_a_position_saved_in_the_middle_continues_with_and_without_a_thread(strategy):
    def dataset():
        return Dataset.range(400).shuffle(50, seed=7).repeat(2).batch(4)

    whole = [rows(strategy, batch) for batch in distributed(strategy, dataset())]
    for cut in (1, 31, 32, 33, 150):
        iterator = iter(distributed(strategy, dataset()))
        for _ in range(cut):
            next(iterator)
        for threaded in (False, True):
            again = iter(distributed(strategy, dataset(), threaded=threaded))
            next(again)
            again.restore(iterator.state())
            assert [rows(strategy, batch) for batch in again] == whole[cut:]
        iterator.close()


def test_checkpoints_hold_the_position(one, tmp_path):
    dataset = distributed(one, Dataset.range(40).batch(4))
    iterator = iter(dataset)
    next(iterator), next(iterator)
    path = replicant.Checkpoint(iterator=iterator).save(str(tmp_path / "saved"))
    again = iter(dataset)
    replicant.Checkpoint(iterator=again).restore(path)
    assert np.asarray(next(again)).tolist() == np.asarray(next(iterator)).tolist() == [8, 9, 10, 11]


def test_an_array_that_is_changed_between_batches_changes_no_batch_that_was_handed_out(strategy):
    array = np.zeros((4000, 5), np.float32)
    batches, then = [], []
    for number, batch in enumerate(distributed(strategy, Dataset.from_tensor_slices(array).batch(8))):
        batches.append(batch)
        then.append([np.array(x) for x in jax.tree.leaves(batch)])
        assert all(number - _direct.RUN < x.min() == x.max() <= number for x in then[-1])
        array[:] = number + 1
    assert all(
        (np.asarray(x) == before).all()
        for batch, values in zip(batches, then, strict=True)
        for x, before in zip(jax.tree.leaves(batch), values, strict=True)
    )


def test_two_iterators_in_turns(strategy):
    dataset = distributed(strategy, Dataset.range(400).batch(4))
    first, second = iter(dataset), iter(dataset)
    for number in range(100):
        for iterator in (first, second):
            assert (
                sum(rows(strategy, next(iterator)), []) == list(range(4 * number, 4 * number + 4))
                or strategy.num_replicas_in_sync == 1
            )
    assert next(first, "end") == next(second, "end") == "end"


def test_threads_that_share_an_iterator_get_each_batch_once(strategy):
    iterator, got = iter(distributed(strategy, Dataset.range(1200).batch(4))), []

    def consume():
        mine = [np.concatenate([np.ravel(x) for x in rows(strategy, batch)]).tolist() for batch in iterator]
        got.extend(mine)

    workers = [threading.Thread(target=consume) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(SECONDS)
    assert sorted(got) == [list(range(i, i + 4)) for i in range(0, 1200, 4)]


@pytest.mark.long
def test_an_iterator_that_is_dropped_is_collected(one):
    iterator = iter(distributed(one, Dataset.range(400).batch(4)))
    next(iterator)
    gone = weakref.ref(iterator)
    del iterator
    gc.collect()
    assert gone() is None
    assert threads() == []


@pytest.mark.long
def test_batches_that_were_handed_over_are_not_kept_alive(one):
    iterator = iter(distributed(one, Dataset.range(400).batch(4)))
    for _ in range(50):
        batch = next(iterator)
    gone = weakref.ref(batch)
    del batch
    gc.collect()
    assert gone() is None


def test_closed_is_at_its_end(strategy):
    iterator = iter(distributed(strategy, Dataset.range(400).batch(4)))
    next(iterator)
    iterator.close()
    iterator.close()
    assert next(iterator, "end") == "end"


def test_closed_by_another_thread_while_a_batch_is_made(one, monkeypatch):
    iterator = iter(distributed(one, Dataset.range(400).batch(4)))
    next(iterator)
    begun, goes_on = threading.Event(), threading.Event()
    take = iterator._now.source.reader._cursor.next

    def waits():
        begun.set()
        goes_on.wait(SECONDS)
        return take()

    monkeypatch.setattr(iterator._now.source.reader._cursor, "next", waits)
    got = []
    worker = threading.Thread(target=lambda: got.append(next(iterator, "end")))
    worker.start()
    assert begun.wait(SECONDS)
    iterator.close()
    goes_on.set()
    worker.join(SECONDS)
    assert got == ["end"]


def test_an_error_at_a_batch_comes_there_and_again(one):
    dataset = Dataset.range(8).batch(4).concatenate(Dataset.range(3).batch(3)).unbatch().batch(4)
    ragged = Dataset.zip(Dataset.range(8).batch(4), Dataset.range(6).batch(3))  # components of different sizes
    two = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    assert len(list(distributed(one, dataset))) == 3
    for threaded in (False, True):
        iterator = iter(distributed(two, ragged, threaded=threaded))
        before = iterator.state()
        for _ in range(2):
            with pytest.raises(ElementError, match="All components of a global batch need the same leading size"):
                next(iterator)
        assert iterator.state() == before
        iterator.close()


class Interrupted(Exception):
    pass


@pytest.mark.cases(
    "one-pull-KeyboardInterrupt",
    "one-place-KeyboardInterrupt",
    "apart-place-Interrupted",
    "fused-state-SystemExit",
)
@pytest.mark.parametrize("error", [KeyboardInterrupt, Interrupted, SystemExit])
@pytest.mark.parametrize("where", ["pull", "place", "state"])
def test_what_a_signal_raises_in_the_middle_loses_and_repeats_nothing(strategy, monkeypatch, error, where):
    """Ctrl-C, or a handler's own exception, at any point: the position stands, and the loop can go on."""

    def dataset():
        return Dataset.range(400).shuffle(37, seed=2).repeat(2).batch(4)

    expected = [rows(strategy, batch) for batch in distributed(strategy, dataset(), threaded=True)]
    iterator = iter(distributed(strategy, dataset()))
    got = [rows(strategy, next(iterator)) for _ in range(40)]
    for _ in range(3):
        direct, position = iterator._now.source.reader, iterator.state()
        with monkeypatch.context() as patch:
            if where == "place":
                patch.setattr(direct._pace, "place", lambda parts: (_ for _ in ()).throw(error()))
            elif where == "state":
                patch.setattr(direct._cursor, "state", lambda: (_ for _ in ()).throw(error()))
            else:
                source = direct._cursor.source.source  # half of the batch has been read
                patch.setattr(
                    source, "pull", lambda limit, pull=source.pull: (pull(min(limit, 2)), (_ for _ in ()).throw(error()))[1]
                )
            with pytest.raises(error):
                next(iterator)
        assert iterator.state() == position
        got.append(rows(strategy, next(iterator)))
    assert got + [rows(strategy, batch) for batch in iterator] == expected


@pytest.mark.long
def test_signals_at_random_moments(one):
    """A handler that raises in the middle of a long loop, many times. Batches come in order, each at most once."""

    def dataset():
        return Dataset.range(40_000).shuffle(1000, seed=4).batch(4)

    expected = iter([np.asarray(batch).tolist() for batch in distributed(one, dataset(), threaded=True)])
    iterator = iter(distributed(one, dataset()))
    # JAX itself does not recover from an exception while it compiles, so that is over when the first signal comes.
    assert np.asarray(next(iterator)).tolist() == next(expected)
    interrupted, lost, armed = 0, 0, False

    def handler(*_):
        nonlocal armed
        if armed:  # inside of the `try` below
            armed = False
            raise Interrupted

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
        deadline = time.monotonic() + SECONDS
        while interrupted < 100 and time.monotonic() < deadline:
            try:
                armed = True
                got = np.asarray(next(iterator)).tolist()
                while next(expected) != got:  # the signal came after the batch was made, on its way to this line
                    lost += 1
                armed = False
            except Interrupted:
                interrupted += 1
            except StopIteration:
                break
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted >= 10
    assert lost <= interrupted


def test_a_signal_handler_that_reads_the_same_iterator(one, monkeypatch):
    iterator, inner = iter(distributed(one, Dataset.range(40).batch(4))), []
    next(iterator)
    cursor = iterator._now.source.reader._cursor

    def handled(take=cursor.next):
        result = take()
        if not inner:
            inner.append(np.asarray(next(iterator)).tolist())
        return result

    monkeypatch.setattr(cursor, "next", handled)
    outer = np.asarray(next(iterator)).tolist()
    assert (inner, outer) == ([[4, 5, 6, 7]], [8, 9, 10, 11])
    assert np.asarray(next(iterator)).tolist() == [12, 13, 14, 15]


@pytest.mark.cases("one-guard", "apart-mesh", "fused-x64", "one-nans", "apart-no jit")
@pytest.mark.parametrize(
    "context",
    [
        lambda: jax.enable_x64(True),
        lambda: jax.transfer_guard("disallow"),
        lambda: jax.debug_nans(True),
        jax.disable_jit,
        lambda: jax.set_mesh(jax.make_mesh((2,), ("x",))),
    ],
    ids=["x64", "guard", "nans", "no jit", "mesh"],
)
def test_contexts_of_the_loop_do_not_reach_the_batches(strategy, context):
    """A thread of its own knows none of these. They may begin with the loop, or within it."""
    dataset = Dataset.from_tensor_slices((np.float64([np.nan, 1.5] * 100), np.arange(200))).batch(4)
    expected = [seen(strategy, batch) for batch in distributed(strategy, dataset, threaded=True)]
    for begin in (0, 40):
        iterator = iter(distributed(strategy, dataset))
        batches = [next(iterator) for _ in range(begin)]
        with context():
            batches += [next(iterator) for _ in range(5)]
        batches += list(iterator)
        assert [seen(strategy, batch) for batch in batches] == expected


def test_a_guard_of_the_whole_process(strategy):
    dataset = Dataset.range(200).batch(4)
    expected = [seen(strategy, batch) for batch in distributed(strategy, dataset)]
    jax.config.update("jax_transfer_guard", "disallow")
    try:
        batches = list(distributed(strategy, dataset))
    finally:
        jax.config.update("jax_transfer_guard", "allow")
        jax.config.update("jax_transfer_guard", None)
    assert [seen(strategy, batch) for batch in batches] == expected


def test_placed_at_once_shares_no_memory_with_its_source(one):
    leaf = np.arange(4096, dtype=np.float32).reshape(64, 64)
    placed = _place_batches.PlacesAtOnce(one.placement)([(leaf, (64,))])
    leaf[:] = 7
    assert placed is not None
    np.testing.assert_array_equal(placed[0], np.arange(4096).reshape(64, 64))
    assert not np.shares_memory(np.asarray(placed[0]), leaf)


@pytest.mark.parametrize("gone", ["batched_device_put", "HostBufferSemantics", "a parameter"])
def test_with_another_jax_components_are_placed_one_by_one(one, gone, monkeypatch):
    private = importlib.import_module("jaxlib._jax")
    if gone == "a parameter":
        monkeypatch.setattr(private, "batched_device_put", lambda aval, sharding, xs, devices, committed=True: None)
    else:
        monkeypatch.delattr(private, gone)
    _quick_put._private.cache_clear()
    try:
        assert _quick_put.quick_put(one.placement.mirrored) is None
        batches = list(distributed(one, Dataset.range(200).batch(4)))
    finally:
        _quick_put._private.cache_clear()
    assert [batch.tolist() for batch in batches] == np.arange(200).reshape(50, 4).tolist()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:")
def test_a_forked_process_is_told(one):
    iterator = iter(distributed(one, Dataset.range(40).batch(4)))
    next(iterator)
    child = os.fork()
    if child == 0:
        try:
            next(iterator)
        except DatasetError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_loop_trains_to_the_same_bits_as_with_a_thread(strategy):
    x = np.random.default_rng(1).normal(size=(512, 4)).astype(np.float32)

    def train(threaded):
        with strategy.scope():
            weight = replicant.Variable(np.ones(4, np.float32))

        def replica_step(batch):
            gradient = replicant.get_replica_context().all_reduce("SUM", (batch @ weight.value()) @ batch)
            weight.assign_sub(1e-3 * gradient)

        @replicant.function
        def step(batch):
            strategy.run(replica_step, args=(batch,))

        for batch in distributed(
            strategy, Dataset.from_tensor_slices(x).shuffle(512, seed=0).repeat(2).batch(8), threaded=threaded
        ):
            step(batch)
        return np.asarray(weight.value()).tobytes()

    assert train(False) == train(True)
