"""replicant.summary: which writer writes when; tests/conformance compares the files with TensorFlow's."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorboardX  # noqa: F401 - here, because it sets an environment variable when it is first imported
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.util import tensor_util

import replicant
from replicant import summary
from replicant.errors import ArgumentError, ArgumentTypeError, ContextError, MissingNameError


def curve(folder, tag="loss"):
    """The points of a curve."""
    events = event_accumulator.EventAccumulator(str(folder), size_guidance={"tensors": 0})
    events.Reload()
    if tag not in events.Tags()["tensors"]:
        return {}
    return {event.step: float(tensor_util.make_ndarray(event.tensor_proto)) for event in events.Tensors(tag)}


def test_the_default_writer_and_step(tmp_path) -> None:
    outer, inner = (summary.create_file_writer(tmp_path / name) for name in ("outer", "inner"))
    assert not summary.scalar("loss", 0.0)  # no writer
    assert not list(tmp_path.iterdir())
    step = replicant.Variable(7)
    with outer.as_default(step=1):
        summary.scalar("loss", 1.0)
        with inner.as_default(step=2):
            summary.scalar("loss", 2.0)
            assert summary.experimental.get_step() == 2
        summary.scalar("loss", 3.0, step=np.int64(3))
        summary.experimental.set_step(step)
        step.assign_add(1)
        summary.scalar("loss", 8.0)
    assert summary.experimental.get_step() is None
    assert curve(tmp_path / "outer") == {1: 1.0, 3: 3.0, 8: 8.0}  # the block's end has flushed
    assert curve(tmp_path / "inner") == {2: 2.0}
    outer.set_as_default(step=9)
    try:
        assert summary.scalar("loss", 9.0)
        summary.flush()
        assert curve(tmp_path / "outer")[9] == 9.0
    finally:
        summary._writer.current().writer = None
        summary.experimental.set_step(None)
    outer.close()
    inner.close()


def test_conditions(tmp_path) -> None:
    writer = summary.create_file_writer(tmp_path)
    assert not summary.should_record_summaries()
    with writer.as_default():
        assert summary.should_record_summaries()
        for step in range(4):
            with summary.record_if(lambda step=step: jnp.asarray(step % 2 == 0)):
                assert summary.scalar("loss", step, step=step) == (step % 2 == 0)
        with summary.record_if(False), summary.record_if(True):
            assert summary.scalar("loss", 4.0, step=4)
        with summary.record_if(False):
            assert not summary.scalar("loss", 5.0)  # not even a step is needed
    writer.close()
    assert curve(tmp_path) == {0: 0.0, 2: 2.0, 4: 4.0}


def test_each_thread_has_its_own_writer_and_two_may_share_one(tmp_path) -> None:
    writer, found = summary.create_file_writer(tmp_path), []

    def work(first):
        found.append(summary.scalar("loss", 0.0, step=0))
        with writer.as_default():
            for step in range(first, 40, 2):
                summary.scalar("loss", step, step=step)

    with writer.as_default():
        threads = [threading.Thread(target=work, args=(first,)) for first in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    writer.close()
    assert found == [False, False]
    assert curve(tmp_path) == {step: float(step) for step in range(40)}


def test_what_a_step_returns(tmp_path) -> None:
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    loss = strategy.experimental_distribute_values_from_function(lambda c: np.float32(c.replica_id_in_sync_group))
    writer = summary.create_file_writer(tmp_path, filename_suffix=".mine")
    with writer.as_default():
        summary.scalar("loss", strategy.reduce("SUM", loss), step=1)
        summary.scalar("loss", strategy.run(lambda: jnp.float32(2.0)), step=2)  # Mirrored
        summary.scalar("loss", replicant.Variable(3.0, dtype="bfloat16"), step=3)
        with replicant.GradientTape():
            summary.scalar("loss", jnp.float32(2) * 2, step=4)  # an eager tape computes at once
        with pytest.raises(ArgumentTypeError, match=r"was given a value for 'loss' that differs by replica. Reduce it"):
            summary.scalar("loss", loss, step=5)
    writer.close()
    assert curve(tmp_path) == {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0}
    assert [path.name.endswith(".v2.mine") for path in tmp_path.iterdir()] == [True]


@pytest.mark.parametrize("with_writer", [True, False])
def test_in_compiled_code(tmp_path, with_writer) -> None:
    """An error, and not a curve with one point: also if the writer comes only later."""
    writer = summary.create_file_writer(tmp_path) if with_writer else summary.create_noop_writer()
    steps = {
        "scalar": lambda x: summary.scalar("loss", x, step=1),
        "histogram": lambda x: summary.histogram("loss", 1.0, step=1),
        "image": lambda x: summary.image("loss", x, step=1),
        "text": lambda x: summary.text("loss", "x", step=1),
        "should_record_summaries": lambda x: summary.should_record_summaries(),
    }
    with writer.as_default():
        for name, step in steps.items():
            for run in (replicant.function(step), jax.jit(step)):
                with pytest.raises(ContextError, match=rf"summary.{name} was called in compiled code .* Return the value from the"):
                    run(jnp.float32(1))
    writer.close()
    assert not list(tmp_path.iterdir())


def test_a_closed_writer_and_one_that_writes_nothing(tmp_path) -> None:
    writer = summary.create_file_writer(tmp_path)
    writer.init()
    assert len(list(tmp_path.iterdir())) == 1
    with writer.as_default():
        writer.close()
        writer.close()
        with pytest.raises(ContextError, match=r"is closed\. Make another one with create_file_writer"):
            summary.scalar("loss", 1.0, step=1)
    with pytest.raises(ContextError, match="is closed"), writer.as_default():
        pass
    with summary.create_noop_writer().as_default():
        assert not summary.scalar("loss", 1.0, step=1)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: summary.scalar("a", 1.0), ArgumentError, r"summary.scalar needs a step. Pass step=\.\.\., or set one for all"),
        (lambda: summary.scalar("a", 1.0, step=1.5), ArgumentTypeError, r"takes an integer as its step; got 1\.5"),
        (lambda: summary.scalar("a", [1, 2], step=1), ArgumentError, r"takes one number for 'a'; got the shape \(2,\). Use histo"),
        (
            lambda: summary.scalar("a", "x", step=1),
            ArgumentTypeError,
            "summary.scalar takes numbers for 'a'; got 'x'. Use summary",
        ),
        (lambda: summary.text("a", 1, step=1), ArgumentTypeError, "summary.text takes strings for 'a'; got 1. Write str"),
        (lambda: summary.histogram("a", [1], step=1, buckets=-1), ArgumentError, "needs buckets >= 0; got -1 for 'a'"),
        (
            lambda: summary.image("a", np.zeros((2, 2, 3)), step=1),
            ArgumentError,
            r"got the shape \(2, 2, 3\) for 'a'.* picture",
        ),
        (lambda: summary.image("a", np.zeros((1, 2, 2, 3), int), step=1), ArgumentTypeError, "or uint8; got int64 for 'a'. Write"),
    ],
)
def test_misuse(tmp_path, call, error, message) -> None:
    with summary.create_file_writer(tmp_path).as_default() as writer, pytest.raises(error, match=message):
        call()
    writer.close()


def test_other_names() -> None:
    for name, instead in summary._INSTEAD.items():
        with pytest.raises(MissingNameError, match=rf"replicant.summary has no {name}. Use ") as caught:
            getattr(summary, name)
        assert instead in str(caught.value)
    assert not hasattr(summary, "trace_on")
    assert not hasattr(summary, "nothing")
