"""``run`` outside of a function computes what its code would compute now, whatever Python has changed since it was compiled."""

import argparse
import array
import collections
import contextvars
import dataclasses
import functools
import gc
import sys
import types
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant.programs.validity import _dependencies

SCALE = 2.0
ONE = jnp.ones(())


@pytest.fixture(params=[1, 2])
def strategy(request) -> replicant.Strategy:
    return replicant.MirroredStrategy([f"cpu:{i}" for i in range(request.param)])


def value(result: Any) -> float:
    return float(np.asarray(getattr(result, "value", result)))


def scaled() -> Any:
    return ONE * SCALE


def test_a_global(strategy, monkeypatch) -> None:
    this = sys.modules[__name__]
    assert value(strategy.run(scaled)) == 2.0
    monkeypatch.setattr(this, "SCALE", 3.0)
    assert value(strategy.run(scaled)) == 3.0
    assert value(strategy.run(lambda: scaled() + 1)) == 4.0  # of a function that is called
    monkeypatch.setattr(this, "SCALE", 2.0)
    assert value(strategy.run(scaled)) == 2.0
    assert len(strategy._eager) == 2  # the program of 2.0 was still there
    assert sum(c.num_programs for c in strategy._eager.values()) == 3


def test_function_keeps_its_trace_as_tf_function_does(strategy, monkeypatch) -> None:
    step = replicant.function(lambda: strategy.run(scaled))
    assert value(step()) == 2.0
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 3.0)
    assert value(step()) == 2.0


@dataclasses.dataclass
class Config:
    scale: float = 2.0


class Inherited:
    scale = 2.0

    @property
    def rate(self) -> float:
        return self.scale * 2

    def call(self) -> Any:
        return self.inner()

    def inner(self) -> Any:
        return ONE * self.rate / 2


class Slotted:
    __slots__ = ("scale",)

    def __init__(self) -> None:
        self.scale = 2.0


def cases() -> dict[str, Any]:
    """By what changes: the replica function, what makes it give 3.0 instead of 2.0."""
    made: dict[str, Any] = {}

    def attribute(name: str, holder: Any, read: Any = None) -> None:
        made[name] = (read or (lambda: ONE * holder.scale), lambda: setattr(holder, "scale", 3.0))

    attribute("an object", Config())
    attribute("a namespace", types.SimpleNamespace(scale=2.0))
    attribute("command line arguments", argparse.Namespace(scale=2.0))
    attribute("slots", Slotted())
    attribute("a class", type("Class", (), {"scale": 2.0, "__module__": __name__}))
    attribute("an attribute over the class's", instance := Inherited())
    attribute("a property", other := Inherited(), other.call)
    attribute("a partial's argument", config := Config(), functools.partial(lambda c: ONE * c.scale, config))
    attribute("a default argument", defaulted := Config(), lambda c=defaulted: ONE * c.scale)
    attribute("an inner function", inner := Config(), jax.jit(lambda: ONE * inner.scale))
    del instance
    nested = types.SimpleNamespace(config=Config())

    def through_local() -> Any:
        c = nested.config
        return ONE * c.scale

    made["through a local variable"] = through_local, lambda: setattr(nested.config, "scale", 3.0)
    replaced = types.SimpleNamespace(config=Config())
    made["an object that is replaced"] = lambda: ONE * replaced.config.scale, lambda: setattr(replaced, "config", Config(3.0))
    listed = [Config(1.0), Config(1.0)]
    made["objects in a list"] = lambda: sum([ONE * c.scale for c in listed]), lambda: setattr(listed[1], "scale", 2.0)
    items = [2.0]
    made["a list"] = lambda: ONE * items[0], lambda: items.__setitem__(0, 3.0)
    settings = {"scale": 2.0}
    made["a dictionary"] = lambda: ONE * settings["scale"], lambda: settings.update(scale=3.0)
    arrays = types.SimpleNamespace(w=jnp.asarray([2.0]))
    made["an array"] = lambda: arrays.w[0], lambda: setattr(arrays, "w", jnp.asarray([3.0]))
    memory = np.full(1, 2.0, np.float32)
    made["a small NumPy array's memory"] = lambda: jnp.asarray(memory)[0], lambda: memory.fill(3.0)
    dtype = types.SimpleNamespace(k=2)
    made["a type"] = (
        lambda: ONE * (2.0 if jnp.asarray(dtype.k).dtype == jnp.int32 else 3.0),
        lambda: setattr(dtype, "k", 2.0),
    )
    choice = types.SimpleNamespace(fn=lambda: ONE * 2)
    made["a function"] = lambda: choice.fn() * 1, lambda: setattr(choice, "fn", lambda: ONE * 3)
    return made


@pytest.mark.parametrize("name", cases())
def test_what_the_code_names_is_watched(name) -> None:
    strategy = replicant.OneDeviceStrategy("cpu:0")
    fn, change = cases()[name]
    assert value(strategy.run(fn)) == 2.0
    assert value(strategy.run(fn)) == 2.0
    assert [c.num_programs for c in strategy._eager.values()] == [1]
    change()
    assert value(strategy.run(fn)) == 3.0
    assert value(strategy.run(fn)) == 3.0
    assert [c.num_programs for c in strategy._eager.values()] == [2]


def test_an_object_among_the_arguments(strategy) -> None:
    config = Config()
    fn = lambda c: ONE * c.scale  # noqa: E731
    assert value(strategy.run(fn, args=(config,))) == 2.0
    config.scale = 3.0
    assert value(strategy.run(fn, args=(config,))) == 3.0


def test_code_without_a_module() -> None:
    """As a notebook or a test of documentation runs it."""
    names: dict[str, Any] = {"ONE": ONE}
    exec("class Settings:\n    scale = 2.0\n\ndef fn():\n    return ONE * Settings.scale", names)
    strategy = replicant.OneDeviceStrategy("cpu:0")
    assert value(strategy.run(names["fn"])) == 2.0
    names["Settings"].scale = 3.0
    assert value(strategy.run(names["fn"])) == 3.0


def fine_tuning(strategy: replicant.Strategy, *, compiled: bool) -> tuple[bool, bool]:
    """Whether the base moves while it is frozen, and after that."""
    with strategy.scope():
        base, head = keras.layers.Dense(4), keras.layers.Dense(1)
        model = keras.Sequential([keras.Input((2,)), base, head])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    (x,) = strategy.experimental_distribute_dataset([np.ones((4, 2), np.float32)])

    def step(x):
        with replicant.GradientTape() as tape:
            loss = keras.ops.sum(model(x) ** 2) / 4
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))

    train = replicant.function(lambda x: strategy.run(step, args=(x,))) if compiled else lambda x: strategy.run(step, args=(x,))
    moved = []
    for trainable in (False, True):
        base.trainable = trainable
        before = np.array(base.kernel)
        train(x)
        moved.append(bool(np.any(np.array(base.kernel) != before)))
    return moved[0], moved[1]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.long_cases("1-True")
def test_fine_tuning_after_a_frozen_phase(strategy, compiled) -> None:
    assert fine_tuning(strategy, compiled=compiled) == (False, True)


@pytest.mark.parametrize("compiled", [False, True])
def test_batch_normalization_that_is_frozen_without_weights(strategy, compiled) -> None:
    layer = keras.layers.BatchNormalization(center=False, scale=False)
    layer.build((None, 1))

    def fn():
        return jnp.sum(layer(jnp.asarray([[1.0], [3.0]]), training=True))

    call = replicant.function(lambda: strategy.run(fn)) if compiled else lambda: strategy.run(fn)
    assert value(call()) == pytest.approx(0, abs=1e-5)  # by the batch's own mean
    layer.trainable = False
    assert value(call()) > 1  # by the moving mean


def test_layers_and_settings_of_keras(strategy) -> None:
    dropout, dense = keras.layers.Dropout(0.5), keras.layers.Dense(1, kernel_initializer="ones")
    dense.build((None, 2))
    kept = lambda: jnp.mean(dropout(jnp.ones(1000), training=True) > 0)  # noqa: E731
    strategy.run(kept)
    dropout.rate = 0.0
    assert value(strategy.run(kept)) == 1.0
    apply = lambda: dense(jnp.ones((1, 2)))[0, 0]  # noqa: E731
    assert value(strategy.run(apply)) == 2.0
    dense.activation = keras.ops.square
    assert value(strategy.run(apply)) == 4.0
    zeros = lambda: keras.ops.zeros(()).dtype == jnp.float16  # noqa: E731
    assert not strategy.run(zeros)
    before = keras.config.floatx()
    try:
        keras.config.set_floatx("float16")
        assert strategy.run(zeros)
    finally:
        keras.config.set_floatx(before)


def test_what_keeps_changing_is_named_and_its_programs_are_bounded(strategy) -> None:
    schedule = types.SimpleNamespace(rate=0.0)

    def step():
        return ONE * schedule.rate

    def call(rate: float) -> float:
        schedule.rate = rate
        return value(strategy.run(step))

    with pytest.warns(
        UserWarning, match=r"compiled 4 times for the same arguments, because its code reads `schedule\.rate`, which has changed"
    ):
        assert [call(float(i)) for i in range(4)] == [0.0, 1.0, 2.0, 3.0]
    assert [call(float(i)) for i in range(20)] == [float(i) for i in range(20)]  # one warning is enough
    assert [c.num_programs for c in strategy._eager.values()] == [16]


def test_state_that_is_passed_in_and_out_is_not_watched(strategy) -> None:
    """Arrays that change with every step are inputs, also where an attribute of the same name exists."""
    trainer = types.SimpleNamespace(params=jnp.zeros(2), losses=[])

    @dataclasses.dataclass
    class Batch:
        params: Any

    def step(params):
        batch = Batch(params)
        return batch.params + trainer.__class__.__name__.count("S")

    for _ in range(6):
        result = strategy.run(step, args=(trainer.params,))
        trainer.params = jnp.asarray(getattr(result, "value", result))
        trainer.losses.append(1.0)
    assert [c.num_programs for c in strategy._eager.values()] == [1]
    assert trainer.params.tolist() == [6.0, 6.0]


class Settings:
    """Reads its dictionary through each special method."""

    def __init__(self) -> None:
        self._d = {"lr": 2.0}

    def __getitem__(self, name: str) -> float:
        return self._d[name]

    def __getattr__(self, name: str) -> float:
        return self.__dict__["_d"][name]  # raises KeyError, as sloppy classes do

    def __iter__(self) -> Any:
        return iter(self._d.values())

    def __mul__(self, x: Any) -> Any:
        return x * self._d["lr"]

    def __enter__(self) -> float:
        return self._d["lr"]

    def __exit__(self, *_: object) -> None:
        return None


class Meta(type):
    value = 2.0

    @property
    def rate(cls) -> float:
        return cls.value


class WithMeta(metaclass=Meta):
    pass


CONTEXT = contextvars.ContextVar("CONTEXT", default=2.0)


def entered(settings: Settings) -> Any:
    with settings as lr:
        return ONE * lr


def unseen_before() -> dict[str, Any]:
    """By how it is read: the replica function, what makes it give 3.0 instead of 2.0."""
    made: dict[str, Any] = {}
    for name, read in {
        "__getitem__": lambda s: ONE * s["lr"],
        "__getattr__": lambda s: ONE * s.lr,
        "__iter__": lambda s: ONE * sum(s),
        "__mul__": lambda s: s * ONE,
        "__enter__": entered,
    }.items():
        made[name] = functools.partial(read, s := Settings()), functools.partial(s._d.update, lr=3.0)
    kept, queue, user, chained = {2.0}, collections.deque([2.0]), collections.UserDict(lr=2.0), collections.ChainMap({"lr": 2.0})
    below, memory, numbers = {"lr": 2.0}, bytearray([2]), array.array("d", [2.0])
    proxy, config, layered = types.MappingProxyType(below), Config(), keras.layers.Rescaling(2.0)
    made["a set"] = lambda: ONE * max(kept), lambda: kept.add(3.0)
    made["a deque"] = lambda: ONE * queue[-1], lambda: queue.append(3.0)
    made["UserDict"] = lambda: ONE * user["lr"], lambda: user.update(lr=3.0)
    made["ChainMap"] = lambda: ONE * chained["lr"], lambda: chained.update(lr=3.0)
    made["a mapping proxy"] = lambda: ONE * proxy["lr"], lambda: below.update(lr=3.0)
    made["a bytearray"] = lambda: ONE * memory[0], lambda: memory.__setitem__(0, 3)
    made["array.array"] = lambda: ONE * numbers[0], lambda: numbers.__setitem__(0, 3.0)
    made["a property of a metaclass"] = lambda: ONE * WithMeta.rate, lambda: setattr(WithMeta, "value", 3.0)
    made["a context variable"] = lambda: ONE * CONTEXT.get(), lambda: CONTEXT.set(3.0)
    made["getattr"] = lambda: ONE * getattr(config, "scale"), lambda: setattr(config, "scale", 3.0)  # noqa: B009
    made["an attribute of a layer"] = lambda: layered(ONE), lambda: setattr(layered, "scale", 3.0)
    return made


@pytest.mark.parametrize("name", unseen_before())
def test_what_special_methods_and_containers_read_is_watched(name) -> None:
    strategy = replicant.OneDeviceStrategy("cpu:0")
    fn, change = unseen_before()[name]
    try:
        assert [value(strategy.run(fn)) for _ in range(2)] == [2.0, 2.0]
        assert [c.num_programs for c in strategy._eager.values()] == [1]
        change()
        assert value(strategy.run(fn)) == 3.0
    finally:
        WithMeta.value = 2.0
        CONTEXT.set(2.0)


def test_values_compare_by_type_and_bits() -> None:
    strategy, config = replicant.OneDeviceStrategy("cpu:0"), Config(0.0)
    assert value(strategy.run(lambda: ONE / jnp.asarray(config.scale))) == float("inf")
    config.scale = -0.0
    assert value(strategy.run(lambda: ONE / jnp.asarray(config.scale))) == float("-inf")
    config.scale = float("nan")
    read = lambda: ONE * config.scale  # noqa: E731
    strategy.run(read)
    config.scale = float("nan")
    strategy.run(read)
    assert list(strategy._eager.values())[-1].num_programs == 1


def test_what_cannot_be_watched_is_compiled_anew_and_told() -> None:
    strategy, numbers = replicant.OneDeviceStrategy("cpu:0"), iter([float(i) for i in range(100)])

    def step() -> Any:
        return ONE * next(numbers)

    with pytest.warns(UserWarning, match=r"compiled again at each call.*`numbers`, an iterator.*replicant\.function"):
        first = value(strategy.run(step))
    assert value(strategy.run(step)) > first


@dataclasses.dataclass(frozen=True)
class Frozen:
    scale: float


def test_the_functions_of_a_code_are_searched_for_once_in_a_trace(monkeypatch) -> None:
    """The search looks at every object of the process. A frozen dataclass has an `__init__` with free variables."""
    searches = []

    def search(code: Any) -> Any:
        searches.append(code.co_name)
        return gc.get_referrers(code)

    monkeypatch.setattr(_dependencies, "gc", types.SimpleNamespace(get_referrers=search))
    strategy = replicant.MirroredStrategy(["cpu:0"])
    assert value(strategy.run(lambda: ONE * sum(Frozen(float(i)).scale for i in range(20)))) == 190.0
    assert searches == ["__init__"]


def test_each_function_of_a_code_counts_although_another_was_found_first() -> None:
    """All have the same code, and what their variables hold tells them apart, also when that changes."""

    def scaling(scale: float) -> Any:
        def change(new: float) -> None:
            nonlocal scale
            scale = new

        return jax.vmap(lambda x: x * scale), change  # what JAX holds is not looked into: only the frames tell what is read

    parts = [scaling(float(i)) for i in (1, 2, 1, 3)]
    strategy = replicant.MirroredStrategy(["cpu:0"])

    def step() -> Any:
        return sum(10**i * fn(jnp.ones(1))[0] for i, (fn, _) in enumerate(parts))

    assert value(strategy.run(step)) == 3121.0
    parts[1][1](9.0)
    assert value(strategy.run(step)) == 3191.0
    parts[2][1](5.0)  # it held the same as the first
    assert value(strategy.run(step)) == 3591.0
