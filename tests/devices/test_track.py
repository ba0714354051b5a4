"""Values that go to trackers: real ones, and hostile ones, which must neither slow training down nor lose anything in silence."""

import logging
import os
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
import tensorboardX  # noqa: F401 - here, because it sets an environment variable when it is first imported
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.util import tensor_util

import replicant
from replicant.errors import ArgumentError, ArgumentTypeError, ConfigurationError, ContextError
from replicant.keras.callbacks import Track
from replicant.trackers import Row, TensorBoardTracker


class Listed:
    """Keeps everything in lists. `gate` holds it back, and `errors` are raised one after the other."""

    def __init__(self, errors=(), begin_errors=()):
        self.gate = threading.Event()
        self.gate.set()
        self.config, self.rows, self.ended, self.threads = None, [], None, set()
        self.errors, self.begin_errors = list(errors), list(begin_errors)

    def begin(self, config):
        if self.begin_errors:
            raise self.begin_errors.pop()
        self.config = dict(config)

    def write(self, rows):
        self.gate.wait()
        self.threads.add(threading.current_thread())
        if self.errors:
            raise self.errors.pop()
        self.rows += rows

    def end(self, *, failed):
        self.ended = "failed" if failed else "well"


def points(folder):
    accumulator = event_accumulator.EventAccumulator(str(folder), size_guidance={event_accumulator.TENSORS: 0})
    accumulator.Reload()
    return {
        tag: [(event.step, np.round(tensor_util.make_ndarray(event.tensor_proto), 6).item()) for event in accumulator.Tensors(tag)]
        for tag in accumulator.Tags()["tensors"]
        if tag != "config"
    }


def test_every_row_comes_in_order_and_from_another_thread():
    tracker = Listed()
    with replicant.track(tracker, config={"rate": 0.1}) as run:
        for step in range(2500):
            run.log({"loss": step / 2, "n": step}, step)
    assert [(row.step, dict(row.values)) for row in tracker.rows] == [(i, {"loss": i / 2, "n": float(i)}) for i in range(2500)]
    assert (tracker.config, tracker.ended) == ({"rate": 0.1}, "well")
    assert threading.main_thread() not in tracker.threads
    assert (run.written, run.lost) == ({"Listed": 2500}, {"Listed": 0})
    run.finish()


def test_what_is_a_number():
    tracker = Listed()
    variable = replicant.Variable(3.0)
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        shared = replicant.Variable(7.0)
    values = {
        "int": 2,
        "bool": True,
        "numpy": np.float16(0.5),
        "array": np.array([[4.0]]),
        "jax": jnp.bfloat16(1.5),
        "one": jnp.ones((1, 1)),
        "variable": variable,
        "shared": shared,
        "mirrored": strategy.run(lambda: replicant.get_replica_context().all_reduce("SUM", jnp.float32(1.0))),
        "nan": float("nan"),
        "inf": jnp.inf,
    }
    with replicant.track(tracker) as run:
        run.log(values, np.int64(5))
        variable.assign(100.0)
        shared.assign(100.0)
    (row,) = tracker.rows
    assert row.step == 5
    assert isinstance(row, Row)
    found = dict(row.values)
    assert np.isnan(found.pop("nan"))
    assert found == {
        "int": 2.0,
        "bool": 1.0,
        "numpy": 0.5,
        "array": 4.0,
        "jax": 1.5,
        "one": 1.0,
        "variable": 3.0,
        "shared": 7.0,
        "mirrored": 2.0,
        "inf": np.inf,
    }


@pytest.mark.parametrize(
    ("values", "step", "kind", "message"),
    [
        ({"a": [1, 2]}, 0, ArgumentTypeError, "run.log takes numbers for 'a'; got [1, 2]."),
        ({"a": "1"}, 0, ArgumentTypeError, "run.log takes numbers for 'a'; got '1'."),
        ({"a": None}, 0, ArgumentTypeError, "run.log takes numbers for 'a'; got None."),
        ({"a": 1j}, 0, ArgumentTypeError, "run.log takes numbers for 'a'; got 1j."),
        ({1: 1}, 0, ArgumentTypeError, "run.log takes names of values that are strings; got 1."),
        ({"a": 1}, 0.5, ArgumentTypeError, "run.log takes an integer as its step; got 0.5."),
        ({"a": 1}, True, ArgumentTypeError, "run.log takes an integer as its step; got True."),
        (
            {"a": np.ones(2)},
            0,
            ArgumentError,
            "run.log takes one number for 'a'; got the shape (2,). Take its mean, or log its elements.",
        ),
        (
            {"a": jnp.ones((2, 0))},
            0,
            ArgumentError,
            "run.log takes one number for 'a'; got the shape (2, 0). Take its mean, or log its elements.",
        ),
    ],
)
def test_what_is_no_number_is_told(values, step, kind, message):
    with replicant.track(Listed()) as run:
        with pytest.raises(kind) as error:
            run.log(values, step)
        assert str(error.value) == message
    assert run.lost == {}


def test_values_that_differ_by_replica_and_compiled_code():
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    with replicant.track(Listed()) as run:
        different = strategy.run(lambda: replicant.get_replica_context().replica_id_in_sync_group * 1.0)
        with pytest.raises(ArgumentTypeError, match=r"for 'a' that differs by replica\. Reduce it first: strategy\.reduce"):
            run.log({"a": different}, 0)
        with pytest.raises(ContextError, match=r"^run\.log was called in compiled code .* Return the values from the step"):
            jax.jit(lambda x: run.log({"a": x}, 0))(1.0)
        spread = jax.device_put(np.ones(1), jax.devices()[0])
        run.log({"a": spread}, 0)
    with pytest.raises(ContextError, match=r"^run\.log was called after run\.finish\(\)\. Log before"):
        run.log({"a": 1}, 1)


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "message"),
    [
        ([], {}, ArgumentError, "track needs a tracker: an object, or one of 'tensorboard', 'mlflow', 'wandb'."),
        (["neptune"], {}, ArgumentError, "track: 'neptune' is not a tracker. Its name is one of 'tensorboard', 'mlflow', 'wandb'."),
        ([3], {}, ArgumentTypeError, "track: 3 is not a tracker, because it has no begin. A tracker has begin, write, end."),
        (
            [Listed],
            {},
            ArgumentTypeError,
            f"track: {Listed!r} is not a tracker, because it is a class: write Listed(...). A tracker has begin, write, end.",
        ),
        ([Listed()], {"max_rows": 0}, ArgumentError, "track: max_rows must be a number of rows, 1 or more; got 0."),
        (
            [Listed()],
            {"finish_seconds": np.inf},
            ArgumentError,
            "track: finish_seconds must be a positive number of seconds; got inf.",
        ),
    ],
)
def test_what_is_no_tracker_is_told(arguments, options, kind, message):
    with pytest.raises(kind) as error:
        replicant.track(*arguments, **options)
    assert str(error.value) == message


@pytest.mark.parametrize(("name", "package"), [("MLflowTracker", "mlflow"), ("WandBTracker", "wandb")])
def test_a_package_that_is_not_there_is_told(monkeypatch, name, package):
    for module in list(sys.modules):
        if module.split(".")[0] == package:
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ConfigurationError, match=rf"^trackers\.{name} needs .*, which cannot be imported .* Run: pip install {package}"
    ):
        getattr(replicant.trackers, name)()


@pytest.mark.long
def test_their_packages_are_imported_only_when_they_are_used():
    program = """if True:
        import sys, replicant
        replicant.track(type("T", (), {"begin": print, "write": print, "end": print})())
        print([name for name in ("mlflow", "wandb", "tensorboardX") if name in sys.modules])"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"


# Hostile trackers.


@pytest.mark.long
def test_a_tracker_that_hangs_slows_nothing_down_and_is_counted(caplog):
    hung, well = Listed(), Listed()
    hung.gate.clear()
    run = replicant.track(hung, well, max_rows=100, finish_seconds=1.0)
    for step in range(300):
        run.log({"loss": step}, step)
        if step % 50 == 49:
            while well.rows[-1:] == [] or well.rows[-1].step < step:  # so that only the hung one is too slow
                time.sleep(0.01)
    begun = time.process_time()
    run.finish()
    assert time.process_time() - begun < 0.9  # it waits, and does not spin
    assert [row.step for row in well.rows] == list(range(300))
    assert [sender.lost for sender in run._senders] == [300, 0]
    assert well.ended == "well"
    assert hung.ended is None
    assert [record.message for record in caplog.records] == [
        (
            "Listed takes rows more slowly than they are logged: 100 rows wait, and further ones are lost. Training "
            "continues. This is reported only once."
        ),
        "Listed has taken 0 of 300 rows; 300 are lost.",
    ]
    hung.gate.set()
    run._senders[0]._thread.join(30)
    assert [sender.lost for sender in run._senders] == [300, 0]  # what it writes after the count stays lost
    assert hung.ended is None


def test_a_tracker_that_fails_is_told_once_and_gets_the_next_rows(caplog):
    tracker = Listed(errors=[ValueError("full\nmore"), OSError("gone")])
    run = replicant.track(tracker)
    for step in range(5):
        run.log({"loss": step}, step)
        while sum(run.written.values()) + sum(run.lost.values()) <= step:
            time.sleep(0.01)
    run.finish()
    assert ([row.step for row in tracker.rows], run.written, run.lost) == ([2, 3, 4], {"Listed": 3}, {"Listed": 2})
    assert [record.message for record in caplog.records] == [
        "Listed did not take 1 row(s), which are lost: OSError: gone. Training continues. This is reported only once.",
        "Listed has taken 3 of 5 rows; 2 are lost.",
    ]


@pytest.mark.long
def test_a_tracker_that_cannot_begin_is_asked_again(caplog):
    tracker = Listed(begin_errors=[OSError("no network")])
    with replicant.track(tracker) as run:
        run.log({"loss": 1}, 0)
    assert (len(tracker.rows), tracker.ended, run.lost) == (1, "well", {"Listed": 0})
    assert [record.message for record in caplog.records] == [
        "Listed did not begin its run, and is asked again: OSError: no network. Training continues. This is reported only once."
    ]
    never = Listed(begin_errors=[OSError("no network")] * 100)
    with replicant.track(never, finish_seconds=1.5) as run:
        run.log({"loss": 1}, 0)
    assert (never.rows, never.ended, run.lost) == ([], None, {"Listed": 1})
    assert caplog.records[-1].message == "Listed has taken 0 of 1 rows; 1 are lost."


def test_an_end_that_fails_or_hangs_is_told(caplog):
    class Ends(Listed):
        def end(self, *, failed):
            raise OSError("gone")

    released = threading.Event()

    class Hangs(Listed):
        def end(self, *, failed):
            released.wait()

    for tracker, message in (
        (Ends(), "Ends did not end its run: OSError: gone. Training continues. This is reported only once."),
        (Hangs(), "Hangs has taken all 1 rows, but has not ended its run in time."),
    ):
        with replicant.track(tracker, finish_seconds=1.0) as run:
            run.log({"loss": 1}, 0)
        assert len(tracker.rows) == 1
        assert caplog.records[-1].message == message
    released.set()


def test_a_value_that_cannot_be_read_loses_only_its_row(caplog):
    tracker = Listed()
    with replicant.track(tracker) as run:
        gone = jnp.ones(()) + 1
        for step in range(3):
            run.log({"loss": gone if step == 1 else step}, step)
        gone.delete()
    assert ([row.step for row in tracker.rows], run.lost) == ([0, 2], {"Listed": 1})
    assert "gets no row for a value that cannot be read: RuntimeError: Array has been deleted" in caplog.records[0].message


@pytest.mark.long
def test_a_program_that_only_ends_loses_nothing(tmp_path):
    program = f"""if True:
        import os, sys, replicant
        class T:
            def begin(self, config): pass
            def write(self, rows): open({str(tmp_path / "out")!r}, "a").writelines(f"{{row.step}}\\n" for row in rows)
            def end(self, *, failed): open({str(tmp_path / "out")!r}, "a").write(f"{{failed}}\\n")
        run = replicant.track(T())
        for step in range(300): run.log({{"a": 1}}, step)
        if os.fork() == 0:
            run.log({{"a": 1}}, 9999)
            sys.exit(0)
        os.wait()
        raise ValueError"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert (tmp_path / "out").read_text().splitlines() == [*map(str, range(300)), "True"]


# Keras.


@pytest.mark.parametrize("num_replicas", [0, 3])
@pytest.mark.parametrize(("update_freq", "steps"), [("epoch", []), ("batch", list(range(1, 9))), (3, [3, 6])])
def test_fit(num_replicas, update_freq, steps):
    keras.utils.set_random_seed(0)
    devices = [f"cpu:{i}" for i in range(num_replicas)]
    strategy = replicant.MirroredStrategy(devices) if devices else replicant.get_strategy()
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"])
    x, y = np.arange(60, dtype=np.float32).reshape(20, 3) / 60, np.arange(20, dtype=np.float32)
    tracker = Listed()
    with replicant.track(tracker) as run:
        history = model.fit(x, y, 5, 2, verbose=0, validation_data=(x, y), callbacks=[Track(run, update_freq)])
    assert run.lost == {"Listed": 0}
    epochs = [row for row in tracker.rows if "loss" in row.values]
    assert [row.step for row in epochs] == [4, 8]
    for number, row in enumerate(epochs):
        assert {name: row.values[name] for name in history.history} == {
            name: each[number] for name, each in history.history.items()
        }
        assert row.values["learning_rate"] == pytest.approx(0.01)
    batches = [row for row in tracker.rows if "batch_loss" in row.values]
    assert [row.step for row in batches] == steps
    if update_freq == "batch":
        assert [row.values["batch_mae"] for row in batches if row.step in (4, 8)] == history.history["mae"]


def test_a_fit_that_raises_stops_sending_and_the_next_one_goes_on():
    class Raises(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise ValueError("enough")

    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    tracker = Listed()
    with replicant.track(tracker) as run:
        callback = Track(run, "batch")
        with pytest.raises(ValueError, match="enough"):
            model.fit(np.ones((8, 3)), np.ones(8), 4, verbose=0, callbacks=[callback, Raises()])
        model.fit(np.ones((8, 3)), np.ones(8), 4, verbose=0)  # without the callback
        model.fit(np.ones((8, 3)), np.ones(8), 4, verbose=0, callbacks=[callback])
    assert [row.step for row in tracker.rows if "batch_loss" in row.values] == [1, 2, 5, 6]


def test_what_the_callback_refuses():
    with pytest.raises(
        ArgumentTypeError, match=r"^callbacks\.Track takes a run; got 3\. Write Track\(replicant\.track\(\.\.\.\)\)\.$"
    ):
        Track(3)
    with replicant.track(Listed()) as run, pytest.raises(ArgumentError, match=r"^update_freq must be .* got 0\.$"):
        Track(run, 0)


# Real trackers.


def test_tensorboard(tmp_path):
    with replicant.track(TensorBoardTracker(tmp_path), config={"rate": 0.1}) as run:
        for step in range(3):
            run.log({"loss": jnp.float32(step) / 2, "group/n": step}, step)
    assert points(tmp_path) == {"loss": [(0, 0.0), (1, 0.5), (2, 1.0)], "group/n": [(0, 0.0), (1, 1.0), (2, 2.0)]}


def test_mlflow(tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="needs mlflow-skinny: pip install mlflow-skinny")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient

    uri = (tmp_path / "runs").as_uri()
    for failed in (False, True):
        tracker = replicant.trackers.MLflowTracker(uri, experiment="mnist", run_name="one", tags={"a": "b"})
        run = replicant.track(tracker, config={"rate": 0.1, "long": "x" * 9000} | {f"p{i}": i for i in range(150)})
        for step in range(1500):
            run.log({"loss": step / 2, "n": float("nan")}, step)
        run.finish(failed=failed)
        assert (run.written, run.lost) == ({"MLflowTracker": 1500}, {"MLflowTracker": 0})
        client = MlflowClient(tracking_uri=uri)
        found = client.get_run(tracker.run_id)
        assert (found.info.status, found.info.run_name, found.data.tags["a"]) == ("FAILED" if failed else "FINISHED", "one", "b")
        assert (found.data.params["rate"], found.data.params["p149"]) == ("0.1", "149")
        history = client.get_metric_history(tracker.run_id, "loss")
        assert sorted((each.step, each.value) for each in history) == [(i, i / 2) for i in range(1500)]
    again = replicant.trackers.MLflowTracker(uri, run_id=tracker.run_id)
    with replicant.track(again, config={"rate": 0.1}) as run:
        run.log({"loss": 1.0}, 1500)
    assert len(client.get_metric_history(tracker.run_id, "loss")) == 1501
    assert len(client.search_experiments()) == 2  # the default one and ours


def test_wandb(tmp_path, monkeypatch, caplog):
    pytest.importorskip("wandb", reason="needs wandb: pip install wandb")
    caplog.set_level(logging.WARNING)
    for name in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_SERVICE", "")
    monkeypatch.delenv("WANDB_SERVICE")  # wandb sets it, and monkeypatch takes it away
    with replicant.track(replicant.trackers.WandBTracker("mnist", mode="offline"), config={"rate": 0.1}) as run:
        for step in range(20):
            run.log({"loss": step / 2}, step)
    assert (run.written, run.lost) == ({"WandBTracker": 20}, {"WandBTracker": 0})
    (log,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert b"loss" in log.read_bytes()
    assert os.environ["WANDB_DIR"] == str(tmp_path)
