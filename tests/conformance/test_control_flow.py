"""Variables in branches and loops, and gradients through them, against what TensorFlow 2.21 computed.

Each case is a form such as `tf.cond` around an action such as `assign` (`_control_flow_cases.py`), called twice.
"""

import _control_flow_cases as cases
import jax
import jax.numpy as jnp
import keras
import pytest
from _compare import is_error, mirrored, plain, rows, same

import replicant
from replicant import GradientTape, Variable
from replicant.cli import _migration

pytestmark = pytest.mark.both_ways

IN_RUN = "branches and loops assign in replicas too"
ZERO = "a gradient through a branch may be zero instead of None"
LOOP = "no gradient through while_loop"
# `make test` takes these; the others are long.
FORMS = ("cond, every second call", "case, by calls", "switch_case, by calls", "while_loop in cond", "scan", "map_fn")
ACTIONS = ("apply_gradients", "two variables, gradient")


def variables(replicas):
    """What the programs use, as the recorder makes it."""
    k = keras.Variable(0.5, dtype="float32")
    optimizer = keras.optimizers.SGD(0.1, momentum=0.5)
    optimizer.build([k])
    return {
        "v": Variable(2.0, aggregation="MEAN"),
        "w": Variable(3.0, aggregation="MEAN"),
        "x": Variable(1.5, aggregation="MEAN"),
        "n": Variable(0, aggregation="ONLY_FIRST_REPLICA"),
        "k": k,
        "source": k,
        "optimizer": optimizer,
        "metric": keras.metrics.Mean(),
        "rows": jnp.asarray([1.0, 2.0, 3.0]),
        "replicas": replicas,
    }


def ours(expression, action, way, *, gradient):
    """The results and the state after each call, as they were recorded."""
    return called(cases.program(expression, action, gradient=gradient), way)


def called(program, way):
    """The same for a whole program."""
    strategy = mirrored(2) if way == "run" else replicant.get_strategy()
    with strategy.scope():
        words = {"jax": jax, "keras": keras, "Tape": GradientTape, **variables(strategy.num_replicas_in_sync)}
    exec(program, words)
    step, found = words["step"], []
    run = (lambda: strategy.run(step)) if way == "run" else replicant.function(step)
    for _ in range(cases.CALLS):
        result = jax.tree.map(lambda x: x if x is None else of_all(strategy, x), run(), is_leaf=lambda x: not isinstance(x, list))
        found.append([plain(result), [plain(words[name].numpy()) for name in "vwnk"], float(words["metric"].result())])
    return found


def of_all(strategy, value):
    """The value that all replicas have."""
    first, *others = rows(strategy, value)
    assert all(same(other, first) for other in others)
    return first


def test_every_case_was_recorded(figures):
    assert list(figures["cases"]) == cases.names()
    assert len(cases.names()) >= 60


def cases_of():
    """The names as parameters, of which most are long."""
    quick = {f"{form}: {action}" for form in FORMS for action in ACTIONS}
    return [pytest.param(name, marks=() if name in quick else pytest.mark.long) for name in cases.names()]


def zero_for_none(found, recorded):
    """What was recorded, with zero for None where zero was found."""
    if isinstance(recorded, list):
        return [zero_for_none(*pair) for pair in zip(found, recorded, strict=True)]
    return 0.0 if recorded is None and found == 0.0 else recorded


@pytest.mark.parametrize("way", ["function", "run"])
@pytest.mark.parametrize("name", cases_of())
def test_results_and_state_are_those_of_tensorflow(figures, report, name, way):
    recorded = figures["cases"][name]
    form, _, action = name.partition(": ")
    gradient = action.endswith(", gradient")
    reason = IN_RUN if is_error(recorded[way]) else None
    for expression in cases.FORMS[form].ours:
        if gradient and expression in cases.FORMS[form].without_gradient:
            continue
        found = ours(expression, action.removesuffix(", gradient"), way, gradient=gradient)
        expected = zero_for_none(found, recorded["function"]) if gradient else recorded["function"]
        assert same(found, expected, 1e-5), (expression, found, recorded["function"])
        reason = reason or (None if expected == recorded["function"] else ZERO)
    report.count(f"{name} {way}", reason)


@pytest.mark.parametrize("expression", [*cases.FORMS["while_loop"].without_gradient])
def test_a_loop_without_gradient_is_an_error_that_names_what_has_one(report, expression):
    with pytest.raises(
        ValueError, match=r"does not work for lax\.while_loop .* Try using lax\.scan, or using fori_loop with static"
    ):
        ours(expression, "assign_add", "function", gradient=True)
    report.count(f"{expression} under a tape", LOOP)


@pytest.mark.parametrize("form", cases.FORMS)
@pytest.mark.long_cases(*[f"{way}-{form}" for way in ("apart", "fused") for form in cases.FORMS if form not in FORMS])
def test_translated_programs_compute_what_tensorflow_computed(figures, tmp_path, form):
    path = tmp_path / "program.py"
    path.write_text(f"import tensorflow as tf\n{cases.program(cases.FORMS[form].tensorflow, 'two variables', gradient=False)}")
    migration = _migration.migrate(path)
    assert {finding.kind for finding in migration.findings} <= {"check"}
    recorded = figures["cases"][f"{form}: two variables"]["function"]
    for way in ("function", "run"):
        found = called(migration.text, way)
        assert same(found, recorded, 1e-5), (migration.text, found, recorded)
