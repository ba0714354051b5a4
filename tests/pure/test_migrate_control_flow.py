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
