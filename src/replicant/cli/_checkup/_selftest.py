"""The self-test: small programs whose results are known. It runs in its own process: ``python -m ..._selftest NAME...``.

It prints one line of JSON per check, with state, detail and remedy.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ... import MirroredStrategy, OneDeviceStrategy, list_devices, set_virtual_devices
from ..._python import own_python
from ...errors import ConfigurationError

NUM_STEPS, BATCH = 20, 32


def devices() -> tuple[str, str]:
    """List the devices. A single CPU was divided into two virtual devices, so that there is something to distribute over."""
    import jax

    found = jax.local_devices()
    kinds = sorted({f"{device.platform} ({device.device_kind})" for device in found})
    virtual = ", virtual" if found[0].platform == "cpu" and len(found) > 1 else ""
    return f"{len(found)} {' and '.join(kinds)}{virtual}: {', '.join(list_devices())}", ""


def all_reduce() -> tuple[str, str]:
    """Sum i + 1 over all replicas i, once with fused replicas and once with each replica on its own device."""
    import jax.numpy as jnp

    from ... import get_replica_context

    for fused in (None, False):
        strategy = MirroredStrategy(fuse_replicas=fused)
        n = strategy.num_replicas_in_sync

        def step() -> Any:
            context = get_replica_context()
            assert context is not None
            return context.all_reduce("SUM", jnp.ones((256,)) * (context.replica_id_in_sync_group + 1))

        total = strategy.experimental_local_results(strategy.run(step))
        expected = n * (n + 1) / 2
        if len(total) != n or any(float(abs(value - expected).max()) != 0 for value in total):
            return "", f"the sum over {n} replicas is not {expected}: {[float(value[0]) for value in total]}"
    return f"sums over {n} replicas are right", ""


def training() -> tuple[str, str]:
    """Train twenty steps on all devices and on one device, which must give the same losses and weights."""
    import jax
    import numpy as np

    jax.config.update("jax_default_matmul_precision", "highest")
    several, one = (_train(strategy) for strategy in (MirroredStrategy(), OneDeviceStrategy(list_devices()[0])))
    difference = max(float(np.max(np.abs(a - b))) for a, b in zip(several, one, strict=True))
    learned = float(several[0][-1]) < 0.5 * float(several[0][0])
    detail = f"{NUM_STEPS} steps: at most {difference:.1e} from one device, loss from {several[0][0]:.3f} to {several[0][-1]:.3f}"
    if difference > 1e-4 or not learned:
        return "", f"{detail}: this is more than 1e-4, or the model did not learn"
    return detail, ""


def _train(strategy: Any) -> list[Any]:
    """Train, and return the losses and then the weights."""
    import keras
    import numpy as np

    from ... import GradientTape, compute_average_loss, function
    from ...data import Dataset

    keras.utils.set_random_seed(1)
    features = np.random.default_rng(0).normal(size=(NUM_STEPS * BATCH - 3, 8)).astype("float32")  # the last batch is short
    labels = features.sum(axis=1, keepdims=True)
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(0.02)

    def step(x: Any, y: Any) -> Any:
        with GradientTape() as tape:
            error = keras.ops.sum(keras.ops.square(model(x, training=True) - y), axis=1)
            loss = compute_average_loss(error, global_batch_size=BATCH)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
        return loss

    @function
    def distributed(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(step, args=batch))

    dataset = Dataset.from_tensor_slices((features, labels)).batch(BATCH)
    losses = [float(distributed(batch)) for batch in strategy.experimental_distribute_dataset(dataset)]
    return [np.asarray(losses), *(np.asarray(w) for w in model.get_weights())]


def data() -> tuple[str, str]:
    """Check that every element comes once, on whichever replica, and that a restored iterator goes on at the same place."""
    import numpy as np

    from ...data import Dataset

    strategy = MirroredStrategy()
    dataset = strategy.experimental_distribute_dataset(Dataset.range(101).shuffle(101, seed=1).batch(8))
    with iter(dataset) as iterator:
        first = [next(iterator) for _ in range(5)]
        state = iterator.state()
        rest = list(iterator)
    with iter(dataset) as again:
        again.restore(state)
        repeated = list(again)

    def flat(batches: list[Any]) -> list[int]:
        return [int(x) for batch in batches for part in strategy.experimental_local_results(batch) for x in np.asarray(part)]

    if sorted(flat(first + rest)) != list(range(101)):
        return "", "the 101 elements of a dataset did not come once each"
    if flat(rest) != flat(repeated):
        return "", "a restored iterator returned other elements"
    return "101 elements came once each; a restored iterator goes on correctly", ""


def checkpoint() -> tuple[str, str]:
    """Check that saved values come back, and that damage is noticed."""
    import numpy as np

    from ... import Checkpoint, Variable
    from ...errors import DamagedCheckpointError

    values = np.random.default_rng(0).normal(size=(64, 64)).astype("float32")
    with tempfile.TemporaryDirectory() as folder:
        path = Checkpoint(weights=Variable(values)).save(Path(folder) / "ckpt")
        other = Variable(np.zeros_like(values))
        Checkpoint(weights=other).restore(path).assert_consumed()
        if not np.array_equal(np.asarray(other), values):
            return "", "the restored values are not those that were saved"
        arrays = Path(path) / "arrays.bin"
        damaged = bytearray(arrays.read_bytes())
        damaged[100] ^= 1
        arrays.write_bytes(damaged)
        try:
            Checkpoint(weights=other).restore(path)
        except DamagedCheckpointError:
            return f"{values.nbytes:,} bytes restored from {folder}; a flipped bit was noticed", ""
    return "", "a flipped bit in a checkpoint was not noticed"


def two_processes() -> tuple[str, str]:
    """Check that two processes on loopback can meet and add up numbers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    common = {**os.environ, "JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2", "JAX_PLATFORMS": "cpu"}
    command = own_python("-m", str(__spec__.name if __spec__ else __name__), "--worker")
    workers = [
        subprocess.Popen(  # noqa: S603 - this file
            command, env={**common, "JAX_PROCESS_ID": str(i)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for i in range(2)
    ]
    try:
        outputs = [worker.communicate()[0] for worker in workers]  # the process that started this one has a deadline for this
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    sums = [output.strip().splitlines()[-1:] for output in outputs]
    if sums != [["sum 3.0 of 2 replicas"]] * 2:
        last = next((lines[0] for lines in sums if lines and not lines[0].startswith("sum")), str(sums))
        return "", f"their sum is wrong: {last}"
    return f"they met at {address}, and their sum is right", ""


def worker() -> None:
    """Run one of the two processes."""
    import jax.numpy as jnp

    from ... import MultiWorkerMirroredStrategy, get_replica_context

    strategy = MultiWorkerMirroredStrategy()
    index = strategy.topology.worker_index

    def step() -> Any:
        context = get_replica_context()
        assert context is not None
        return context.all_reduce("SUM", jnp.ones(()) * (context.replica_id_in_sync_group + 1))

    (total,) = strategy.experimental_local_results(strategy.run(step))
    print(f"sum {float(total)} of {strategy.num_replicas_in_sync} replicas" if index in (0, 1) else "?", flush=True)


CHECKS: dict[str, Callable[[], tuple[str, str]]] = {  # each returns what was found, and then "" or what is wrong
    "devices": devices,
    "all-reduce on every device": all_reduce,
    "training equals one device": training,
    "input": data,
    "checkpoint": checkpoint,
    "two processes": two_processes,
}
REMEDIES = {
    "devices": "JAX cannot start a device: check its installation (jax[cuda12], jax[tpu]) and the driver",
    "all-reduce on every device": "check the links between the devices: NCCL_DEBUG=INFO, or leave devices out one by one",
    "training equals one device": "the numbers are wrong: try REPLICANT_KERNELS=0, then another jaxlib, and please report this",
    "input": "please report this, because it does not depend on devices",
    "checkpoint": "the folder for temporary files (TMPDIR) may be full or damaged",
    "two processes": "loopback must be open between processes; a proxy or a firewall may be in between",
}


def main(names: list[str]) -> None:
    """Run checks, and print a line for each."""
    try:
        set_virtual_devices(2)
    except ConfigurationError as error:  # XLA_FLAGS asks for another number
        print(f"# {error}")
    for name in names:
        try:
            detail, wrong = CHECKS[name]()
        except Exception as error:  # noqa: BLE001 - any error belongs in the table
            detail, wrong = "", f"{type(error).__name__}: {error}"
        state, remedy = ("fail", REMEDIES[name]) if wrong else ("ok", "")
        print(json.dumps({"state": state, "detail": wrong or detail, "remedy": remedy}), flush=True)


if __name__ == "__main__":
    worker() if sys.argv[1:] == ["--worker"] else main(sys.argv[1:])
