"""The real steps of TPUStrategy, compiled for TPUs that are not there: who exchanges what with whom."""

import importlib.util
import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import replicant
from replicant.plan._chips import parse_target
from replicant.plan._compile import _tpu_devices, find_step
from replicant.plan._exchanges import exchanges_in
from replicant.replicas._placement import Placement

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed: pip install 'replicant-jax[tpu-plan]'"
    ),
]
ROWS = 4  # of each replica
GRADIENTS = 4 * (64 * 256 + 256 + 256 * 16 + 16)  # bytes
_LINE = re.compile(r"= (.*?) (all-reduce|all-gather|reduce-scatter|send)(?:-start)?\(")


def create_model() -> keras.Model:
    return keras.Sequential([keras.Input((64,)), keras.layers.Dense(256, "relu"), keras.layers.Dense(16)])


def rows(num_replicas: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((ROWS * num_replicas, 64), np.float32), np.zeros((ROWS * num_replicas, 16), np.float32)


def create_wide_model() -> keras.Model:
    return keras.Sequential([keras.Input((64,)), *[keras.layers.Dense(1024, "tanh") for _ in range(3)], keras.layers.Dense(16)])


def loop(make_strategy: Any = replicant.TPUStrategy, make_model: Callable[[], keras.Model] = create_model) -> None:
    strategy = make_strategy()
    n = strategy.num_replicas_in_sync
    with strategy.scope():
        model, optimizer = make_model(), keras.optimizers.Adam()

    def step(x: Any, y: Any) -> Any:
        with replicant.GradientTape() as tape:
            loss = replicant.compute_average_loss(keras.ops.mean((model(x) - y) ** 2, axis=-1), global_batch_size=ROWS * n)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    for batch in strategy.experimental_distribute_dataset(replicant.data.Dataset.from_tensor_slices(rows(n)).batch(ROWS * n)):
        strategy.run(step, args=batch)


def fit(make_strategy: Any = replicant.TPUStrategy, make_model: Callable[[], keras.Model] = create_model) -> None:
    strategy = make_strategy()
    n = strategy.num_replicas_in_sync
    with strategy.scope():
        model = make_model()
        model.compile("adam", "mse")
    model.fit(*rows(n), batch_size=ROWS * n, verbose=0)


def compiled(program: Callable[[], None], topology: str) -> str:
    target = parse_target(topology)
    return find_step(program, target).lower(Placement(tuple(_tpu_devices(target)))).compile().as_text()


def exchanges(text: str) -> Counter[tuple[str, str]]:
    """How many there are of each kind, with the devices that exchange."""
    found: Counter[tuple[str, str]] = Counter()
    for line in text.splitlines():
        if match := _LINE.search(line):
            groups = re.search(r"replica_groups=(\{\{.*?\}\}|\S+\]|\S+)", line)
            who = "other slices" if "xla_megascale_runtime" in line else groups[1] if groups else "?"
            found[match[2], who] += 1
    return found


@pytest.fixture(autouse=True)
def _several_may_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody holds a TPU, so it does not matter that another process has loaded libtpu as well."""
    monkeypatch.setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")


@pytest.mark.parametrize("program", [loop, fit])
@pytest.mark.parametrize(("topology", "devices"), [("v5e:2x4", 8), ("v5e:16x16", 256)])
def test_a_step_on_one_slice_sends_its_gradients_once(program: Callable[[], None], topology: str, devices: int) -> None:
    text = compiled(program, topology)
    everybody = f"{{{{{','.join(map(str, range(devices)))}}}}}"
    found = exchanges(text)
    assert found in ({("all-reduce", everybody): 1}, {("all-reduce", f"mesh['axis_0'={devices}]"): 1}), found
    (line,) = [line for line in text.splitlines() if (match := _LINE.search(line)) and match[2] == "all-reduce"]
    sizes = [np.prod([int(n) for n in dims.split(",") if n]) for dims in re.findall(r"f32\[([\d,]*)\]", _LINE.search(line)[1])]
    assert GRADIENTS <= 4 * sum(sizes) <= GRADIENTS + 8  # all gradients together, perhaps with the loss


@pytest.mark.parametrize("program", [loop, fit])
def test_a_step_on_two_slices_exchanges_inside_of_them_first(program: Callable[[], None]) -> None:
    found = exchanges(compiled(program, "v5e:2x4*2"))
    inside = "{{0,1,2,3,4,5,6,7}}"  # as each slice numbers its devices
    assert {who for _, who in found} == {inside, "other slices"}
    assert found["reduce-scatter", inside] >= 1
    assert found["all-gather", inside] >= 1
    assert found["send", "other slices"] >= 1


@pytest.mark.parametrize("program", [loop, fit])
def test_weights_in_slices_are_gathered_in_each_direction_and_their_gradients_scattered(program: Callable[..., None]) -> None:
    text = compiled(lambda: program(replicant.FullyShardedStrategy, create_wide_model), "v5e:2x4")
    found = Counter((x.kind, x.num_bytes) for x in exchanges_in(text))
    square, bfloat16 = 1024 * 1024, 2
    assert found["all-gather", square * bfloat16] == 4  # two kernels in two directions
    scattered = 8 * sum(size * count for (kind, size), count in found.items() if kind == "reduce-scatter")
    (rest,) = [size for (kind, size) in found if kind == "all-reduce"]  # the others, with the loss of `fit`
    gradients = 4 * sum(math.prod(weight.shape) for weight in create_wide_model().weights)
    assert scattered >= 4 * 2 * square
    assert 0 <= scattered + rest - gradients <= 8
    assert {kind for kind, _ in found} == {"all-gather", "all-reduce", "reduce-scatter"}
