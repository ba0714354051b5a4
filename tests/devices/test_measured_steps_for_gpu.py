"""The steps that are measured on a GPU, lowered for CUDA: ``fit``'s and the loop's multiply as the hand-written step does."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import _gpu
import gpu_steps
from gpu_steps import Row

# The products of bfloat16, the arrays of the state of the step that is written by hand, and the kernel of cuDNN. `fit` has a mean
# loss and an accuracy besides (4 arrays), and the loop an accuracy (2), and it only reads the learning rate.
STEPS = {
    "cnn_bf16": (11, 26, "-"),
    "resnet50": (161, 591, "-"),
    "gpt2": (219, 590, "flash"),
    "attention": (12, 32, "flash"),
}
# All-reduces that a step asks for on two devices: none in the global view of `fit`, where XLA adds them; in the loop one for each
# gradient, which XLA joins; and three by hand, where the gradients are one long array.
EXCHANGES = {"fit": {}, "loop": {"all_reduce": 10}, "hand-written JAX": {"all_reduce": 3}}
FURTHER = {"fit": (4, 4), "loop": (1, 2), "hand-written JAX": (0, 0)}  # overwritten, and all, besides those written by hand


@pytest.mark.cases("attention-loop-2", "attention-fit-1")
@pytest.mark.long_cases("attention-loop-2", "attention-fit-1")
@pytest.mark.parametrize("row", list(gpu_steps.rows()), ids=lambda row: "-".join(map(str, row)))
def test_a_measured_step_multiplies_in_bfloat16_as_one_written_by_hand(row: Row) -> None:
    found = gpu_steps.lowered(row)
    products, state, kernels = STEPS[row.case]
    overwritten, further = FURTHER[row.way]
    assert found.products == {"bf16": products}
    assert (found.donated, found.state, found.kernels) == (state + overwritten, state + further, kernels)
    assert found.exchanges == (EXCHANGES[row.way] if row.devices == 2 else {})
    assert (found.callbacks, found.moves, found.has_float64) == (0, 0, False)
    assert found.inputs - found.state == 2  # only the batch comes from the host


def test_products_of_other_dtypes_are_found() -> None:
    """Otherwise zeros would say nothing."""
    convolution = "dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {pad = [[0, 0]]} {batch_group_count = 1 : i64}"
    text = f"""
    func.func public @main(%arg0: tensor<2x3xf32>) -> (tensor<2x3xf32>) {{
    %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
    %1 = stablehlo.dot_general %a, %b, contracting_dims = [0] x [0] : (tensor<3xbf16>, tensor<3xbf16>) -> tensor<f32>
    %2 = stablehlo.convolution(%a, %b) {convolution} : (tensor<1x2x3xbf16>, tensor<1x3x4xf32>) -> tensor<1x2x4xf32>
    """
    assert _gpu.facts(text, 1).products == {"f32": 1, "bf16": 1, "bf16 x f32": 1}
