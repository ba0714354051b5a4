"""Pipelines that JSON describes. One worker reads them for several epochs, and looks at the dataset in between."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from replicant.data import AutoShardPolicy, Dataset, Options, TextLineDataset
from replicant.errors import DatasetError

NUM_FILES = 4
SEEDS = st.sampled_from([None, 1])
LOOK = st.lists(st.sampled_from(["nothing", "one", "three", "all", "all twice"]), min_size=2, max_size=2)  # one for each worker
OFF = Options()
OFF.experimental_distribute.auto_shard_policy = AutoShardPolicy.OFF


@st.composite
def pipelines(draw):
    """Draw a pipeline, and what is done with it. Its elements are numbers from 0, each once in a pass."""
    source = draw(st.sampled_from(["arrays", "files", "listed files", "interleaved files", "generator"]))
    shuffle = st.tuples(st.just("shuffle"), st.integers(1, 20), SEEDS, st.sampled_from([True, True, False]))
    cache = st.tuples(st.just("cache"), st.sampled_from(["memory", "own disks", "one disk"]))
    nested = st.tuples(st.just("nested"), st.sampled_from(["new", "captured", "flat"]), SEEDS)
    plain = st.sampled_from([("prefetch",), ("map",), ("threads",), ("repeat",)])
    ops = draw(st.lists(st.one_of(shuffle, shuffle, cache, nested, plain), min_size=1, max_size=4))
    # There is at most one cache, which needs its own name, and one repeat, which the expected counts depend on.
    kept = [op for i, op in enumerate(ops) if op[0] not in ("cache", "repeat") or op[0] not in [before[0] for before in ops[:i]]]
    return {
        "source": source,
        "size": draw(st.integers(1, 17)),
        "seed": draw(SEEDS),
        "ops": kept,
        "batch": draw(st.integers(2, 7)),
        "file": draw(st.booleans()) and "files" in source,
        "before": draw(LOOK),
        "between": draw(LOOK),
        "broken": draw(st.integers(0, 3)),  # the steps of an epoch that is left early
        "cut": draw(st.none() | st.integers(0, 3)),  # the step at which the position of the last epoch is saved and restored
        "restart": draw(st.booleans()),  # whether the last epoch has a new dataset, and one worker an empty disk
    }


def write_files(folder: Path, size: int) -> list[str]:
    """Write files with the numbers below `size`, one per line, and return their paths."""
    paths = [folder / f"{size}-{number}.txt" for number in range(NUM_FILES)]
    for number, path in enumerate(paths):
        path.write_text("".join(f"{i}\n" for i in range(number, size, NUM_FILES)))
    return [str(path) for path in paths]


def source_of(plan, folder: Path) -> Dataset:
    """Make a dataset of the numbers below the plan's size."""
    size, seed = plan["size"], plan["seed"]
    pattern = str(folder / f"{size}-*.txt")
    if plan["source"] == "arrays":
        return Dataset.from_tensor_slices(np.arange(size))
    if plan["source"] == "files":
        return TextLineDataset(sorted(str(path) for path in folder.glob(f"{size}-*.txt"))).map(int)
    if plan["source"] == "listed files":
        return TextLineDataset(Dataset.list_files(pattern, seed=seed)).map(int)
    if plan["source"] == "interleaved files":
        files = Dataset.list_files(pattern, seed=seed)
        return files.interleave(lambda name: TextLineDataset(name).shuffle(3, seed=seed), 2, num_parallel_calls=2).map(int)
    return Dataset.from_generator(lambda: iter(np.arange(size)))


def nested(dataset: Dataset, kind: str, seed: int | None) -> Dataset:
    """Replace each element by three numbers, in an order that a shuffle inside the function draws."""
    if kind == "new":
        return dataset.interleave(lambda x: Dataset.range(3 * int(x), 3 * int(x) + 3).shuffle(3, seed), 2)
    inner = Dataset.range(3).shuffle(3, seed)
    if kind == "captured":
        return dataset.interleave(lambda x: inner.map(lambda y: 3 * int(x) + y), 2)
    return dataset.flat_map(lambda x: inner.cache().map(lambda y: 3 * int(x) + y))


def build(plan, folder: Path, disk: Path, number: int) -> Dataset:
    """Make one worker's dataset of batches."""
    dataset = source_of(plan, folder)
    for name, *settings in plan["ops"]:
        if name == "shuffle":
            dataset = dataset.shuffle(*settings)
        elif name == "cache":
            where = {"memory": "", "own disks": str(disk / str(number)), "one disk": str(folder / f"cache-{number}")}
            dataset = dataset.cache(where[settings[0]])
        elif name == "nested":
            dataset = nested(dataset, *settings)
        elif name == "prefetch":
            dataset = dataset.prefetch(3)
        elif name == "repeat":
            dataset = dataset.repeat(2)
        else:
            dataset = dataset.map(lambda x: x + 0, num_parallel_calls=2 if name == "threads" else None)
    options = Options()
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy.FILE if plan["file"] else AutoShardPolicy.DATA
    return dataset.batch(plan["batch"]).with_options(options)


def expected(plan) -> list[int]:
    """Return what one epoch must give all workers together."""
    size = plan["size"] * 3 ** sum(op[0] == "nested" for op in plan["ops"])
    return sorted(list(range(size)) * (1 + sum(op[0] == "repeat" for op in plan["ops"])))


def look(dataset: Dataset, how: str) -> None:
    """Read the dataset in this process alone."""
    for count in {"nothing": [], "one": [1], "three": [3], "all": [None], "all twice": [None, None]}[how]:
        with iter(dataset) as iterator:
            list(itertools.islice(iterator, count))


def rows(strategy, batches) -> list[int]:
    """Return the numbers in the batches that this worker's replicas got."""
    return [int(x) for batch in batches for part in strategy.experimental_local_results(batch) for x in np.asarray(part).ravel()]


def epochs(strategy, worker: int, plan, folder: Path, number: int) -> dict:
    """Return what this worker saw in each epoch, and the error that ended it, if any."""
    disk = folder / f"disk-{worker}"
    disk.mkdir(exist_ok=True)
    seen: list[list[int]] = []
    try:
        dataset = build(plan, folder, disk, number)
        look(dataset, plan["before"][worker])
        distributed = strategy.experimental_distribute_dataset(dataset)
        seen.append(rows(strategy, distributed))
        look(dataset, plan["between"][worker])
        with iter(distributed) as broken:
            list(itertools.islice(broken, plan["broken"]))
        seen.append(rows(strategy, distributed))
        if plan["restart"]:
            if worker == 1:
                (disk / str(number)).unlink(missing_ok=True)
            dataset = build(plan, folder, disk, number)
            distributed = strategy.experimental_distribute_dataset(dataset)
        with iter(distributed) as begun:
            head = rows(strategy, itertools.islice(begun, plan["cut"] or 0))
            state = json.loads(json.dumps(begun.state()))
        look(dataset, plan["before"][1 - worker])
        with iter(distributed) as rest:
            if plan["cut"] is None:
                head = []
            else:
                rest.restore(state)
            seen.append(head + rows(strategy, rest))
    except DatasetError as error:
        return {"seen": seen, "error": str(error)}
    return {"seen": seen, "error": None}


def differing(worker: int, folder: Path) -> dict[str, Callable[[], Dataset]]:
    """Return functions that make datasets which differ between the workers."""
    names = write_files(folder, 12)
    copies = folder / f"copies-{worker}"
    copies.mkdir(exist_ok=True)
    copied = write_files(copies, 12)
    if worker == 1:
        Path(copied[2]).write_text("2\n")
    rng = np.random.default_rng(worker)
    shuffled = np.random.default_rng(worker).permutation(1000)

    def other_cache() -> Dataset:
        path = folder / f"other-{worker}"
        if worker == 1:
            list(Dataset.range(4).map(lambda x: x + 1).cache(path))
        return Dataset.range(4).map(lambda x: x + 2).cache(path).batch(2)

    return {
        "order of files": lambda: TextLineDataset(names[::-1] if worker else names).map(int).batch(2),
        "number of files": lambda: TextLineDataset(names[: 4 - worker]).map(int).batch(2),
        "sizes of files": lambda: TextLineDataset(copied).map(int).batch(2),
        "arrays": lambda: Dataset.from_tensor_slices(shuffled).batch(2),
        "floats": lambda: Dataset.from_tensor_slices(shuffled.astype(np.float32)).batch(2),
        "shards": lambda: Dataset.range(8).shard(2, worker).batch(2),
        "policies": lambda: Dataset.range(8).batch(2).with_options(OFF) if worker else Dataset.range(8).batch(2),
        "generators": lambda: Dataset.from_generator(lambda: iter(rng.permutation(8))).batch(2),
        "global generators": lambda: Dataset.from_generator(lambda: iter(np.random.permutation(8))).batch(2),  # noqa: NPY002
        "caches": other_cache,
    }


def errors(strategy, worker: int, folder: Path) -> dict[str, str]:
    """Return the error of each of these datasets."""
    said = {}
    for name, make in differing(worker, folder).items():
        try:
            rows(strategy, strategy.experimental_distribute_dataset(make()))
        except DatasetError as error:
            said[name] = str(error)
    return said


def fitted(strategy, worker: int) -> list[float]:
    """Return the weight after each epoch of SGD(1) on the loss w * x, which falls by the sum of the batches' means of x."""
    import keras

    dataset = Dataset.range(16).map(lambda x: (np.float32([x]), np.float32([0]))).shuffle(16).batch(4)
    if worker == 0:
        next(iter(dataset))
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
        model.compile(keras.optimizers.SGD(1.0), loss=lambda y, predicted: predicted)
    weights = []
    for _ in range(2):
        model.fit(dataset, verbose=0)
        weights.append(float(model.get_weights()[0][0, 0]))
        if worker == 1:
            list(dataset)
    return weights
