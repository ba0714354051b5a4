"""Plans of real programs, compiled for devices that are not there."""

import importlib.util
import json
import os
import re
import sys
import types
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import pytest

import replicant
from replicant.cli import main
from replicant.errors import ArgumentError, ConfigurationError, ContextError
from replicant.plan import Plan, _analysis_cache, _compile, make_plan
from replicant.plan._compile import FoundStep
from replicant.runtime._compile_cache import CompileCache

PROGRAM = """
import sys
import keras
import numpy as np
import replicant

print("the script was run with", sys.argv[1:])
strategy = replicant.MirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4), keras.layers.Dense(2)])
    model.compile("adam", "mse")
rows = 3 * strategy.num_replicas_in_sync
model.fit(np.zeros((rows, 6), "float32"), np.zeros((rows, 2), "float32"), batch_size=rows, verbose=0)
raise SystemExit("a plan must not get here")
"""
WEIGHTS = 4 * (6 * 4 + 4 + 4 * 2 + 2)  # bytes


@pytest.fixture(autouse=True)
def no_kept_analyses(monkeypatch: pytest.MonkeyPatch) -> None:
    """An analysis that an earlier test or run has kept would stand for the one that is tested."""
    monkeypatch.setattr(_analysis_cache, "compile_cache", lambda: CompileCache(None, "each plan is made anew"))


def make_model() -> keras.Model:
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(4), keras.layers.Dense(2)])


def by_fit() -> None:
    with replicant.MirroredStrategy().scope():
        model = make_model()
        model.compile("adam", "mse")
    rows = 3 * replicant.MirroredStrategy().num_replicas_in_sync
    model.fit(np.zeros((rows, 6), "float32"), np.zeros((rows, 2), "float32"), batch_size=rows, verbose=0)


def by_loop(rows: int = 3, **options: Any) -> None:
    strategy = replicant.MirroredStrategy(**options)
    n = strategy.num_replicas_in_sync
    with strategy.scope():
        model, optimizer = make_model(), keras.optimizers.Adam()

    def step(batch: Any) -> Any:
        with replicant.GradientTape() as tape:
            loss = replicant.compute_average_loss(keras.ops.mean((model(batch[0]) - batch[1]) ** 2, axis=-1))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    x, y = np.zeros((rows * n, 6), "float32"), np.zeros((rows * n, 2), "float32")
    for batch in strategy.experimental_distribute_dataset(replicant.data.Dataset.from_tensor_slices((x, y)).batch(3 * n)):
        strategy.run(step, args=(batch,))


def counts(plan: Plan) -> tuple[Any, ...]:
    return plan.batch, plan.weights, plan.optimizer_state, plan.examples_per_step


@pytest.mark.parametrize("program", [by_fit, by_loop])
@pytest.mark.parametrize(("topology", "devices"), [("cpu:2", 2), ("gpu:8xh100", 8)])
@pytest.mark.long_cases("cpu:2-2-by_fit")
@pytest.mark.long_cases("cpu:2-2-by_loop")
def test_a_plan_counts_what_a_step_holds(program: Any, topology: str, devices: int) -> None:
    plan = make_plan(program, topology)
    # Adam's moments; the loop also counts the number of steps and the learning rate, 4 bytes each.
    assert counts(plan)[:2] == (((3, 6), (3, 2)), WEIGHTS)
    assert plan.optimizer_state in (2 * WEIGHTS, 2 * WEIGHTS + 8)
    assert plan.examples_per_step == 3 * devices
    assert plan.fits
    assert plan.compiled.flops > 0
    assert [x.num_bytes for x in plan.compiled.exchanges] == ([WEIGHTS] if topology.startswith("gpu") else [])


def test_a_plan_as_text_and_as_json() -> None:
    plan = make_plan(by_loop, "gpu:8xa100")
    told = json.loads(plan.to_json())
    assert (told["devices"], told["batch_per_replica"], told["bytes_per_device"]["weights"], told["fits"]) == (
        8,
        [[3, 6], [3, 2]],
        WEIGHTS,
        True,
    )
    assert told["bytes_per_device"]["all"] == plan.bytes_per_device
    assert [row["devices"] for row in told["scaling"]] == [2**k for k in range(11)]
    assert "topology" in str(plan)
    assert "8 x NVIDIA A100 80 GB" in str(plan)
    assert plan._repr_html_().startswith("<table><tr><td>topology</td><td>gpu:8xa100: 8 x NVIDIA A100 80 GB</td></tr>")
    assert "<tr><th>devices</th><th>step</th><th>efficiency</th></tr><tr><td>1</td>" in plan._repr_html_()
    assert "does it fit                        yes\n" in str(plan)
    assert told["input"][0]["workers"] == [{"replica_ids": list(range(8)), "files": None, "steps": [[3] * 8], "last_steps": []}]
    assert "worker 0: replicas 0 to 7; reads everything; rows per batch: 8 times 3" in str(plan)
    assert re.fullmatch(r"<Plan for gpu:8xa100: [\d.]+ (bytes|KiB) per device, fits; [\d.]+ us per step>", repr(plan))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    plot = tmp_path / "scaling.svg"
    assert main(["plan", "--topology", "gpu:8xh100", "--json", "--plot", str(plot), str(script), "--args=--epochs 3"]) == 0
    shown = capsys.readouterr()
    told = json.loads(shown.out)  # the program's own lines are not in it
    assert shown.err.splitlines()[:2] == [
        "replicant plan: running the program up to its first training step ...",
        "replicant plan: compiling the step for this machine's CPU ...",
    ]
    assert told["batch_per_replica"] == [[3, 6], [3, 2]]
    assert plot.read_text().startswith("<svg ")
    assert plot.read_text().count('r="3"') == len(told["scaling"])


ENDED = "ended.py"  # a program that ends well, without training


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py", "--topology", "cpu:2"], "The script 'nowhere.py' does not exist"),
        (["nowhere", "--topology", "cpu:2"], "'nowhere' is neither a script (SCRIPT.py) nor MODULE:FUNCTION"),
        (["nowhere:train", "--topology", "cpu:2"], "There is no module 'nowhere' here"),
        (["json:train", "--topology", "cpu:2"], "Module 'json' has no function 'train'"),
        (["json:loads", "--topology", "abacus:2"], "'abacus:2' is not a topology"),
        (["replicant_planned:by_fit", "--topology", "cpu:2", "--plot", "x.svg"], "'cpu:2' has no scaling to draw"),
        ([ENDED, "--topology", "cpu:2"], "The program ended without a training step under a strategy"),
    ],
)
def test_what_the_command_cannot_plan(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setitem(sys.modules, "replicant_planned", types.SimpleNamespace(by_fit=by_fit))
    monkeypatch.chdir(tmp_path)
    Path(ENDED).write_text("import sys\nsys.exit(0)\n")
    assert main(["plan", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_a_program_that_trains_nothing() -> None:
    with pytest.raises(ContextError, match="ended without a training step under a strategy"):
        make_plan(lambda: None, "cpu:2")


def test_a_first_batch_that_does_not_divide() -> None:
    with pytest.raises(ArgumentError, match=r"gives the 4 replicas different numbers of rows.*a multiple of 4 rows"):
        make_plan(lambda: by_loop_with_rows(7), "cpu:4")


def by_loop_with_rows(rows: int) -> None:
    strategy = replicant.MirroredStrategy()
    with strategy.scope():
        weight = replicant.Variable(1.0, name="weight", trainable=True)
    data = replicant.data.Dataset.range(rows).batch(rows)
    for batch in strategy.experimental_distribute_dataset(data):
        strategy.run(lambda x: _grow(weight, x), args=(batch,))


def _grow(weight: Any, x: Any) -> None:
    context = replicant.get_replica_context()
    weight.assign(weight + context.all_reduce("SUM", x.sum().astype("float32")))


@pytest.mark.parametrize("make", [replicant.TPUStrategy, replicant.MultiWorkerMirroredStrategy], ids=["tpu", "workers"])
def test_strategies_for_devices_that_are_not_there(make: Any) -> None:
    def program() -> None:
        strategy = make()
        with strategy.scope():
            model = make_model()
            model.compile("sgd", "mse")
        rows = 3 * strategy.num_replicas_in_sync
        model.fit(np.zeros((rows, 6), "float32"), np.zeros((rows, 2), "float32"), batch_size=rows, verbose=0)

    assert make_plan(program, "gpu:8xh100").batch == ((3, 6), (3, 2))


WIDE, DEEP = 16384, 24  # layers of 1 GiB each
GIB = 1 << 30


def too_large(**options: Any) -> None:
    strategy = replicant.MirroredStrategy(**options)
    with strategy.scope():
        model = keras.Sequential([keras.Input((WIDE,)), *[keras.layers.Dense(WIDE, use_bias=False) for _ in range(DEEP)]])
        model.compile("adam", "mse")
    rows = 1024 * strategy.num_replicas_in_sync  # of 64 KiB, twice
    data = replicant.data.Dataset.range(10 * rows).map(lambda i: (np.full(WIDE, i, "float32"), np.full(WIDE, i, "float32")))
    model.fit(data.batch(rows), verbose=0)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux says how much memory is resident")
def test_what_no_machine_holds_is_planned_from_shapes_alone() -> None:
    before = resident_bytes()
    plan = make_plan(too_large, "gpu:8xa100")
    assert resident_bytes() - before < GIB
    assert (plan.weights, plan.sliced_state) == (DEEP * GIB, 2 * DEEP * GIB // 8 + plan.optimizer_state - 2 * DEEP * GIB)
    assert plan.batch == ((1024, WIDE), (1024, WIDE))
    missing = plan.bytes_per_device - plan.chip.memory
    assert not plan.fits
    assert plan.missing_bytes == missing
    text = str(plan)
    assert f"NO, by {missing / GIB:,.1f} GiB" in text
    assert "with shard_optimizer_state=True" in text
    assert json.loads(plan.to_json())["missing_bytes"] == missing


def test_labels_of_64_bits_make_no_warning() -> None:
    def program() -> None:
        with replicant.MirroredStrategy().scope():
            model = make_model()
            model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.fit(np.zeros((12, 6), "float32"), np.zeros(12, "int64"), batch_size=12, verbose=0)

    plan = make_plan(program, "gpu:2xh100")
    assert (plan.weights, plan.optimizer_state) == (WEIGHTS, 2 * WEIGHTS + 8)


@pytest.mark.parametrize("way", ["loop", "fit"])
def test_all_variables_in_slices(way: str) -> None:
    def program() -> None:
        strategy = replicant.FullyShardedStrategy(min_size=8)
        n = strategy.num_replicas_in_sync
        with strategy.scope():
            model, optimizer = make_model(), keras.optimizers.Adam()
            model.compile(optimizer, "mse")
        x, y = np.zeros((3 * n, 6), "float32"), np.zeros((3 * n, 2), "float32")
        if way == "fit":
            model.fit(x, y, batch_size=3 * n, verbose=0)

        def step(batch: Any) -> None:
            with replicant.GradientTape() as tape:
                loss = replicant.compute_average_loss(keras.ops.mean((model(batch[0]) - batch[1]) ** 2, axis=-1))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

        for batch in strategy.experimental_distribute_dataset(replicant.data.Dataset.from_tensor_slices((x, y)).batch(3 * n)):
            strategy.run(step, args=(batch,))

    plan = make_plan(program, "gpu:2xh100")
    kept = 4 * (6 * 4 // 2 + 4 + 4 * 2 // 2 + 2)  # the kernels are cut, and their biases are too small
    assert (plan.weights, plan.optimizer_state) == (kept, 2 * kept + 8)
    kernels, biases = 4 * (6 * 4 + 4 * 2), 4 * (4 + 2)
    assert [(x.kind, x.num_bytes) for x in plan.compiled.exchanges] == [
        *[("all-gather", kernels)] * 2,
        ("reduce-scatter", kernels // 2),
        ("all-reduce", biases),
    ]


def test_optimizer_state_in_slices() -> None:
    plan = make_plan(lambda: by_loop(shard_optimizer_state=True), "gpu:2xh100")
    # Adam's moments of both layers divide by 2; its step and learning rate do not.
    assert (plan.weights, plan.optimizer_state, plan.sliced_state) == (WEIGHTS, WEIGHTS + 8, WEIGHTS + 8)
    assert [(x.kind, x.num_bytes) for x in plan.compiled.exchanges] == [("all-reduce", WEIGHTS), ("all-gather", WEIGHTS)]


# What libtpu says of a step that is too large, as it is raised.
REFUSAL = (
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (16.21G) exceeds available HBM "
    "(15.75G)."
)


@pytest.mark.parametrize(("said", "expected"), [(REFUSAL, int(16.21 * GIB)), ("INTERNAL: something else", None)])
def test_a_step_that_the_compiler_refuses(said: str, expected: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused:
        def as_text(self) -> str:
            return ""

        def compile(self) -> None:
            raise jax.errors.JaxRuntimeError(said)

    lower = FoundStep.lower
    monkeypatch.setattr(_compile, "_tpu_devices", lambda target: ["a chip"] * target.num_devices)
    monkeypatch.setattr(FoundStep, "lower", lambda self, where: Refused() if "a chip" in where.devices else lower(self, where))
    if expected is None:
        with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
            make_plan(by_fit, "v5e:2x4")
        return
    plan = make_plan(by_fit, "v5e:2x4")
    assert plan.compiled.temporary_bytes == expected
    assert not plan.fits
    assert [(x.kind, x.num_bytes) for x in plan.compiled.exchanges] == [("all-reduce", WEIGHTS)]
    assert "of a step that XLA refuses to compile for 8 x TPU v5e, because it needs too much memory" in str(plan)


def test_a_strategy_plans_a_step_of_its_own() -> None:
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        model, optimizer = make_model(), keras.optimizers.SGD()

    def step(x: Any) -> Any:
        with replicant.GradientTape() as tape:
            loss = keras.ops.sum(model(x) ** 2)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    @replicant.function
    def everything(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(step, args=(batch,)))

    batch = next(iter(strategy.experimental_distribute_dataset(replicant.data.Dataset.from_tensors(np.ones((6, 6), "float32")))))
    before = [variable.numpy() for variable in model.variables]
    for fn in (step, everything):
        plan = strategy.plan(fn, args=(batch,), topology="gpu:16xh100")
        assert (plan.batch, plan.weights, plan.examples_per_step) == (((3, 6),), WEIGHTS, 48)
    assert strategy.num_replicas_in_sync == 2
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    assert np.isfinite(float(everything(batch)))


def test_a_strategy_plans_for_the_devices_that_it_has() -> None:
    """The plan's program has the same arguments on the same devices as the one that was compiled for training."""
    strategy = replicant.OneDeviceStrategy("cpu:0")
    weight = replicant.Variable(np.zeros(3, "float32"), name="weight")

    def step(x: Any) -> None:
        weight.assign_sub(replicant.get_replica_context().all_reduce("SUM", keras.ops.sum(x, axis=0)))

    batch = jax.numpy.ones((4, 3))
    strategy.run(step, args=(batch,))
    assert strategy.plan(step, args=(batch,), topology="cpu:1").batch == ((4, 3),)
    assert weight.numpy().tolist() == [-4.0] * 3  # nothing was trained


def test_copies_of_a_variable_are_counted_whole() -> None:
    def program() -> None:
        strategy = replicant.MirroredStrategy()
        weight = replicant.Variable(1.0, name="weight", trainable=True)
        with strategy.scope():
            table = replicant.Variable(np.zeros((5, 7), "float32"), synchronization="ON_READ", aggregation="SUM", trainable=False)

        def step(x: Any) -> None:
            table.assign_add(keras.ops.ones((5, 7)))
            _grow(weight, x)

        for batch in strategy.experimental_distribute_dataset(replicant.data.Dataset.range(64).batch(16)):
            strategy.run(step, args=(batch,))

    assert make_plan(program, "gpu:8xh100").other_state == 4 * 5 * 7


@pytest.mark.long
def test_a_cpu_step_is_measured() -> None:
    plan = make_plan(by_loop, "cpu:2")
    assert plan.compiled.measured is not None
    assert plan.seconds == plan.compiled.measured > 0
    assert "step, measured on zeros" in str(plan)
    assert json.loads(plan.to_json())["step_is_measured"] is True
    assert make_plan(by_loop, "gpu:8xh100").compiled.measured is None


def test_an_input_that_the_workers_cannot_share() -> None:
    def program() -> None:
        strategy = replicant.MirroredStrategy()
        with strategy.scope():
            weight = replicant.Variable(1.0, name="weight", trainable=True)
        options = replicant.data.Options()
        options.experimental_distribute.auto_shard_policy = replicant.data.AutoShardPolicy.FILE
        data = replicant.data.Dataset.range(64).batch(16).with_options(options)
        for batch in strategy.experimental_distribute_dataset(data):
            strategy.run(lambda x: _grow(weight, x), args=(batch,))

    plan = make_plan(program, "gpu:16xh100")
    assert isinstance(plan.inputs[0], str)
    assert plan.inputs[0] in str(plan)


def test_strategies_are_as_ever_afterwards() -> None:
    make_plan(by_fit, "gpu:8xh100")
    assert replicant.MirroredStrategy(["cpu:0", "cpu:1"]).num_replicas_in_sync == 2


def test_the_options_of_quick_plans_are_known_to_the_compiler() -> None:
    """XLA refuses the same unknown options for CPUs as for TPUs. Their names differ between versions of JAX."""
    lowered = jax.jit(lambda x: x + 1).lower(1.0)
    assert lowered.compile(_compile._QUICK)(1.0) == 2.0
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option"):
        lowered.compile({"no_such_effort": 1.0})


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is not None, reason="libtpu is installed")
def test_without_libtpu_there_are_no_plans_for_tpus() -> None:
    with pytest.raises(ConfigurationError, match=r"'v5e:2x4' needs libtpu.*pip install 'replicant-jax\[tpu-plan\]'"):
        make_plan(by_fit, "v5e:2x4")


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is missing: pip install 'replicant-jax[tpu-plan]'")
@pytest.mark.parametrize(("program", "loss"), [(by_fit, 4), (by_loop, 0)])  # fit sums up the loss, too
def test_a_tpu_step_all_reduces_the_gradients_once(program: Any, loss: int) -> None:
    plan = make_plan(program, "v5e:2x4")
    assert [(x.kind, x.num_bytes) for x in plan.compiled.exchanges] == [("all-reduce", WEIGHTS + loss)]
    assert make_plan(program, "v5e:2x4", quick=True).compiled.source == "compiled for 8 x TPU v5e with little effort"
