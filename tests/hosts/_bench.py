"""Several hosts on this machine: each has its own name, address, /etc/hosts and processes, and a switch connects them.

A host is a set of Linux namespaces, held by its first process (``_host_init.py``). Nothing of it has a name on this machine, and
nothing is written outside of the bench's folder. When the bench ends, or its process dies, the kernel ends every process of every
host, and the devices go with them. The hosts see the files of this machine, so any folder is a shared one.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from _group import clean_environment
from _switch import Link, Switch

INIT = Path(__file__).with_name("_host_init.py")
NETWORK = "10.231.8"
SECONDS = 30.0  # for a host to start, or to end
PROGRAMS = ("ip", "mount", "nsenter", "unshare")


class NoHostsError(Exception):
    """This machine does not let us make hosts."""


class Host:
    """One host of a bench. `Bench` makes it."""

    def __init__(self, number: int, folder: Path, names: Sequence[str], mtu: int):
        self.number, self.name, self.address = number, names[number], f"{NETWORK}.{number + 1}"
        self._folder = folder / f"etc-{self.name}"
        self._folder.mkdir(parents=True)
        self.give_names([f"127.0.1.1 {self.name}", *(f"{NETWORK}.{n + 1} {x}" for n, x in enumerate(names) if n != number)])
        (self._folder / "nsswitch.conf").write_text("hosts: files\n")
        (self._folder / "resolv.conf").write_text("")
        self._errors = self._folder / "errors"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.is_alive = True
        ours, theirs = socket.socketpair()
        with ours, theirs, self._errors.open("wb") as errors:
            unshare = ["unshare", *user_namespace(), "--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
            init = [sys.executable, "-I", "-S", str(INIT), self.name, str(number), self.address, str(mtu), str(self._folder)]
            self._init = subprocess.Popen(
                [*unshare, *init, str(theirs.fileno())], stdin=subprocess.PIPE, stderr=errors, pass_fds=[theirs.fileno()]
            )
            theirs.close()
            ours.settimeout(SECONDS)
            try:
                said, taps, *_ = socket.recv_fds(ours, 16, 1)
            except TimeoutError:
                said, taps = b"", []
        if said != b"ready":
            self.power_off()
            raise NoHostsError(f"a host could not start: {self._errors.read_text().strip()[-500:]}")
        self.tap = taps[0]
        children = Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children").read_text().split()
        self._enter = ["nsenter", "--target", children[0], *user_namespace(inside=True), "--net", "--uts", "--mount", "--pid"]

    def give_names(self, lines: Sequence[str]) -> None:
        """Write what /etc/hosts says on this host, besides localhost. Nobody else is asked.

        At first it is what Debian's installer writes: the host's own name stands for 127.0.1.1.
        """
        (self._folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))

    def start(self, command: Sequence[str], log: Path, environ: Mapping[str, str] | None = None) -> "subprocess.Popen[bytes]":
        """Start a command on this host. What it prints goes to the file `log`."""
        environ = clean_environment() | dict(environ or {})
        within = ["env", f"--chdir={log.parent}", *command]
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*self._enter, "--", *within], stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=environ
            )
        self.processes.append(process)
        return process

    def run(self, *command: str, seconds: float = SECONDS) -> str:
        """Run a command on this host, and return what it prints. It must succeed."""
        done = subprocess.run([*self._enter, "--", *command], check=False, capture_output=True, text=True, timeout=seconds)
        assert done.returncode == 0, (command, done.returncode, done.stderr)
        return done.stdout

    def power_off(self) -> None:
        """Kill all processes of this host at once."""
        self.is_alive = False
        self._init.send_signal(signal.SIGKILL)  # --kill-child: the kernel then kills the host's first process, and so all others
        with contextlib.suppress(BrokenPipeError):
            self._init.stdin.close()
        for process in [self._init, *self.processes]:
            process.wait(SECONDS)


class Bench:
    """Some hosts and the switch between them. It is a context manager.

    Args:
        count: The number of hosts. Their names are node-a, node-b, and so on.
        folder: An empty folder, for the files in which the hosts differ.
        seed: The seed of lost frames.
        mtu: The bytes of the largest packet.

    Raises:
        NoHostsError: If this machine does not let us make hosts. The message says why.
    """

    def __init__(self, count: int, folder: Path, *, seed: int = 0, mtu: int = 1500):
        if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
            raise NoHostsError(f"there is no command {' and no '.join(missing)}")
        self._switch = Switch(seed)
        self.hosts: list[Host] = []
        names = [f"node-{chr(ord('a') + number)}" for number in range(count)]
        try:
            for number in range(count):
                self.hosts.append(Host(number, folder, names, mtu))
            self._switch.start([host.tap for host in self.hosts])
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End all hosts."""
        for host in self.hosts:
            host.power_off()
        self._switch.close()

    def link(self, source: int, target: int) -> Link:
        """What happens to frames from one host to another. Changes take effect at once."""
        return self._switch.links[source, target]

    @property
    def links(self) -> list[Link]:
        """All links."""
        return list(self._switch.links.values())

    def links_of(self, *hosts: int, out: bool = True, back: bool = True) -> list[Link]:
        """The links between these hosts and all others.

        Args:
            hosts: The numbers of the hosts.
            out: Whether those from these hosts to the others are among them.
            back: Whether those from the others to these hosts are among them.
        """
        pairs = self._switch.links.items()
        return [
            link
            for (source, target), link in pairs
            if (out and source in hosts and target not in hosts) or (back and target in hosts and source not in hosts)
        ]

    def cut(self, *hosts: int, out: bool = True, back: bool = True) -> None:
        """Cut these hosts off from all others, without a word to either side. The arguments are those of `links_of`."""
        for link in self.links_of(*hosts, out=out, back=back):
            link.is_whole = False

    def heal(self) -> None:
        """Make all links whole."""
        for link in self.links:
            link.is_whole = True

    def lose_power(self, host: int) -> None:
        """End a host as a power cut does: nobody hears of it."""
        self.cut(host)
        self.hosts[host].power_off()


def user_namespace(*, inside: bool = False) -> list[str]:
    """The options of unshare, or of nsenter inside of a host, with which a user who is not root may make hosts."""
    if os.geteuid() == 0:
        return []
    return ["--user", "--preserve-credentials"] if inside else ["--user", "--map-root-user"]


def send_signal(process: "subprocess.Popen[bytes]", number: int) -> None:
    """Send a signal to a process that `Host.start` has started: the only child of what has entered the host."""
    child = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0]
    os.kill(int(child), number)


def wait_until(is_true: Callable[[], bool], seconds: float) -> bool:
    """Wait until something is true, and return whether it is."""
    deadline = time.monotonic() + seconds
    while not (found := is_true()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found or is_true()
