"""A worker of test_sums_of_workers.py: sums over all devices of the job, and what their programs are made of."""

import json
import os
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import replicant

if (count := int(os.environ["DEVICES"])) > 1:
    replicant.set_virtual_devices(count)
strategy = replicant.MultiWorkerMirroredStrategy()
mesh = Mesh(np.array(sorted(jax.devices(), key=lambda device: (device.process_index, device.id))), ("replica",))


def numbers(dtype, shape):
    """One row for each replica. Their sums are rounded in the floating-point types."""
    rows = np.random.default_rng(0).standard_normal((mesh.size, *shape)) * 100
    return rows.astype(dtype)


def program(function, rows):
    """The compiled program of a function of each replica's row, and the rows on the devices."""
    where = NamedSharding(mesh, PartitionSpec("replica"))
    placed = jax.make_array_from_callback(rows.shape, where, lambda index: rows[index])
    spec = PartitionSpec("replica")
    mapped = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return jax.jit(mapped).lower(placed).compile(), placed


def local(result):
    """This worker's rows."""
    return np.concatenate([np.asarray(shard.data) for shard in result.addressable_shards])


def kinds(compiled):
    """The operations of a program that exchange something."""
    text = compiled.as_text()
    return sorted(name for name in ("all-reduce", "collective-permute", "all-gather") if f" {name}" in text)


answer = {}
for name in ("float32", "bfloat16", "float16", "int32", "int8", "uint32", "complex64"):
    rows = numbers(jnp.dtype(name), (1000,))
    compiled, placed = program(lambda x: lax.psum(x, "replica"), rows)
    found = local(compiled(placed))
    right = rows[0]
    for row in rows[1:]:
        right = right + row
    answer[name] = {"kinds": kinds(compiled), "equal": all(row.tobytes() == right.tobytes() for row in found)}
for name, shape in {"empty": (0,), "scalar": ()}.items():
    rows = numbers(np.float32, shape)
    compiled, placed = program(lambda x: lax.psum(x, "replica"), rows)
    answer[name] = {"shape": list(local(compiled(placed)).shape), "equal": bool((local(compiled(placed)) == rows.sum(0)).all())}

rows = numbers(np.float32, (6,))
weights = np.arange(6, dtype=np.float32)
others = {
    "mean": (lambda x: lax.pmean(x, "replica"), np.broadcast_to(rows.mean(0), rows.shape)),
    "maximum": (lambda x: lax.pmax(x, "replica"), np.broadcast_to(rows.max(0), rows.shape)),
    "gradient": (jax.grad(lambda x: jnp.sum(lax.psum(x * x, "replica") * weights)), 2 * rows * weights * mesh.size),
    "mapped": (jax.vmap(lambda x: lax.psum(x, "replica"), in_axes=1, out_axes=1), np.broadcast_to(rows.sum(0), rows.shape)),
    "in a loop": (
        lambda x: lax.fori_loop(0, 3, lambda _, y: lax.psum(y, "replica"), x),
        np.broadcast_to(rows.sum(0) * mesh.size**2, rows.shape),
    ),
    "two of them": (lambda x: sum(lax.psum((x, x + 1), "replica")), np.broadcast_to(2 * rows.sum(0) + mesh.size, rows.shape)),
}
for name, (function, right) in others.items():
    compiled, placed = program(function, rows)
    mine = [index for index, device in enumerate(mesh.devices) if device in mesh.local_devices]
    answer[name] = float(np.max(np.abs(local(compiled(placed)) - right[mine])))

# The sum over one axis of the devices within a mapping over the other one.
both = Mesh(mesh.devices.reshape(2, -1) if mesh.size % 2 == 0 else mesh.devices.reshape(1, -1), ("outer", "inner"))
whole = {"in_specs": PartitionSpec(), "out_specs": PartitionSpec(), "check_vma": False}
total = jax.shard_map(lambda x: lax.psum(x, "inner"), axis_names={"inner"}, **whole)
nested = jax.shard_map(lambda x: lax.psum(total(x), "outer"), mesh=both, axis_names={"outer"}, **whole)
ones = jax.device_put(np.ones(4, np.float32), NamedSharding(both, PartitionSpec()))
answer["nested"] = float(np.max(np.abs(local(jax.jit(nested)(ones)) - mesh.size)))
Path(os.environ["ANSWER"]).write_text(json.dumps(answer))
sys.stdout.flush()
