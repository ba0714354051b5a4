"""Names of GPUs, what computes where, and strategies that name devices which are not there."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicant
from replicant.errors import DeviceError

pytestmark = pytest.mark.gpu


def where(value: Any) -> set[str]:
    return {device.platform for device in value.devices()}


@pytest.mark.parametrize("name", ["gpu:0", "GPU:0", "/gpu:0", "/job:localhost/replica:0/task:0/device:GPU:0"])
def test_names(gpu: Any, name: str) -> None:
    strategy = replicant.OneDeviceStrategy(name)
    assert where(strategy.run(lambda: jnp.arange(3) + 1)) == {gpu.platform}
    with strategy.scope():
        assert where(replicant.Variable([1.0, 2.0]).value()) == {gpu.platform}


def test_all_gpus_are_the_default(gpu: Any) -> None:
    assert replicant.MirroredStrategy().num_replicas_in_sync == len(jax.local_devices(backend="gpu"))
    assert replicant.list_devices("gpu") == [f"{gpu.platform}:{i}" for i in range(len(jax.local_devices(backend="gpu")))]
    assert len(replicant.list_devices("cpu")) == 8


def test_cpus_compute_beside_a_gpu(gpu: Any) -> None:
    """JAX's own default is the GPU."""
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        v = replicant.Variable(1.0, aggregation="SUM")

    @replicant.function
    def step() -> Any:
        def replica() -> Any:
            v.assign_add(jnp.float32(1.0))
            return jnp.float32(replicant.get_replica_context().replica_id_in_sync_group) + v.value()

        return strategy.reduce("SUM", strategy.run(replica))

    assert float(step()) == 7.0
    assert where(v.value()) == {"cpu"}


def test_devices_of_two_kinds_are_refused(gpu: Any) -> None:
    with pytest.raises(DeviceError) as caught:
        replicant.MirroredStrategy([f"{gpu.platform}:0", "cpu:0"])
    assert str(caught.value).startswith("The devices are of 2 types, cpu and gpu (")


def test_a_gpu_that_is_not_there(gpu: Any) -> None:
    number = len(jax.local_devices(backend="gpu"))
    with pytest.raises(DeviceError) as caught:
        replicant.OneDeviceStrategy(f"gpu:{number}")
    assert f"gpu:{number}" in str(caught.value)


def test_no_transfers_in_a_step(gpu: Any) -> None:
    """What a step needs from the host is its batch alone."""
    strategy = replicant.MirroredStrategy([f"{gpu.platform}:0"])
    with strategy.scope():
        v = replicant.Variable(np.ones(4, np.float32))

    @replicant.function
    def step(x: Any) -> Any:
        def replica(x: Any) -> Any:
            v.assign_add(x)
            return v.value().sum()

        return strategy.run(replica, args=(x,))

    x = jax.device_put(np.ones(4, np.float32), gpu)
    step(x), step(x)
    with jax.transfer_guard("disallow"):
        results = [step(x) for _ in range(5)]
    assert [float(r) for r in results] == [16, 20, 24, 28, 32]
