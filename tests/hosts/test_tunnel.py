"""All of a job through a tunnel: nothing but the tunnel's port is seen on the wire, and the numbers are those of one device.

The tunnel is that of docs/first-run.md, whose commands run here: ssh's own, between tun devices. The switch shows every frame.
"""

import collections
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from _bench import Bench, wait_until
from _sshd import TUNNEL, connect, need_sshd
from _switch import tcp_ports
from _training_job import PROGRAM, check_answer, environment

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "first-run.md"
SECONDS = 120.0
SSH = 22
ARP = b"\x08\x06"
KEY = "0123456789abcdef" * 4
PLAIN = (b"replicant/0/", KEY.encode(), b"JAX_PROCESS_ID", b"_program.py", b'"kind": "beat"')  # texts of a job that nobody may read
TUNNEL_BLOCK = re.compile(r"^<!-- run: tunnel -->\n```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Wire:
    """What is seen on all links of a bench."""

    def __init__(self, bench: Bench):
        self.frames: collections.Counter[str] = collections.Counter()  # by what they are
        self.plain: set[bytes] = set()
        for link in bench.links:
            link.watch = self._see

    def _see(self, frame: bytes) -> None:
        ports = tcp_ports(frame)
        if ports is not None:
            what = "ssh" if SSH in ports else f"TCP {ports}"
        else:
            what = "ARP" if frame[12:14] == ARP else f"other {frame[12:24].hex()}"
        self.frames[what] += 1
        self.plain.update(text for text in PLAIN if text in frame)


def set_up(page: str) -> list[tuple[str, str]]:
    """The hosts and commands with which the page makes the tunnel."""
    block = TUNNEL_BLOCK.search(page)
    assert block is not None
    found = re.findall(r"^(node-[ab])\$ (.*)$", block[1], re.MULTILINE)
    return [(host, command) for host, command in found if "replicant" not in command]


def only_ssh(bench: Bench) -> None:
    """Let only the tunnel's port pass, as the firewalls of both hosts do."""
    for link in bench.links:
        link.firewall = lambda source, target: SSH in (source, target)


def variables(folder: Path, programs: str) -> str:
    """The line by which sshd sets the variables of the workers, as a host's own profile would."""
    return f"SetEnv {' '.join(f'{name}={value}' for name, value in environment(folder, programs).items())}"


def make_tunnel(bench: Bench, folder: Path, *more: str) -> None:
    """Connect two hosts by the tunnel of the page. `more` are further lines of sshd's configuration."""
    connect(bench, folder, [1], node_b=["PermitTunnel point-to-point", *more])
    for host, command in set_up(PAGE.read_text()):
        bench.hosts["ab".index(host[-1])].run("sh", "-c", f"{command} </dev/null >{folder}/tunnel.log 2>&1")


def start(bench: Bench, commands: Sequence[Sequence[str]], folder: Path, programs: str) -> list[str]:
    """Run `replicant launch` with these arguments, one on each host from the first on. Returns what they have printed."""
    logs = [folder / f"launcher-{number}" for number in range(len(commands))]
    environ = environment(folder, programs) | {"REPLICANT_JOB_KEY": KEY}
    started = [
        host.start([sys.executable, "-m", "replicant", "launch", *command], log, environ)
        for host, command, log in zip(bench.hosts, commands, logs, strict=False)
    ]
    wait_until(lambda: all(each.poll() is not None for each in started), SECONDS)
    texts = [log.read_text() for log in logs]
    assert [each.poll() for each in started] == [0] * len(started), texts
    return texts


def by_ssh(case: str, strategy: str, other: str) -> list[list[str]]:
    return [["--hosts", f"node-a,{other}", str(PROGRAM), case, strategy]]


def by_rank(case: str, strategy: str, address: str) -> list[list[str]]:
    return [["--nodes", "2", "--node-rank", str(rank), "--address", address, str(PROGRAM), case, strategy] for rank in range(2)]


@pytest.mark.parametrize(
    ("case", "strategy", "how"),
    [("fit", "MultiWorkerMirroredStrategy", by_ssh), ("loop", "FullyShardedStrategy", by_rank)],
    ids=["fit by ssh", "sharded loop by node ranks"],
)
def test_nothing_but_the_tunnel_is_on_the_wire(  # noqa: PLR0917 - fixtures
    make_bench: Callable[..., Bench],
    alone: Any,
    programs: str,
    tmp_path: Path,
    case: str,
    strategy: str,
    how: Callable[..., list[list[str]]],
) -> None:
    need_sshd()
    folder = tmp_path / "job"
    folder.mkdir()
    bench = make_bench(2)
    wire = Wire(bench)
    only_ssh(bench)
    make_tunnel(bench, tmp_path / "ssh", variables(folder, programs))
    before = wire.frames["ssh"]
    start(bench, how(case, strategy, f"{TUNNEL}.{2 if how is by_ssh else 1}"), folder, programs)
    for rank in range(2):
        check_answer(folder, rank, alone(case))
    assert set(wire.frames) <= {"ssh", "ARP"}, wire.frames
    assert wire.frames["ssh"] > before + 100, wire.frames
    assert not wire.plain


def test_without_a_tunnel_the_wire_shows_the_job(
    make_bench: Callable[..., Bench], alone: Any, programs: str, tmp_path: Path
) -> None:
    """What the test above looks for is there to be found."""
    need_sshd()
    folder = tmp_path / "job"
    folder.mkdir()
    bench = make_bench(2)
    wire = Wire(bench)
    connect(bench, tmp_path / "ssh", [1], node_b=[variables(folder, programs)])
    start(bench, by_ssh("loop", "MultiWorkerMirroredStrategy", "node-b"), folder, programs)
    check_answer(folder, 1, alone("loop"))
    assert len([what for what in wire.frames if what.startswith("TCP")]) >= 4, (
        wire.frames
    )  # two directions of the service and of gloo
    assert b"replicant/0/" in wire.plain
    assert KEY.encode() not in wire.plain  # no key is ever on the wire


def test_without_the_tunnel_a_filtered_job_ends_with_a_reason(
    make_bench: Callable[..., Bench], programs: str, tmp_path: Path
) -> None:
    need_sshd()
    (tmp_path / "job").mkdir()
    bench = make_bench(2)
    only_ssh(bench)
    connect(bench, tmp_path / "ssh", [1])
    with pytest.raises(AssertionError, match=r"node-b cannot reach node-a at 10\.231\.8\.1:.*no answer within 5 s"):
        start(bench, by_ssh("loop", "MultiWorkerMirroredStrategy", "node-b"), tmp_path / "job", programs)
