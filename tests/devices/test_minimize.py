"""``optimizer.minimize`` of Keras 2, for Keras's optimizers and both kinds of variables."""

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant import GradientTape
from replicant.errors import ArgumentError

KINDS = [replicant.Variable, keras.Variable]


def values(make, use, *, optimizer=lambda: keras.optimizers.SGD(0.1, momentum=0.5)):
    """The variables after two steps."""
    w, unused = make(np.asarray([1.0, 2.0], np.float32)), make(np.float32(7.0))
    opt = optimizer()
    for _ in range(2):
        use(opt, w, unused)
    return np.asarray(w.value() if callable(w.value) else w.value).tolist(), float(np.asarray(unused))


def loss_of(w):
    return keras.ops.sum(keras.ops.square(w * 1.0))


def by_hand(opt, w, unused):
    opt.apply_gradients([(2.0 * (w * 1.0), w)])


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("make", KINDS)
def test_every_form(make) -> None:
    def with_tape(opt, w, unused):
        with GradientTape() as tape:
            loss = loss_of(w)
        opt.minimize(loss, [w], tape=tape)

    def with_tape_not_entered(opt, w, unused):
        opt.minimize(lambda: loss_of(w), [w], tape=GradientTape())

    expected = values(make, by_hand)
    for use in (
        with_tape,
        with_tape_not_entered,
        lambda opt, w, unused: opt.minimize(lambda: loss_of(w), [w]),
        lambda opt, w, unused: opt.minimize(lambda: loss_of(w), lambda: (w,)),
        lambda opt, w, unused: opt.minimize(lambda: loss_of(w), [w, unused]),
        lambda opt, w, unused: replicant.function(lambda: opt.minimize(lambda: loss_of(w), [w]))(),
    ):
        np.testing.assert_allclose(values(make, use)[0], expected[0], rtol=1e-6)
        assert values(make, use)[1] == 7.0


def test_in_run_the_replicas_gradients_are_summed() -> None:
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        w, opt = keras.Variable(np.float32(1.0)), keras.optimizers.SGD(0.1)
    x = strategy.experimental_distribute_values_from_function(lambda c: np.float32(c.replica_id_in_sync_group + 1))
    strategy.run(lambda x: opt.minimize(lambda: w * x, [w]), args=(x,))
    assert float(np.asarray(w.value)) == pytest.approx(1 - 0.1 * 3)


def test_with_a_scaled_loss() -> None:
    """Small gradients survive float16; the step is that of the loss itself."""

    def scaled():
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=1024.0)

    def plain():
        return keras.optimizers.SGD(0.1)

    for use in (
        lambda opt, w, unused: opt.minimize(lambda: loss_of(w), [w]),
        lambda opt, w, unused: replicant.function(lambda: opt.minimize(lambda: loss_of(w), [w]))(),
    ):
        actual = values(keras.Variable, use, optimizer=scaled)
        np.testing.assert_allclose(actual[0], values(keras.Variable, by_hand, optimizer=plain)[0], rtol=1e-6)


def test_a_loss_without_its_tape() -> None:
    w = keras.Variable(1.0)
    with pytest.raises(
        ArgumentError, match=r"needs the tape that recorded the loss; got loss=.* and tape=None. Write minimize\(loss"
    ):
        keras.optimizers.SGD(0.1).minimize(jnp.float32(1.0), [w])


def test_a_class_that_has_minimize_keeps_it() -> None:
    class Own(keras.optimizers.SGD):
        def minimize(self, loss):
            return loss

    assert Own(0.1).minimize(3) == 3
