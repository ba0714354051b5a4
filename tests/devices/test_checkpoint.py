"""Checkpoints of values: variables under every rule, counters, pytrees; saved on some devices and restored on others."""

import collections
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicant
from replicant.errors import ArgumentError, ArgumentTypeError, CheckpointError, ContextError, VariableError

ON_READ, ON_WRITE = replicant.VariableSynchronization.ON_READ, replicant.VariableSynchronization.ON_WRITE
TOPOLOGIES = [None, 1, 2, 3]


def strategy_of(num_replicas: int | None) -> replicant.Strategy:
    """The default strategy for None."""
    return replicant.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)]) if num_replicas else replicant.get_strategy()


def local_values(strategy: replicant.Strategy, variable: replicant.Variable) -> list[float]:
    """What each replica reads."""
    read = strategy.run(lambda: variable.value() + 0.0 * replicant.get_replica_context().replica_id_in_sync_group)
    return [float(value) for value in strategy.experimental_local_results(read)]


# Variables: what TensorFlow 2.21 stores and restores when replica r has written r + 1; but as many replicas as were saved get
# their own copies back (docs/differences.md).

# synchronization, aggregation, n saved: value stored, values of the replicas restored on 2, 3 and without a strategy
VARIABLES = [
    (ON_READ, "SUM", 2, 3.0, [1.0, 2.0], [1.0, 1.0, 1.0], [3.0]),
    (ON_READ, "MEAN", 2, 1.5, [1.0, 2.0], [1.5, 1.5, 1.5], [1.5]),
    (ON_READ, "ONLY_FIRST_REPLICA", 2, 1.0, [1.0, 2.0], [1.0, 1.0, 1.0], [1.0]),
    (ON_WRITE, "MEAN", 2, 1.5, [1.5, 1.5], [1.5, 1.5, 1.5], [1.5]),
    (ON_READ, "SUM", 3, 6.0, [3.0, 3.0], [1.0, 2.0, 3.0], [6.0]),
    (ON_READ, "MEAN", 3, 2.0, [2.0, 2.0], [1.0, 2.0, 3.0], [2.0]),
    (ON_READ, "ONLY_FIRST_REPLICA", 3, 1.0, [1.0, 1.0], [1.0, 2.0, 3.0], [1.0]),
    (ON_WRITE, "MEAN", 3, 2.0, [2.0, 2.0], [2.0, 2.0, 2.0], [2.0]),
    # not recorded, by the same rules
    (ON_WRITE, "SUM", 2, 3.0, [3.0, 3.0], [3.0, 3.0, 3.0], [3.0]),
    (ON_WRITE, "ONLY_FIRST_REPLICA", 3, 1.0, [1.0, 1.0], [1.0, 1.0, 1.0], [1.0]),
]


@pytest.mark.parametrize("row", VARIABLES, ids=[f"{row[0].name}-{row[1]}-{row[2]}" for row in VARIABLES])
def test_variables_are_stored_aggregated_and_restored_split(tmp_path: Path, row: Any) -> None:
    synchronization, aggregation, num_saved, stored, on_two, on_three, on_none = row

    def create(strategy: replicant.Strategy) -> replicant.Variable:
        with strategy.scope():
            return replicant.Variable(0.0, synchronization=synchronization, aggregation=aggregation)

    strategy = strategy_of(num_saved)
    variable = create(strategy)
    strategy.run(lambda: variable.assign(replicant.get_replica_context().replica_id_in_sync_group + 1.0))
    path = replicant.Checkpoint(v=variable).save(tmp_path / "ckpt")
    for num_replicas, expected in ((2, on_two), (3, on_three), (None, on_none)):
        strategy = strategy_of(num_replicas)
        restored = create(strategy)
        replicant.Checkpoint(v=restored).restore(path).assert_consumed()
        assert float(restored.value()) == stored
        assert local_values(strategy, restored) == expected
        assert float(restored.value()) == stored


@pytest.mark.parametrize("num_replicas", [2, 3, 5, 8])
@pytest.mark.parametrize("aggregation", ["SUM", "MEAN"])
def test_float_copies_continue_to_the_last_bit(tmp_path: Path, num_replicas: int, aggregation: str) -> None:
    """A sum divided by n and added up again is another number."""
    strategy = strategy_of(num_replicas)

    def create() -> replicant.Variable:
        with strategy.scope():
            return replicant.Variable(jnp.zeros(50), synchronization=ON_READ, aggregation=aggregation)

    def add(variable: replicant.Variable, seed: int) -> None:
        summands = np.random.default_rng(seed).normal(size=(num_replicas, 50)).astype(np.float32)
        rows = replicant.PerReplica([jnp.asarray(row) for row in summands])
        strategy.run(variable.assign_add, args=(rows,))

    first, second = create(), create()
    add(first, 0)
    add(first, 1)
    path = replicant.Checkpoint(v=first).save(tmp_path / "ckpt")
    replicant.Checkpoint(v=second).restore(path).assert_consumed()
    assert np.asarray(second).tobytes() == np.asarray(first).tobytes()
    add(first, 2)
    add(second, 2)
    assert np.asarray(second).tobytes() == np.asarray(first).tobytes()


def test_copies_do_not_pass_for_those_of_another_rule(tmp_path: Path) -> None:
    strategy = strategy_of(2)
    with strategy.scope():
        summed = replicant.Variable(0.0, synchronization=ON_READ, aggregation="SUM")
        averaged = replicant.Variable(0.0, synchronization=ON_READ, aggregation="MEAN")
    strategy.run(lambda: summed.assign(replicant.get_replica_context().replica_id_in_sync_group + 1.0))
    path = replicant.Checkpoint(v=summed).save(tmp_path / "ckpt")
    replicant.Checkpoint(v=averaged).restore(path).assert_consumed()
    assert local_values(strategy, averaged) == [3.0, 3.0]


def test_integer_sums_are_split_exactly(tmp_path: Path) -> None:
    def create(strategy: replicant.Strategy) -> replicant.Variable:
        with strategy.scope():
            return replicant.Variable(0, synchronization=ON_READ, aggregation="SUM")

    variable = create(strategy_of(None))
    variable.assign(7)
    path = replicant.Checkpoint(v=variable).save(tmp_path / "ckpt")
    strategy = strategy_of(3)
    restored = create(strategy)
    replicant.Checkpoint(v=restored).restore(path)
    assert local_values(strategy, restored) == [3.0, 2.0, 2.0]


def test_copies_without_aggregation_cannot_be_saved(tmp_path: Path) -> None:
    with strategy_of(2).scope():
        variable = replicant.Variable(1.0, name="mine", synchronization=ON_READ)
    with pytest.raises(VariableError, match=r"Variable 'mine' keeps one value per replica .* and has aggregation=NONE"):
        replicant.Checkpoint(v=variable).save(tmp_path / "ckpt")
    assert list(tmp_path.iterdir()) == []


# Training: a pure-JAX parameter kept in a variable, saved on n devices, continued on m


@pytest.mark.parametrize("num_restored", TOPOLOGIES)
@pytest.mark.parametrize("num_saved", TOPOLOGIES)
def test_training_continues_on_other_devices(tmp_path: Path, num_saved: int | None, num_restored: int | None) -> None:
    def train(strategy: replicant.Strategy, weights: replicant.Variable, num_rows: replicant.Variable, batches: Any) -> None:
        def step(rows: Any) -> None:
            weights.assign_sub(0.1 * jnp.sum(rows * weights.value(), axis=0))
            num_rows.assign_add(rows.shape[0])

        step_function = replicant.function(lambda batch: strategy.run(step, args=(batch,)))
        dataset = replicant.data.Dataset.from_tensor_slices(np.concatenate(batches)).batch(6)
        for batch in strategy.experimental_distribute_dataset(dataset):
            step_function(batch)

    def create(strategy: replicant.Strategy) -> tuple[replicant.Variable, replicant.Variable]:
        with strategy.scope():
            weights = replicant.Variable(jnp.ones(2), aggregation="SUM")
            return weights, replicant.Variable(0, synchronization=ON_READ, aggregation="SUM")

    batches = np.linspace(0, 1, 48, dtype=np.float32).reshape(4, 6, 2)
    one_device = create(strategy_of(None))
    train(strategy_of(None), *one_device, batches)

    first = create(strategy_of(num_saved))
    train(strategy_of(num_saved), *first, batches[:2])
    path = replicant.Checkpoint(state=first).save(tmp_path / "ckpt")
    second = create(strategy_of(num_restored))
    replicant.Checkpoint(state=second).restore(path).assert_consumed()
    assert np.asarray(second[0]).tobytes() == np.asarray(first[0]).tobytes()
    train(strategy_of(num_restored), *second, batches[2:])
    np.testing.assert_allclose(np.asarray(second[0]), np.asarray(one_device[0]), rtol=1e-6)
    assert int(second[1]) == 24


def test_training_goes_on_after_saving_and_after_restoring_into_running_variables(tmp_path: Path) -> None:
    """Steps overwrite the memory of the variables they own: what was read for saving, or restored, must not be such memory."""
    strategy = strategy_of(2)
    with strategy.scope():
        variable = replicant.Variable(jnp.zeros(1000), aggregation="SUM")
    step = replicant.function(lambda: strategy.run(lambda: variable.assign_add(jnp.ones(1000))))
    checkpoint = replicant.Checkpoint(v=variable)
    for _ in range(3):
        step()
        checkpoint.save(tmp_path / "ckpt")
    for number, expected in ((1, 2.0), (3, 6.0), (1, 2.0)):
        checkpoint.restore(tmp_path / f"ckpt-{number}").assert_consumed()
        step()
        step()
        assert np.asarray(variable).tolist() == [expected + 4.0] * 1000


# Counters and pytrees

Pair = collections.namedtuple("Pair", ["left", "right"])


def test_containers_are_restored_in_place(tmp_path: Path) -> None:
    def create(filled: bool) -> dict[str, Any]:
        k = int(filled)
        return {
            "epoch": 7 * k,
            "best": 0.1 * k,
            "done": filled,
            "history": [1.5 * k, 2 * k, {"deep": 3 * k}],
            "arrays": (jnp.full(2, k, jnp.bfloat16), np.full(3, k), np.float32(k)),
            "pair": Pair(jnp.asarray(k), {"inner": 4 * k}),
            "nothing": None,
        }

    path = replicant.Checkpoint(state=create(True)).save(tmp_path / "ckpt")
    state = create(False)
    history, deep, inner = state["history"], state["history"][2], state["pair"].right
    checkpoint = replicant.Checkpoint(state=state)
    checkpoint.restore(path).assert_consumed()
    assert checkpoint.state is state
    assert (state["epoch"], state["best"], state["done"], state["nothing"]) == (7, 0.1, True, None)
    assert state["history"] is history
    assert history == [1.5, 2, {"deep": 3}]
    assert history[2] is deep
    assert [type(x) for x in (state["epoch"], state["best"], state["done"], history[1])] == [int, float, bool, int]
    bfloat, whole, scalar = state["arrays"]
    assert (bfloat.dtype, bfloat.tolist()) == (jnp.bfloat16, [1, 1])
    assert (type(whole), whole.tolist()) == (np.ndarray, [1, 1, 1])
    assert (type(scalar), scalar) == (np.float32, 1)
    assert isinstance(state["pair"], Pair)
    assert int(state["pair"].left) == 1
    assert state["pair"].right is inner
    assert inner == {"inner": 4}


@pytest.mark.parametrize("number", [0, -(2**70), 0.1, -0.0, float("inf"), float("-inf"), True], ids=repr)
def test_python_numbers_come_back_exactly(tmp_path: Path, number: float) -> None:
    path = replicant.Checkpoint(x=number).save(tmp_path / "ckpt")
    checkpoint = replicant.Checkpoint(x=type(number)(1))
    checkpoint.restore(path).assert_consumed()
    assert repr(checkpoint.x) == repr(number)


def test_nan_comes_back(tmp_path: Path) -> None:
    path = replicant.Checkpoint(x=float("nan")).save(tmp_path / "ckpt")
    checkpoint = replicant.Checkpoint(x=0.0)
    checkpoint.restore(path)
    assert repr(checkpoint.x) == "nan"


@pytest.mark.parametrize(
    ("saved", "found", "expected"),
    [
        (2, 0.0, "2"),
        (0.5, 0, "0.5"),
        (0.5, jnp.zeros((), jnp.bfloat16), "Array(0.5, dtype=bfloat16)"),
        (3, np.int8(0), "np.int8(3)"),
        (jnp.asarray(0.25), 0.0, "Array(0.25, dtype=float32)"),
    ],
    ids=["int for float", "float for int", "float for array", "int for NumPy", "array for float"],
)
def test_a_number_may_become_an_array_and_back(tmp_path: Path, saved: Any, found: Any, expected: str) -> None:
    path = replicant.Checkpoint(x=saved).save(tmp_path / "ckpt")
    checkpoint = replicant.Checkpoint(x=found)
    checkpoint.restore(path).assert_consumed()
    assert repr(checkpoint.x) == expected


def test_a_pure_jax_state_with_optax_and_random_key_continues_exactly(tmp_path: Path) -> None:
    optimizer = optax.adam(0.1)

    def create() -> dict[str, Any]:
        params = {"w": jnp.ones((2, 3)), "b": [jnp.zeros(3)]}
        return {"params": params, "optimizer": optimizer.init(params), "key": jax.random.key(1)}

    def step(state: dict[str, Any]) -> dict[str, Any]:
        key, now = jax.random.split(state["key"])
        gradients = jax.tree.map(lambda p: p + jax.random.normal(now, p.shape), state["params"])
        updates, opt = optimizer.update(gradients, state["optimizer"])
        return {"params": optax.apply_updates(state["params"], updates), "optimizer": opt, "key": key}

    checkpoint = replicant.Checkpoint(state=create())
    for _ in range(3):
        checkpoint.state = step(checkpoint.state)
    path = checkpoint.save(tmp_path / "ckpt")
    again = replicant.Checkpoint(state=create())
    again.restore(path).assert_consumed()
    expected, found = (jax.tree.leaves(step(step(c.state))) for c in (checkpoint, again))
    for a, b in zip(expected, found, strict=True):
        assert a.dtype == b.dtype
        assert jnp.array_equal(a, b)


def test_arrays_keep_their_places_and_mirrored_values_come_back_bare(tmp_path: Path) -> None:
    strategy = strategy_of(2)
    spread = jax.device_put(
        jnp.arange(4.0), jax.sharding.NamedSharding(strategy.placement.mesh, jax.P(*strategy.placement.mesh.axis_names))
    )
    mirrored = strategy.run(lambda: jnp.asarray(5.0))
    assert isinstance(mirrored, replicant.Mirrored)
    path = replicant.Checkpoint(spread=spread, mirrored=mirrored).save(tmp_path / "ckpt")
    checkpoint = replicant.Checkpoint(spread=spread * 0, mirrored=mirrored)
    checkpoint.restore(path).assert_consumed()
    assert checkpoint.spread.tolist() == [0, 1, 2, 3]
    assert checkpoint.spread.sharding == spread.sharding
    assert repr(checkpoint.mirrored) == "Array(5., dtype=float32)"


def test_restored_numpy_memory_is_not_shared(tmp_path: Path) -> None:
    array = np.zeros(1000)
    checkpoint = replicant.Checkpoint(x=array, y=array)
    checkpoint.restore(checkpoint.save(tmp_path / "ckpt"))
    checkpoint.x[:] = 1
    assert array.sum() == checkpoint.y.sum() == 0


# What does not match


def test_open_ends_are_listed_and_asserted(tmp_path: Path) -> None:
    path = replicant.Checkpoint(a=1, b={"x": 2, "y": 3}).save(tmp_path / "ckpt")
    state = {"x": 0, "z": 9}
    status = replicant.Checkpoint(b=state).restore(path)
    assert state == {"x": 2, "z": 9}
    assert status.missing == ("b/z",)
    assert status.unexpected == ("a", "b/y")
    both = r"do not match\.\n  Missing in the checkpoint:\n    b/z\n  In the checkpoint, but not in the objects:\n    a\n    b/y$"
    with pytest.raises(CheckpointError, match=both):
        status.assert_consumed()
    with pytest.raises(CheckpointError, match=r"Missing in the checkpoint:\n    b/z$"):
        status.assert_existing_objects_matched()
    assert status.expect_partial() is status


def test_existing_objects_are_matched_by_a_larger_checkpoint(tmp_path: Path) -> None:
    path = replicant.Checkpoint(a=1, b=2).save(tmp_path / "ckpt")
    checkpoint = replicant.Checkpoint(b=0)
    status = checkpoint.restore(path)
    assert status.assert_existing_objects_matched() is status
    assert checkpoint.b == 2
    with pytest.raises(CheckpointError, match=r"In the checkpoint, but not in the objects:\n    a$"):
        status.assert_consumed()


def test_a_status_that_nobody_asked_warns(tmp_path: Path) -> None:
    path = replicant.Checkpoint(a=1, b=2).save(tmp_path / "ckpt")
    with pytest.warns(UserWarning, match=r"restored in part\.\n  In the checkpoint, .*\n    a\nIf that is what you want, call"):
        replicant.Checkpoint(b=0).restore(path)


def test_long_lists_are_cut(tmp_path: Path) -> None:
    path = replicant.Checkpoint(a=list(range(30))).save(tmp_path / "ckpt")
    with pytest.raises(CheckpointError, match=r"    a/26\n    \.\.\. and 10 more$"):
        replicant.Checkpoint().restore(path).assert_consumed()


def test_other_shapes_and_dtypes_are_refused_before_anything_changes(tmp_path: Path) -> None:
    path = replicant.Checkpoint(v=replicant.Variable(jnp.ones((2, 3))), n=5, s=jnp.zeros(()), k=jnp.zeros(2)).save(
        tmp_path / "ckpt"
    )
    variable, state = replicant.Variable(jnp.zeros((2, 4))), jnp.zeros(2, jnp.int32)
    checkpoint = replicant.Checkpoint(v=variable, n=jnp.zeros(1), k=state, new=0, ok=1)
    rows = (
        r"ckpt-1 does not fit the objects; nothing was restored\.\n  Other shape or dtype:\n"
        r"    k: stored float32\[2\], found int32\[2\]\n"
        r"    n: stored a Python int, found float32\[1\]\n"
        r"    v: stored float32\[2, 3\], found float32\[2, 4\]\n"
        r"  Missing in the checkpoint:\n    new\n    ok\n"
        r"  In the checkpoint, but not in the objects:\n    s$"
    )
    with pytest.raises(CheckpointError, match=rows):
        checkpoint.restore(path)
    assert np.asarray(variable).sum() == 0
    assert checkpoint.k is state
    assert checkpoint.save_counter == 0


def test_a_variable_is_no_python_number(tmp_path: Path) -> None:
    path = replicant.Checkpoint(v=1.0).save(tmp_path / "ckpt")
    with pytest.raises(CheckpointError, match=r"v: stored a Python float, found float32\[\]$"):
        replicant.Checkpoint(v=replicant.Variable(2.0)).restore(path)


def test_no_path_restores_nothing() -> None:
    checkpoint = replicant.Checkpoint(step=3)
    status = checkpoint.restore(None)
    assert checkpoint.step == 3
    with pytest.raises(CheckpointError, match="Nothing was restored: the path was None"):
        status.assert_existing_objects_matched()


# Names and bad input


def test_objects_are_attributes() -> None:
    checkpoint = replicant.Checkpoint(step=3)
    checkpoint.step = 4
    checkpoint.more = [1]
    assert (checkpoint.step, checkpoint.more) == (4, [1])
    with pytest.raises(AttributeError, match="this Checkpoint has no object 'model'; it has: step, more"):
        _ = checkpoint.model


@pytest.mark.parametrize("name", ["save", "restore", "save_counter", "_private"])
def test_names_that_are_taken_are_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match=f"'{name}' cannot be the name of an object"):
        replicant.Checkpoint(**{name: 1})


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("adam", "'state/x' is a str, which cannot be saved"),
        (object(), "'state/x' is a object, which cannot be saved"),
        (1j, "'state/x' is a complex, which cannot be saved"),
        (np.array(["a"]), "'state/x' is a ndarray of dtype <U1, which cannot be saved"),
        (np.array([None]), "'state/x' is a ndarray of dtype object, which cannot be saved"),
        (replicant.PerReplica([1, 2]), "'state/x' is a PerReplica value, which has no meaning on another number of replicas"),
        (replicant.Checkpoint(step=1), "'state/x' is a Checkpoint, and a Checkpoint holds no other one. Pass a dict of what that"),
    ],
    ids=["str", "object", "complex", "strings", "objects", "PerReplica", "Checkpoint"],
)
def test_what_cannot_be_saved_is_refused_at_once(item: Any, message: str) -> None:
    with pytest.raises(ArgumentTypeError, match=message):
        replicant.Checkpoint(state={"x": item})


def test_two_values_with_one_key_are_refused() -> None:
    with pytest.raises(ArgumentError, match="two values have the key 'state/a/b'"):
        replicant.Checkpoint(state={"a/b": 1, "a": {"b": 2}})


@pytest.mark.parametrize("method", ["save", "restore"])
def test_inside_run_there_is_nothing_to_save_or_restore(tmp_path: Path, method: str) -> None:
    checkpoint = replicant.Checkpoint(v=replicant.Variable(1.0))
    path = checkpoint.save(tmp_path / "ckpt")
    strategy = strategy_of(2)
    for call in (
        lambda: strategy.run(lambda: getattr(checkpoint, method)(path)),
        replicant.function(lambda: getattr(checkpoint, method)(path)),
    ):
        with pytest.raises(ContextError, match=rf"Checkpoint\.{method} was called inside `strategy\.run` or a compiled function"):
            call()
    assert [entry.name for entry in tmp_path.iterdir()] == ["ckpt-1"]


def test_a_damaged_checkpoint_changes_nothing(tmp_path: Path) -> None:
    variable = replicant.Variable(jnp.ones(8))
    checkpoint = replicant.Checkpoint(a=variable, state={"x": np.zeros(8)})
    path = Path(checkpoint.save(tmp_path / "ckpt"))
    data = bytearray((path / "arrays.bin").read_bytes())
    data[-1] ^= 1
    (path / "arrays.bin").write_bytes(data)
    variable.assign(jnp.full(8, 2.0))
    with pytest.raises(CheckpointError, match=r"arrays\.bin is damaged: 'state/x'"):
        checkpoint.restore(path)
    assert np.asarray(variable).tolist() == [2.0] * 8
