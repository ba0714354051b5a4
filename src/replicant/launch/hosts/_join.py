"""``replicant launch --node-rank 1`` and above: an agent that goes to node 0 by itself."""

import errno
import os
import secrets
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

from ...cluster._addresses import join_address
from ...cluster.meeting._job import JOB_KEY, job_key
from ...cluster.wire._connect import connected
from ...cluster.wire._handshake import draw_nonce, is_proved, nonce_of, proof
from ...cluster.wire._json_lines import MAX_STRANGERS_LINE, line_of, parse_message, read_line
from ...errors import ClusterError, UnreachableError, WorkerLostError
from .._settings import Settings
from ..console._console import Console
from ..console._signals import Signals
from ._agent import Agent, Work
from ._hosts import refuse_elastic
from ._wire import AGENT, LAUNCHER, Wire, wire_key, workers_key

_TRY_SECONDS = 5.0  # for one try to connect
_HANDSHAKE_SECONDS = 10.0
_PAUSE_SECONDS = 0.5
_NO_ROUTE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES}


def key_of_nodes(environ: Mapping[str, str]) -> str:
    """The secret that all nodes of a job share, from REPLICANT_JOB_KEY.

    Raises:
        ClusterError: If there is none, or if it can be guessed.
    """
    key = job_key(environ)
    if not key:
        raise ClusterError(
            f"{JOB_KEY} is not set. Nodes use it to prove that they belong to one job. Make a key with `openssl rand -hex 32`, "
            f"and set the same one on all nodes: export {JOB_KEY}=..."
        )
    return key


class Joining:
    """A node that joins a job.

    Args:
        settings: The settings of this node. Those about deadlines, logs and restarts of workers are node 0's.
        node: The rank of this node.
        nodes: The number of nodes.
        address: The host and port of node 0.
        key: The key of the job.

    Raises:
        ArgumentError: If the job is elastic.
    """

    def __init__(self, settings: Settings, node: int, nodes: int, address: tuple[str, int], key: str):
        refuse_elastic(settings)
        self._settings, self._node, self._place, self._key = settings, node, address, key
        self._console = Console(sys.stdout, sys.stderr)
        self._who = f"node {node} ({socket.gethostname()})"
        self._address = join_address(*address)
        self._about = {"node": node, "nodes": nodes, "workers": settings.num_workers, "process": secrets.token_hex(8)}

    def run(self) -> int:
        """Take part until the job ends. Returns its exit code.

        Raises:
            UnreachableError: If node 0 cannot be reached in time.
            ClusterError: If it turns this node away.
            WorkerLostError: If it is lost, and the job is not to be started again.
        """
        settings = self._settings
        work = Work(settings.argv, dict(os.environ), settings.devices_per_worker, settings.start)
        while True:
            wire, terms = self._connect()
            with Signals() as signals:
                agent = Agent(
                    wire,
                    workers_key(self._key, terms["run"]),
                    terms["patience"],
                    work=work,
                    about=self._about,
                    welcome=self._say_connected,
                )
                problem = agent.serve(signals)
                wire.close()
            if agent.end is not None:
                return self._end(agent.end)
            if agent.asked:
                return 128 + agent.asked[0]
            lost = f"{self._who} has lost node 0 at {self._address}: {problem}. Its workers have been ended."
            if not settings.max_restarts:
                raise WorkerLostError(lost)
            self._say(f"{lost} It tries to come back for {settings.start:g} s (--start).")

    def _end(self, message: dict[str, Any]) -> int:
        if message["kind"] == "refused":
            raise ClusterError(f"node 0 at {self._address} has turned {self._who} away: {message['problem']}")
        if message["problem"]:
            raise WorkerLostError(f"node 0 at {self._address} has given the job up: {message['problem']}")
        self._say(f"{self._who}: the job has ended with exit code {message['code']}.")
        return int(message["code"])

    def _say(self, text: str) -> None:
        self._console.say(text)

    def _say_connected(self) -> None:
        self._say(f"{self._who} is connected to node 0 at {self._address}, which shows what its workers print.")

    def _connect(self) -> tuple[Wire, dict[str, Any]]:
        start, said = self._settings.start, False
        deadline = time.monotonic() + start
        while True:
            try:
                with connected(self._place, _TRY_SECONDS) as connection:
                    return self._shake_hands(connection)
            except OSError as error:
                reason, advice = self._reason(error)
            if time.monotonic() + _PAUSE_SECONDS > deadline:
                raise UnreachableError(
                    f"{self._who} did not reach node 0 at {self._address} within {start:g} s (--start): {reason}. {advice}"
                )
            if not said:
                self._say(
                    f"{self._who} does not reach node 0 at {self._address} yet: {reason}. It tries for {start:g} s (--start)."
                )
                said = True
            time.sleep(_PAUSE_SECONDS)

    def _reason(self, error: OSError) -> tuple[str, str]:
        """Why node 0 was not reached, and what to do."""
        host, port = self._place
        if isinstance(error, socket.gaierror):
            return f"{host} is not known here", "Give node 0's IP address, or let /etc/hosts or the DNS know the name."
        if isinstance(error, ConnectionRefusedError):
            return (
                "a host answers, but nobody listens at this port",
                "Is `replicant launch --node-rank 0` running there, with the same --address?",
            )
        if isinstance(error, TimeoutError):
            return "no answer", f"Is the address right, and does every firewall between the hosts let port {port} of {host} pass?"
        if error.errno in _NO_ROUTE:
            return (error.strerror or str(error)), "Is the address right, is that host up, and is there a route to it?"
        return f"the connection ended ({error})", "Is `replicant launch --node-rank 0` still running there?"

    def _shake_hands(self, connection: socket.socket) -> tuple[Wire, dict[str, Any]]:
        """Prove that this node knows the key, and check node 0's proof.

        Raises:
            ClusterError: If the other end is not node 0 of this job, or turns this node away.
            OSError: If the connection ends.
        """
        deadline = time.monotonic() + _HANDSHAKE_SECONDS
        greeting = self._read(connection, deadline)
        nonce, mine = nonce_of(greeting), draw_nonce()
        hello = {"nonce": mine, "proof": proof(self._key, AGENT, nonce, mine)}
        connection.sendall(line_of(hello))
        answer = self._read(connection, deadline)
        if "refused" in answer:
            raise ClusterError(
                f"node 0 at {self._address} has turned {self._who} away: {answer['refused']}. Set REPLICANT_JOB_KEY to the same "
                "secret on all nodes."
            )
        if not is_proved(answer, proof(self._key, LAUNCHER, mine, nonce)):
            raise ClusterError(f"what listens at {self._address} does not know the key of this job (REPLICANT_JOB_KEY).")
        connection.settimeout(None)
        wire = Wire(descriptor := connection.detach(), descriptor, wire_key(self._key, nonce, mine), AGENT)
        return wire, answer

    def _read(self, connection: socket.socket, deadline: float) -> dict[str, Any]:
        """The next message. What follows belongs to the wire."""
        try:
            line = read_line(connection, MAX_STRANGERS_LINE, deadline)
        except TimeoutError as error:
            raise ConnectionAbortedError(f"{error}, as node 0 would") from error
        if line is None:
            raise ConnectionAbortedError("it was closed")
        message = parse_message(line, MAX_STRANGERS_LINE)
        if message is None:
            raise ClusterError(
                f"what listens at {self._address} does not answer like node 0 of `replicant launch`, but with {line[:60]!r}. Is "
                "this the port of --address?"
            )
        return message
