"""``replicant doctor``: how facts are judged, and how the table looks."""

import json

import jax
import pytest

import replicant
from replicant import cli
from replicant.cli import _checkup
from replicant.cli._checkup import Result, _facts, _runner
from replicant.kernels.xla._flags import OPTION, VALUE

GOOD = {"replicant": "0.1.0", "jax": "0.10.2", "jaxlib": "0.10.2", "keras": "3.15.1", "numpy": "2.4.6"}


@pytest.mark.parametrize(
    ("change", "state", "remedy"),
    [
        ({}, "ok", ""),
        ({"jax-cuda12-plugin": "0.10.1"}, "ok", ""),
        ({"jax": "0.11.0", "jaxlib": "0.11.0"}, "ok", ""),
        ({"jaxlib": None}, "fail", "install jax, jaxlib and keras"),
        ({"jax": "0.9.1", "jaxlib": "0.9.1"}, "fail", "jax 0.9.1 is too old: pip install 'jax>=0.10'"),
        ({"jaxlib": "0.9.1"}, "fail", "jax 0.10.2 and jaxlib 0.9.1 do not belong together"),
        ({"keras": "3.5.0"}, "fail", "keras 3.5.0 is too old: pip install 'keras>=3.12'"),
        ({"keras": "3.15.9"}, "ok", ""),
        ({"keras": "4.0.0"}, "ok", "keras 4.0.0 is newer than the versions that this release was tested with (up to keras 3.15)"),
        ({"jax": "0.12.0.1", "jaxlib": "0.12.0.1"}, "ok", ""),
        (
            {"jax": "0.13.0", "jaxlib": "0.13.0"},
            "ok",
            "jax 0.13.0 is newer than the versions that this release was tested with (up to jax 0.12)",
        ),
        (
            {"jax": "1.0.0", "jaxlib": "1.0.0", "keras": "3.16.0"},
            "ok",
            "jax 1.0.0 and keras 3.16.0 are newer than the versions that this release was tested with (up to jax 0.12, keras 3.15)",
        ),
        ({"jax-cuda12-plugin": "0.8.0"}, "fail", "jax-cuda12-plugin 0.8.0 is for another jaxlib"),
    ],
)
def test_versions(change, state, remedy):
    result = _facts.judge_versions(GOOD | change)
    assert result.state == state
    assert result.remedy == remedy if state == "ok" else result.remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("version", "remedy"),
    [
        ("3.11.7", ""),
        ("3.13.9", ""),
        ("3.14.0", "Python 3.14.0 is newer than the versions that this release was tested with (up to Python 3.13)"),
    ],
)
def test_python(version, remedy):
    assert _facts.judge_python(version, "here") == Result("python", "ok", f"{version} here", remedy)


@pytest.mark.parametrize(
    ("states", "accelerator", "state"),
    [
        ({"conv": "on", "memory": "off: it is not Linux"}, None, "ok"),
        ({"conv": "on", "numba_dot": "off: numba is not installed"}, None, "ok"),
        ({"conv": "off: JAX started first", "memory": "on"}, None, "warn"),
        ({"conv": "off: JAX has plugins (xla_cuda13)", "memory": "on"}, "JAX has plugins (xla_cuda13)", "ok"),
    ],
)
def test_cpu_kernels(states, accelerator, state):
    result = _facts.judge_kernels(states, accelerator)
    assert result.state == state
    assert result.detail == ", ".join(f"{name} {told}" for name, told in states.items())
    assert result.remedy == ("training on a CPU is slower without them: see docs/kernels.md" if state == "warn" else "")


def test_a_free_threaded_python():
    remedy = "this release was not tested with free-threaded Python"
    assert _facts.judge_python("3.13.0", "here", free_threaded=True) == Result("python", "ok", "3.13.0 here", remedy)


def test_a_newer_version_is_one_more_line_and_nothing_else(monkeypatch, capsys):
    def printed(version):
        found = GOOD | {"jax": version, "jaxlib": version}
        monkeypatch.setattr(_checkup, "look", lambda: [_facts.judge_versions(found)])
        assert cli.main(["doctor", "--no-self-test"]) == 0
        return capsys.readouterr().out.replace(version, "X").splitlines()

    tested, newer = printed("0.12.0"), printed("0.13.0")
    assert newer.pop(1).split("->")[1] == " jax X is newer than the versions that this release was tested with (up to jax 0.12)"
    assert newer == tested
    assert tested[-1] == "1 ok, 0 warnings, 0 failed."


@pytest.mark.parametrize(
    ("environ", "state"),
    [
        ({}, "ok"),
        ({"NPROC": "4"}, "ok"),
        ({"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}, "warn"),
        ({"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "NPROC": "15"}, "warn"),
        ({"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "NPROC": "16"}, "ok"),
        ({"JAX_NUM_CPU_DEVICES": "2"}, "warn"),
    ],
)
def test_threads(environ, state):
    result = _facts.judge_threads("2 cores", environ)
    assert result.state == state
    assert ("need NPROC=" in result.remedy) == (state == "warn")


def test_keras_on_another_backend():
    assert _facts.backend({}).state == "ok"
    result = _facts.backend({"KERAS_BACKEND": "torch"})
    assert (result.state, result.detail) == ("fail", "torch")
    assert result.remedy == "KERAS_BACKEND=torch: unset it, or set it to jax, before Keras is imported"


@pytest.mark.parametrize(("text", "quota"), [("max 100000", None), ("150000 100000", 1.5), ("", None)])
def test_the_quota_of_a_container(tmp_path, text, quota):
    (tmp_path / "cpu.max").write_text(text)
    assert _facts._cpu_quota(tmp_path / "cpu.max") == quota
    assert _facts._cpu_quota(tmp_path / "missing") is None


WORKERS = {"JAX_PROCESS_ID": "1", "JAX_NUM_PROCESSES": "4", "JAX_COORDINATOR_ADDRESS": "node1:1234"}


@pytest.mark.parametrize(
    ("environ", "state", "words"),
    [
        ({}, "ok", "nothing: process 0 of 1"),
        (WORKERS, "ok", "JAX variables: process 1 of 4, coordinator node1:1234"),
        (WORKERS | {"https_proxy": "http://proxy:1"}, "fail", "process 1 of 4"),
        (WORKERS | {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "1"}, "warn", "process 1 of 4"),
    ],
)
def test_the_cluster(environ, state, words):
    result = _facts.cluster_variables(environ)
    assert result.state == state
    assert words in result.detail
    assert bool(result.remedy) == (state != "ok")


@pytest.mark.parametrize(
    ("environ", "detail"),
    [
        ({"HOME": "/h"}, "none"),
        ({"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--a=1 --b"}, "JAX_PLATFORMS=cpu; XLA_FLAGS=--a=1 --b"),
        ({"XLA_FLAGS": f"--a=1 {OPTION}={VALUE}"}, f"XLA_FLAGS=--a=1; Replicant adds {OPTION}={VALUE}"),
        ({"XLA_FLAGS": f"{OPTION}={VALUE}"}, f"none; Replicant adds {OPTION}={VALUE}"),
    ],
)
def test_options_of_xla(environ, detail):
    assert _facts.xla_flags(environ).detail == detail


def test_a_fact_that_cannot_be_had_is_a_red_line():
    by_name = {result.name: result for result in _checkup.look({"TF_CONFIG": "{"})}
    assert list(by_name) == list(_checkup.FACTS)
    assert by_name["cluster"].state == "fail"
    assert "TF_CONFIG is not JSON: line 1, column 2" in by_name["cluster"].detail


def test_the_table(monkeypatch, capsys):
    results = [Result("one", "ok", "fine"), Result("three", "warn", "odd", "mind it"), Result("two", "fail", "broken", "mend it")]
    results.append(Result("four", "ok", "there", rows=("a", "b")))
    monkeypatch.setattr(_checkup, "look", lambda: results)
    assert cli.main(["doctor", "--no-self-test"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "ok    one                   fine",
        "warn  three                 odd",
        "                            -> mind it",
        "FAIL  two                   broken",
        "                            -> mend it",
        "ok    four                  there",
        "                            a",
        "                            b",
        "",
        "2 ok, 1 warnings, 1 failed.",
    ]
    monkeypatch.setattr(_checkup, "look", lambda: results[:2])
    assert cli.main(["doctor", "--no-self-test", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["ok"] is True
    assert printed["checks"][1] == {
        "name": "three",
        "state": "warn",
        "detail": "odd",
        "remedy": "mind it",
        "seconds": 0.0,
        "rows": [],
    }


def test_on_a_terminal_the_table_says_what_is_being_looked_at(monkeypatch, capsys):
    monkeypatch.setattr(_checkup, "look", lambda: [Result(name, "ok", "fine") for name in _checkup.FACTS])
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert cli.main(["doctor", "--no-self-test"]) == 0
    green = "\033[32mok  \033[0m"
    assert capsys.readouterr().out.startswith(
        f"....  versions\r\033[K{green}  versions              fine\n....  python\r\033[K{green}  python "
    )


def test_the_self_test_is_alone():
    environ = WORKERS | {"SLURM_JOB_ID": "1", "RANK": "0", "WORLD_SIZE": "2", "HTTPS_PROXY": "x", "http_proxy": "x", "HOME": "/h"}
    assert _runner.alone(environ) == {"HOME": "/h"}


def test_the_version_of_this_distribution_is_told():
    assert _facts.versions({}).detail.startswith(f"replicant {replicant.__version__}, jax {jax.__version__}, ")
