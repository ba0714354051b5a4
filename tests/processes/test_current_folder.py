"""Files in the current folder that are named like modules are not run: neither by the command, nor by what it starts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from replicant import _python
from replicant.cli import COMMANDS
from replicant.coordinator.processes._transport import own_path
from replicant.errors import ConfigurationError
from replicant.launch.hosts._hosts import agent_command
from replicant.launch.team._service import free_port

from ._traps import Traps

HELPED = "import helper\nprint(helper.TEXT, flush=True)\n"
PLANNED = """
import helper
import jax.numpy as jnp
import replicant

strategy = replicant.MirroredStrategy()
weights = replicant.Variable(jnp.ones((4, 4)))


@replicant.function
def step():
    return strategy.run(lambda: weights.assign_add(jnp.ones((4, 4))))


step()
"""
# Runs commands one after the other in one process, which has the path of a console script.
ALL = """
import json, sys
from replicant.cli import main
for name, argv in json.loads(sys.argv[1]).items():
    try:
        status = main([name.partition(" ")[0], *argv])
    except SystemExit as end:
        status = end.code
    print("command", name, status, flush=True)
"""
SERVERS = """
import os, sys
import replicant
from replicant.coordinator import ClusterCoordinator

os.chdir(sys.argv[1])


def answer():
    import helper
    return helper.TEXT


if __name__ == "__main__":
    coordinator = ClusterCoordinator(replicant.ParameterServerStrategy())
    print(coordinator.schedule(answer).fetch())
"""


@pytest.fixture
def traps(tmp_path):
    return Traps(tmp_path)


@pytest.fixture
def programs(tmp_path):
    """Programs in another folder, with a module beside them."""
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "helper.py").write_text("TEXT = 'it is beside the program'\n")
    for name, text in {"helped": HELPED, "planned": PLANNED, "servers": SERVERS}.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def run(traps, *arguments, **environ):
    command = [sys.executable, *map(str, arguments)]
    environ = os.environ | {"PYTHONSAFEPATH": "", **environ}
    return subprocess.run(command, cwd=traps.folder, env=environ, capture_output=True, text=True, timeout=240, check=False)


def test_the_traps_work(traps):
    """Otherwise the tests below could not fail."""
    (traps.folder / "program.py").write_text("import json\n")
    assert run(traps, "program.py").returncode == 1
    assert "json" in [line.split()[0] for line in traps.sprung()]
    run(traps, "-c", "")  # Python 3.13 itself imports some modules before it runs the code
    assert bool(traps.sprung()) == (sys.version_info >= (3, 13))
    assert len(list(traps.folder.iterdir())) > 300


@pytest.mark.long
def test_every_command(traps, programs, tmp_path):
    helped, logs = str(programs / "helped.py"), str(tmp_path / "logs")
    local = ["--workers", "2", "--log-dir", logs, helped]
    weights = Path(__file__).resolve().parents[1] / "tensorflow_files" / "weights" / "nested.h5"
    commands = {
        "checkpoint": ["show", str(weights)],
        "doctor": ["--no-self-test"],
        "launch": local,
        "launch on hosts": ["--hosts", "localhost:2", helped],
        "launch as a node": ["--node-rank", "0", "--nodes", "1", "--address", f"127.0.0.1:{free_port()}", helped],
        "launch for Slurm": ["--engine", "slurm", helped],
        "launch what is told": ["--status", logs],
        "migrate": [helped],
        "new": ["project"],
        "plan": [str(programs / "planned.py"), "--topology", "cpu:2"],
        "report": [logs],
        "run": ["--strategy", "mirrored", helped],  # in place of this process, so it is the last one
    }
    assert {name.partition(" ")[0] for name in commands} == set(COMMANDS)
    traps.command.write_text(ALL)
    done = run(traps, traps.command, json.dumps(commands), REPLICANT_JOB_KEY="k" * 32)
    assert traps.sprung() == []
    ended = [line for line in done.stdout.splitlines() if line.startswith("command")]
    assert ended == [f"command {name} 0" for name in commands if name != "run"], done.stderr
    assert done.stdout.endswith("it is beside the program\n")
    assert done.stdout.count("it is beside the program") == 2 + 2 + 1 + 1  # of the launched ones, and of the one that was run


@pytest.mark.long
def test_parameter_servers(traps, programs):
    """They find the modules of the program, but nothing of theirs in the folder to which it has gone meanwhile.

    The program is typed into an interpreter, so that the current folder is on its path, as "".
    """
    code = f"import sys; sys.path.append({str(programs)!r})\n" + (programs / "servers.py").read_text()
    done = subprocess.run(
        [sys.executable, "-c", code, traps.folder], cwd=programs, capture_output=True, text=True, timeout=240, check=False
    )
    assert (traps.sprung(), done.stdout, done.returncode) == ([], "it is beside the program\n", 0), done.stderr


def test_what_a_servers_process_finds_before_it_has_the_programs_path():
    source = str(Path(_python.__file__).parents[1])
    assert own_path(["", "/a", "", "/b"]) == ["/a", "/b", source]
    assert own_path([source, "/a"]) == [source, "/a"]


def test_an_agent(traps, tmp_path):
    """It finds Replicant where the user has put it, but not in the current folder, and says which Python it is if that fails."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "replicant.py").write_text("raise ImportError('it is broken')\n")
    done = run(traps, *agent_command("")[1:], PYTHONPATH=str(tmp_path / "broken"))
    assert traps.sprung() == []
    python = ".".join(map(str, sys.version_info[:3]))
    assert json.loads(done.stdout) == {"kind": "no agent", "python": python, "error": "ImportError: it is broken"}


SHOW = "import sys; print(sys.flags.safe_path, sys.flags.ignore_environment, sys.flags.no_user_site, sys.flags.no_site)"


@pytest.mark.parametrize(
    ("flags", "kind", "shown"),
    [
        ([], "own", "True 0 0 0"),
        (["-s"], "own", "True 0 1 0"),
        (["-E"], "own", "True 1 0 0"),
        (["-I"], "own", "True 1 1 0"),
        ([], "bare", "True 1 1 1"),
        ([], "users", "False 0 0 0"),
        (["-I"], "users", "False 0 0 0"),
    ],
)
def test_the_flags_of_a_child(tmp_path, flags, kind, shown):
    """The child of a process without the user's packages or variables has none either. A user's program is started as always."""
    arguments = [SHOW] if kind == "bare" else ["-c", SHOW]
    source = str(Path(_python.__file__).parents[1])
    code = (  # imports nothing but this one module
        "import subprocess, sys, types\nsys.modules['replicant'] = package = types.ModuleType('replicant')\n"
        f"package.__path__ = [{source + '/replicant'!r}]\nfrom replicant._python import {kind}_python as python\n"
        f"subprocess.run(python(*{arguments!r}), check=True)"
    )
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONSAFEPATH", "PYTHONNOUSERSITE")}
    done = subprocess.run([sys.executable, *flags, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == shown


def test_what_the_user_has_set_works_in_a_child(tmp_path):
    """PYTHONPATH, and the packages of the user."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "helper.py").write_text("TEXT = 'on PYTHONPATH'\n")
    environ = os.environ | {"PYTHONPATH": str(tmp_path / "a"), "PYTHONUSERBASE": str(tmp_path / "user")}
    code = "import helper, site; print(helper.TEXT, site.getuserbase())"
    done = subprocess.run(_python.own_python("-c", code), env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == f"on PYTHONPATH {tmp_path / 'user'}\n"


@pytest.mark.parametrize(
    ("executable", "frozen", "told"),
    [
        ("", False, "sys.executable is ''. Run the program with python."),
        (None, False, "sys.executable is None. Run the program with python."),
        ("/opt/app", True, "sys.executable is '/opt/app', which is a program made from Python code. Run the program with python."),
    ],
)
def test_there_is_no_python(monkeypatch, executable, frozen, told):
    monkeypatch.setattr(sys, "executable", executable)
    monkeypatch.setattr(sys, "frozen", frozen, raising=False)
    for make in (_python.own_python, _python.bare_python, _python.users_python):
        with pytest.raises(ConfigurationError) as caught:
            make("x")
        assert str(caught.value) == f"There is no Python to start a process with: {told}"
