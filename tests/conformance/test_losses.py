"""compute_average_loss, scale_regularization_loss and Keras losses called by hand, against what TensorFlow 2.21 gave."""

import jax.numpy as jnp
import keras
import numpy as np
import pytest
from _compare import Checks, is_error, mirrored, per_replica, plain, rows, same

import replicant
from replicant import compute_average_loss, scale_regularization_loss
from replicant.errors import ArgumentError, ArgumentTypeError, ContextError, LossReductionError

BY_HAND = "Keras losses with a mean-type reduction raise inside run"
X64 = "int64 and float64 need jax_enable_x64"
KERAS_3 = "Keras is Keras 3"

LOSSES = jnp.asarray([1.0, 2.0, 4.0])
SIZE_ERRORS = {
    -1: (ArgumentError, "global_batch_size must be non-negative; got -1"),
    2.5: (ArgumentTypeError, "global_batch_size must be an int; got 2.5"),
}


@pytest.fixture
def check(figures, report):
    return Checks(figures["misc"], report, "misc")


def average_case(case):
    return f"average n={case['n']} weights={case['sample_weight'] is not None} size={case['global_batch_size']}"


@pytest.mark.filterwarnings("ignore:compute_average_loss was given no global_batch_size")  # TensorFlow says nothing
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_compute_average_loss(figures, report, n):
    strategy = mirrored(n)
    cases = [case for case in figures["compute_average_loss"] if case["n"] == n]
    losses = per_replica(strategy, [np.float32(x) for x in cases[0]["per_example_loss"]])
    assert all(case["per_example_loss"] == cases[0]["per_example_loss"] for case in cases)
    weights = next(case["sample_weight"] for case in cases if case["sample_weight"])
    weights = per_replica(strategy, [np.float32(x) for x in weights])

    def averages(wanted, x, w):
        sizes = {"tensor6": jnp.asarray(6)}
        return [
            compute_average_loss(x, w if c["sample_weight"] else None, sizes.get(c["global_batch_size"], c["global_batch_size"]))
            for c in wanted
        ]

    def run(wanted):
        return strategy.run(lambda x, w: averages(wanted, x, w), args=(losses, weights))

    wrong = [case for case in cases if is_error(case["per_replica"])]
    for case in wrong:
        error, match = SIZE_ERRORS[case["global_batch_size"]]
        with pytest.raises(error, match=match):
            run([case])
        assert is_error(case["reduce_sum"])
    fine = [case for case in cases if case not in wrong]
    for case, value in zip(fine, run(fine), strict=True):
        values = rows(strategy, value)
        assert same(values * (n // len(values)), case["per_replica"]), case
        assert same(plain(strategy.reduce("SUM", value)), case["reduce_sum"]), case
    for case in cases:
        report.passed(average_case(case))


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_scale_regularization_loss(figures, report, n):
    strategy = mirrored(n)
    scalar, vector = strategy.run(
        lambda: (scale_regularization_loss(jnp.asarray(6.0)), scale_regularization_loss(3.0 * jnp.ones(6)))
    )
    for name, value in {f"{n}": scalar, f"{n}_vector": vector}.items():
        values = rows(strategy, value)
        assert same(values * (n // len(values)), figures["scale_regularization_loss"][name])
        report.passed(f"regularization {name}")


def test_the_helpers_outside_of_run(check):
    two = mirrored(2)
    check.same("average_outside_strategy", compute_average_loss(LOSSES))
    check.same("average_outside_strategy_gbs6", compute_average_loss(LOSSES, global_batch_size=6))
    check.same("regularization_outside_strategy", scale_regularization_loss(6.0))
    with two.scope():
        check.same("average_in_cross_replica_gbs", compute_average_loss(LOSSES, global_batch_size=3))
        check.raises(
            "average_in_cross_replica", lambda: compute_average_loss(LOSSES), ContextError, "Call it inside `strategy.run`, or pass"
        )
        check.raises(
            "regularization_in_cross_replica", lambda: scale_regularization_loss(6.0), ContextError, "Call it inside `strategy.run`"
        )


def test_shapes_and_dtypes(check):
    matrix = jnp.arange(6.0).reshape(2, 3) + 1
    for name in ("average_scalar_loss", "average_scalar_loss_no_gbs"):
        size = None if name.endswith("no_gbs") else 4
        check.raises(
            name,
            lambda s=size: compute_average_loss(3.0, global_batch_size=s),
            ArgumentError,
            r"one loss per example \(rank >= 1\)",
        )
    check.same("average_matrix_2x3", compute_average_loss(matrix))
    vector = jnp.asarray([1.0, 10.0])
    check.same("average_matrix_2x3_weight_vec2", compute_average_loss(matrix, vector))
    check.same("average_matrix_2x3_weight_col2x1", compute_average_loss(matrix, vector[:, None]))
    check.same("average_weight_scalar", compute_average_loss(LOSSES, 2.0))
    check.same("average_weight_3x1_on_vec3", compute_average_loss(LOSSES, jnp.asarray([[1.0], [2.0], [3.0]])))
    check.raises(
        "average_weight_bad_shape",
        lambda: compute_average_loss(LOSSES, jnp.ones(2)),
        ArgumentError,
        r"sample_weight of shape \(2,\) does not broadcast to losses of shape \(3,\)",
    )
    check.same("average_python_list", compute_average_loss([1.0, 2.0, 4.0]))
    half = compute_average_loss(LOSSES.astype(jnp.float16))
    check.same("average_f16_loss", [half, str(half.dtype)])
    check.same("average_gbs_0", compute_average_loss(LOSSES, global_batch_size=0))
    check.same("average_empty", compute_average_loss(LOSSES[:0]))
    check.same("average_empty_gbs4", compute_average_loss(LOSSES[:0], global_batch_size=4))
    check.raises(
        "average_gbs_float_tensor",
        lambda: compute_average_loss(LOSSES, global_batch_size=jnp.asarray(3.0)),
        ArgumentTypeError,
        "global_batch_size must be an int",
    )
    check.raises(
        "average_gbs_vector",
        lambda: compute_average_loss(LOSSES, global_batch_size=jnp.asarray([3])),
        ArgumentError,
        r"must be a scalar; got an array of shape \(1,\)",
    )


def test_double_precision(check):
    """float64 only where JAX was told to compute in it."""
    ints = compute_average_loss(jnp.asarray([1, 2, 4]))
    assert ints.dtype == np.float32
    assert same([plain(ints)], check.recorded["average_int_loss"][:1])
    assert compute_average_loss(np.asarray([1.0, 2.0])).dtype == np.float32
    assert [check.recorded["average_int_loss"][1], check.recorded["average_f64_loss_dtype"]] == ["float64", "float64"]
    for name in ("average_int_loss", "average_f64_loss_dtype"):
        check.different(name, X64)


MEAN_TYPES = ("sum_over_batch_size", "mean", "mean_with_sample_weight")
REDUCTIONS = {"sum": "sum", "none": "none", "None": None, "auto": "auto", **{name: name for name in MEAN_TYPES}}
TRUTH = np.float32([[0.0, 1.0], [1.0, 0.0], [2.0, 2.0], [1.0, 3.0]])
GUESS = np.float32([[0.5, 1.5], [2.0, 1.0], [0.0, 0.0], [2.0, 2.0]])
WEIGHTS = np.float32([1.0, 3.0, 1.0, 3.0])
WEIGHTED = " weights [1,3..]"
ORDER = {1: [[0, 1, 2, 3]], 2: [[0, 2], [1, 3]]}


def mean_squared_error(reduction):
    return keras.losses.MeanSquaredError(reduction=REDUCTIONS[reduction])


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("recorded_by", ["keras3", "tf_keras"])
def test_keras_losses_in_run(figures, report, recorded_by, n):
    strategy = mirrored(n)
    # The rows were recorded in this order: their squared errors are .25 and 4, 1 and 1 on two replicas.
    truth, guess = (per_replica(strategy, [x[rows_of] for rows_of in ORDER[n]]) for x in (TRUTH, GUESS))
    weights = per_replica(strategy, [WEIGHTS[: 4 // n]] * n)

    def values(reduction, weighted, wrap):
        loss = mean_squared_error(reduction)
        fn = wrap(lambda t, g, w: strategy.run(lambda *x: loss(*x[:2], x[2] if weighted else None), args=(t, g, w)))
        return rows(strategy, fn(truth, guess, weights))

    for reduction in REDUCTIONS:
        for ending, weighted, wrap in [
            ("", False, plainly),
            (" tf.function", False, replicant.function),
            (WEIGHTED, True, plainly),
        ]:
            name = f"mse n={n} reduction={reduction}{ending}"
            recorded, case = figures[recorded_by][name], f"{recorded_by} {name}"
            if reduction == "auto":
                with pytest.raises(ValueError, match="Invalid value for argument `reduction`"):
                    mean_squared_error(reduction)
                assert is_error(recorded)
                report.passed(case)
            elif reduction in MEAN_TYPES:
                with pytest.raises(LossReductionError, match=rf"reduction='{reduction}'.*Create it with reduction='none'"):
                    values(reduction, weighted, wrap)
                report.count(case, None if is_error(recorded) else BY_HAND)
            elif is_error(recorded):
                assert (recorded_by, reduction) == ("tf_keras", "None")
                assert same(values(reduction, weighted, wrap), figures["keras3"][name])
                report.different(case, KERAS_3)
            else:
                assert same(values(reduction, weighted, wrap), recorded), case
                report.passed(case)


def plainly(fn):
    return fn


def test_keras_losses_elsewhere(figures, report):
    loss, whole = keras.losses.MeanSquaredError(), figures["keras3"]["no_strategy_default"]
    assert same(plain(loss(TRUTH, GUESS)), whole)
    strategy = mirrored(2)
    with strategy.scope():  # the mean of what was passed, as everywhere outside of run
        assert same(plain(loss(TRUTH, GUESS)), whole)
    truth, guess = (per_replica(strategy, [x, x]) for x in (TRUTH, GUESS))
    by_function = rows(strategy, strategy.run(keras.losses.mean_squared_error, args=(truth, guess)))
    assert not hasattr(keras.losses, "Reduction")
    for recorded_by in ("keras3", "tf_keras"):
        recorded = figures[recorded_by]
        assert same(whole, recorded["no_strategy_default"])
        report.passed(f"{recorded_by} no_strategy_default")
        report.different(f"{recorded_by} in_scope_cross_replica", BY_HAND)
        assert same(by_function, recorded["function_form"])
        report.passed(f"{recorded_by} function_form")
        report.count(f"{recorded_by} reduction_enum", None if is_error(recorded["reduction_enum"]) else KERAS_3)
        assert int(keras.__version__[0]) == 3
        report.count(f"{recorded_by} keras_version", None if recorded_by == "keras3" else KERAS_3)


def test_every_case_was_counted(figures, counted):
    expected = {average_case(case) for case in figures["compute_average_loss"]}
    assert len(expected) == len(figures["compute_average_loss"])
    expected |= {f"regularization {name}" for name in figures["scale_regularization_loss"]}
    expected |= {f"{group} {name}" for group in ("misc", "keras3", "tf_keras") for name in figures[group]}
    assert counted == expected
