"""Settings that only a fresh process can show: virtual devices before and after JAX starts, Keras on another backend."""

import os
import subprocess
import sys

import pytest

import replicant
from replicant.errors import ArgumentError

LIMIT_SECONDS = 120


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    unset = ("NPROC", "XLA_FLAGS", "KERAS_BACKEND", "JAX_NUM_CPU_DEVICES", "REPLICANT_FUSE_REPLICAS")
    clean = {k: v for k, v in os.environ.items() if k not in unset}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


def test_virtual_devices_and_the_threads_they_need() -> None:
    done = run(
        "import replicant; replicant.set_virtual_devices(3, fused=False)\n"
        "import os; print(replicant.list_devices(), os.environ['NPROC'])\n"
        "replicant.set_virtual_devices(3, fused=False); print('again is fine')"
    )
    assert done.stdout == "['cpu:0', 'cpu:1', 'cpu:2'] 12\nagain is fine\n", done.stderr


@pytest.mark.long
def test_replicas_on_devices_of_their_own_as_on_gpus() -> None:
    program = "import replicant; replicant.set_virtual_devices(2, fused={}); print(replicant.MirroredStrategy().placement.fused)"
    for fused, variables in ((False, {}), (False, {"REPLICANT_FUSE_REPLICAS": "0"}), (True, {"REPLICANT_FUSE_REPLICAS": "1"})):
        done = run(f"{program.format(fused)}\nreplicant.set_virtual_devices(2, fused={fused})", **variables)
        assert done.stdout == f"{fused}\n", done.stderr
    done = run(program.format(True), REPLICANT_FUSE_REPLICAS="0")
    assert "ConfigurationError: set_virtual_devices(fused=True): the environment sets REPLICANT_FUSE_REPLICAS=0" in done.stderr
    with pytest.raises(ArgumentError, match="fused must be True, False or None; got 'no'"):
        replicant.set_virtual_devices(8, fused="no")  # type: ignore[arg-type]


@pytest.mark.long
def test_more_threads_that_the_user_asked_for_are_kept() -> None:
    done = run("import replicant; replicant.set_virtual_devices(2, fused=False)\nimport os; print(os.environ['NPROC'])", NPROC="40")
    assert done.stdout == "40\n", done.stderr


@pytest.mark.long
def test_too_late() -> None:
    done = run("import jax.numpy as jnp; jnp.ones(1)\nimport replicant; replicant.set_virtual_devices(2)")
    assert done.returncode == 1
    assert "AlreadyStartedError: set_virtual_devices(2) is too late: JAX has already started with 1 CPU device(s)" in done.stderr


@pytest.mark.long
def test_two_places_that_set_the_number() -> None:
    flags = "--xla_force_host_platform_device_count=2"
    done = run("import replicant; replicant.set_virtual_devices(2)", XLA_FLAGS=flags)
    assert f"ConfigurationError: set_virtual_devices(2): XLA_FLAGS contains {flags}, which also sets the number" in done.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("keras.backend.backend = lambda: 'torch'", "runs on 'torch'. Set the environment variable KERAS_BACKEND=jax"),
        ("keras.__version__ = '3.11.3'", "Replicant needs Keras >= 3.12; this is 3.11.3. Run: pip install -U keras"),
    ],
)
@pytest.mark.long
def test_a_keras_that_cannot_be_driven(change: str, message: str) -> None:
    done = run(
        f"import keras\n{change}\nimport replicant\nreplicant.MirroredStrategy().run(lambda: 1)",
        KERAS_BACKEND="jax",
    )
    assert done.returncode == 1
    assert "replicant.errors.BackendError: " in done.stderr
    assert message in done.stderr


@pytest.mark.long
def test_a_keras_that_comes_too_late_for_the_scope() -> None:
    done = run("import replicant\nwith replicant.MirroredStrategy().scope():\n    import keras", KERAS_BACKEND="jax")
    assert "UserWarning: Keras was imported inside strategy.scope()" in done.stderr
    assert "Import keras before you enter the scope" in done.stderr


@pytest.mark.long
def test_programs_without_keras_do_not_load_it() -> None:
    done = run("import sys, replicant\nreplicant.MirroredStrategy().run(lambda: 1)\nprint('keras' in sys.modules)")
    assert done.stdout == "False\n", done.stderr
