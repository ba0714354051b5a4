"""sshd on the hosts of a bench, and the keys with which one of them may log in to the others."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from _bench import SECONDS, Bench, Host, wait_until

SSHD = "/usr/sbin/sshd"
TUNNEL = "10.99.0"  # the network within a tunnel, where hosts have the same numbers
CONFIG = """\
HostKey {folder}/host_key
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
LogLevel VERBOSE
{more}
"""


def need_sshd() -> None:
    """Skip the test where there is no sshd, and say why."""
    if missing := [name for name in ("ssh", "ssh-keygen") if shutil.which(name) is None] + [SSHD] * (not Path(SSHD).exists()):
        pytest.skip(
            f"needs OpenSSH's client and server, but {' and '.join(missing)} is missing: apt install openssh-client openssh-server"
        )
    if os.geteuid() != 0:
        pytest.skip("sshd needs root: in a user namespace it cannot become another user")


def make_key(path: Path) -> str:
    """Make a key without a password, and return its public half."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path)], check=True, timeout=SECONDS)
    return path.with_suffix(".pub").read_text()


def give_home(host: Host, folder: Path) -> Path:
    """Give a host a home folder of its own, which is empty. Returns it."""
    home = folder / f"home-{host.name}"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    for name in ("passwd", "shadow"):
        lines = Path("/etc", name).read_text().splitlines()
        mine = {"passwd": f"root:x:0:0:root:{home}:/bin/sh", "shadow": "root:*:20000::::::"}[name]
        place = folder / f"{name}-{host.name}"
        place.write_text("\n".join([mine, *(line for line in lines if not line.startswith("root:")), ""]))
        host.run("mount", "--bind", str(place), f"/etc/{name}")
    return home


def start_sshd(host: Host, folder: Path, *more: str) -> str:
    """Start sshd on a host, with more lines of its configuration. Returns the public half of its key."""
    mine = folder / f"sshd-{host.name}"
    mine.mkdir()
    key = make_key(mine / "host_key")
    (mine / "config").write_text(CONFIG.format(folder=mine, more="\n".join(more)))
    host.run("mount", "-t", "tmpfs", "tmpfs", "/run")
    host.run("mkdir", "-p", "/run/sshd")
    host.start([SSHD, "-D", "-e", "-f", str(mine / "config")], mine / "log")
    assert wait_until(lambda: "Server listening" in (mine / "log").read_text(), SECONDS), (mine / "log").read_text()
    return key


def connect(bench: Bench, folder: Path, targets: Sequence[int], **more: Sequence[str]) -> None:
    """Start sshd on the targets, and let host 0 log in to them as a user who has set this up would.

    Args:
        bench: The hosts.
        folder: An empty folder.
        targets: The numbers of the hosts.
        more: More lines of sshd's configuration, by the host's name with an underscore.
    """
    folder.mkdir(exist_ok=True)
    home = give_home(bench.hosts[0], folder)
    public, known = make_key(home / ".ssh" / "id_ed25519"), []
    for number in targets:
        host = bench.hosts[number]
        (give_home(host, folder) / ".ssh" / "authorized_keys").write_text(public)
        kind, key = start_sshd(host, folder, *more.get(host.name.replace("-", "_"), ())).split()[:2]
        known.append(f"{host.name},{host.address},{TUNNEL}.{number + 1} {kind} {key}\n")
    (home / ".ssh" / "known_hosts").write_text("".join(known))
