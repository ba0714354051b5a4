"""Constants as sources, and assignments between source and target, against what tf.GradientTape of TensorFlow 2.21 gave.

Each program ran in a tf.function, and in a tf.function around `run` with two replicas.
"""

import functools

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from _compare import is_error, mirrored, plain, rows, same

import replicant
from replicant import GradientTape, Variable
from replicant.errors import ArgumentTypeError, GradientError

pytestmark = pytest.mark.both_ways

NO_WATCH = "arrays are sources without watch"
RETURNED = "what assign returns is the variable in run too"
INTEGERS = "a target of integers is an error"

MEAN = {"aggregation": "MEAN"}  # TensorFlow asks for an aggregation where a replica assigns
PROGRAMS = {}


def program(name):
    """A function without arguments that makes the program: it creates the variables."""

    def register(make):
        PROGRAMS[name] = make
        return make

    return register


def square_of(make_source, *, watch=True):
    def make():
        def f():
            x = make_source()
            with GradientTape() as tape:
                if watch:
                    tape.watch(x)
                y = x * x
            return tape.gradient(y, x)

        return f

    return make


PROGRAMS["constant"] = square_of(lambda: jnp.asarray(3.0))
PROGRAMS["constant not watched"] = square_of(lambda: jnp.asarray(3.0), watch=False)
for _dtype in ("float16", "bfloat16", "float32", "float64", "int32"):
    PROGRAMS[f"constant {_dtype}"] = square_of(functools.partial(jnp.asarray, 3, _dtype))


@program("captured constant")
def captured():
    x = jnp.asarray(3.0)
    return square_of(lambda: x)()


def square_of_variable(dtype):
    v = Variable(3, dtype=dtype)

    def f():
        with GradientTape() as tape:
            y = v * v
        return tape.gradient(y, v)

    return f


for _dtype in ("float16", "bfloat16", "float32", "float64", "int32"):
    PROGRAMS[f"variable {_dtype}"] = functools.partial(square_of_variable, _dtype)


@program("constant watched late")
def watched_late():
    def f():
        x = jnp.asarray(3.0)
        with GradientTape() as tape:
            z = x * 2
            tape.watch(x)
            y = x * z
        return tape.gradient(y, [x, z])

    return f


def sine_of(make_source, *, watch):
    def f():
        x = make_source()
        with GradientTape() as tape:
            if watch:
                tape.watch(x)
            y = jnp.sin(x)
        return tape.gradient(y, x)

    return lambda: f


PROGRAMS["numpy scalar watched"] = sine_of(lambda: np.float32(3.0), watch=True)
PROGRAMS["numpy scalar source"] = sine_of(lambda: np.float32(3.0), watch=False)
PROGRAMS["numpy vector watched"] = sine_of(lambda: np.ones(3, np.float32), watch=True)
PROGRAMS["python source"] = sine_of(lambda: 3.0, watch=False)


@program("persistent constant")
def persistent_constant():
    def f():
        x = jnp.asarray(3.0)
        with GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x * x
            z = y * y
        return [tape.gradient(z, x), tape.gradient(y, x), tape.gradient(z, [x, y])]

    return f


@program("nested constant")
def nested_constant():
    def f():
        x = jnp.asarray(3.0)
        with GradientTape() as outer:
            outer.watch(x)
            with GradientTape() as inner:
                inner.watch(x)
                y = x * x * x
            first = inner.gradient(y, x)
        return [first, outer.gradient(first, x)]

    return f


@program("two equal constants")
def two_equal():
    def f():
        x, z = jnp.asarray(3.0), jnp.asarray(3.0)
        with GradientTape() as tape:
            tape.watch([x, z])
            y = x * x * z
        return tape.gradient(y, [x, z])

    return f


@program("unconnected constant, zeros")
def unconnected():
    def f():
        x, z = jnp.asarray(3.0), jnp.asarray(4.0)
        with GradientTape() as tape:
            tape.watch([x, z])
            y = x * x
        return tape.gradient(y, [x, z], unconnected_gradients="zero")

    return f


@program("target is source constant")
def target_is_source():
    def f():
        x = jnp.asarray(3.0)
        with GradientTape() as tape:
            tape.watch(x)
        return tape.gradient(x, x)

    return f


@program("target is variable read")
def target_is_read():
    v = Variable(3.0)

    def f():
        with GradientTape() as tape:
            y = v.value()
        return tape.gradient(y, v)

    return f


@program("target is variable itself")
def target_is_variable():
    v = Variable(3.0)

    def f():
        with GradientTape() as tape:
            tape.watch(v)
        return tape.gradient(v, v)

    return f


@program("constant captured in a loop")
def in_a_loop():
    def f():
        x = jnp.asarray(3.0)
        with GradientTape() as tape:
            tape.watch(x)
            y, _ = jax.lax.scan(lambda c, _: (c * x, None), jnp.asarray(1.0), None, length=3)
        return tape.gradient(y, x)

    return f


@program("constant captured in cond")
def in_cond():
    def f():
        x = jnp.asarray(3.0)
        with GradientTape() as tape:
            tape.watch(x)
            y = jax.lax.cond(x > 0, lambda: x * 5, lambda: x)
        return tape.gradient(y, x)

    return f


@program("constant times vector")
def constant_times_vector():
    x = Variable(2.0)

    def f():
        c = keras.ops.convert_to_tensor(5.0)
        with GradientTape() as tape:
            tape.watch(c)
            a = x * c
            b = a * jnp.asarray([1.0, 2.0])
        return tape.gradient(b, [x, c, a])

    return f


@program("stop_gradient")
def stop_gradient():
    def f():
        x = jnp.asarray(3.0)
        with GradientTape() as tape:
            tape.watch(x)
            y = jax.lax.stop_gradient(x) * x
        return tape.gradient(y, x)

    return f


def square_after(change):
    def make():
        x, v = Variable(3.0), Variable(0.0, **MEAN)

        def f():
            with GradientTape() as tape:
                change(v, x)
                y = v**2
            return tape.gradient(y, [x, v])

        return f

    return make


PROGRAMS["assign"] = square_after(lambda v, x: v.assign(x * 2))
PROGRAMS["assign_add"] = square_after(lambda v, x: v.assign_add(x))
PROGRAMS["assign_sub"] = square_after(lambda v, x: v.assign_sub(x))


@program("assigned value times its source")
def times_source():
    v = Variable(0.0, **MEAN)

    def f():
        x = jnp.asarray(3.0)
        with GradientTape() as tape:
            tape.watch(x)
            v.assign(x * 2)
            loss = v * x
        return tape.gradient(loss, [v, x])

    return f


def square_of_returned(change):
    def make():
        x, v = Variable(3.0), Variable(1.0, **MEAN)

        def f():
            with GradientTape() as tape:
                returned = change(v, x)
                y = returned * returned
            return tape.gradient(y, [x, v])

        return f

    return make


PROGRAMS["use of what assign returns"] = square_of_returned(lambda v, x: v.assign(x * 2))
PROGRAMS["use of what assign_add returns"] = square_of_returned(lambda v, x: v.assign_add(x))


@program("assign before the tape")
def before():
    x, v = Variable(3.0), Variable(0.0, **MEAN)

    def f():
        v.assign(x * 2)
        with GradientTape() as tape:
            y = v * x
        return tape.gradient(y, [x, v])

    return f


@program("vector assigned as it is before the tape")
def vector_before():
    v = Variable([1.0, 2.0], **MEAN)

    def f():
        x = jnp.asarray([3.0, 4.0])
        v.assign(x)
        with GradientTape() as tape:
            tape.watch(x)
            y = v * v
        return tape.gradient(y, [x, v])

    return f


@program("reads before and after")
def reads():
    v = Variable(2.0, **MEAN)

    def f():
        x = jnp.asarray(3.0)
        v.assign(2.0)
        with GradientTape() as tape:
            tape.watch(x)
            y = v * v * x
            v.assign(x)
            z = y + v * v
        v.assign(100.0)
        return tape.gradient(z, [v, x])

    return f


@program("assigned from itself")
def from_itself():
    v = Variable(3.0, **MEAN)

    def f():
        with GradientTape() as tape:
            v.assign(v * v)
            y = v * 2.0
        return tape.gradient(y, v)

    return f


@program("assigned and read")
def assigned_and_read():
    v = Variable(3.0, **MEAN)

    def f():
        with GradientTape() as tape:
            v.assign(7.0)
            y = v.read_value()
        return tape.gradient(y, v)

    return f


@program("nested, gradient assigned")
def gradient_assigned():
    v, x = Variable(3.0, **MEAN), Variable(2.0)

    def f():
        with GradientTape() as outer:
            with GradientTape() as inner:
                y = x**3
            first = inner.gradient(y, x)
            v.assign(first)
            loss = v * first
        return [first, outer.gradient(loss, [x, v])]

    return f


@program("persistent")
def persistent():
    v, x = Variable(3.0, **MEAN), Variable(2.0)

    def f():
        with GradientTape(persistent=True) as tape:
            a = x * x
            v.assign(a)
            b = v * x
        return [tape.gradient(a, [x, v]), tape.gradient(b, [x, v]), tape.gradient(b, a)]

    return f


def product_after_assign(**options):
    v, x = Variable(1.0, **options), Variable(3.0)

    def f():
        with GradientTape() as tape:
            v.assign(x * 2)
            y = v * x
        return tape.gradient(y, [x, v])

    return f


for _rule in ("SUM", "MEAN", "ONLY_FIRST_REPLICA"):
    PROGRAMS[f"aggregation {_rule}"] = functools.partial(product_after_assign, aggregation=_rule)
    PROGRAMS[f"on_read {_rule}"] = functools.partial(
        product_after_assign, aggregation=_rule, synchronization="ON_READ", trainable=True
    )
PROGRAMS["assign to frozen"] = functools.partial(product_after_assign, trainable=False, **MEAN)


@program("scatter_add")
def scatter_add():
    v, x = Variable([1.0, 1.0], **MEAN), Variable(3.0)

    def f():
        with GradientTape() as tape:
            v.scatter_add([0], jnp.stack([x * 2]))
            y = jnp.sum(v * x.value())
        return tape.gradient(y, [x, v])

    return f


@program("unwatched variable")
def unwatched():
    v = Variable(2.0, **MEAN)

    def f():
        with GradientTape(watch_accessed_variables=False) as tape:
            y = v * v
        return tape.gradient(y, v)

    return f


@program("variable watched late")
def variable_watched_late():
    v = Variable(2.0, **MEAN)

    def f():
        with GradientTape(watch_accessed_variables=False) as tape:
            a = v * 3.0
            tape.watch(v)
            y = a * v * v
        return tape.gradient(y, v)

    return f


# What Replicant gives instead, and the row of docs/differences.md that says so.
OURS = {
    "constant watched late": ([12.0, 3.0], NO_WATCH),
    "variable watched late": (36.0, NO_WATCH),
    "use of what assign returns": ([None, 12.0], RETURNED),
    "use of what assign_add returns": ([None, 8.0], RETURNED),
}
ERRORS = {
    "numpy scalar watched": (
        ArgumentTypeError,
        r"watch takes JAX arrays and variables; got .*3\.0.* Convert it .*jnp\.asarray\(x\)",
    ),
    "numpy vector watched": (ArgumentTypeError, "watch takes JAX arrays and variables; got array"),
    "numpy scalar source": (ArgumentTypeError, r"A source of a gradient must be a variable or a JAX array; got .*3\.0"),
    "python source": (ArgumentTypeError, r"A source of a gradient must be a variable or a JAX array; got 3\.0 of type float\."),
    "constant not watched": (GradientError, r"the scalar constant 3\.0, which was made inside the function .* `tape\.watch\(x\)`"),
    "constant int32": (ArgumentTypeError, r"The target of a gradient must be of a float dtype; got int32\."),
    "variable int32": (ArgumentTypeError, r"The target of a gradient must be of a float dtype; got int32\."),
}


def in_function(make):
    return plain(replicant.function(make())())


def in_run(make):
    """By replica, as recorded: gradients that all replicas share come once."""
    strategy = mirrored(2)
    with strategy.scope():
        f = make()
    return jax.tree.map(lambda x: x if x is None else rows(strategy, x), strategy.run(f), is_leaf=lambda x: not isinstance(x, list))


def test_every_recorded_program_is_here(figures):
    assert set(figures["cases"]) == set(PROGRAMS)


@pytest.mark.parametrize("way", ["function", "run"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradient(figures, report, name, way):
    recorded, make = figures["cases"][name][way], PROGRAMS[name]
    give = in_function if way == "function" else in_run
    reason = None
    if "float64" in name:
        with jax.enable_x64(True):
            assert same(give(make), recorded), name
    elif name in ERRORS:
        error, message = ERRORS[name]
        with pytest.raises(error, match=message):
            give(make)
        reason = None if is_error(recorded) else INTEGERS if "int32" in name else NO_WATCH
    elif name in OURS and not same(recorded, expected(*OURS[name], way)):
        ours, reason = OURS[name]
        assert same(give(make), expected(ours, reason, way)), name
    else:
        assert same(give(make), recorded), name
    report.count(f"{name} {way}", reason)


def expected(ours, reason, way):
    """Our answer as it is recorded: of both replicas for `run`."""
    twice = functools.partial(jax.tree.map, lambda x: x if x is None else [x, x], is_leaf=lambda x: x is None)
    return twice(ours) if way == "run" else ours
