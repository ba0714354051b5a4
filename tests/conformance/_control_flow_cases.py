"""The cases of control flow: each form around each action, without and with a gradient. `_record_control_flow.py` runs them.

A form is one expression in TensorFlow's words, and one or more in those of JAX and Keras. An action is the same text in both.
This module imports none of them.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Form:
    """A branch or loop around the function `act`.

    Attributes:
        tensorflow: The expression in TensorFlow.
        ours: The expressions that stand for it.
        without_gradient: Those of them that JAX cannot differentiate.
    """

    tensorflow: str
    ours: tuple[str, ...]
    without_gradient: tuple[str, ...] = ()


def _case(name: str, index: str) -> Form:
    branches = [f"lambda: act({value})" for value in ("x", "x * 2.0", "x * 3.0")]
    first, second, default = branches
    listed = ", ".join(branches)
    tensorflow = {
        "case": f"tf.case([(({index}) == 0, {first}), (({index}) == 1, {second})], default={default})",
        "switch_case": f"tf.switch_case({index}, [{listed}])",
    }
    ours = {
        "case": (f"keras.ops.cond(({index}) == 0, {first}, lambda: keras.ops.cond(({index}) == 1, {second}, {default}))",),
        "switch_case": (f"keras.ops.switch({index}, [{listed}])", f"jax.lax.switch({index}, [{listed}])"),
    }
    return Form(tensorflow[name], ours[name])


def _cond(test: str) -> Form:
    branches = "lambda: act(x), lambda: x * 1.0"
    return Form(f"tf.cond({test}, {branches})", (f"keras.ops.cond({test}, {branches})", f"jax.lax.cond({test}, {branches})"))


def _loop(rounds: int) -> Form:
    loops = (
        f"keras.ops.while_loop(lambda i, c: i < {rounds}, lambda i, c: (i + 1, act(c)), (0, x * 1.0))[1]",
        f"jax.lax.while_loop(lambda s: s[0] < {rounds}, lambda s: (s[0] + 1, act(s[1])), (0, x * 1.0))[1]",
    )
    return Form(
        f"tf.while_loop(lambda i, c: i < {rounds}, lambda i, c: (i + 1, act(c)), (tf.constant(0), x * 1.0))[1]",
        (*loops, f"keras.ops.fori_loop(0, {rounds}, lambda i, c: act(c), x * 1.0)"),
        loops,
    )


FORMS = {
    "cond, taken": _cond("n < 5"),
    "cond, not taken": _cond("n > 5"),
    "cond, every second call": _cond("n % 2 == 0"),
    "cond in cond": Form(
        "tf.cond(n < 5, lambda: tf.cond(n + 0 == 1, lambda: act(x), lambda: act(x + 1.0)), lambda: x * 1.0)",
        ("keras.ops.cond(n < 5, lambda: jax.lax.cond(n + 0 == 1, lambda: act(x), lambda: act(x + 1.0)), lambda: x * 1.0)",),
    ),
    "case, by calls": _case("case", "n + 0"),
    "case, default": _case("case", "n + 7"),
    "switch_case, by calls": _case("switch_case", "n + 0"),
    "switch_case, out of range": _case("switch_case", "n + 7"),
    "while_loop": _loop(3),
    "while_loop, no rounds": _loop(0),
    "cond in while_loop": Form(
        "tf.while_loop(lambda i, c: i < 3, "
        "lambda i, c: (i + 1, tf.cond(i == 1, lambda: act(c), lambda: c + 1.0)), (tf.constant(0), x * 1.0))[1]",
        ("keras.ops.fori_loop(0, 3, lambda i, c: keras.ops.cond(i == 1, lambda: act(c), lambda: c + 1.0), x * 1.0)",),
    ),
    "while_loop in cond": Form(
        "tf.cond(n < 1, lambda: tf.while_loop(lambda i, c: i < 2, lambda i, c: (i + 1, act(c)), (tf.constant(0), x * 1.0))[1], "
        "lambda: x * 1.0)",
        ("keras.ops.cond(n < 1, lambda: keras.ops.fori_loop(0, 2, lambda i, c: act(c), x * 1.0), lambda: x * 1.0)",),
    ),
    "scan": Form(
        "tf.scan(lambda c, e: act(c + e), rows, initializer=x * 1.0)",
        (
            "keras.ops.scan(lambda c, e: (act(c + e),) * 2, x * 1.0, rows)[1]",
            "jax.lax.scan(lambda c, e: (act(c + e),) * 2, x * 1.0, rows)[1]",
        ),
    ),
    "map_fn": Form("tf.map_fn(lambda e: act(e * x), rows)", ("keras.ops.map(lambda e: act(e * x), rows)",)),
    "map_fn, no rows": Form("tf.map_fn(lambda e: act(e * x), rows[:0])", ("jax.lax.map(lambda e: act(e * x), rows[:0])",)),
}

# The bodies of `act(c)`. `replicas` is the number of replicas, over which apply_gradients sums.
ACTIONS = {
    "assign": "v.assign(c * 2.0); return c + 1.0",
    "assign_add": "v.assign_add(c); return c * v",
    "read before and after": "before = v * 1.0; v.assign_sub(c); return before * v",
    "two variables": "before = w * 1.0; w.assign(v); v.assign(before + v * c); return v + w",
    "tape": "with Tape() as inner: loss = v * v * c\n v.assign_sub(0.1 * inner.gradient(loss, v)); return c + v",
    "apply_gradients": "with Tape() as inner: loss = (k * c - 1.0) ** 2 / replicas\n"
    " optimizer.apply_gradients([(inner.gradient(loss, source), k)]); return c + 1.0",
    "metric": "metric.update_state(c); return c * 2.0",
}
WITH_GRADIENT = ("assign", "assign_add", "read before and after", "two variables")
CALLS = 2


def names() -> list[str]:
    """Return the names of all cases: form, action, and whether there is a gradient."""
    plain = [f"{form}: {action}" for form in FORMS for action in ACTIONS]
    return plain + [f"{form}: {action}, gradient" for form in FORMS for action in WITH_GRADIENT]


def program(expression: str, action: str, *, gradient: bool) -> str:
    """Return the text that defines `step`, around an expression."""
    call = f"    y = {expression}\n"
    if gradient:
        call = f"    with Tape() as tape:\n        y = {expression}\n    y = [y, tape.gradient(y, [x, v, w])]\n"
    act = "".join(f"    {line.strip()}\n" for line in ACTIONS[action].replace("; ", "\n").split("\n"))
    return f"def act(c):\n{act}\ndef step():\n{call}    n.assign_add(1)\n    return y\n"
