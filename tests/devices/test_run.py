"""What `strategy.run` passes in and gives back."""

import collections
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicant
from replicant.errors import ArgumentError, ArgumentTypeError, ContextError, DeviceError, MixedStrategyError
from replicant.programs.arguments._replica_inputs import Inputs
from replicant.strategies._devices import check_one_kind

pytestmark = pytest.mark.both_ways

Point = collections.namedtuple("Point", "x y")


def mirrored(num_replicas: int) -> replicant.MirroredStrategy:
    return replicant.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)])


@pytest.fixture(scope="module")
def two(fuse_replicas: str) -> replicant.MirroredStrategy:
    return mirrored(2)


def ids(strategy: replicant.Strategy) -> replicant.PerReplica:
    return strategy.experimental_distribute_values_from_function(lambda c: np.float32(c.replica_id_in_sync_group))


def rows(value: object) -> list[object]:
    assert isinstance(value, replicant.DistributedValues)
    return [np.asarray(v).tolist() for v in value.values]


def test_whether_replicas_have_rows_is_known_from_shapes() -> None:
    def look(x: Any) -> list[bool]:
        batch = replicant.PerReplica.from_stacked(x)
        return [Inputs.of(((batch,), {}), 2).has_rows(r) for r in range(2)]

    assert not jax.make_jaxpr(lambda x: look(x) and x)(jnp.ones((2, 3))).eqns
    assert [look(np.ones(shape)) for shape in [(2, 3), (2, 0), (2,)]] == [[True, True], [False, False], [True, True]]
    ragged = Inputs.of(((replicant.PerReplica([np.ones(3), np.ones(0)]), "text"), {}), 2)
    assert [ragged.has_rows(r) for r in range(2)] == [True, False]


def test_each_replica_gets_its_own_part_of_nested_arguments(two: replicant.MirroredStrategy) -> None:
    def fn(pair, scale, *, key):
        return Point(pair["a"] * scale, key[0])

    result = two.run(fn, args=({"a": ids(two)}, 10.0), kwargs={"key": [ids(two)]})
    assert isinstance(result, Point)
    assert rows(result.x) == [0.0, 10.0]
    assert rows(result.y) == [0.0, 1.0]


def test_what_is_the_same_everywhere_comes_back_bare_or_mirrored(two: replicant.MirroredStrategy) -> None:
    constant = jnp.arange(3.0)

    def fn(shared, own):
        total = replicant.get_replica_context().all_reduce("SUM", own)
        return 7, None, "text", constant, shared, total, shared + 1, own

    number, nothing, text, captured, argument, total, computed, own = two.run(fn, args=(jnp.ones(2), ids(two)))
    assert (number, nothing, text) == (7, None, "text")
    assert isinstance(captured, jax.Array)
    assert captured.tolist() == [0.0, 1.0, 2.0]
    assert isinstance(argument, jax.Array)
    assert isinstance(total, replicant.Mirrored)
    assert rows(total) == [1.0, 1.0]
    assert float(np.asarray(total)) == 1.0
    assert isinstance(computed, replicant.Mirrored)
    assert isinstance(own, replicant.PerReplica)


def test_one_replica_gives_bare_values() -> None:
    strategy = mirrored(1)
    assert strategy.num_replicas_in_sync == 1
    assert float(strategy.run(lambda x: x + 1, args=(jnp.asarray(2.0),))) == 3.0
    assert isinstance(ids(strategy), replicant.PerReplica)
    assert float(strategy.run(lambda x: x + 1, args=(ids(strategy),))) == 1.0


def test_values_of_an_even_result_lie_on_the_replicas_devices(two: replicant.MirroredStrategy, fuse_replicas: str) -> None:
    values = two.run(lambda x: x * 2, args=(ids(two),)).values
    assert [v.device for v in values] == (jax.devices()[:2] if fuse_replicas == "apart" else jax.devices()[:1] * 2)


def test_a_constant_comes_back_as_an_array(two: replicant.MirroredStrategy) -> None:
    (value,) = jax.tree.leaves(two.run(lambda: jnp.asarray(5.0)))
    assert isinstance(value, jax.Array)
    assert value == 5.0


def test_results_go_back_in_as_arguments(two: replicant.MirroredStrategy) -> None:
    def fn(own, same):
        return own + 1, replicant.get_replica_context().all_reduce("SUM", own) + same

    own, same = two.run(fn, args=(ids(two), jnp.asarray(0.0)))
    own, same = two.run(fn, args=(own, same))
    assert rows(own) == [2.0, 3.0]
    assert rows(same) == [4.0, 4.0]


def test_print_like_tensorflow(two: replicant.MirroredStrategy) -> None:
    assert repr(two.run(lambda x: x, args=(ids(two),))) == "PerReplica:{\n  0: 0.0,\n  1: 1.0\n}"
    assert repr(replicant.Mirrored(1.5, num_replicas=2)) == "Mirrored:{\n  0: 1.5,\n  1: 1.5\n}"


def test_local_results(two: replicant.MirroredStrategy) -> None:
    assert [float(v) for v in two.experimental_local_results(ids(two))] == [0.0, 1.0]
    assert two.experimental_local_results(3) == (3,)
    assert two.experimental_local_results([1, 2]) == ([1, 2],)
    assert two.experimental_local_results({"a": ids(two), "b": 7}) == ({"a": 0.0, "b": 7}, {"a": 1.0, "b": 7})


def test_one_can_compute_with_several_local_results(two: replicant.MirroredStrategy) -> None:
    def fn(own):
        return {"own": own + jnp.zeros(2), "all": replicant.get_replica_context().all_reduce("SUM", own), "no": "text"}

    first, second = two.experimental_local_results(two.run(fn, args=(ids(two),)))
    assert jnp.concatenate([first["own"], second["own"] + first["all"]]).tolist() == [0.0, 0.0, 2.0, 2.0]
    assert (first["no"], second["no"]) == ("text", "text")
    uneven = replicant.PerReplica([ids(two).values[0], ids(two).values[1][None]])
    one, other = two.experimental_local_results(uneven)
    assert (one + other).tolist() == [1.0]
    traced = replicant.function(lambda x: sum(two.experimental_local_results(x)))
    assert float(traced(ids(two))) == 1.0


def test_a_lambda_in_a_loop_is_compiled_once_and_forgotten_in_the_end() -> None:
    strategy = mirrored(2)
    for _ in range(5):
        strategy.run(lambda x: x + 1, args=(ids(strategy),))
    assert len(strategy._eager) == 1
    compiled = next(iter(strategy._eager.values()))
    assert compiled.num_programs == 1
    for i in range(200):
        strategy._compiled(lambda x, i=i: x + i)
    assert len(strategy._eager) == 128


def test_the_same_function_serves_several_shapes(two: replicant.MirroredStrategy) -> None:
    for size in (1, 2, 3):
        value = two.experimental_distribute_values_from_function(lambda _, size=size: np.ones(size, np.float32))
        assert float(two.reduce("SUM", two.run(jnp.sum, args=(value,)))) == 2.0 * size


def test_contexts(two: replicant.MirroredStrategy) -> None:
    def flags():
        return replicant.has_strategy(), replicant.in_cross_replica_context(), replicant.get_replica_context() is not None

    assert flags() == (False, False, True)
    with two.scope():
        assert flags() == (True, True, False)
        assert replicant.get_strategy() is two
        with two.scope():
            assert replicant.get_strategy() is two
    assert two.run(flags) == (True, False, True)
    assert two.run(lambda: replicant.get_replica_context().merge_call(lambda _: flags())) == (True, True, False)
    default = replicant.get_replica_context()
    assert default.num_replicas_in_sync == 1
    assert int(default.replica_id_in_sync_group) == 0
    assert default.strategy is replicant.get_strategy()


def test_default_strategy_runs_once_here() -> None:
    strategy = replicant.get_strategy()
    assert strategy.num_replicas_in_sync == 1
    assert strategy.cluster_resolver is None
    assert float(strategy.run(lambda x: x * 2, args=(jnp.asarray(1.5),))) == 3.0
    assert strategy.reduce("SUM", 3.0, axis=None) == 3.0
    assert repr(strategy) == "DefaultStrategy()"


def test_one_device_strategy() -> None:
    strategy = replicant.OneDeviceStrategy("cpu:3")
    result = strategy.run(lambda x: x + 1, args=(jnp.asarray(1),))
    assert result.device == jax.devices()[3]


def test_devices_by_name_object_and_all() -> None:
    assert replicant.MirroredStrategy().num_replicas_in_sync == len(jax.devices()) == 8
    assert replicant.MirroredStrategy([]).num_replicas_in_sync == 8
    assert replicant.MirroredStrategy(["/cpu:1", "CPU:2", jax.devices()[0]]).placement.devices == tuple(
        jax.devices()[i] for i in (1, 2, 0)
    )
    assert replicant.list_devices() == [f"cpu:{i}" for i in range(8)]
    assert replicant.list_devices("CPU")[1] == "cpu:1"
    device = replicant.list_devices("CPU")[1]
    assert (device.name, device.device_type, type(device.name)) == ("cpu:1", "CPU", str)  # as TensorFlow's devices have them


def test_value_contexts(two: replicant.MirroredStrategy) -> None:
    made = two.experimental_distribute_values_from_function(
        lambda c: {"id": c.replica_id_in_sync_group, "n": c.num_replicas_in_sync, "rows": np.zeros(c.replica_id_in_sync_group)}
    )
    assert made["id"].values == (0, 1)
    assert made["n"].values == (2, 2)
    assert [v.shape for v in made["rows"].values] == [(0,), (1,)]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda s: s.run(lambda x: x, args=jnp.ones(2)), ArgumentTypeError, r"args must be a tuple or list.*args=\(value,\)"),
        (lambda s: s.run(3), ArgumentTypeError, "fn must be callable; got 3"),
        (lambda s: s.run(lambda: s.run(lambda: 1)), ContextError, r"run\(\) needs cross-replica context"),
        (lambda s: s.run(lambda: s.scope().__enter__()), ContextError, r"scope\(\) needs cross-replica context"),
        (lambda s: s.run(lambda: s.reduce("SUM", 1.0)), ContextError, r"use get_replica_context\(\).all_reduce"),
        (lambda s: s.run(lambda: s.gather(1.0, 0)), ContextError, r"use get_replica_context\(\).all_gather"),
        (lambda s: s.run(lambda x: x, args=(ids(mirrored(3)),)), ArgumentError, "has 3 values, but the strategy has 2 replicas"),
        (
            lambda s: s.experimental_distribute_values_from_function(lambda c: (1,) * (1 + c.replica_id_in_sync_group)),
            ArgumentError,
            "must return the same structure for every replica; got replica 0",
        ),
        (
            lambda s: s.run(lambda: replicant.get_replica_context().merge_call(print, args=3)),
            ArgumentTypeError,
            "merge_call: args must be a tuple or list; got int",
        ),
    ],
)
def test_misuse_of_run(two: replicant.MirroredStrategy, call, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(two)


def test_strategies_do_not_mix(two: replicant.MirroredStrategy) -> None:
    other = mirrored(3)
    with two.scope():
        with pytest.raises(MixedStrategyError, match=r"scope\(\) of MirroredStrategy.*is active"), other.scope():
            pass
        with pytest.raises(MixedStrategyError, match="Leave the scope of the other strategy first"):
            other.run(lambda: 1)

    @replicant.function
    def both():
        two.run(lambda: 1)
        other.run(lambda: 1)

    with pytest.raises(MixedStrategyError, match="uses two strategies"):
        both()


def test_an_exception_of_the_replica_function_comes_out_as_it_is(two: replicant.MirroredStrategy) -> None:
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        two.run(lambda: 1 / 0)
    assert two.run(lambda: 1) == 1  # and nothing stays behind


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (["cpu:9"], r"no device 'cpu:9'.*8 cpu device\(s\), numbered 0 to 7.*set_virtual_devices\(10\)"),
        (["cpu:0", "CPU:0"], "'CPU:0' is given twice"),
        (["gpu:0"], "no gpu devices. Its devices are: cpu"),
        (["disk:0"], "'disk:0' is not a device"),
        (
            2,
            r"devices must be names such as \['cpu:0', 'cpu:1'\].*; got 2\. Write list_devices\(\)\[:n\].*set_virtual_devices\(n\)",
        ),
    ],
)
def test_bad_devices(devices: Any, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        replicant.MirroredStrategy(devices)


class Named(NamedTuple):
    """Stands in for a device, where all real ones are CPUs."""

    platform: str
    name: str

    def __str__(self) -> str:
        return self.name


def test_devices_of_two_types_are_refused() -> None:
    check_one_kind([Named("gpu", "cuda:0"), Named("gpu", "cuda:1")])
    with pytest.raises(DeviceError) as caught:
        check_one_kind([Named("gpu", "cuda:0"), Named("cpu", "TFRT_CPU_0")])
    assert str(caught.value) == (
        "The devices are of 2 types, cpu and gpu (cuda:0, TFRT_CPU_0), but all replicas run one program, which is compiled for one "
        "type. Name devices of one type."
    )


def test_one_device_wants_one() -> None:
    with pytest.raises(DeviceError, match="takes one device"):
        replicant.OneDeviceStrategy(["cpu:0", "cpu:1"])


@pytest.mark.parametrize("kind", ["GPU", "TPU", "gpu", "cuda", "rocm"])
def test_devices_that_are_not_there_are_an_empty_list(kind: str) -> None:
    assert replicant.list_devices(kind) == []


@pytest.mark.parametrize("kind", ["GPUS", "", "gpu:0", 0])
def test_an_unknown_type_of_devices(kind: Any) -> None:
    with pytest.raises(DeviceError, match=rf"{kind!r} is not a type of devices. Use one of: cpu, gpu, cuda, rocm, tpu\."):
        replicant.list_devices(kind)


def test_an_empty_per_replica_is_refused() -> None:
    with pytest.raises(ArgumentError, match="at least one value"):
        replicant.PerReplica([])


def test_per_replica_has_no_arithmetic(two: replicant.MirroredStrategy) -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        ids(two) + 1


@pytest.mark.parametrize("sizes", [(2, 2), (2, 1), (3, 0)], ids=["even", "ragged", "one empty"])
def test_the_kinds_of_results_do_not_depend_on_the_sizes(two: replicant.MirroredStrategy, sizes: tuple[int, int]) -> None:
    def fn(own, shared):
        total = replicant.get_replica_context().all_reduce("SUM", jnp.sum(own))
        return {"none": None, "number": 7, "shared": shared, "own": own * 2, "total": total, "nested": [None, "text"]}

    own = replicant.PerReplica([np.ones(size, np.float32) for size in sizes])
    result = two.run(fn, args=(own, jnp.arange(2.0)))
    assert (result["none"], result["number"], result["nested"]) == (None, 7, [None, "text"])
    assert isinstance(result["shared"], jax.Array)
    assert isinstance(result["total"], replicant.Mirrored)
    assert [v.shape for v in result["own"].values] == [(size,) for size in sizes]


def test_what_runs_both_ways_does_so_without_asking(request: pytest.FixtureRequest) -> None:
    """The mark counts where a test does not name the fixture, too."""
    way = request.node.callspec.params["fuse_replicas"]
    assert replicant.MirroredStrategy(["cpu:0", "cpu:1"]).placement.fused == (way == "fused")
