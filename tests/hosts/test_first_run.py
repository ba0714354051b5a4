"""The page "Your first run on two machines": every command on it runs on two hosts, and prints what the page shows.

A block after ``<!-- run: NAME -->`` has commands, each with its host in front, and what they print. `SETUPS` says what is wrong
with the hosts. ``...`` on the page stands for any text, and lines that begin with four spaces go on with the line before.
"""

import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import distribution
from pathlib import Path

import pytest
from _bench import Bench, wait_until
from _sshd import connect, need_sshd
from _training_job import environment
from test_tunnel import only_ssh

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "first-run.md"
BLOCK = re.compile(r"^<!-- run: (.*?) -->\n```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"^<!-- file: (.*?) -->\n```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PROMPT = re.compile(r"^(node-[ab])\$ (.*)$", re.MULTILINE)
SECONDS = 120.0
KEY = "0123456789abcdef" * 4
SKEW = "import time\n_time = time.time\ntime.time = lambda: _time() + 600\n"


def parts(text: str) -> list[tuple[str, str, list[str]]]:
    """The hosts, commands and printed lines of a block."""
    found = PROMPT.split(text)[1:]
    return [(host, command, joined(shown)) for host, command, shown in zip(found[::3], found[1::3], found[2::3], strict=True)]


def joined(text: str) -> list[str]:
    """The lines of a text, with those that go on in the next line made one."""
    return [line.strip() for line in re.sub(r"\n {2,}", " ", text).splitlines() if line.strip()]


def is_shown(line: str, shown: str) -> bool:
    """Whether the page shows this line."""
    return re.fullmatch(".*".join(map(re.escape, re.split(r"\s*\.\.\.\s*", shown))).replace(r"\ ", r"\s+"), line) is not None


def nothing(bench: Bench, folder: Path) -> None:
    """Nothing is wrong."""


def off(bench: Bench, folder: Path) -> None:
    bench.lose_power(1)


def without_program(bench: Bench, folder: Path) -> None:
    empty = folder / "empty"
    empty.mkdir()
    bench.hosts[1].run("mount", "--bind", str(empty), str(folder / "work"))


def other_version(bench: Bench, folder: Path) -> None:
    """Let node-b find that another version of JAX is installed."""
    jax = distribution("jax")
    place = Path(str(jax.locate_file(f"jax-{jax.version}.dist-info/METADATA")))
    mine = folder / "METADATA"
    mine.write_text(place.read_text().replace(f"\nVersion: {jax.version}\n", "\nVersion: 0.9.0\n", 1))
    bench.hosts[1].run("mount", "--bind", str(mine), str(place))


def firewall(bench: Bench, folder: Path) -> None:
    """Let nothing pass from node-b to node-a but ssh."""
    bench.link(1, 0).firewall = lambda source, target: source == 22


def tunnel(bench: Bench, folder: Path) -> None:
    """Let sshd on node-b make tunnels, and nothing but ssh pass."""
    need_sshd()
    only_ssh(bench)
    connect(bench, folder / "ssh", [1], node_b=["PermitTunnel point-to-point"])


SETUPS: dict[str, Callable[[Bench, Path], None]] = {
    "ssh, firewall": firewall,
    "nodes, firewall": firewall,
    "ssh, other version": other_version,
    "nodes, other version": other_version,
    "ssh, no program": without_program,
    "ssh, missing": off,
    "tunnel": tunnel,
}
NAMES = [name for name, _ in BLOCK.findall(PAGE.read_text())]


class Shell:
    """The two hosts, and what a user writes there."""

    def __init__(self, bench: Bench, folder: Path, programs: str, more: dict[str, str]):
        self._hosts = {host.name: host for host in bench.hosts}
        self._folder, self._more = folder, more
        self._environ = {name: value for name, value in environment(folder, programs).items() if name != "KERAS_BACKEND"} | {
            "REPLICANT_JOB_KEY": KEY,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }

    def start(self, number: int, host: str, command: str) -> tuple[object, Path]:
        log = self._folder / "work" / f"{number}.log"
        environ = self._environ | ({"PYTHONPATH": self._more["PYTHONPATH"]} if self._more and host == "node-b" else {})
        process = self._hosts[host].start(["sh", "-c", command], log, environ)
        return process, log


@pytest.mark.parametrize("name", NAMES)
def test_block(name: str, make_bench: Callable[..., Bench], programs: str, tmp_path: Path) -> None:
    text = PAGE.read_text()
    (tmp_path / "work").mkdir()
    for file, program in FILE.findall(text):
        (tmp_path / "work" / file).write_text(program)
    bench, late = make_bench(2), tmp_path / "late"
    late.mkdir()
    (late / "sitecustomize.py").write_text(SKEW)
    if name.startswith("ssh"):
        need_sshd()
        connect(bench, tmp_path / "ssh", [1], node_b=[f"SetEnv PYTHONPATH={late}"] if name.endswith("clock") else [])
        if name.endswith("no key"):
            (tmp_path / "ssh" / "home-node-b" / ".ssh" / "authorized_keys").write_text("")
    SETUPS.get(name, nothing)(bench, tmp_path)
    shell = Shell(bench, tmp_path, programs, {"PYTHONPATH": str(late)} if name.endswith("clock") else {})
    commands = parts(dict(BLOCK.findall(text))[name])
    started = []
    for number, (host, command, _) in enumerate(commands):
        process, log = shell.start(number, host, command)
        started.append((process, log))
        if number + 1 < len(commands):  # a user would see it wait before the next one is started
            wait_until(lambda log=log, process=process: bool(log.read_text()) or process.poll() is not None, SECONDS)
    wait_until(lambda: all(process.poll() is not None for process, _ in started), SECONDS)
    printed = [(process.poll(), log.read_text()) for process, log in started]
    code = 0 if name in ("alone", "ssh", "nodes", "tunnel") else 1
    for (host, command, shown), (status, text) in zip(commands, printed, strict=True):
        check(text, shown)
        assert status == code, (host, command, status, text)


def check(text: str, shown: Sequence[str]) -> None:
    """Check that a command has printed what the page shows, in whatever order the lines of different processes came."""
    lines = [line for line in joined(text) if " is slow: " not in line]  # which may be said on a busy machine
    left = list(shown)
    for line in lines:
        match = next((each for each in left if is_shown(line, each)), None)
        assert match is not None, f"the page does not show: {line}\nof:\n{text}"
        left.remove(match)
    assert not left, f"the page shows {left}, but this was printed:\n{text}"
