"""MultiWorkerMirroredStrategy and TPUStrategy in one process, and what they refuse."""

import numpy as np
import pytest

import replicant
from replicant import CommunicationImplementation, CommunicationOptions
from replicant.cluster import ClusterSpec, SimpleClusterResolver
from replicant.errors import AlreadyStartedError, ArgumentError, ArgumentTypeError, ClusterError, DeviceError

ALONE = SimpleClusterResolver(ClusterSpec({}))


def sum_of_ids(strategy):
    ids = strategy.experimental_distribute_values_from_function(lambda context: np.float32(context.replica_id_in_sync_group))
    return float(strategy.reduce("SUM", strategy.run(lambda x: x + 1, args=(ids,))))


@pytest.mark.parametrize("strategy", [replicant.MultiWorkerMirroredStrategy, replicant.FullyShardedStrategy])
@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "4"},
            r"^{name}: .*HOROVOD_SIZE=4 and HOROVOD_RANK=0 .*one of several\. If so, set .*REPLICANT_SINGLE=1.*`replicant doctor`",
        ),
        (
            {"PMI_RANK": "0", "PMI_SIZE": "4"},
            r"by PMI_SIZE=4, .* nothing says where process 0 is\. Set JAX_COORDINATOR_ADDRESS=HOST:PORT .*REPLICANT_SINGLE=1\.$",
        ),
    ],
)
def test_who_seems_to_be_one_of_several_does_not_train_alone(monkeypatch, strategy, environ, message):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ClusterError, match=message.replace("{name}", strategy.__name__)):
        strategy()


def test_who_is_one_of_one_is_told_nothing(monkeypatch, recwarn):
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("TF_CONFIG", "{}")
    replicant.MultiWorkerMirroredStrategy()
    monkeypatch.setenv("PMI_SIZE", "4")
    replicant.MultiWorkerMirroredStrategy(ALONE)
    assert not recwarn.list


def test_alone_it_is_a_mirrored_strategy():
    strategy = replicant.MultiWorkerMirroredStrategy(ALONE)
    assert strategy.num_replicas_in_sync == 8
    assert (strategy.topology.num_workers, strategy.topology.worker_index) == (1, 0)
    assert strategy.is_chief
    assert strategy.should_checkpoint
    assert strategy.should_save_summary
    assert strategy.cluster_resolver is ALONE
    assert sum_of_ids(strategy) == 36
    assert repr(strategy).startswith("MultiWorkerMirroredStrategy(worker 0 of 1, [")


def test_the_environment_is_asked(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["127.0.0.1:2222"]}, "task": {"type": "worker", "index": 0}}')
    assert replicant.MultiWorkerMirroredStrategy().cluster_resolver.task_type == "worker"
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["127.0.0.1:2222"]}, "task": {"type": "worker", "index": 3}}')
    with pytest.raises(ClusterError, match=r"TF_CONFIG, line 1.*index 3 is outside job 'worker'"):
        replicant.MultiWorkerMirroredStrategy()


def test_too_late_for_other_workers():
    cluster = ClusterSpec({"worker": ["127.0.0.1:2222", "127.0.0.1:2223"]})
    with pytest.raises(AlreadyStartedError, match=r"JAX started before the workers could meet\. Make the strategy at the top"):
        replicant.MultiWorkerMirroredStrategy(SimpleClusterResolver(cluster, task_type="worker", task_id=1))


@pytest.mark.parametrize("strategy", [replicant.MultiWorkerMirroredStrategy, replicant.TPUStrategy])
def test_no_resolver(strategy):
    with pytest.raises(ArgumentTypeError, match=r"cluster_resolver must be a replicant\.cluster\.\w+; got 'here'"):
        strategy("here")


def test_no_options():
    with pytest.raises(ArgumentTypeError, match="communication_options must be a CommunicationOptions; got 3"):
        replicant.MultiWorkerMirroredStrategy(ALONE, 3)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"bytes_per_pack": -1}, ArgumentError, "bytes_per_pack must be a whole number from 0; got -1"),
        ({"bytes_per_pack": 1.5}, ArgumentError, "got 1.5"),
        ({"timeout_seconds": 0}, ArgumentError, "timeout_seconds must be above 0; got 0"),
        ({"implementation": "NCCL"}, ArgumentTypeError, "must be a CommunicationImplementation, such as .*AUTO; got 'NCCL'"),
    ],
)
def test_options_that_make_no_sense(options, error, message):
    with pytest.raises(error, match=message):
        CommunicationOptions(**options)


def test_an_implementation_that_the_devices_do_not_have():
    options = CommunicationOptions(implementation=CommunicationImplementation.NCCL)
    with pytest.raises(ArgumentError, match=r"implementation is NCCL, but cpu devices use RING\. Leave it at AUTO"):
        replicant.MultiWorkerMirroredStrategy(ALONE, options)
    replicant.MultiWorkerMirroredStrategy(ALONE, CommunicationOptions(implementation=CommunicationImplementation.RING))


def test_tpu_strategy_on_cpu_devices():
    strategy = replicant.TPUStrategy(devices=["cpu:0", "cpu:1", "cpu:2"])
    assert strategy.num_replicas_in_sync == 3
    assert strategy.cluster_resolver is None
    assert not strategy.placement.fused  # as on TPUs
    assert sum_of_ids(strategy) == 6


def test_tpu_strategy_without_tpus():
    with pytest.raises(
        DeviceError, match=r"no tpu devices\. Its devices are: cpu\. TPUStrategy needs TPUs\. .*TPUStrategy\(devices="
    ):
        replicant.TPUStrategy()


def test_bytes_per_pack_splits_the_bucket_and_changes_nothing():
    from replicant.programs.steps._spmd import named
    from replicant.replicas._collectives import ALL, MeshAxis, ReduceOp

    placement = replicant.MirroredStrategy(["cpu:0", "cpu:1"], fuse_replicas=False).placement
    leaves = [np.arange(5, dtype=np.float32), np.ones((2, 3), np.float32)]

    def num_sums(bytes_per_pack):
        import jax

        group = MeshAxis(2, bucket=ALL, bytes_per_pack=bytes_per_pack)
        closed = named(placement, lambda: jax.make_jaxpr(lambda xs: group.all_reduce(ReduceOp.SUM, xs))(leaves))
        return sum(eqn.primitive.name.startswith("psum") for eqn in closed.jaxpr.eqns)

    assert [num_sums(size) for size in (0, 1, 12, 43, 44)] == [1, 11, 4, 2, 1]
