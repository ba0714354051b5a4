"""One of some workers: writes what sums over the workers are, and how many exchanges programs make."""

import hashlib
import json
import os
import re
from pathlib import Path

import replicant

strategy = replicant.MultiWorkerMirroredStrategy()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import PartitionSpec  # noqa: E402

DUMPS = Path(os.environ["DUMPS"]) / os.environ["JAX_PROCESS_ID"]
N = strategy.num_replicas_in_sync
context = replicant.get_replica_context


def rows_of(rank, dtype):
    rows = np.random.default_rng(rank).normal(scale=100, size=33)
    return rows.astype(jnp.dtype(dtype))


def per_replica(make):
    return strategy.experimental_distribute_values_from_function(lambda c: make(c.replica_id_in_sync_group))


def all_reduced(value):
    result = strategy.run(lambda x: context().all_reduce("SUM", x), args=(value,))
    return np.asarray(getattr(result, "value", result))


def exchanges(program):
    """The exchanges of the programs that are compiled while `program` runs, and what it returns."""
    before = set(DUMPS.glob("*after_optimizations.txt"))
    result = program()
    texts = [path.read_text() for path in set(DUMPS.glob("*after_optimizations.txt")) - before]
    names = "all-reduce|all-gather|collective-permute|reduce-scatter|all-to-all"
    return sorted(name for text in texts for name in re.findall(rf" ({names})(?:-start)?\(", text)), result


def sums():
    found = {}
    for name in ("float32", "bfloat16", "float16", "int32", "uint8", "complex64"):
        value = per_replica(lambda rank, name=name: rows_of(rank, name))
        found[name] = all_reduced(value).tobytes().hex()
    special = [[np.nan, np.inf, -np.inf, -0.0, 1e-45], [1.0, -np.inf, -np.inf, -0.0, 1e-45], [0.0, 0.0, 0.0, 0.0, 0.0]]
    found["special"] = [str(x) for x in all_reduced(per_replica(lambda rank: np.float32(special[rank])))]
    found["empty"] = all_reduced(per_replica(lambda rank: np.zeros((0, 3), np.float32))).shape
    found["scalar"] = float(all_reduced(per_replica(lambda rank: np.float32(rank + 1))))
    return found


def large_rows_of(rank, dtype):
    return np.random.default_rng(rank).integers(0, 100, 1 << 21).astype(jnp.dtype(dtype))


def large():
    """Sums of 2 MB and more: a digest of their bits."""

    def summed(function, dtype="float32"):
        value = per_replica(lambda rank: large_rows_of(rank, dtype))
        arrays, again = (own(strategy.run(function, args=(value,))) for _ in range(2))
        assert all(np.array_equal(a, b) for a, b in zip(arrays, again, strict=True))
        return [hashlib.sha256(array.tobytes()).hexdigest() for array in arrays]

    def own(result):
        local = strategy.experimental_local_results
        return [np.asarray(local(x)[0]) for x in (result if isinstance(result, tuple) else (result,))]

    def once(x):
        return context().all_reduce("SUM", x)

    def twice(x):
        first = context().all_reduce("SUM", x)
        return first, context().all_reduce("SUM", first * 0 + x * 2)  # needs the first one, so they are not one exchange

    def looped(x):
        return jax.lax.scan(lambda carry, _: (context().all_reduce("SUM", carry), None), x, None, length=2)[0]

    found = {dtype: summed(once, dtype) for dtype in ("float32", "bfloat16", "uint8", "int32")}
    return found | {"twice": summed(twice), "loop": summed(looped)}


def in_flight():
    """Sums of different arrays that are started one after the other, and read in another order."""
    step = replicant.function(lambda x: strategy.run(lambda x: context().all_reduce("SUM", x), args=(x,)))
    started = [step(per_replica(lambda rank, i=i: np.full(1000 + i % 3, i + rank, np.float32))) for i in range(60)]
    return [float(np.asarray(getattr(x, "value", x))[-1]) for x in reversed(started)]


def inside():
    """Sums in a loop, in a branch and under a gradient."""

    def replica(x):
        looped = jax.lax.scan(lambda carry, _: (context().all_reduce("MEAN", carry + x), None), jnp.zeros(3), None, length=3)[0]
        with replicant.GradientTape() as tape:
            tape.watch(x)
            target = jnp.sum(context().all_reduce("SUM", x) ** 2)
        return looped, tape.gradient(target, x)

    looped, gradient = strategy.run(replica, args=(per_replica(lambda rank: np.full(3, rank + 1, np.float32)),))
    own = strategy.experimental_local_results(gradient)[0]
    return [np.asarray(getattr(looped, "value", looped)).tolist(), np.asarray(own).tolist()]


def steps():
    """A training step: its exchanges, and its losses, of which one is reduced and one comes back as it is."""
    with strategy.scope():
        weights = [replicant.Variable(np.full((4, 3), 0.5, np.float32)), replicant.Variable(np.zeros(3, np.float32))]

    def replica(x):
        with replicant.GradientTape() as tape:
            loss = jnp.sum((x @ weights[0].value() + weights[1].value()) ** 2) / 12
        gradients = context().all_reduce("SUM", tape.gradient(loss, weights))
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss, jnp.max(x), jnp.int32(2) * context().replica_id_in_sync_group, jnp.sum(gradients[1])

    @replicant.function
    def step(x):
        loss, largest, number, norm = strategy.run(replica, args=(x,))
        return strategy.reduce("SUM", loss), largest, number, norm

    rows = np.arange(12 * 4, dtype=np.float32).reshape(12, 4) / 48
    share = 12 // N
    batch = per_replica(lambda rank: rows[rank * share : (rank + 1) * share])
    made, (loss, largest, number, norm) = exchanges(lambda: step(batch))
    local = [float(strategy.experimental_local_results(x)[0]) for x in (largest, number)]
    losses = [float(loss), *[float(step(batch)[0]) for _ in range(3)]]
    return {
        "exchanges": made,
        "losses": losses,
        "local": local,
        "norm": float(getattr(norm, "value", norm)),
        "weights": [w.numpy().tolist() for w in weights],
    }


def kept():
    """Whether the memory of large sums is kept: what is decided after each of three runs."""
    from replicant.kernels.xla import _heap

    value, states = per_replica(lambda rank: np.full(10_000_000, rank + 1, np.float32)), []
    for _ in range(3):
        result = strategy.run(lambda x: context().all_reduce("SUM", x), args=(value,))
        jax.block_until_ready(jax.tree.leaves(result))
        states.append(_heap.keeper.state if _heap.keeper else replicant.kernels.status().kernels["memory"])
    return states


def plain():
    """The exchanges of ``lax.psum`` in a user's own shard_map."""
    mesh = strategy.placement.mesh
    summed = jax.shard_map(
        lambda x: jax.lax.psum(x, "replica"),
        mesh=mesh,
        in_specs=PartitionSpec("replica"),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    text = jax.jit(summed).lower(jax.ShapeDtypeStruct((6,), jnp.float32)).as_text()
    return [name for name in ("all_reduce", "collective_permute") if name in text]


def nested():
    """The sum over one axis of the workers within a mapping over the other one."""
    devices = strategy.placement.mesh.devices
    both = jax.sharding.Mesh(devices.reshape(-1, 1), ("outer", "inner"))
    whole = {"in_specs": PartitionSpec(), "out_specs": PartitionSpec(), "check_vma": False}
    total = jax.shard_map(lambda x: jax.lax.psum(x, "inner"), axis_names={"inner"}, **whole)
    summed = jax.shard_map(lambda x: jax.lax.psum(total(x), "outer"), mesh=both, axis_names={"outer"}, **whole)
    ones = jax.device_put(np.ones(4, np.float32), jax.sharding.NamedSharding(both, PartitionSpec()))
    return np.asarray(jax.jit(summed)(ones).addressable_data(0)).tolist()


def fit():
    """Training in `fit`, evaluation, and a batch that does not divide: their exchanges and numbers."""
    import keras

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(24, 6)).astype(np.float32), rng.integers(0, 3, 24)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        layers = [keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.2, seed=1), keras.layers.Dense(3)]
        model = keras.Sequential([keras.Input((6,)), *layers])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])

    def trained():
        model.train_function = None  # so that nothing is compiled already
        return model.fit(x, y, batch_size=12, epochs=2, verbose=0).history

    made, history = exchanges(trained)
    made_evaluating, evaluated = exchanges(lambda: model.evaluate(x, y, batch_size=24, verbose=0, return_dict=True))
    history["loss"] += model.fit(x, y, batch_size=13, verbose=0).history["loss"]  # batches of 13 and 11 rows
    return {
        "exchanges": made,
        "in evaluate": made_evaluating,
        "history": history,
        "evaluated": evaluated,
        "weights": [np.asarray(w).tolist() for w in model.get_weights()],
    }


answer = {
    "sums": sums(),
    "in flight": in_flight(),
    "inside": inside(),
    "steps": steps(),
    "plain": plain(),
    "nested": nested(),
    "kept": kept(),
    "large": large(),
    "fit": fit(),
}
Path(os.environ["ANSWER"]).write_text(json.dumps(answer))
