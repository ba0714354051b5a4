"""Every synchronization and aggregation of a variable, against what TensorFlow 2.21 gave.

Grid: the start value is 10, replica r writes r + 1, cross-replica context writes 3. After every operation the copies and all
ways to read the variable were recorded. Variables that take part in the same operation share one program.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _compare import Checks, ids, is_error, mirrored, per_replica, plain, rows, same

import replicant
from replicant import Variable
from replicant.errors import (
    ArgumentError,
    ArgumentTypeError,
    ContextError,
    DivergenceError,
    VariableError,
)

DIVERGENCE = "no silent divergence"
NONE_ON_READ = "cross-replica writes to an ON_READ variable without aggregation happen wholly or not at all"
ONE_COPY = "with one replica every variable has a value"
REDUCE_ONE = "reduce with one replica returns the value"
MADE_OUTSIDE = "variables are created outside run"
COPIES_COME_BACK = "as many replicas as were saved get their copies back"
NO_EXTENDED = "strategy.extended has what programs read"
NAMES = "copies of a variable have no names of their own"

READS = ("cross_read_value", "numpy", "plus_zero_in_scope")
NO_VALUE = r"keeps one value per replica .*aggregation=NONE.*Read it inside `strategy.run`"
WRITES = ("assign", "assign_add", "assign_sub")


class Cell:
    """One variable with what was recorded for one operation on it."""

    def __init__(self, entry, operation, dtype=np.float32):
        self.entry, self.operation, self.recorded = entry, operation, entry[operation]
        self.n, self.on_read, self.aggregation = entry["n"], entry["sync"] == "ON_READ", entry["agg"]
        with mirrored(self.n).scope():
            self.variable = Variable(10, dtype=dtype, synchronization=entry["sync"], aggregation=self.aggregation)

    @property
    def after(self):
        return self.recorded.get("after", self.recorded)

    @property
    def combines_nothing(self):
        """Whether the copies must agree, and there is no rule that makes values of several replicas agree."""
        return self.n > 1 and not self.on_read and self.aggregation == "NONE"

    def case(self, part):
        return f"n={self.n} {self.entry['sync']}/{self.aggregation} {self.operation} {part}"

    def write(self, value, name=None):
        return getattr(self.variable, name or self.operation.split("/")[-1])(value)


def cells(figures, n, *operations, dtype=np.float32):
    """A new variable for each of the operations, for every entry of the grid that could be created."""
    entries = [entry for entry in figures["grid"] if entry["n"] == n and "create" not in entry]
    return [Cell(entry, name, dtype) for entry in entries for name in operations if "create" not in entry[name]]


def check_state(done, report, *, ours=None):
    """The variables hold, and give to every reader, what was recorded. `ours`: a value and a reason that replace the record."""
    for cell in done:
        copies = [plain(v) for v in cell.variable.values]
        copies *= cell.n // len(copies)
        strategy = mirrored(cell.n)
        found = {"locals": copies, "reduce_mean": plain(strategy.reduce("MEAN", cell.variable))}
        if cell.on_read and cell.n > 1:
            found["reduce_sum"] = plain(strategy.reduce("SUM", cell.variable))
        else:
            check_sum_of_one_value(cell, report)
        for part, value in found.items():
            compare(cell, part, value, report, ours)
        for part in READS:
            check_read(cell, part, report, ours)
    if done:
        strategy = mirrored(done[0].n)
        for cell, value in zip(done, strategy.run(lambda: [each.variable.value() for each in done]), strict=True):
            values = rows(strategy, value)
            compare(cell, "replica_read", values * (cell.n // len(values)), report, ours)


def compare(cell, part, value, report, ours):
    if ours is None:
        assert same(value, cell.after[part]), (cell.case(part), value, cell.after[part])
        report.passed(cell.case(part))
    else:
        expected, reason = ours
        assert same(value, expected[part]), (cell.case(part), value)
        report.different(cell.case(part), reason)


def check_sum_of_one_value(cell, report):
    """SUM of a value that is the same on all replicas says nothing."""
    strategy = mirrored(cell.n)
    if cell.n == 1:
        assert same([plain(strategy.reduce("SUM", cell.variable))], cell.after["locals"])
        same_as_tensorflow = not is_error(cell.after["reduce_sum"])
        report.count(cell.case("reduce_sum"), None if same_as_tensorflow else REDUCE_ONE)
    else:
        assert is_error(cell.after["reduce_sum"])
        with pytest.raises(ArgumentError, match="is ambiguous, because it is not a distributed value"):
            strategy.reduce("SUM", cell.variable)
        report.passed(cell.case("reduce_sum"))


def check_read(cell, part, report, ours):
    def read():
        with mirrored(cell.n).scope():
            return {"cross_read_value": cell.variable.value, "numpy": cell.variable.numpy}.get(part, lambda: cell.variable + 0)()

    if not is_error(cell.after[part]):
        compare(cell, part, plain(read()), report, ours)
    elif cell.n == 1:
        assert same([plain(read())], cell.after["locals"])
        report.different(cell.case(part), ONE_COPY)
    else:
        with pytest.raises(VariableError, match=NO_VALUE):
            read()
        report.passed(cell.case(part))


def refuse(cell, call, report):
    """Replicas write different values and nothing combines them: an error, and the variable keeps its value."""
    with pytest.raises(DivergenceError, match=r"differs between the . replicas.*aggregation=SUM|got a PerReplica value"):
        call()
    assert {float(v) for v in cell.variable.values} == {10.0}
    for part in [*cell.after, *(cell.recorded.keys() & {"returns", "error"})]:
        report.different(cell.case(part), DIVERGENCE)


def numbers(n, dtype=np.float32):
    """1, 2, 3, ... by replica."""
    return per_replica(mirrored(n), [dtype(r + 1) for r in range(n)])


def write_in_run(done, values, name=None, wrap=lambda fn: fn):
    """All variables written in one run. What the writes return."""
    strategy = mirrored(done[0].n)
    return wrap(lambda x: strategy.run(lambda y: [cell.write(y, name) for cell in done], args=(x,)))(values)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_initial_values_and_properties(figures, report, n):
    for entry in figures["grid"]:
        if entry["n"] == n and "create" in entry:
            with pytest.raises(VariableError, match="synchronization=NONE is not supported: use ON_WRITE"):
                Variable(1.0, synchronization="NONE", aggregation=entry["agg"])
            report.passed(f"n={n} {entry['sync']}/{entry['agg']} create")
    done = cells(figures, n, "initial")
    for cell in done:
        v, props = cell.variable, cell.entry["props"]
        own = [f"VariableSynchronization.{v.synchronization.name}", f"VariableAggregationV2.{v.aggregation.name}"]
        own += [str(v.trainable), f"<dtype: '{v.dtype}'>", str(v.shape)]
        assert own == [props[name] for name in ("synchronization", "aggregation", "trainable", "dtype", "shape")]
        assert (cell.entry["class"] == "SyncOnReadVariable") == cell.on_read == (v.synchronization.name == "ON_READ")
        assert all(isinstance(copy, jax.Array) for copy in v.values)  # TensorFlow: a variable of its own
        for part in ("props", "class", "values_class"):
            report.passed(cell.case(part))
    check_state(done, report)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("way", ["eager", "function"])
def test_writes_in_run(figures, report, n, way):
    wrap = replicant.function if way == "function" else lambda fn: fn
    everything = cells(figures, n, *[f"replica/{way}/{name}" for name in WRITES])
    for cell in everything:
        if cell.combines_nothing:
            refuse(cell, lambda c=cell: write_in_run([c], numbers(n), wrap=wrap), report)
    done = [cell for cell in everything if not cell.combines_nothing]
    strategy = mirrored(n)
    for cell, value in zip(done, write_in_run(done, numbers(n), wrap=wrap), strict=True):
        values = rows(strategy, value)
        assert same(values * (n // len(values)), cell.recorded["returns"]), cell.case("returns")
        report.passed(cell.case("returns"))
    check_state(done, report)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_writes_in_cross_replica_context(figures, report, n):
    check_cross_replica_writes(cells(figures, n, *[f"cross/{name}" for name in WRITES]), "returns", [10] * n, report)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_writes_in_run_and_then_in_cross_replica_context(figures, report, n):
    everything = cells(figures, n, *[f"replica_add_then_cross/{name}" for name in WRITES])
    for cell in everything:
        if cell.combines_nothing:
            refuse(cell, lambda c=cell: write_in_run([c], numbers(n), "assign_add"), report)
    done = [cell for cell in everything if not cell.combines_nothing]
    write_in_run(done, numbers(n), "assign_add")
    check_cross_replica_writes(done, "error", [11 + r for r in range(n)], report)


def check_cross_replica_writes(everything, part, before, report):
    """`before`: the copies of variables whose copies differ, before they are written to."""
    done, kept = [], []
    for cell in everything:
        no_rule = cell.on_read and cell.aggregation == "NONE"
        is_assign = cell.operation.endswith("/assign")
        if is_error(cell.recorded[part]) and not is_assign and cell.n > 1:
            message = rf"ON_READ and aggregation={cell.aggregation}, so assign_\w+ in cross-replica context is ambiguous"
            with pytest.raises(VariableError, match=message):
                cell.write(3.0)
            report.passed(cell.case(part))
            (kept if no_rule else done).append(cell)
            continue
        value = cell.write(3.0)
        done.append(cell)
        if is_error(cell.recorded[part]):
            assert plain(value) == cell.after["locals"][0]
            report.different(cell.case(part), ONE_COPY if cell.n == 1 else NONE_ON_READ)
        else:
            assert same(plain(value), cell.after["cross_read_value"])
            report.passed(cell.case(part))
    check_state(done, report)
    mean = sum(before) / len(before)
    unchanged = {"locals": before, "replica_read": before, "reduce_sum": sum(before), "reduce_mean": mean}
    check_state(kept, report, ours=(unchanged, NONE_ON_READ))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_per_replica_values_in_cross_replica_context(figures, report, n):
    for cell in cells(figures, n, "cross/assign_perreplica"):
        if is_error(cell.recorded["error"]):
            with pytest.raises(DivergenceError, match=r"got a PerReplica value.*Reduce it first with strategy.reduce"):
                cell.variable.assign(numbers(n))
            report.passed(cell.case("error"))
            check_state([cell], report)
        else:
            refuse(cell, lambda c=cell: c.variable.assign(numbers(n)), report)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_same_number_on_all_replicas(figures, report, n):
    everything = cells(figures, n, "replica/assign_same_5")
    done = [cell for cell in everything if not is_error(cell.recorded["error"])]
    mirrored(n).run(lambda: [cell.variable.assign(5.0) for cell in done])
    for cell in everything:
        if cell not in done:
            with pytest.raises(ArgumentError, match=rf"aggregation=SUM got the Python number 5.0.*same on all {n} replicas"):
                mirrored(n).run(lambda c=cell: c.variable.assign(5.0))
        report.passed(cell.case("error"))
    check_state(everything, report)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_integers(figures, report, n):
    name = "int/replica/assign_add"
    for entry in figures["grid"]:
        if entry["n"] == n and "create" in entry.get(name, {}):
            with pytest.raises(VariableError, match=r"aggregation=MEAN needs a float dtype.*int32"):
                Variable(10, synchronization=entry["sync"], aggregation=entry["agg"])
            report.passed(f"n={n} {entry['sync']}/{entry['agg']} {name} create")
    everything = cells(figures, n, name, dtype=np.int32)
    for cell in everything:
        if cell.combines_nothing:
            refuse(cell, lambda c=cell: write_in_run([c], numbers(n, np.int32)), report)
    done = [cell for cell in everything if not cell.combines_nothing]
    write_in_run(done, numbers(n, np.int32))
    for cell in done:
        assert cell.variable.dtype == np.int32
        report.passed(cell.case("error"))
    check_state(done, report)


class Misc(Checks):
    """The single facts that were recorded for n replicas."""

    def __init__(self, figures, report, n):
        super().__init__(figures["misc"][str(n)], report, f"misc n={n}")
        self.strategy, self.n = mirrored(n), n

    def variable(self, value, **kwargs):
        with self.strategy.scope():
            return Variable(value, **kwargs)

    def copies(self, variable):
        found = [plain(v) for v in variable.values]
        return found * (self.n // len(found))


@pytest.fixture
def misc(figures, report, n):
    return Misc(figures, report, n)


both = pytest.mark.parametrize("n", [2, 3])


@both
def test_creation(misc, n):
    calls = []

    def initializer():
        calls.append(1)
        return np.random.default_rng().normal(size=3).astype(np.float32)

    v = misc.variable(initializer, name="w")
    drawn = rows(misc.strategy, misc.strategy.run(lambda x: v.value() + 0 * x, args=(ids(misc.strategy),)))
    misc.same("random_init_identical", drawn == drawn[:1] * n)
    misc.same("initializer_calls", len(calls))
    assert v.name == "w"
    for name in ("names", "mirrored_name"):
        misc.different(name, NAMES)
    misc.strategy.run(lambda: v.assign_add(jnp.ones(3)))
    assert sorted(d.id for d in v.value().sharding.device_set) == list(range(n)) == [int(d[-1]) for d in misc.recorded["devices"]]
    misc.passed("devices")
    with pytest.raises(ArgumentTypeError, match=r"initial value.*must be the same on all replicas; got a PerReplica"):
        misc.variable(ids(misc.strategy))
    assert is_error(misc.recorded["initial_value_perreplica"])
    misc.passed("initial_value_perreplica")
    for name in ("create_in_replica_ctx", "create_in_replica_ctx_dependent_init"):
        with pytest.raises(ContextError, match=r"created inside `strategy.run`.*Create it once, outside"):
            misc.strategy.run(lambda: Variable(1.0))
        misc.different(name, MADE_OUTSIDE)


@both
def test_a_variable_made_outside_of_the_scope(misc, n):
    outside = Variable(0.0)
    assert misc.recorded["created_outside_scope_type"] == "ResourceVariable"
    assert type(outside) is type(misc.variable(0.0))  # one class: a strategy copies it when it first needs it
    misc.passed("created_outside_scope_type")
    with pytest.raises(DivergenceError, match=f"differs between the {n} replicas"):
        misc.strategy.run(outside.assign_add, args=(numbers(n),))
    assert float(outside.value()) == 0.0
    misc.different("outside_var_assign_add_in_run", DIVERGENCE)
    outside.assign(misc.recorded["outside_var_read_in_run"][0])
    misc.same("outside_var_read_in_run", rows(misc.strategy, misc.strategy.run(lambda x: outside + 0 * x, args=(numbers(n),))))


@both
def test_writes_without_aggregation(misc, n):
    v, w = misc.variable(0.0), misc.variable(4.0)
    with pytest.raises(DivergenceError, match=r"aggregation=NONE.*create it with aggregation=SUM, MEAN"):
        misc.strategy.run(v.assign, args=(numbers(n),))
    misc.different("assign_mirrored_no_agg_msg", DIVERGENCE)
    misc.strategy.run(lambda: [v.assign(4.0), w.assign_add(4.0)])
    misc.same("assign_mirrored_no_agg_python_same", [None, misc.copies(v)])
    misc.same("assign_add_no_agg_python_same", [None, misc.copies(w)])


SCATTERS = ("scatter_add", "scatter_sub", "scatter_update", "scatter_max", "scatter_min", "scatter_mul", "scatter_div")


@both
@pytest.mark.parametrize("aggregation", ["NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA"])
def test_scatters_in_run(misc, n, aggregation):
    def scatter(variable, what, replica, update):
        index = jnp.asarray([1]) if what.endswith("same_row") else replica[None]
        return getattr(variable, what.removesuffix("_same_row"))(index, update[None])

    done = {}
    for what in (*SCATTERS, "scatter_add_same_row"):
        v, name = misc.variable([8.0] * 4, aggregation=aggregation), f"{what}/{aggregation}"

        def alone(what=what, v=v):
            args = (ids(misc.strategy, np.int32), numbers(n))
            misc.strategy.run(lambda i, x: scatter(v, what, i, x), args=args)

        if aggregation == "NONE":
            with pytest.raises(DivergenceError, match="differs between"):
                alone()
            misc.different(name, DIVERGENCE)
        elif is_error(misc.recorded[name][0]):
            with pytest.raises(
                VariableError, match=f"{what}.*aggregation={aggregation} is not defined.*aggregation NONE or ONLY_FIRST_REPLICA"
            ):
                alone()
            assert misc.copies(v) == misc.recorded[name][1]
            misc.passed(name)
        else:
            done[what] = v
    misc.strategy.run(
        lambda i, x: [scatter(v, what, i, x) for what, v in done.items()], args=(ids(misc.strategy, np.int32), numbers(n))
    )
    for what, v in done.items():
        misc.same(f"{what}/{aggregation}", [None, misc.copies(v)])


@both
def test_other_uses(misc, n):
    table = misc.variable([0.0] * 4)
    table.scatter_add([2], [5.0])
    misc.same("scatter_add_cross", [None, misc.copies(table)])
    w, one = misc.variable([1.0, 2.0]), misc.variable(1.0)
    total = misc.variable(0.0, synchronization="ON_READ", aggregation="SUM")

    def fn(x):
        with replicant.GradientTape() as tape:
            y = jnp.sum(w * w) * x
        total.assign_add(x)
        return tape.gradient(y, w), w[1] + 0 * x

    for _ in range(2):
        gradient, element = misc.strategy.run(fn, args=(numbers(n),))
    misc.same("gradient_in_run", rows(misc.strategy, gradient))
    misc.same("setitem_slice_read_in_run", rows(misc.strategy, element))
    misc.same("on_read_sum_twice", [misc.copies(total), total.value(), total.value()])
    misc.same("python_ops_outside_scope", [one + 1, 3 * one])
    assert not hasattr(misc.strategy.extended, "update")
    created = [misc.strategy.extended.variable_created_in_scope(v) for v in (w, replicant.Variable(1.0))]
    misc.same("variable_created_in_scope", created)
    for name in ("update_perreplica_arg", "update_outside_scope"):
        misc.different(f"extended_{name}", NO_EXTENDED)
    for name in ("reduce_to", "batch_reduce_to", "colocate_vars_with"):
        misc.different(name, NO_EXTENDED)


@both
@pytest.mark.parametrize("rule", ["ON_READ/SUM", "ON_READ/MEAN", "ON_READ/ONLY_FIRST_REPLICA", "ON_WRITE/MEAN"])
def test_checkpoints(misc, n, rule, tmp_path):
    synchronization, aggregation = rule.split("/")
    rules = {"synchronization": synchronization, "aggregation": aggregation}
    v = misc.variable(0.0, **rules)
    misc.strategy.run(v.assign, args=(numbers(n),))
    found = {"before": misc.copies(v)}
    path = replicant.Checkpoint(v=v).save(tmp_path / "c")
    found["stored"] = plain(v.value())
    v.assign(99.0)
    replicant.Checkpoint(v=v).restore(path).assert_consumed()
    found["restored_locals"] = copies_in_run(misc.strategy, v)
    bare = Variable(0.0)
    replicant.Checkpoint(v=bare).restore(path)
    found["restored_plain"] = plain(bare.value())
    other = mirrored(5 - n)
    with other.scope():
        moved = Variable(0.0, **rules)
    replicant.Checkpoint(v=moved).restore(path)
    found[f"restored_with_{5 - n}_replicas"] = copies_in_run(other, moved)
    check_checkpoint(misc, rule, found)


def copies_in_run(strategy, variable):
    """What the replicas read, whatever happens to be stored."""
    return rows(strategy, strategy.run(lambda x: variable.value() + 0 * x, args=(ids(strategy),)))


def check_checkpoint(misc, rule, found):
    recorded = misc.recorded["checkpoint"][rule]
    assert found.keys() == recorded.keys()
    for part, value in found.items():
        case = f"misc n={misc.n} checkpoint {rule} {part}"
        if part == "restored_locals" and recorded["before"] != recorded["restored_locals"]:
            assert same(value, recorded["before"]), (rule, part, value)
            misc.report.different(case, COPIES_COME_BACK)
        else:
            assert same(value, recorded[part]), (rule, part, value)
            misc.report.passed(case)


@both
def test_checkpoints_without_aggregation(misc, n, tmp_path):
    local = misc.variable(0.0, synchronization="ON_READ", name="local")
    misc.strategy.run(local.assign, args=(numbers(n),))
    recorded = misc.recorded["checkpoint"]["ON_READ/NONE"]
    assert misc.copies(local) == recorded["before"]
    assert recorded["error"] == "ValueError"
    with pytest.raises(VariableError, match=r"'local'.*aggregation=NONE"):
        replicant.Checkpoint(v=local).save(tmp_path / "local")
    for part in recorded:
        misc.report.passed(f"misc n={n} checkpoint ON_READ/NONE {part}")
    v = misc.variable(1.0)
    with pytest.raises(DivergenceError, match="differs between"):
        misc.strategy.run(v.assign, args=(numbers(n),))
    misc.report.different(f"misc n={n} checkpoint ON_WRITE/NONE before", DIVERGENCE)
    path = replicant.Checkpoint(v=v).save(tmp_path / "c")
    other = mirrored(5 - n)
    with other.scope():
        moved = Variable(0.0)
    bare = Variable(0.0)
    for target in (v, moved, bare):
        target.assign(99.0)
        replicant.Checkpoint(v=target).restore(path)
    found = {
        "stored": plain(v.value()),
        "restored_locals": misc.copies(v),
        "restored_plain": plain(bare.value()),
        f"restored_with_{5 - n}_replicas": copies_in_run(other, moved),
    }
    recorded = misc.recorded["checkpoint"]["ON_WRITE/NONE"]
    for part, value in found.items():
        assert same(value, recorded[part]), part
        misc.report.passed(f"misc n={n} checkpoint ON_WRITE/NONE {part}")


def test_every_case_was_counted(figures, counted):
    expected = set()
    for entry in figures["grid"]:
        head = f"n={entry['n']} {entry['sync']}/{entry['agg']}"
        for name in entry.keys() - {"n", "sync", "agg"}:
            recorded = entry[name]
            if name in ("props", "class", "values_class"):
                expected.add(f"{head} initial {name}")
            elif name == "create":
                expected.add(f"{head} create")
            else:
                parts = {**recorded, **recorded.get("after", {})}.keys() - {"after"}
                expected |= {f"{head} {name} {part}" for part in parts}
    for n, facts in figures["misc"].items():
        expected |= {f"misc n={n} {name}" for name in facts if name != "checkpoint"}
        expected |= {f"misc n={n} checkpoint {rule} {part}" for rule, parts in facts["checkpoint"].items() for part in parts}
    assert counted == expected
