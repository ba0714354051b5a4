"""What ``replicant migrate`` makes of branches and loops."""

import pytest

from replicant.cli import _migration

HEAD = "import tensorflow as tf\n"
SAME_SHAPES = "all branches must return arrays of the same shapes and dtypes, or all None"
LOOP = "the shapes and dtypes must stay; under a tape use keras.ops.fori_loop or scan, because while_loop has no gradient in JAX"
SCANNED = "the function must return a value of the initializer's shape and dtype"


def migrated(tmp_path, text):
    """The translation without its imports, and what is said."""
    path = tmp_path / "program.py"
    path.write_text(HEAD + text)
    migration = _migration.migrate(path)
    lines = [line for line in migration.text.splitlines(keepends=True) if not line.startswith("import ")]
    return "".join(lines), [(finding.kind, finding.advice) for finding in migration.findings]


@pytest.mark.parametrize(
    ("old", "new", "check"),
    [
        ("tf.cond(n > 0, f, g)", "keras.ops.cond(n > 0, f, g)", SAME_SHAPES),
        (
            "tf.cond(pred=n > 0, false_fn=lambda: v.assign(1.0), true_fn=f, name='c')",
            "keras.ops.cond(n > 0, f, lambda: v.assign(1.0))",
            SAME_SHAPES,
        ),
        (
            "tf.cond(a, lambda: tf.cond(b, f, g), g)",
            "keras.ops.cond(a, lambda: keras.ops.cond(b, f, g), g)",
            SAME_SHAPES,
        ),
        ("tf.case([(a, f)], default=g)", "keras.ops.cond(a, f, g)", SAME_SHAPES),
        (
            "tf.case([(a, f), (b, g)], lambda: v.assign_add(1))",
            "keras.ops.cond(a, f, lambda: keras.ops.cond(b, g, lambda: v.assign_add(1)))",
            SAME_SHAPES,
        ),
        (
            "tf.switch_case(i, [f, lambda: g(1)])",
            "keras.ops.switch(i, [f, lambda: g(1)])",
            f"{SAME_SHAPES}; an index below 0 takes the first function, where TensorFlow takes the last",
        ),
        ("tf.while_loop(c, b, [i, x])", "keras.ops.while_loop(c, b, [i, x])", LOOP),
        (
            "tf.while_loop(c, b, loop_vars=(i,), parallel_iterations=1, maximum_iterations=n)",
            "keras.ops.while_loop(c, b, (i,), maximum_iterations=n)",
            LOOP,
        ),
        (
            "tf.map_fn(f, x, fn_output_signature=tf.int32)",
            "keras.ops.map(f, x)",
            "the result has the dtypes that the function returns",
        ),
        ("tf.scan(f, x, 0.0)", "keras.ops.scan(lambda carry, x: (f(carry, x),) * 2, 0.0, x)[1]", SCANNED),
        (
            "tf.scan(lambda a, e: a + e, x, initializer=b, reverse=True)",
            "keras.ops.scan(lambda a, e: (a + e,) * 2, b, x, reverse=True)[1]",
            SCANNED,
        ),
    ],
)
def test_functions_of_control_flow(tmp_path, old, new, check):
    text, findings = migrated(tmp_path, f"{old}\n")
    assert text == f"{new}\n"
    assert set(findings) == {("check", check)}


def test_map_fn_needs_no_check(tmp_path):
    assert migrated(tmp_path, "tf.map_fn(f, x)\n") == ("keras.ops.map(f, x)\n", [])


@pytest.mark.parametrize(
    ("old", "advice"),
    [
        ("tf.cond(n > 0, f)", "keras.ops.cond(condition, true_fn, false_fn)"),
        ("tf.case(pairs, default=f)", "lambda: keras.ops.cond(...)"),
        ("tf.case([(a, f), pair], default=f)", "lambda: keras.ops.cond(...)"),
        ("tf.case([(a, f)])", "with a function for every case"),
        ("tf.case([(a, f)], g, exclusive=True)", "with a function for every case"),
        ("tf.switch_case(i, {0: f, 1: g})", "keras.ops.switch(index, [fn, ..., default])"),
        ("tf.switch_case(i, [(0, f), (1, g)])", "keras.ops.switch(index, [fn, ..., default])"),
        ("tf.switch_case(i, [f], default=g)", "takes the last function"),
        ("tf.while_loop(c, b, v, shape_invariants=s)", "in which all shapes stay the same"),
        ("tf.map_fn(*f)", "keras.ops.map(fn, arrays)"),
        ("tf.scan(f, x)", "without an initializer it is the first element"),
    ],
)
def test_what_is_left(tmp_path, old, advice):
    text, [(kind, found)] = migrated(tmp_path, f"{old}\n")
    assert text == f"{old}\n"
    assert kind == "left"
    assert advice in found


STEP = "@tf.function\ndef step(x, n):\n"
OURS = "@replicant.function\ndef step(x, n):\n"
BRANCH = f"this was an if over what may be an array: {SAME_SHAPES}; leave the if where the condition is no array"
WHILE = (
    "this was a while over what may be an array: shapes and dtypes must stay, and there is no gradient in JAX; leave the while "
    "where the condition is no array"
)
BY_HAND = "in traced code, the condition must not be an array: use keras.ops.where, cond or while_loop, which may assign variables"


@pytest.mark.parametrize(
    ("old", "new", "check"),
    [
        (
            "    if n > 0:\n        y = tf.exp(x)\n    else:\n        y = -x\n    return y\n",
            "    y = keras.ops.cond(n > 0, lambda: keras.ops.exp(x), lambda: -x)\n    return y\n",
            BRANCH,
        ),
        (
            "    if n > 0:\n        x = x * 2\n    return x\n",
            "    x = keras.ops.cond(n > 0, lambda: x * 2, lambda: x)\n    return x\n",
            BRANCH,
        ),
        (
            "    if tf.reduce_sum(x) > 1:\n        return x * v\n    else:\n        return v.assign(n)\n",
            "    return keras.ops.cond(keras.ops.sum(x) > 1, lambda: x * v, lambda: v.assign(n))\n",
            BRANCH,
        ),
        (
            "    i = 0\n    while i < n:\n        x = x * 2\n        i += 1\n    return x\n",
            (
                "    i = 0\n    def loop_body(x, i):\n        x = x * 2\n        i += 1\n        return (x, i)\n"
                "    (x, i) = keras.ops.while_loop(lambda x, i: i < n, loop_body, (x, i))\n    return x\n"
            ),
            WHILE,
        ),
        (
            "    while tf.norm(x) > 1:\n        x /= 2\n    return x\n",
            (
                "    def loop_body(x):\n        x /= 2\n        return (x,)\n"
                "    (x,) = keras.ops.while_loop(lambda x: keras.ops.norm(x) > 1, loop_body, (x,))\n    return x\n"
            ),
            WHILE,
        ),
        (
            "    if n > 2:\n        v.assign(tf.zeros(3))\n        optimizer.apply_gradients(pairs)\n",
            (
                "    def branch_body():\n        v.assign(keras.ops.zeros(3))\n        optimizer.apply_gradients(pairs)\n"
                "    keras.ops.cond(n > 2, branch_body, lambda: None)\n"
            ),
            BRANCH,
        ),
        (
            "    if n > 0:\n        x = tf.cast(n, tf.float32)\n",
            '    x = keras.ops.cond(n > 0, lambda: keras.ops.cast(n, "float32"), lambda: x)\n',
            BRANCH,
        ),
    ],
)
def test_python_over_arrays(tmp_path, old, new, check):
    text, findings = migrated(tmp_path, STEP + old)
    assert text.strip() == (OURS + new).strip()
    assert findings == [("check", check)]


@pytest.mark.parametrize(
    "old",
    [
        "    if n > 0:\n        y = x\n    return y\n",  # y may have no value
        "    if n > 0:\n        y = x\n        z = x\n    else:\n        y = z = -x\n",
        "    if n > 0:\n        return x\n    return -x\n",
        "    if n > 0 and x > 0:\n        x = -x\n",
        "    if not n > 0:\n        x = -x\n",
        "    if 0 < n < 3:\n        x = -x\n",
        "    if n > 0:\n        x = 'a'\n",
        "    if n > 0:\n        values.append(n)\n",
        "    if n > 0:\n        return None\n    else:\n        return x\n",
        "    if n > 0:  # why\n        x = -x\n",
        "    while n > 0:\n        n -= 1\n        y = n\n",
        "    while n > 0:\n        n -= 1\n        v.assign(n)\n",
        "    while n > 0:\n        n -= 1\n        break\n",
        "    while n > 0: n -= 1\n",
        "    while n > 0:\n        n -= 1\n    else:\n        x = -x\n",
    ],
)
def test_python_over_arrays_that_is_left(tmp_path, old):
    text, findings = migrated(tmp_path, STEP + old)
    assert text.strip() == (OURS + old).strip()
    assert findings == [("check", BY_HAND)]


def test_elif_is_left(tmp_path):
    old = "    if n > 0:\n        x = -x\n    elif n < -5:\n        x = x + 1\n    return x\n"
    text, findings = migrated(tmp_path, STEP + old)
    assert text.strip() == (OURS + old).strip()
    assert findings == [("check", BY_HAND)] * 2


def test_translated_python_runs(tmp_path):
    text = (
        "v = tf.Variable(0.0)\n"
        + STEP
        + "    while tf.reduce_sum(x) > 1.0:\n        x = x / 2.0\n"
        + "    if n % 2 == 1:\n        v.assign_add(tf.reduce_sum(x))\n"
        + "    if n > 2:\n        return x\n    else:\n        return -x\n"
        + "results = [step(tf.ones(4), tf.constant(n)) for n in (1, 2, 3)]\n"
    )
    path = tmp_path / "program.py"
    path.write_text(HEAD + text)
    words = {}
    exec(_migration.migrate(path).text, words)
    assert [result.tolist() for result in words["results"]] == [[-0.25] * 4, [-0.25] * 4, [0.25] * 4]
    assert float(words["v"].numpy()) == 2.0
