"""``replicant launch --hosts``: the launcher starts an agent on each host through the user's own ssh.

The connection is the standard input and output of ssh: who may log in, and whether a host is the right one, is for ssh to decide,
with the user's keys, known hosts and configuration. The key of the job goes over it, and is in no command line and no environment.
"""

import secrets
import shlex
import shutil
import socket
import sys
from collections.abc import Mapping

from ...cluster._addresses import is_loopback
from ...cluster.wire._json_lines import parse_message
from ...errors import ConfigurationError
from .._settings import Settings
from ..team._team import Tools
from ._facts import facts_here, same_machines
from ._hosts import Hosts, agent_command, raise_all, refuse_elastic
from ._remote import Link

_CONNECT_SECONDS = 30.0  # for ssh, at most
_NOT_FOUND = (126, 127)  # how a shell says that there is no such command
_SSH_FAILED = 255


class SshHosts(Hosts):
    """Hosts that ssh reaches.

    Args:
        settings: The settings of the job.
        slots: The number of workers on each host.
        python: The interpreter on the other hosts. By default the path of this one.
        address: The address of this machine at which the hosts reach it. By default the one from which ssh comes to them.
        max_clock_skew: By how many seconds the clocks of the hosts may differ.

    Raises:
        ArgumentError: If the number of workers does not fit, or if the job is elastic.
        ConfigurationError: If there is no ssh.
    """

    def __init__(
        self,
        settings: Settings,
        slots: Mapping[str, int],
        *,
        python: str | None = None,
        address: str | None = None,
        max_clock_skew: float = 60.0,
    ):
        super().__init__(settings, secrets.token_hex(32), max_clock_skew)
        refuse_elastic(settings)
        self._names, self.counts = list(slots), list(slots.values())
        self._python, self._address = python or sys.executable, address
        if not all(map(_is_here, slots)) and shutil.which("ssh") is None:
            raise ConfigurationError(
                "--hosts needs the command ssh, which is not on PATH. Install OpenSSH's client, or start the job on each host with "
                "--nodes, --node-rank and --address."
            )

    def _meet(self) -> None:
        self.links.extend(map(self._open, self._names))  # the keeper sees each of them at once
        self._admit(self.links)
        raise_all(same_machines((link.name, link.said["facts"]) for link in self.links))
        self.address = self._find_address()
        self.tell_work(self.links)

    def _meet_again(self, number: int, tools: Tools) -> str:
        link = self._open(self._names[number])
        try:
            self._admit([link], tools)
            self.tell_work([link], tools)
        except ConfigurationError as error:
            link.close()
            return str(error)
        except BaseException:  # the user has ended the job meanwhile
            link.close(0.0)
            raise
        self.links[number] = link
        return ""

    def _open(self, name: str) -> Link:
        """Start an agent. It is heard later."""
        command = agent_command(sys.executable if _is_here(name) else self._python)
        if not _is_here(name):
            limit = max(1, round(min(_CONNECT_SECONDS, self.settings.start / 2)))
            options = ["-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={limit}"]
            command = ["ssh", *options, "--", name, shlex.join(command)]
        return self.open_agent(name, command)

    def _admit(self, links: list[Link], tools: Tools | None = None) -> None:
        """Wait for agents, and check that they can take part.

        Raises:
            ConfigurationError: If one of them cannot.
        """
        self.await_all("facts", self.settings.start, tools, links)
        raise_all(problem for link in links for problem in ([self._explain(link)] if link.lost else self.differences(link)))
        for link in links:
            link.patience = self.settings.heartbeat

    def _find_address(self) -> str:
        """The address of this machine for the workers: the one that the user says, or that hosts see."""
        if self._address is not None:
            return own_address(self._address, f"--address {self._address}", "Give one of its own addresses.")
        seen = [link.said["facts"]["seen"] for link in self.links if not _is_here(link.name)]
        found = next((address for address in seen if address and not is_loopback(address)), "127.0.0.1")
        names = ", ".join(link.host for link in self.links if not _is_here(link.name))
        return own_address(found, f"{names} see this machine as {found}", "Give the address at which they reach it with --address.")

    def _explain(self, link: Link) -> str:
        """Why a host has no agent, and what to do."""
        for line in link.wire.noise:
            message = parse_message(line)
            if message is not None and message.get("kind") == "no agent":
                version = facts_here()["packages"]["replicant-jax"]
                return (
                    f"{link.name} cannot load Replicant with {self._python} (Python {message['python']}): {message['error']}. "
                    f"Install it there: {self._python} -m pip install replicant-jax=={version}. If it is installed with another "
                    "interpreter, give the path of that one with --python."
                )
        code, words = link.exit_code(), link.last_words()
        if _is_here(link.name) or code is None or code < 0:  # it was killed, because it said nothing
            return f"{link.lost}{f': {words}' * bool(words)}"
        if code == _SSH_FAILED:
            return (
                f"ssh cannot log in to {link.name}: {words or 'it has not said why'}. Try it by hand: ssh {link.name} true. That "
                "shows whether the name is right, asks once for a new host's key, and must then work without a password: "
                f"ssh-copy-id {link.name}"
            )
        if code in _NOT_FOUND:
            return (
                f"{link.name} has no {self._python}: {words}. Install Python and Replicant there at the same path, or give the "
                "path of the interpreter on the hosts with --python."
            )
        return f"the agent on {link.name} has ended with exit code {code}: {words}"


def own_address(host: str, what: str, advice: str) -> str:
    """The IPv4 address of this machine that a name or number stands for.

    Raises:
        ConfigurationError: If it stands for none, or for one of another machine.
    """
    here = socket.gethostname()
    try:
        number = str(socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise ConfigurationError(f"{what}: it does not stand for an IPv4 address on {here} ({error}). {advice}") from error
    with socket.socket() as probe:
        try:
            probe.bind((number, 0))
        except OSError as error:
            which = f"{number} is" if number == host else f"it stands for {number}, which is"
            raise ConfigurationError(f"{what}, but {which} not an address of {here} ({error.strerror}). {advice}") from error
    return number


def _is_here(name: str) -> bool:
    """Whether a host is this machine, which needs no ssh."""
    return name in ("localhost", "127.0.0.1", socket.gethostname())
