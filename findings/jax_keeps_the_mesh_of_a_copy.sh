#!/usr/bin/env bash
# jax 0.10.2 (jax 0.12.0.1 does the same), jax.ensure_compile_time_eval inside jax.shard_map.
#
# A value that is computed at once while a shard_map is traced has a type on the mesh of that trace, though it lies on one device like
# any other array. That does not end with the trace: JAX keeps the compiled form of a function by shape, dtype and device of its
# arguments, and with it the type of the result. So once such an array was copied, the copy of any other array of its shape has a type
# on the mesh, in the whole process. Two such types from meshes of different sizes, or an array on another mesh, and an addition
# anywhere raises "Mesh for all inputs should be equal". Under jax.sharding.use_abstract_mesh with an empty mesh, the type is plain.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2
cat > "$folder/copies.py" <<'PROGRAM'
import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

jax.config.update("jax_num_cpu_devices", 3)


def made_in_a_trace(shape, num_devices, outside):
    """An array that is computed while a shard_map over some devices is traced."""
    made = []

    def body(x):
        with jax.ensure_compile_time_eval():
            if outside:
                with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
                    made.append(jnp.zeros(shape))
            else:
                made.append(jnp.zeros(shape))
        return x

    mesh, rows = Mesh(jax.devices()[:num_devices], ("x",)), PartitionSpec("x")
    jax.eval_shape(jax.shard_map(body, mesh=mesh, in_specs=rows, out_specs=rows), jnp.zeros(num_devices))
    return made[0]


def mesh_of_a_copy(shape):
    """What the type of a copy of a new array, which no shard_map has seen, says of a mesh."""
    return dict(jax.typeof(jnp.array(jnp.zeros(shape), copy=True)).sharding.mesh.shape)


found = {"before": mesh_of_a_copy((3, 2))}
jnp.array(made_in_a_trace((4, 2), 2, outside=False), copy=True)
found["after a copy of one of a trace"] = mesh_of_a_copy((4, 2))
jnp.array(made_in_a_trace((5, 2), 2, outside=True), copy=True)
found["after a copy of one without a mesh"] = mesh_of_a_copy((5, 2))
jnp.array(made_in_a_trace((2,), 3, outside=False), copy=True)
try:
    jnp.array(jnp.zeros((4, 2)), copy=True) + jnp.array(jnp.zeros(2), copy=True)
    found["a sum of two copies"] = "computed"
except ValueError as error:
    found["a sum of two copies"] = str(error).partition(".")[0]
for name, value in found.items():
    print(f"{name}: {value}")
assert found["before"] == found["after a copy of one without a mesh"] == {}
assert found["after a copy of one of a trace"] == {"x": 2}
assert found["a sum of two copies"].startswith("Mesh for all inputs should be equal")
PROGRAM
"$folder/venv/bin/python" "$folder/copies.py"
# Seen on 2026-11-30:
# before: {}
# after a copy of one of a trace: {'x': 2}
# after a copy of one without a mesh: {}
# a sum of two copies: Mesh for all inputs should be equal
