"""What importing Replicant does to XLA_FLAGS and to JAX's lowerings, in fresh processes."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_SECONDS = 120
OPTION = "--xla_cpu_experimental_ynn_fusion_type"
SET = f"{OPTION}=LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_REDUCE"
SHOW = "import os; print(os.environ.get('XLA_FLAGS', '')); print(replicant.kernels.status().kernels['conv'])\n"
# As if another jaxlib were installed: the version is all that the decision reads.
OTHER_JAXLIB = (
    "import importlib.metadata as m; real = m.version\nm.version = lambda name: '0.99.1' if name == 'jaxlib' else real(name)\n"
)
PLUGIN = (
    "import importlib.metadata as m; real = m.entry_points\n"
    "ours = [m.EntryPoint('xla_cuda13', 'x', 'jax_plugins')]\n"
    "m.entry_points = lambda **k: ours if k.get('group') == 'jax_plugins' else real(**k)\n"
)
NO_FOLDER = (
    "off: it was not tested with jaxlib 0.99.1, and REPLICANT_COMPILATION_CACHE=0 leaves no folder for the result of a trial"
)


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    cleared = ("XLA_FLAGS", "REPLICANT_KERNELS", "JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES")
    clean = {k: v for k, v in os.environ.items() if k not in cleared}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


@pytest.mark.cases(
    "-environment0---xla_cpu_experimental_ynn_fusion_type=LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_REDUCE-on",
    "before13-environment13--state13",
    "import jax; jax.devices()\\n-environment14--off: JAX started before replicant was imported; import replicant first",
)
@pytest.mark.parametrize(
    ("before", "environment", "flags", "state"),
    [
        ("", {}, SET, "on"),
        ("", {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}, f"--xla_force_host_platform_device_count=2 {SET}", "on"),
        ("", {"XLA_FLAGS": f"{OPTION}="}, f"{OPTION}=", f"off: XLA_FLAGS already sets {OPTION}="),
        (
            "",
            {"XLA_FLAGS": f"{OPTION}=LIBRARY_FUSION_TYPE_DOT"},
            f"{OPTION}=LIBRARY_FUSION_TYPE_DOT",
            f"off: XLA_FLAGS already sets {OPTION}=LIBRARY_FUSION_TYPE_DOT",
        ),
        ("", {"XLA_FLAGS": SET}, SET, "on"),  # as in a child of a process that set it
        ("", {"XLA_FLAGS": SET, "REPLICANT_KERNELS": "0"}, SET, "on"),
        ("", {"REPLICANT_KERNELS": "0"}, "", "off: REPLICANT_KERNELS does not ask for it"),
        ("", {"REPLICANT_KERNELS": "max_pool"}, "", "off: REPLICANT_KERNELS does not ask for it"),
        ("", {"REPLICANT_KERNELS": "max_pool,conv"}, SET, "on"),
        ("", {"JAX_PLATFORMS": "cpu"}, SET, "on"),
        (
            "",
            {"JAX_PLATFORMS": "cuda,cpu"},
            "",
            "off: JAX_PLATFORMS='cuda,cpu' may start an accelerator, whose compiler may not know the option",
        ),
        (PLUGIN, {}, "", "off: JAX has plugins (xla_cuda13), whose compiler may not know the option"),
        (PLUGIN, {"JAX_PLATFORMS": "cpu"}, SET, "on"),
        (
            OTHER_JAXLIB,
            {"REPLICANT_COMPILATION_CACHE": "0"},
            "",
            NO_FOLDER,
        ),
        (
            "import jax; jax.devices()\n",
            {},
            "",
            "off: JAX started before replicant was imported; import replicant first",
        ),
    ],
)
@pytest.mark.long
def test_xla_flags(before: str, environment: dict[str, str], flags: str, state: str) -> None:
    done = run(f"{before}import replicant\n{SHOW}", **environment)
    assert done.stdout.splitlines() == [flags, state], done.stderr


@pytest.mark.long
def test_the_installed_jaxlib_takes_the_option() -> None:
    done = run("import replicant, jax.numpy as jnp; print(jnp.ones(3).sum(), replicant.list_devices())")
    assert done.stdout == "3.0 ['cpu:0']\n", done.stderr


@pytest.mark.parametrize(
    ("before", "environment", "state"),
    [
        ("", {}, "on"),
        ("", {"REPLICANT_KERNELS": "max_pool"}, "off: REPLICANT_KERNELS does not ask for it"),
        ("", {"REPLICANT_KERNELS": "inline"}, "on"),
        ("import jax; jax.devices()\n", {}, "on"),  # programs are loaded one by one
        (PLUGIN, {}, "on"),
    ],
)
@pytest.mark.long
def test_inline_leaves_jax_its_option(before: str, environment: dict[str, str], state: str) -> None:
    option = "jax.config.values['jax_cpu_enable_async_dispatch']"
    done = run(f"{before}import replicant, jax; print({option}, replicant.kernels.status().kernels['inline'])", **environment)
    assert done.stdout == f"True {state}\n", done.stderr


@pytest.mark.long
def test_programs_of_several_processes_run_where_jax_runs_them() -> None:
    program = (
        "import replicant\n"
        "from replicant.programs.running import _executable\n"
        "strategy = replicant.MultiWorkerMirroredStrategy()\n"
        "made = _executable.Executable('a step', lambda state: (state, state), strategy._placement)\n"
        "print(strategy.num_replicas_in_sync, made._inline)\n"
    )
    with socket.socket() as first, socket.socket() as second:
        for each in (first, second):
            each.bind(("127.0.0.1", 0))
        ports = [each.getsockname()[1] for each in (first, second)]
    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env=os.environ | {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": i}})},
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    assert [worker.communicate(timeout=120)[0] for worker in workers] == ["2 None\n"] * 2


@pytest.mark.long
def test_asking_whether_jax_has_started_changes_nothing() -> None:
    done = run(
        "import replicant, jax; print(len(jax.devices()), jax.config.values['jax_num_cpu_devices'])", JAX_NUM_CPU_DEVICES="3"
    )
    assert done.stdout == "3 3\n", done.stderr


LOWERED = (
    "import replicant, jax, jax.numpy as jnp\n"
    "pool = lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2), (1, 2), 'VALID').sum()\n"
    "text = lambda: jax.jit(jax.grad(pool)).lower(jnp.ones((2, 4))).as_text()\n"
    "print('select_and_scatter' in text())\n"
)


@pytest.mark.long
def test_none_at_all_and_then_one() -> None:
    done = run(
        LOWERED + "replicant.kernels.enable('max_pool'); print('select_and_scatter' in text()); print(replicant.kernels.status())",
        REPLICANT_KERNELS="0",
    )
    no = "off: REPLICANT_KERNELS does not ask for it"
    before = f"conv {no}, memory {no}, argmax {no}, attention {no}, avg_pool {no}, direct_conv {no}, dot {no}"
    after = f"numba_conv {no}, numba_dot {no}, numba_lstm {no}, numba_norm {no}, strided_conv {no}"
    status = f"CPU kernels: {before}, flat_update {no}, inline {no}, lstm {no}, max_pool on, {after}"
    assert done.stdout.splitlines() == ["True", "False", status], done.stderr


@pytest.mark.long
def test_without_kernels_programs_are_those_of_jax_itself() -> None:
    """What stands in for JAX's own lowering, when a kernel is off or does not apply, is the same program."""
    program = (
        "import sys, re, jax, jax.numpy as jnp\n"
        "from jax import lax\n"
        "if sys.argv[1:]:\n    import replicant; replicant.kernels.disable()\n"
        "w = dict(window_dimensions=(1, 3, 3, 1), window_strides=(1, 2, 2, 1), padding='SAME')\n"
        "for op, first in ((lax.max, -jnp.inf), (lax.add, 0.0), (lax.min, jnp.inf)):\n"
        "    f = lambda x: (lax.reduce_window(x, first, op, **w) ** 2).sum()\n"
        "    print(jax.jit(jax.value_and_grad(f)).lower(jnp.ones((2, 7, 7, 3))).compile().as_text())\n"
    )
    alone, with_replicant = (run_with_arguments(program, arguments) for arguments in ([], ["with replicant"]))
    assert sum("reduce-window" in operation for operation in alone) >= 3
    assert with_replicant == alone


def run_with_arguments(program: str, arguments: list[str]) -> list[str]:
    """The operations, with the shapes of their results, of the compiled programs that a script prints."""
    clean = {k: v for k, v in os.environ.items() if k != "REPLICANT_KERNELS"}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=clean | {"XLA_FLAGS": SET, "JAX_ENABLE_COMPILATION_CACHE": "false"},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=True,
    )
    return sorted(re.findall(r" = (\S+ [a-z-]+)\(", done.stdout))


TEMPORARIES = """
import replicant, resource, statistics, jax, jax.numpy as jnp
from replicant.kernels.xla import _heap
strategy = replicant.MirroredStrategy(["cpu:0"])
x = jnp.arange(64 * 4096, dtype=jnp.float32).reshape(4096, 64) % 7

@replicant.function
def step(x):
    products = jax.lax.optimization_barrier(x @ x.T)  # 64 MB
    return jnp.sum(products)

def pages(times):
    counts, results = [], set()
    for _ in range(times):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        results.add(float(step(x)))
        counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return statistics.median(counts), results  # the heap may still grow once

with strategy.scope():
    first, before = pages(1)
    pages(1)  # when it begins, the size of the temporaries decides, and the heap grows once
    last, after = pages(8)
print(first * resource.getpagesize() > 1 << 25, last < 0.1 * first, before == after)
keeper = getattr(_heap.note, "__self__", None)
print(keeper.state if keeper else "nobody watches", replicant.kernels.status().kernels["memory"])
"""


@pytest.mark.cases("environment1-lines1")
@pytest.mark.parametrize(
    ("environment", "lines"),
    [
        ({"REPLICANT_KERNELS": "conv,max_pool"}, ["True False True", "nobody watches off: REPLICANT_KERNELS does not ask for it"]),
        ({}, ["True True True", "keeping on"]),
    ],
)
@pytest.mark.long
def test_large_temporaries_are_found_in_memory_that_is_there_already(environment: dict[str, str], lines: list[str]) -> None:
    if not sys.platform.startswith("linux") or "[always]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text():
        pytest.skip("the system gives huge pages to everybody, so that pages do not tell how much memory is fresh")
    done = run(TEMPORARIES, NPROC="8", **environment)
    assert done.stdout.splitlines() == lines, done.stderr


def test_a_kernel_that_does_not_exist() -> None:
    done = run("import replicant", REPLICANT_KERNELS="max_pool,pool")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "replicant.errors.ConfigurationError: REPLICANT_KERNELS='max_pool,pool': there is no kernel 'pool'. Set it to 0 (none), 1 "
        "(all) or some of argmax,attention,avg_pool,conv,direct_conv,dot,flat_update,inline,lstm,max_pool,memory,"
        "numba_conv,numba_dot,numba_lstm,numba_norm,strided_conv, separated by commas."
    )
