"""``tape.jacobian`` and ``batch_jacobian`` against what tf.GradientTape of TensorFlow 2.21 gave, eagerly and in a function."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from _compare import is_error, plain, same

import replicant
from replicant import GradientTape
from replicant.errors import ArgumentError, ArgumentTypeError, GradientError

CASES = json.loads((Path(__file__).parent / "figures" / "jacobians.json").read_text())["cases"]
NAMES = {
    "np": np,
    "array": jnp.asarray,
    "Variable": replicant.Variable,
    "total": jnp.sum,
    "stack": jnp.stack,
    "sin": jnp.sin,
    "matmul": jnp.matmul,
}
NOT_PERSISTENT = "a jacobian never needs a persistent tape"
MORE = "jacobians of what TensorFlow cannot compute"
DIFFERENT = {
    "without pfor": NOT_PERSISTENT,
    "batch without pfor": NOT_PERSISTENT,
    "parallel": MORE,
    "empty batch": MORE,
    # The gradients of what has a dtype of integers are None in the figures, too; its tape only warns.
}
INSTEAD = {
    "parallel": np.diag(np.cos([1.0, 2, 3]) * [1, 2, 3] + np.sin([1.0, 2, 3])).tolist(),
    "empty batch": [],
}
ERRORS = ArgumentError, ArgumentTypeError, GradientError


def evaluate(case, mode):
    names = dict(NAMES)
    exec(case["make"], names)

    def fn():
        local = dict(names)
        with (
            GradientTape() as tape,
            GradientTape(persistent=True) as ptape,
            GradientTape(persistent=True) as otape,
            GradientTape() as itape,
        ):
            local |= {"tape": tape, "ptape": ptape, "otape": otape, "itape": itape}
            exec(case["body"], local)
        return eval(case["ask"], local)

    return fn() if mode == "eager" else replicant.function(fn)()


def shapes(value):
    if isinstance(value, dict):
        return [shape for each in value.values() for shape in shapes(each)]
    if isinstance(value, list | tuple):
        return [shape for each in value for shape in shapes(each)]
    return [None if value is None else list(value.shape)]


@pytest.mark.parametrize("mode", ["eager", "function"])
@pytest.mark.parametrize("name", CASES)
def test_as_recorded(name: str, mode: str, report) -> None:
    case = CASES[name]
    recorded, reason = case[mode], None
    if is_error(recorded) and name not in DIFFERENT:
        with pytest.raises(ERRORS):
            evaluate(case, mode)
    else:
        found = evaluate(case, mode)
        if is_error(recorded):
            reason, recorded = DIFFERENT[name], INSTEAD.get(name, case["function"])
        else:
            assert shapes(found) == case["shapes"]
        assert same(plain(found), recorded)
    report.count(f"{name}, {mode}", reason)


def test_every_case_is_counted(counted) -> None:
    assert len(counted) == 2 * len(CASES)
