"""The steps of the examples and guides, lowered for GPUs that are not there, and cut by XLA for several devices."""

import sys
from pathlib import Path
from typing import NamedTuple

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import _gpu
import gpu_lowering
from gpu_lowering import Row

BOTH, FLOAT32, BFLOAT16 = None, "float32", "mixed_bfloat16"


class Step(NamedTuple):
    """What a lowered step has to do, on 2 and on 8 devices."""

    exchanges: dict[str, int]  # those that it asks for itself, before XLA cuts what is in the global view
    overwritten: int  # of the arrays of its state
    state: int
    kernels: str = "-"


# In `fit`, the state is that of the loop, the learning rate, which is returned, and the mean loss (2 arrays).
STEPS: dict[tuple[str, str, str | None], Step] = {
    ("CNN", "fit", BOTH): Step({}, 30, 30),
    ("CNN", "tape", BOTH): Step({"all_reduce": 8}, 27, 28),
    ("MLP", "fit", BOTH): Step({}, 24, 24),
    ("MLP", "tape", BOTH): Step({"all_reduce": 6}, 21, 22),
    ("MLP, dropout", "fit", BOTH): Step({}, 19, 19),
    ("MLP, dropout", "tape", BOTH): Step({"all_reduce": 4}, 16, 17),
    ("ResNet", "fit", BOTH): Step({}, 95, 95),
    ("ResNet", "tape", BOTH): Step({"all_reduce": 39}, 92, 93),  # 25 weights, and 14 moving statistics
    ("transformer", "fit", FLOAT32): Step({}, 54, 54),
    ("transformer", "tape", FLOAT32): Step({"all_reduce": 16}, 51, 52),
    ("transformer", "fit", BFLOAT16): Step({}, 54, 54, "flash"),
    ("transformer", "tape", BFLOAT16): Step({"all_reduce": 16}, 51, 52, "flash"),
    ("transformer", "fit, sliced optimizer", BFLOAT16): Step({}, 54, 54, "flash"),
    ("transformer", "tape, sliced optimizer", BFLOAT16): Step({"all_reduce": 16, "all_gather": 16}, 51, 52, "flash"),
    ("transformer, remat", "fit", FLOAT32): Step({}, 54, 54),
    ("transformer, remat", "tape", FLOAT32): Step({"all_reduce": 16}, 51, 52),
    ("transformer, remat", "fit", BFLOAT16): Step({}, 54, 54, "flash"),
    ("transformer, remat", "tape", BFLOAT16): Step({"all_reduce": 16}, 51, 52, "flash"),
    ("masked transformer", "fit", FLOAT32): Step({}, 39, 39),
    ("masked transformer", "tape", FLOAT32): Step({"all_reduce": 11}, 36, 37),
    ("masked transformer", "fit", BFLOAT16): Step({}, 39, 39, "flash"),
    ("masked transformer", "tape", BFLOAT16): Step({"all_reduce": 11}, 36, 37, "flash"),
    # cuDNN's LSTM runs apart on each device, also in `fit`. So the gradients of its weights are summed there.
    ("LSTM", "fit", FLOAT32): Step({"all_reduce": 3}, 25, 25, "lstm"),
    ("LSTM", "tape", FLOAT32): Step({"all_reduce": 6}, 21, 22, "lstm"),
    ("LSTM", "fit", BFLOAT16): Step({}, 25, 25),
    ("LSTM", "tape", BFLOAT16): Step({"all_reduce": 6}, 21, 22),
    ("bidirectional LSTM", "fit", FLOAT32): Step({"all_reduce": 6}, 35, 35, "lstm"),
    ("bidirectional LSTM", "tape", FLOAT32): Step({"all_reduce": 9}, 30, 31, "lstm"),
    ("bidirectional LSTM", "fit", BFLOAT16): Step({}, 35, 35),
    ("bidirectional LSTM", "tape", BFLOAT16): Step({"all_reduce": 9}, 30, 31),
    ("embeddings", "fit", BOTH): Step({}, 30, 30),
    ("embeddings", "tape", BOTH): Step({"all_reduce": 8}, 27, 28),
    ("examples/custom_training.py", "as it is", BOTH): Step({"all_reduce": 8}, 27, 28),
    ("examples/keras_fit.py", "as it is", BOTH): Step({}, 24, 24),
    ("examples/large_model.py", "as it is", FLOAT32): Step({}, 88, 88),  # in slices, which XLA collects
    ("examples/large_model.py", "as it is", BFLOAT16): Step({}, 88, 88, "flash"),
    ("examples/plan_resnet50.py", "as it is", BOTH): Step({}, 540, 540),
    ("examples/plan_transformer.py", "as it is", FLOAT32): Step({"all_reduce": 28}, 85, 86),
    ("examples/plan_transformer.py", "as it is", BFLOAT16): Step({"all_reduce": 28}, 85, 86, "flash"),
}


# How often devices exchange in the step that XLA has cut, and how many arrays. A custom loop sums the loss with the gradients, and
# `fit` also what is counted of the accuracy and of labels out of range. BatchNormalization has two sums of its own in the forward
# pass and two in the backward pass, in `fit` for the whole batch. Keras's loop of an LSTM sums the gradients of its weights apart.
CUT: dict[tuple[str, str, str], tuple[int, int]] = {
    ("CNN", "fit", FLOAT32): (1, 8 + 3),
    ("CNN", "tape", BFLOAT16): (1, 8 + 1),
    ("MLP", "fit", BFLOAT16): (1, 6 + 3),
    ("MLP, dropout", "fit", FLOAT32): (1, 4 + 3),
    ("ResNet", "fit", BFLOAT16): (4 * 7 + 1, 25 + 4 * 7 + 3),
    ("ResNet", "tape", BFLOAT16): (1, 25 + 2 * 7 + 1),
    ("transformer", "fit", FLOAT32): (1, 16 + 3),
    ("transformer", "fit", BFLOAT16): (1, 16 + 3),
    ("transformer", "tape", BFLOAT16): (1, 16 + 1),
    ("masked transformer", "fit", BFLOAT16): (1, 11 + 3),
    ("LSTM", "fit", FLOAT32): (1, 6 + 3),
    ("LSTM", "fit", BFLOAT16): (2, 6 + 3),
    ("LSTM", "tape", FLOAT32): (1, 6 + 1),
    ("bidirectional LSTM", "fit", FLOAT32): (1, 9 + 3),
    ("embeddings", "fit", FLOAT32): (1, 8 + 3),  # gradients of tables are those of all rows
    ("embeddings", "tape", FLOAT32): (1, 8 + 1),
}


def expected(row: Row) -> Step:
    how = "tape" if row.loop == "value_and_grad" else row.loop
    return STEPS.get((row.model, how, BOTH)) or STEPS[row.model, how, row.dtype]


@pytest.mark.cases(
    "transformer-mixed_bfloat16-fit-2",
    "transformer-mixed_bfloat16-value_and_grad-8",
    "LSTM-float32-fit-2",
)
@pytest.mark.parametrize("row", list(gpu_lowering.rows()), ids=str)
@pytest.mark.long_cases("transformer-mixed_bfloat16-value_and_grad-8")
@pytest.mark.long_cases("transformer-mixed_bfloat16-fit-2")
def test_a_step_lowers_for_gpus(row: Row) -> None:
    facts, step = _gpu.lower(gpu_lowering.program(row), row.devices), expected(row)
    assert Step(facts.exchanges, facts.donated, facts.state, facts.kernels) == step
    assert facts.inputs - facts.state == (1 if "plan_transformer" in row.model else 2)  # only the batch comes from the host
    assert facts.rows in ((), (gpu_lowering.ROWS_PER_REPLICA,))  # no device computes the whole batch
    assert (facts.callbacks, facts.moves, facts.has_float64) == (0, 0, False)


@pytest.mark.cases("transformer-fit-mixed_bfloat16")
@pytest.mark.parametrize(("model", "how", "dtype"), list(CUT), ids=lambda x: x)
@pytest.mark.long
def test_a_step_exchanges_no_more_than_it_must(model: str, how: str, dtype: str) -> None:
    cut = _gpu.partition(gpu_lowering.program(Row(model, dtype, how, 2)), 2)
    times, arrays = CUT[model, how, dtype]
    assert (cut.exchanges, cut.arrays) == ({"all-reduce": times}, {"all-reduce": arrays})
    own_rows = (gpu_lowering.ROWS_PER_REPLICA,) if STEPS.get((model, how, dtype), Step({}, 0, 0)).kernels != "-" else ()
    assert cut.rows == own_rows


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fit", "tape"])
def test_a_sliced_optimizer_collects_each_weight_once(how: str) -> None:
    row = Row("transformer", BFLOAT16, f"{how}, sliced optimizer", 8)
    assert _gpu.partition(gpu_lowering.program(row), 8).arrays == {"all-reduce": 16 + (3 if how == "fit" else 1), "all-gather": 16}


@pytest.mark.slow
def test_a_fully_sharded_step_collects_each_weight_once_in_each_pass() -> None:
    """14 weights are in slices. All are collected forward, and all but the embedding, whose gradient needs no weight, backward."""
    cut = _gpu.partition(gpu_lowering.program(Row("examples/large_model.py", FLOAT32, "as it is", 2)), 2)
    assert cut.exchanges == {"all-gather": 14 + 13, "all-reduce": 1}
    assert cut.arrays == {"all-gather": 14 + 13, "all-reduce": 28 + 2}


def test_the_reading_of_a_program_finds_what_must_not_be_there() -> None:
    """Otherwise zeros would say nothing."""
    text = """
    func.func public @main(%arg0: tensor<2xf32> {tf.aliasing_output = 0 : i32}, %arg1: tensor<2xf64>, %arg2: tensor<2xf32>) -> (x) {
    %0 = stablehlo.custom_call @xla_ffi_python_gpu_callback(%arg0) : (tensor<2xf32>) -> tensor<2xf32>
    %1 = stablehlo.custom_call @annotate_device_placement(%0) : (tensor<2xf32>) -> tensor<2xf32>
    %2 = "stablehlo.all_reduce"(%1) : (tensor<2xf32>) -> tensor<2xf32>
    %3:4 = stablehlo.custom_call @cudnn_rnn_ffi(%arg0, %arg1) : (tensor<16x4x3xf32>, tensor<1x2x8xf32>) -> (tensor<16x4x8xf32>)
    %4 = "stablehlo.outfeed"(%3) : (tensor<2xf32>) -> !stablehlo.token
    """
    facts = _gpu.facts(text, 1)
    assert (facts.exchanges, facts.donated, facts.inputs, facts.kernels) == ({"all_reduce": 1}, 1, 3, "lstm")
    assert (facts.callbacks, facts.moves, facts.has_float64, facts.rows) == (1, 2, True, (16,))
