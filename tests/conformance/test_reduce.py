"""reduce, gather, run, contexts, collectives and merge_call, against what TensorFlow 2.21 gave.

Where a recorded replica function gave something else on each replica (by a Python counter, by ``int(replica_id)``), the test lets
the sizes of the replicas' arguments differ: unequal replicas are traced one by one.
"""

import copy

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from _compare import Checks, ids, is_error, mirrored, per_replica, plain, rows, same, stairs

import replicant
from replicant.errors import (
    ArgumentError,
    ArgumentTypeError,
    ContextError,
    DeviceError,
    MixedStrategyError,
    RaggedStepError,
)

MEAN_OF_INTS = "MEAN of integers is float32"
X64 = "int64 and float64 need jax_enable_x64"
NEGATIVE_AXIS = "gather takes negative axes"
ONE_REPLICA_CHECKED = "one replica is checked like several"
NESTS = "reduce with an axis, and gather, take nested values"
OPTIONAL_AXIS = "axis of reduce is optional"
TRACED_ONCE = "a replica function is traced once for all replicas"
EQUAL_IS_MIRRORED = "results that are equal on all replicas are Mirrored"
NO_EXTENDED = "strategy.extended has what programs read"
NO_INDEXED_SLICES = "no IndexedSlices"
NO_CROSS_DEVICE_OPS = "no choice of cross_device_ops"
SCOPE_ONLY = "no experimental_set_strategy"
EARLY_ERRORS = "errors come at once and say what to do"
UNIFORM_BRANCHES = "collectives work in a branch that all replicas take"

context = replicant.get_replica_context


def all_reduce(op, value):
    return context().all_reduce(op, value)


def all_gather(value, axis=0):
    return context().all_gather(value, axis)


@pytest.fixture
def checks(figures, report):
    return lambda group, recorded: Checks(recorded, report, group)


def of_ints(value):
    return value.values[0].dtype == np.int32


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_reduce_and_gather_of_one_value(figures, report, n):
    num_cases = 0
    for group, cases in figures["reduce"].items():
        if group.startswith(f"n={n} "):
            value = per_replica(mirrored(n), [np.asarray(x, group.split()[-1]) for x in cases["in"]])
            for name in cases.keys() - {"in"}:
                what, axis = name.split(" axis=")
                check = _gather if what == "gather" else _reduce
                check(
                    what,
                    value,
                    None if axis == "None" else int(axis),
                    cases[name],
                    lambda reason=None, case=f"{group} {name}": report.count(case, reason),
                )
                num_cases += 1
    assert num_cases > 10


def _reduce(op, value, axis, recorded, counted):
    strategy, first = mirrored(value.num_replicas), value.values[0]
    if is_error(recorded):
        rule = f"axis={axis} is out of range, because each replica's value is a scalar" if first.ndim == 0 else "needs equal shapes"
        with pytest.raises(ArgumentError, match=f"reduce.*{rule}"):
            strategy.reduce(op, value, axis=axis)
        return counted()
    result = strategy.reduce(op, value, axis=axis)
    assert same(plain(result), recorded["value"]), (op, value, axis)
    if op == "MEAN" and of_ints(value):
        assert result.dtype == np.float32
        return counted(MEAN_OF_INTS)
    assert result.dtype == recorded["dtype"]
    return counted()


def _gather(_, value, axis, recorded, counted):
    strategy, rank = mirrored(value.num_replicas), value.values[0].ndim
    arrays = [np.asarray(v) for v in value.values]
    if not -rank <= axis < rank:
        with pytest.raises(ArgumentError, match=f"gather: axis={axis} is out of range"):
            strategy.gather(value, axis)
        return counted(None if is_error(recorded) else ONE_REPLICA_CHECKED)
    if len({np.delete(x.shape, axis).tobytes() for x in arrays}) > 1:
        assert is_error(recorded)
        with pytest.raises(ArgumentError, match=r"gather needs equal shapes except along axis.*replica 1"):
            strategy.gather(value, axis)
        return counted()
    result = plain(strategy.gather(value, axis))
    assert same(result, np.concatenate(arrays, axis).tolist())
    if is_error(recorded):
        assert axis < 0
        return counted(NEGATIVE_AXIS)
    assert same(result, recorded)
    return counted()


PLAIN_VALUES = {
    "plain_tensor": jnp.asarray([1.0, 2.0]),
    "python_float": 3.0,
    "python_int": 3,
    "numpy": np.asarray([1.0, 2.0], np.float32),
    "none": None,
}


def test_reduce_of_plain_values(figures, checks):
    check, two = checks("nested", figures["nested"]), mirrored(2)
    for name, value in PLAIN_VALUES.items():
        check.raises(f"{name} SUM axis=None", lambda v=value: two.reduce("SUM", v), ArgumentError, "not a distributed value")
        check.same(f"{name} MEAN axis=None", two.reduce("MEAN", value))
        check.same(f"{name} gather0", two.gather(value, 0))
        for op in ("SUM", "MEAN"):
            case = f"{name} {op} axis=0"
            if is_error(figures["nested"][case]):
                rule = (
                    (ArgumentTypeError, "takes numeric arrays") if value is None else (ArgumentError, r"axis=0.*scalar \(rank 0\)")
                )
                check.raises(case, lambda v=value, op=op: two.reduce(op, v, axis=0), *rule)
            else:
                check.same(case, two.reduce(op, value, axis=0))


def test_reduce_of_nested_values(figures, checks):
    check, two = checks("nested", figures["nested"]), mirrored(2)
    pair, scalars = per_replica(two, [np.float32([1, 2]), np.float32([3, 4])]), per_replica(two, [np.float32(1), np.float32(10)])
    tens = per_replica(two, [np.ones(2, np.float32), np.full(2, 10, np.float32)])
    nests = {"tuple": (pair, scalars), "dict": {"a": pair, "b": tens}, "mixed": (pair, 5.0), "list_empty": []}
    for name in ("tuple", "dict", "list_empty"):
        check.same(f"{name} SUM axis=None", two.reduce("SUM", nests[name]))
        check.same(f"{name} MEAN axis=None", two.reduce("MEAN", nests[name]))
    check.raises("mixed SUM axis=None", lambda: two.reduce("SUM", nests["mixed"]), ArgumentError, "5.0.*not a distributed value")
    check.same("mixed MEAN axis=None", two.reduce("MEAN", nests["mixed"]))
    for name in ("tuple", "mixed"):
        for op in ("SUM", "MEAN"):
            check.raises(
                f"{name} {op} axis=0", lambda n=name, op=op: two.reduce(op, nests[n], axis=0), ArgumentError, "axis=0.*scalar"
            )
    own = {
        "dict SUM axis=0": (two.reduce("SUM", nests["dict"], axis=0), {"a": 10.0, "b": 22.0}),
        "dict MEAN axis=0": (two.reduce("MEAN", nests["dict"], axis=0), {"a": 2.5, "b": 5.5}),
        "list_empty SUM axis=0": (two.reduce("SUM", [], axis=0), []),
        "list_empty MEAN axis=0": (two.reduce("MEAN", [], axis=0), []),
        "dict gather0": (two.gather(nests["dict"], 0), {"a": [1, 2, 3, 4], "b": [1, 1, 10, 10]}),
        "mixed gather0": (two.gather(nests["mixed"], 0), [[1, 2, 3, 4], 5.0]),
    }
    for case, (actual, expected) in own.items():
        assert same(plain(actual), expected), case
        check.different(case, NESTS)
    with pytest.raises(ArgumentError, match=r"gather: axis=0.*scalar \(rank 0\)"):
        two.gather(nests["tuple"], 0)
    check.different("tuple gather0", NESTS)
    check.same("list_empty gather0", two.gather([], 0))


def test_reduce_arguments(figures, checks):
    check, two, three = checks("nested", figures["nested"]), mirrored(2), mirrored(3)
    pair = per_replica(two, [np.float32([1, 2]), np.float32([3, 4])])
    check.same("op_enum", two.reduce(replicant.ReduceOp.SUM, pair, axis=None))
    check.same("op_lower", two.reduce("sum", pair, axis=None))
    check.raises(
        "op_bad", lambda: two.reduce("MAX", pair, axis=None), ArgumentError, "'MAX' is not a valid ReduceOp: use ReduceOp.SUM"
    )
    assert plain(two.reduce("SUM", pair)) == [4.0, 6.0]
    check.different("axis_missing", OPTIONAL_AXIS)
    check.raises("axis_out_of_range", lambda: two.reduce("SUM", ids(two), axis=0), ArgumentError, "axis=0 is out of range")
    squares = per_replica(two, [np.ones((2, 2), np.float32)] * 2)
    check.same("axis_tuple", two.reduce("SUM", squares, axis=(0, 1)))
    check.same("axis_tuple_mean", two.reduce("MEAN", squares, axis=(0, 1)))
    flags = per_replica(two, [np.asarray(True), np.asarray(False)])
    check.raises("bool_sum", lambda: two.reduce("SUM", flags), ArgumentTypeError, "reduce cannot add values of dtype bool")
    words = per_replica(two, [np.asarray(["a"]), np.asarray(["b"])])
    check.raises("string_gather", lambda: two.gather(words, 0), ArgumentTypeError, "gather takes numeric arrays")
    wide = per_replica(two, [np.ones((1, 2), np.float32), np.ones((1, 3), np.float32)])
    check.raises(
        "gather_other_dim_differs", lambda: two.gather(wide, 0), ArgumentError, r"replica 0: \[1, 2\], replica 1: \[1, 3\]"
    )
    check.same("gather_axis1_ok", two.gather(wide, 1))
    assert two.gather(per_replica(two, [np.ones((0, 3), np.float32)] * 2), 0).shape == (0, 3)  # TensorFlow crashes
    powers = [1, 2, 4]
    check.same("float16_sum", three.reduce("SUM", per_replica(three, [np.float16(x) for x in powers])))
    mean = three.reduce("MEAN", per_replica(three, [np.float64(x) for x in powers]))
    assert mean.dtype == np.float32
    assert same(plain(mean), 7 / 3)
    check.different("float64_mean", X64)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_what_run_takes(figures, checks, n):
    strategy = mirrored(n)
    check = checks(f"run n={n}", figures["run"][f"n={n}"])

    def fn(x, nest, *, key):
        ctx = context()
        size = ctx.num_replicas_in_sync
        assert isinstance(ctx.replica_id_in_sync_group, jax.Array)
        assert ctx.replica_id_in_sync_group.dtype == np.int32
        return ctx.replica_id_in_sync_group, ctx.replica_id_in_sync_group * 0 + size, x * 2, key * 2, nest["a"][0] * 2, size

    steps = stairs(strategy)
    number, total, doubled, by_key, nested, size = strategy.run(fn, args=(steps, {"a": [steps]}), kwargs={"key": steps})
    assert size == n
    check.same("replica_ids", rows(strategy, number))
    assert check.recorded["replica_id_type_inside"] == ["EagerTensor"] * n  # an array, not a Python number: asserted in fn
    check.passed("replica_id_type_inside")
    check.same("num_replicas_inside", [plain(total.values[0])] * n if n > 1 else rows(strategy, total))
    check.same("arg_doubled", rows(strategy, doubled))
    check.same("kwargs", rows(strategy, by_key))
    check.same("nested_arg", rows(strategy, nested))
    check.same("plain_tensor_arg_same_on_all", rows(strategy, strategy.run(lambda x: x, args=(jnp.asarray([1.0, 2.0]),))))
    check.raises("args_not_tuple", lambda: strategy.run(fn, args=jnp.ones(2)), ArgumentTypeError, "args must be a tuple or list")


@pytest.mark.parametrize("n", [1, 2, 3])
def test_what_run_gives_back(figures, checks, n):
    strategy = mirrored(n)
    check = checks(f"run n={n}", figures["run"][f"n={n}"])
    captured, calls = jnp.arange(2.0), []

    def fn(x):
        calls.append(1)
        return 7, len(calls), None, {"a": jnp.asarray(1), "b": jnp.asarray([2.0])}, (jnp.asarray(1), None), x + 1, captured

    seven, counted, none, nest, pair, own, again = strategy.run(fn, args=(ids(strategy),))
    check.same("returns_python_constant", str(seven))
    assert isinstance(counted, int)  # one number for all replicas, as Python code runs while tracing
    check.different("returns_different_python", TRACED_ONCE)
    check.same("returns_none", str(none))
    assert isinstance(again, jax.Array)
    assert check.recorded["returns_same_object_type"] == "EagerTensor"
    check.passed("returns_same_object_type")
    assert [rows(strategy, x) for x in (nest["a"], nest["b"], pair[0], pair[1])] == [[1] * n, [[2.0]] * n, [1] * n, [None]]
    kind = "Mirrored" if n > 1 else "ArrayImpl"
    assert {type(x).__name__ for x in (nest["a"], nest["b"], pair[0])} == {kind}
    for name in ("returns_dict", "returns_tuple_with_none", "return_type_tensor"):
        if n == 1:
            assert "PerReplica" not in str(check.recorded[name])
            check.passed(name)
        else:
            check.different(name, EQUAL_IS_MIRRORED)
    assert type(own).__name__ == ("PerReplica" if n > 1 else "ArrayImpl")


@pytest.mark.parametrize("n", [1, 2, 3])
def test_results_that_do_not_fit_together(figures, checks, n):
    strategy = mirrored(n)
    check = checks(f"run n={n}", figures["run"][f"n={n}"])

    def structures(x):
        return (1, 2) if x.shape[0] == 1 else (1,)

    def divides(x):
        return 1 // 0 if x.shape[0] == n else 1

    def merges(x):
        return context().merge_call(lambda _, v: 5, args=(x,)) if x.shape[0] == 1 else 6

    args = (stairs(strategy),)
    if n == 1:
        check.same("mismatched_structure", str(strategy.run(structures, args=args)))
        check.same("merge_call on one replica only", [strategy.run(merges, args=args)])
    else:
        check.raises(
            "mismatched_structure", lambda: strategy.run(structures, args=args), RaggedStepError, "results of different structure"
        )
        check.raises(
            "merge_call on one replica only",
            lambda: strategy.run(merges, args=args),
            RaggedStepError,
            rf"1 of {n} replicas wait in an exchange \(merge_call\) that the others do not make",
        )
    check.same("none_on_some_replicas", str(strategy.run(lambda x: 1 if x.shape[0] == 1 else None, args=args)))
    check.raises("raises_in_last_replica", lambda: strategy.run(divides, args=args), ZeroDivisionError, "division")


@pytest.mark.parametrize("n", [1, 2, 3])
def test_contexts(figures, checks, n):
    strategy = mirrored(n)
    check = checks(f"run n={n}", figures["run"][f"n={n}"])
    value = ids(strategy)
    for name, call, message in [
        ("run_in_run", lambda x: strategy.run(lambda: 1), r"run\(\) needs cross-replica context"),
        ("reduce_in_replica_ctx", lambda x: strategy.reduce("SUM", x), r"use get_replica_context\(\).all_reduce"),
        ("gather_in_replica_ctx", lambda x: strategy.gather(x, 0), r"use get_replica_context\(\).all_gather"),
        ("scope_in_run", lambda x: strategy.scope().__enter__(), r"scope\(\) needs cross-replica context"),
    ]:
        check.raises(name, lambda call=call: strategy.run(call, args=(value,)), ContextError, message)
    with strategy.scope():
        check.raises("all_reduce_in_cross_replica_ctx", lambda: all_reduce("SUM", 1.0), AttributeError, "'NoneType'.*'all_reduce'")
        check.same("flags_in_scope", flags())
    seen = {}

    def fn(x):
        seen["run"] = flags()
        context().merge_call(lambda *_: seen.update(merge=flags()), args=(x,))
        return strategy.experimental_local_results(x * 0 + 3)[0]

    check.same("local_results_in_replica_ctx", rows(strategy, strategy.run(fn, args=(value,))))
    check.same("flags_in_run", [seen["run"]] * n)
    check.same("flags_in_merge_call", [seen["merge"]])
    outside = flags()
    assert outside[-1] == "DefaultStrategy"
    assert outside[:-1] == check.recorded["flags_outside"][:-1]
    check.passed("flags_outside")
    check.same("flags_order", ["has_strategy", "in_cross_replica_context", "replica_context is not None", "get_strategy class"])
    assert not hasattr(strategy.extended, "update")
    check.different("flags_var_class_arg_in_update", NO_EXTENDED)


def flags():
    return [
        replicant.has_strategy(),
        replicant.in_cross_replica_context(),
        context() is not None,
        type(replicant.get_strategy()).__name__,
    ]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_per_replica_values(figures, checks, n):
    strategy = mirrored(n)
    check = checks(f"run n={n}", figures["run"][f"n={n}"])
    value = ids(strategy, np.int32)
    check.same("local_results_of_plain", strategy.experimental_local_results(3))
    nest = strategy.experimental_local_results({"a": value, "b": 7})
    assert nest == tuple({"a": i, "b": 7} for i in range(n))
    check.same("local_results_of_nest_with_perreplica", [type(x).__name__ for x in nest])
    assert [c.__name__ for c in replicant.PerReplica.__mro__[:2]] == check.recorded["perreplica_class"][:2]
    check.passed("perreplica_class")
    check.raises("perreplica_plus_one", lambda: value + 1, TypeError, "unsupported operand")
    check.same("values_from_function ids", rows(strategy, value))
    check.same("values_from_function type", type(value).__name__)
    nest = strategy.experimental_distribute_values_from_function(
        lambda c: {"a": np.int32(c.replica_id_in_sync_group), "b": np.int32(c.num_replicas_in_sync)}
    )
    check.same("values_from_function nest", {key: rows(strategy, x) for key, x in nest.items()})
    iterator = iter(replicant.data.Dataset.range(n))
    from_data = strategy.experimental_distribute_values_from_function(lambda _: next(iterator))
    assert rows(strategy, from_data) == list(range(n))
    check.same("values_from_function dataset", type(from_data).__name__)
    contexts = rows(strategy, strategy.experimental_distribute_values_from_function(str))
    assert contexts == [f"ValueContext(replica_id_in_sync_group={i}, num_replicas_in_sync={n})" for i in range(n)]
    assert all(
        f"replica id {i},  total replicas in sync: {n}" in c[1] for i, c in enumerate(check.recorded["values_from_function ctx"])
    )
    check.passed("values_from_function ctx")
    check.same("values_from_function in tf.function", rows(strategy, replicant.function(lambda: ids(strategy, np.int32))()))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_all_reduce(figures, checks, n):
    strategy = mirrored(n)
    check = checks(f"run n={n}", figures["run"][f"n={n}"])

    def fn(x):
        ones, results = jnp.ones(2), {}
        for op in ("SUM", "MEAN"):
            results[f"all_reduce {op} scalar id+1"] = all_reduce(op, x + 1)
            results[f"all_reduce {op} int"] = all_reduce(op, (x + 1).astype(jnp.int32))
            results[f"all_reduce {op} vec"] = all_reduce(op, (x + 1) * jnp.arange(3.0))
            results[f"all_reduce {op} nest"] = all_reduce(op, {"a": x + 1, "b": (ones,)})
            results[f"all_reduce {op} nest"]["b"] = results[f"all_reduce {op} nest"]["b"][0]
            y = x * 0 + 1
            with replicant.GradientTape() as tape:
                target = all_reduce(op, y) * (x + 1)
            results[f"grad of all_reduce({op}, x)*(id+1) wrt x"] = tape.gradient(target, y)
        return results

    results = strategy.run(fn, args=(ids(strategy),))
    for name, value in results.items():
        if name.endswith("nest"):
            check.same(name, {key: rows(strategy, x) for key, x in value.items()})
        else:
            check.same(name, rows(strategy, value))
    check.raises(
        "all_reduce python float",
        lambda: strategy.run(lambda: all_reduce("SUM", 1.0)),
        ArgumentTypeError,
        "all_reduce takes arrays; got 1.0 of type float",
    )
    check.raises(
        "all_reduce bad op", lambda: strategy.run(lambda x: all_reduce("MAX", x), args=(ids(strategy),)), ArgumentError, "'MAX'"
    )

    def unequal():
        return strategy.run(lambda x: all_reduce("SUM", x), args=(stairs(strategy),))

    if n == 1:
        check.same("all_reduce unequal shapes", rows(strategy, unequal()))
    else:
        check.raises("all_reduce unequal shapes", unequal, RaggedStepError, r"replica 0: float32\[1\], replica 1: float32\[2\]")
    assert not hasattr(replicant, "IndexedSlices")
    check.different("all_reduce indexed_slices", NO_INDEXED_SLICES)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_all_gather(figures, checks, n):
    strategy = mirrored(n)
    check = checks(f"run n={n}", figures["run"][f"n={n}"])

    def fn(x):
        return {
            "all_gather axis0 unequal": all_gather(x),
            "all_gather axis1 unequal": all_gather(jnp.stack([x, x]), 1),
            "all_gather nest": all_gather({"a": x})["a"],
            "all_gather first replica empty": all_gather(x[1:] * 0 + 1),
        }

    for name, value in strategy.run(fn, args=(stairs(strategy),)).items():
        check.same(name, {"a": rows(strategy, value)} if name.endswith("nest") else rows(strategy, value))

    def slope(number):
        y = jnp.ones(1) * (number * 0 + 1)
        with replicant.GradientTape() as tape:
            target = jnp.sum(all_gather(y) * jnp.arange(1.0, n + 1)) * (number + 1)
        return tape.gradient(target, y)

    name = "grad of sum(all_gather(x)*[1..n])*(id+1) wrt x"
    check.same(name, rows(strategy, strategy.run(slope, args=(ids(strategy),))))

    def differing():
        return strategy.run(lambda x: all_gather(jnp.stack([x, x])), args=(stairs(strategy),))

    if n == 1:
        check.same("all_gather axis0 other dim differs", rows(strategy, differing()))
    else:
        check.raises(
            "all_gather axis0 other dim differs", differing, RaggedStepError, r"equal dtypes and \(except along axis 0\) shapes"
        )
    with pytest.raises(ArgumentError, match=r"all_gather: axis=0 is out of range.*scalar"):
        strategy.run(all_gather, args=(ids(strategy),))
    check.count("all_gather scalar", ONE_REPLICA_CHECKED if n == 1 else None)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_merge_call(figures, checks, n):
    strategy = mirrored(n)
    check = checks(f"run n={n}", figures["run"][f"n={n}"])

    def merge(fn, *args, **kwargs):
        return context().merge_call(fn, args=args, kwargs=kwargs)

    summed = strategy.run(lambda x: merge(lambda s, v: s.reduce("SUM", v, axis=0), x), args=(stairs(strategy),))
    seen = set()

    def note(cross, value, number):
        kind = "array" if isinstance(value, jax.Array) else type(value).__name__
        seen.add((type(cross).__name__, kind, type(number).__name__))

    def fn(x):
        merge(note, x, 3)
        inner = replicant.function(lambda y: merge(lambda s, v: s.reduce("SUM", v), y))
        return merge(lambda s, v: s.reduce("MEAN", v), v=x + 1), merge(lambda s, v: v, x + 1), inner(x + 1)

    mean, back, compiled = strategy.run(fn, args=(ids(strategy),))
    for name, value in {
        "merge_call reduce axis0": summed,
        "merge_call kwargs": mean,
        "merge_call in tf.function body": compiled,
    }.items():
        values = rows(strategy, value)
        assert values == values[:1] * n
        check.same(name, values[:1])
    check.same("merge_call returns perreplica", rows(strategy, back))
    assert seen == {("MirroredStrategy", "PerReplica" if n > 1 else "array", "int")}
    check.different("merge_call arg types, calls", TRACED_ONCE)  # the function runs at every trace, not at every step


@pytest.mark.parametrize("n", [1, 2, 3])
def test_function_and_random_numbers(figures, checks, n):
    strategy = mirrored(n)
    check = checks(f"run n={n}", figures["run"][f"n={n}"])

    @replicant.function
    def summed(value):
        return strategy.run(lambda x: all_reduce("SUM", x + 1), args=(value,))

    @replicant.function
    def reduced(value):
        return strategy.reduce("SUM", strategy.run(lambda x: x * 1, args=(value,)), axis=0)

    check.same("tf.function all_reduce", rows(strategy, summed(ids(strategy))))
    check.same("tf.function reduce of run", reduced(stairs(strategy)))

    def branch(x):
        return jax.lax.cond(x > 0, lambda: all_reduce("SUM", x), lambda: x)

    if n == 1:
        assert rows(strategy, strategy.run(branch, args=(ids(strategy),))) == [0.0]
        check.different("tf.function all_reduce in tf.cond", UNIFORM_BRANCHES)
    else:
        check.raises(
            "tf.function all_reduce in tf.cond",
            lambda: strategy.run(branch, args=(ids(strategy),)),
            ContextError,
            r"branch or loop \(cond\) whose condition differs between replicas",
        )
    keras.utils.set_random_seed(3)
    for name, seed in [("random in run differs per replica", 5), ("random seeded tf.random.set_seed differs", None)]:
        generator = keras.random.SeedGenerator(seed)
        drawn = strategy.run(lambda seed=generator: keras.random.uniform((), seed=seed))
        check.same(name, len(set(rows(strategy, drawn))))


def test_default_and_one_device_strategies(figures, checks):
    check = checks("other", figures["other"])
    default, one = replicant.get_strategy(), replicant.OneDeviceStrategy("cpu:0")
    ctx = context()
    assert [type(ctx).__name__, int(ctx.replica_id_in_sync_group), ctx.num_replicas_in_sync] == ["ReplicaContext", 0, 1]
    assert check.recorded["default_replica_ctx"] == ["_DefaultReplicaContext", 0, 1]
    assert flags()[:3] == check.recorded["default_flags"][:3]
    assert [type(default).__name__, default.num_replicas_in_sync] == ["DefaultStrategy", 1]
    for name in ("default_replica_ctx", "default_flags", "default_class"):
        check.passed(name)
    check.same("default_run", default.run(lambda x: x + 1, args=(jnp.asarray(1),)))
    value = jnp.asarray([1.0, 2.0, 4.0])
    for op in ("SUM", "MEAN"):
        for axis in (None, 0):
            check.same(f"default_reduce {op} axis={axis} of [1,2,4]", default.reduce(op, value, axis=axis))
            check.same(f"one_device_reduce {op} axis={axis} of [1,2,4]", one.reduce(op, value, axis=axis))
    check.same("default_all_reduce", all_reduce("SUM", jnp.asarray(3.0)))
    check.same("default_gather", default.gather(value[:2], 0))
    check.same("default_merge_call", context().merge_call(lambda s, x: x + 1, args=(jnp.asarray(1),)))
    result = one.run(lambda x: x + 0, args=(value[:2],))
    assert isinstance(result, jax.Array)
    assert check.recorded["one_device_run_type"] == "EagerTensor"
    check.passed("one_device_run_type")
    check.same("one_device_local_results", rows(one, result))
    seen = []
    one.run(lambda: seen.append(flags()))
    check.same("one_device_flags_in_run", seen[:1])


def test_two_strategies(figures, checks):
    check = checks("other", figures["other"])
    two, three = mirrored(2), mirrored(3)
    with two.scope():
        with two.scope():
            check.same("scope_in_scope_same", "ok")
        check.raises("scope_in_scope_other", three.scope().__enter__, MixedStrategyError, "Mixing different strategies")
        check.raises("run_of_other_strategy_in_scope", lambda: three.run(lambda: 1), MixedStrategyError, "Leave the scope")
    check.same(
        "reduce_value_of_other_strategy", mirrored(2).reduce("SUM", per_replica(three, [np.float32(1)] * 2 + [np.float32(0)]))
    )
    check.same("reduce_3_values_with_2_replica_strategy", two.reduce("SUM", per_replica(three, [np.float32(1)] * 3)))


def test_making_strategies(figures, checks):
    check = checks("other", figures["other"])
    check.same("no_devices_argument", [replicant.MirroredStrategy().num_replicas_in_sync, check.recorded["no_devices_argument"][1]])
    check.same("empty_devices", replicant.MirroredStrategy([]).num_replicas_in_sync)
    check.raises("duplicate_devices", lambda: replicant.MirroredStrategy(["cpu:0", "CPU:0"]), DeviceError, "given twice")
    with pytest.raises(DeviceError, match=r"no device 'cpu:99'.*8 cpu device\(s\)"):
        replicant.MirroredStrategy(["cpu:0", "cpu:99"])
    check.different("unknown_device", EARLY_ERRORS)
    with pytest.raises(TypeError, match="cross_device_ops"):
        replicant.MirroredStrategy(["cpu:0"], cross_device_ops=None)
    for name in ("HierarchicalCopyAllReduce", "ReductionToOneDevice", "NcclAllReduce"):
        check.different(f"cross_device_ops {name}", NO_CROSS_DEVICE_OPS)
    assert not hasattr(replicant, "experimental_set_strategy")
    check.different("experimental_set_strategy", SCOPE_ONLY)
    strategy = mirrored(2)
    assert strategy.cluster_resolver is None
    check.same("cluster_resolver", strategy.cluster_resolver)
    missing = {name for name in check.recorded["strategy_str_attrs"] if not hasattr(strategy, name)}
    assert missing >= {"configure", "make_dataset_iterator"}
    assert missing.isdisjoint({"run", "reduce", "gather", "scope", "num_replicas_in_sync", "experimental_distribute_dataset"})
    extended = mirrored(3).extended
    assert {name for name in check.recorded["extended_attrs"] if hasattr(extended, name)} == {
        *("experimental_between_graph", "experimental_require_static_shapes", "experimental_should_init"),
        *("parameter_devices", "should_checkpoint", "should_save_summary", "variable_created_in_scope", "worker_devices"),
    }
    assert [f"CPU:{device.id}" for device in extended.worker_devices] == [
        name.rpartition("device:")[2] for name in check.recorded["worker_devices"][0]
    ]
    flags = (extended.should_checkpoint, extended.should_save_summary, extended.experimental_between_graph)
    check.same("should_checkpoint etc", [*flags, extended.experimental_require_static_shapes, extended.experimental_should_init])
    for name in ("strategy_str_attrs", "extended_attrs", "worker_devices"):
        check.different(name, NO_EXTENDED)
    check.same("strategy_pickle_deepcopy", type(copy.deepcopy(strategy)).__name__)


def test_every_case_was_counted(figures, counted):
    """Runs last: each recorded case is in the report, once."""
    groups = {**figures["reduce"], "nested": figures["nested"], "other": figures["other"]}
    groups |= {f"run {n}": cases for n, cases in figures["run"].items()}
    expected = {f"{group} {name}" for group, cases in groups.items() for name in cases.keys() - {"in"}}
    assert counted == expected
