"""A profile counts the steps of loops and fits exactly, in one thread or several, whatever happens in its block."""

import threading
import time

import jax
import keras
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import replicant
from replicant import errors
from replicant.data import Dataset
from replicant.profiling import StepProfile
from replicant.runtime import _steps

ROWS = np.random.default_rng(0).normal(size=(40, 8)).astype("float32")


@pytest.fixture(autouse=True)
def nothing_is_left_behind(tmp_path):
    yield
    assert _steps.recorder is None
    jax.profiler.start_trace(tmp_path / "again")  # raises if JAX's profiler still runs
    jax.profiler.stop_trace()


@pytest.fixture(autouse=True)
def no_cache():
    """Programs from the cache of all tests have no names of layers."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.mark.long
def test_programs_from_the_cache_have_no_names_of_layers(tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "programs"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    compilation_cache.reset_cache()
    for is_cached in (False, True):
        jax.clear_caches()
        with replicant.profile() as profile:
            loop()
        assert any(operation.path for operation in profile.operations) != is_cached
        assert ("Start with REPLICANT_COMPILATION_CACHE=0 to see it." in str(profile)) == is_cached


def loop(num_replicas=2, num_steps=5, *, slow_input=0.0, **options):
    """Train a loop of its own in which everything happens: distributed input, run, reduce, and a compiled function."""
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)], **options)
    with strategy.scope():
        weight = replicant.Variable(np.ones((8, 4), "float32"))

    def replica_step(x):
        with replicant.GradientTape() as tape:
            loss = ((x @ weight.value()) ** 2).sum()
        gradient = tape.gradient(loss, weight)
        weight.assign_sub(0.001 * replicant.get_replica_context().all_reduce("SUM", gradient))
        return loss

    @replicant.function
    def step(x):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x,)))

    def wait(x):
        time.sleep(slow_input)
        return x

    data = Dataset.from_tensor_slices(ROWS[: 8 * num_steps]).batch(8)
    data = data.map(wait) if slow_input else data
    return [float(step(x)) for x in strategy.experimental_distribute_dataset(data)]


def check(step: StepProfile) -> None:
    parts = (step.host_seconds, step.device_seconds, step.input_seconds, step.compile_seconds, step.exchange_seconds)
    assert all(0 <= part <= step.seconds * (1 + 1e-6) for part in parts)
    assert step.exchange_seconds <= step.device_seconds
    assert step.idle_input_seconds <= step.input_seconds + 1e-9
    whole = step.host_seconds + step.device_seconds + step.compile_seconds + step.idle_input_seconds
    assert step.seconds <= whole * (1 + 1e-6) + 1e-6  # parts overlap, and nothing is left out


@pytest.mark.long
def test_a_loop_on_devices_that_exchange():
    with replicant.profile(steps=4) as profile:
        loop(fuse_replicas=False)
    assert [(step.number, step.program.rpartition(".")[2]) for step in profile.steps] == [(i, "step") for i in (1, 2, 3, 4)]
    for step in profile.steps:
        check(step)
    assert sum(step.exchange_seconds for step in profile.steps) > 0
    assert [step.compile_seconds > 0 for step in profile.steps] == [True, False, False, False]
    kinds = {operation.kind: operation for operation in profile.operations}
    assert kinds["all-reduce"].num_calls % (2 * 4) == 0  # on both devices, in every step
    assert "psum" in kinds["all-reduce"].path
    assert sum(operation.share for operation in profile.operations) == pytest.approx(1)
    assert [o.seconds for o in profile.operations] == sorted((o.seconds for o in profile.operations), reverse=True)
    head, columns, *lines = str(profile).splitlines()
    assert head == "Profile: 4 step(s) on 2 device(s); times in ms"
    assert columns.split() == ["program", "step", "host", "device", "exchange", "input", "compile"]
    assert [line.split()[0] for line in lines[:5]] == ["1", "2", "3", "4", "mean"]
    assert lines[4].split()[:7] == ["mean", "of", "3,", "which", "did", "not", "compile"]
    assert lines[-1].startswith('For every single operation: replicant.profile(folder="profiles") keeps the files')


@pytest.mark.long
def test_input_that_is_waited_for():
    with replicant.profile(steps=None) as profile:
        loop(num_steps=5, slow_input=0.1, fuse_replicas=True)
    assert len(profile.steps) == 5
    assert sum(step.input_seconds for step in profile.steps) > 0.1  # a thread reads ahead while the step is compiled
    assert all(step.exchange_seconds == 0 for step in profile.steps)  # the replicas are one program
    for step in profile.steps:
        check(step)


@pytest.mark.long
def test_the_numbers_are_the_same_and_steps_behind_the_profile_go_on():
    plain = loop()
    with replicant.profile(steps=2) as profile:
        recorded = loop()
    assert recorded == plain
    assert len(profile.steps) == 2
    assert "2 step(s)" in str(profile)


@pytest.mark.long
def test_fewer_steps_than_asked_and_none():
    with replicant.profile(steps=50) as profile:
        loop(1)
    assert str(profile).startswith("Profile: 5 of 50 steps on 1 device(s)")
    with replicant.profile() as profile:
        pass
    assert (profile.steps, profile.operations, profile.file) == ((), (), None)
    assert str(profile).startswith("Profile: no step was recorded. A step is a call of a `replicant.function` or of `strategy.run`")


@pytest.mark.parametrize("under_strategy", [True, False])
@pytest.mark.long
def test_fit(under_strategy):
    with (replicant.MirroredStrategy(["cpu:0", "cpu:1"]) if under_strategy else replicant.get_strategy()).scope():
        model = keras.Sequential([keras.layers.Dense(16, "relu", name="wide"), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    with replicant.profile(steps=7) as profile:
        model.fit(ROWS, ROWS[:, :1], batch_size=8, epochs=2, verbose=0)  # 5 steps in each epoch
    assert [step.program for step in profile.steps] == ["fit"] * 7
    for step in profile.steps:
        check(step)
        assert step.input_seconds > 0
    assert any("wide" in operation.path for operation in profile.operations)
    function = model.train_function
    with replicant.profile(steps=3) as profile:  # a second one, of the same model
        model.fit(ROWS, ROWS[:, :1], batch_size=8, epochs=1, verbose=0)
    assert len(profile.steps) == 3
    assert [step.compile_seconds for step in profile.steps] == [0, 0, 0]
    assert model.train_function is function  # nothing is left around it
    model.fit(ROWS, ROWS[:, :1], batch_size=8, epochs=1, verbose=0)


@pytest.mark.long
def test_several_steps_per_execution_and_evaluate():
    with replicant.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("adam", "mse", steps_per_execution=2)
    with replicant.profile(steps=None) as profile:
        model.fit(ROWS, ROWS[:, :1], batch_size=8, epochs=1, verbose=0)
    assert len(profile.steps) == 3  # of two batches, two, and one
    with replicant.profile(steps=None) as profile:
        model.evaluate(ROWS, ROWS[:, :1], batch_size=8, verbose=0)
    assert len(profile.steps) == 3


def test_an_error_in_the_block_and_in_a_step():
    @replicant.function
    def step(x):
        if x.shape[0] == 3:
            raise OSError("disk")
        return 2 * x

    profile = replicant.profile()
    with pytest.raises(OSError, match="disk"), profile:
        _ = [step(np.ones(size)) for size in (2, 2, 3)]
    assert len(profile.steps) == 2


def test_a_fit_that_raises_is_recorded_up_to_there():
    def data():
        yield ROWS[:8], ROWS[:8, :1]
        yield ROWS[8:16], ROWS[8:16, :1]
        raise OSError("disk")

    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    profile = replicant.profile()
    with pytest.raises(OSError, match="disk"), profile:
        model.fit(data(), steps_per_epoch=4, verbose=0, shuffle=False)
    assert len(profile.steps) == 2


@pytest.mark.long
def test_nested_profiles_and_another_one_of_jax(tmp_path):
    with replicant.profile(steps=3) as outer:
        with pytest.raises(errors.ContextError, match="another profile is being recorded in this process"), replicant.profile():
            pass
        loop(1)
    assert len(outer.steps) == 3
    with replicant.profile(steps=1) as first:
        loop(1)
        with replicant.profile(steps=2) as second:  # the first one is complete
            loop(1)
    assert (len(first.steps), len(second.steps)) == (1, 2)
    told = r"JAX's profiler did not start: .* let only one of them record"
    with jax.profiler.trace(tmp_path), pytest.raises(errors.ContextError, match=told), replicant.profile():
        loop(1)
    assert list(tmp_path.rglob("*.xplane.pb"))  # the user's own was not ended


def test_threads_have_steps_of_their_own():
    double = replicant.function(lambda x: 2 * x)
    double(np.ones(4))

    def work(count):
        for _ in range(count):
            double(np.ones(4))

    with replicant.profile(steps=12) as profile:
        threads = [threading.Thread(target=work, args=(10,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert [step.number for step in profile.steps] == list(range(1, 13))  # exactly as many as were asked for
    for step in profile.steps:
        check(step)


@pytest.mark.long
def test_the_block_is_in_another_thread_than_the_steps():
    profile, entered, done = replicant.profile(steps=None), threading.Event(), threading.Event()

    def watch():
        with profile:
            entered.set()
            done.wait(60)

    thread = threading.Thread(target=watch)
    thread.start()
    assert entered.wait(60)
    loop(1)
    done.set()
    thread.join(60)
    assert len(profile.steps) == 5


@pytest.mark.long
def test_the_files_are_kept_where_asked(tmp_path):
    with replicant.profile(steps=2, folder=tmp_path / "new" / "profiles") as profile:
        loop(1)
    assert profile.file is not None
    assert profile.file.is_relative_to(tmp_path / "new" / "profiles" / "plugins" / "profile")
    assert str(profile).splitlines()[-1].endswith(f"xprof --logdir {tmp_path}/new/profiles")
    profile.file.write_bytes(profile.file.read_bytes()[:-3])
    with replicant.profile(steps=2, folder=tmp_path / "other") as damaged:
        loop(1)
    assert damaged.file is not None
    damaged.file.write_bytes(damaged.file.read_bytes()[:-3])
    with pytest.raises(errors.ProfileError, match="cut off"):
        _ = damaged.steps


def test_a_file_that_cannot_be_written_does_not_end_the_training(tmp_path, monkeypatch):
    def fail():
        original()
        raise OSError("No space left on device")

    original = jax.profiler.stop_trace
    monkeypatch.setattr(jax.profiler, "stop_trace", fail)
    with replicant.profile(steps=2, folder=tmp_path) as profile:
        assert len(loop(1)) == 5
    with pytest.raises(errors.ProfileError, match=r"could not write into .*: No space left on device"):
        _ = profile.steps
