"""Connections that are reset at any moment: whoever serves goes on, and the next one is served.

Each conversation is a list of what a client does. It is cut after any number of these steps, by a reset.
"""

import concurrent.futures
import contextlib
import json
import random
import socket
import struct
import threading
import time
import urllib.request

import pytest

from replicant.cluster.jax import _relay
from replicant.cluster.jax._relay import Relay
from replicant.cluster.meeting._chair import Chair
from replicant.cluster.meeting._claims import Claim, proof_of_claim
from replicant.cluster.meeting._member import call_roll
from replicant.cluster.resolvers._membership import Membership
from replicant.cluster.wire._handshake import nonce_of, proof
from replicant.cluster.wire._supervisor import WORKER, Heartbeat
from replicant.launch.hosts._lobby import Lobby
from replicant.launch.hosts._wire import AGENT, Wire, wire_key
from replicant.launch.show._status_server import StatusServer
from replicant.launch.team._connections import Channel

KEY = "k" * 32
SECONDS = 30.0
ROUNDS = 60


class Client:
    """One end of a connection that speaks like a member of the job, until it is reset."""

    def __init__(self, address):
        self.own = socket.create_connection(address, timeout=SECONDS)
        self.own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.nonce = ""

    def greeted(self):
        self.nonce = nonce_of(json.loads(self.own.makefile("rb").readline()))

    def says(self, message, part=1.0):
        line = json.dumps(message).encode() + b"\n"
        self.own.sendall(line[: int(part * len(line))])

    def hears(self):
        self.own.recv(1)

    def reset(self):
        self.own.close()


def cut(address, steps, at_once=3):
    """A few clients at once, again and again, each of which is cut after any number of steps."""
    draw = random.Random(1)
    for _ in range(ROUNDS):
        clients = [(Client(address), steps[: draw.randrange(len(steps) + 1)]) for _ in range(draw.randint(1, at_once))]
        for client, chosen in clients:
            with contextlib.suppress(OSError):
                for step in chosen:
                    step(client)
        time.sleep(draw.choice([0.0, 0.0, 0.003]))
        for client, _ in clients:
            client.reset()


def conversation(hello):
    """Greeting, half a hello, a whole one, the answer."""

    def half(client):
        client.says(hello(client.nonce), 0.5)

    def rest(client):
        line = json.dumps(hello(client.nonce)).encode() + b"\n"
        client.own.sendall(line[int(0.5 * len(line)) :])

    return [Client.greeted, half, rest, Client.hears]


@contextlib.contextmanager
def running(loop):
    """Run a function in a thread again and again. If it fails, so does the test."""
    is_over, failures = threading.Event(), []

    def run():
        try:
            while not is_over.is_set():
                loop()
        except BaseException as error:  # noqa: BLE001 - the test raises it
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        assert failures == []


def test_the_launcher():
    heard = []
    with Channel(0.05) as channel:
        channel.is_expected = lambda rank, generation, pid: True
        host, port = channel.address.split(":")
        with running(lambda: heard.extend(channel.poll(0.02))):

            def hello(nonce):
                said = {"kind": "hello", "rank": 1, "generation": 0, "pid": 7, "nonce": "1"}
                return {**said, "proof": proof(channel.key, WORKER, nonce, "1")}

            cut((host, int(port)), [*conversation(hello), lambda client: client.says({"kind": "beat"}, 0.5)])
            worker = Heartbeat(channel.address, channel.key, 2, 0)
            worker.say(kind="failed", text="the end", step=1)
            deadline = time.monotonic() + SECONDS
            while (2, {"kind": "failed", "text": "the end", "step": 1}) not in heard:
                assert time.monotonic() < deadline
                time.sleep(0.01)
    kinds = [message["kind"] for rank, message in heard if rank == 1]
    assert kinds.count("hello") == kinds.count("closed") > 0


def node_hello(nonce):
    return {"nonce": "1", "proof": proof(KEY, AGENT, nonce, "1")}


def wired(client):
    return Wire(client.own.fileno(), client.own.fileno(), wire_key(KEY, client.nonce, "1"), AGENT)


def joined(address, node):
    """What a node is told that comes to the lobby."""
    client = Client(address)
    client.greeted()
    client.says(node_hello(client.nonce))
    client.own.makefile("rb", buffering=0).readline()
    wire = wired(client)
    wire.send(kind="facts", node=node)
    deadline, told = time.monotonic() + SECONDS, []
    while not told and time.monotonic() < deadline:
        told = wire.receive()
        time.sleep(0.01)
    client.reset()
    return told


def test_the_lobby():
    came, notes = [], []
    listener = socket.create_server(("127.0.0.1", 0))

    def admit(facts, wire):
        came.append(facts["node"])
        return {1: "", 2: ""}[facts["node"]]

    lobby = Lobby(listener, KEY, {"run": "r"}, admit, notes.append)
    address = listener.getsockname()
    steps = [*conversation(node_hello), lambda client: wired(client).send(kind="facts", node=1), Client.hears]
    cut(address, steps)
    problem = "what it says about itself makes no sense: KeyError(3)"
    assert joined(address, 3) == [{"kind": "refused", "problem": problem}]
    assert joined(address, 2) == [{"kind": "welcome"}]
    assert came[-2:] == [3, 2]
    assert lobby._thread.is_alive()
    lobby.close()
    assert [note for note in notes if "KeyError" in note] == [f"a node at 127.0.0.1 was turned away: {problem}"]


def test_the_roll_call():
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        address = own.getsockname()
    place, met = "{}:{}".format(*address), []
    with Chair(place, Claim(0, 3, "a", {}), KEY) as chair:
        thread = threading.Thread(target=lambda: met.append(chair.preside(SECONDS)))
        thread.start()

        def claim(nonce):
            said = Claim(1, 3, "b", {})
            return {**said.as_dict(), "nonce": "1", "proof": proof_of_claim(KEY, said, nonce, "1")}

        cut(address, conversation(claim)[:-1], at_once=1)  # it is answered once all are there
        with concurrent.futures.ThreadPoolExecutor() as pool:
            workers = [pool.submit(call_roll, Membership(i, 3, place), "abc"[i], {}, SECONDS, key=KEY) for i in (1, 2)]
            assert [each.result() for each in workers] == [("a", "b", "c")] * 2
        thread.join(SECONDS)
    assert met == [("a", "b", "c")]


@pytest.mark.parametrize("side", ["client", "service"])
def test_a_relay(side, monkeypatch):
    """Whichever end is reset, at whatever moment: the next connection of the client is served."""
    monkeypatch.setattr(_relay, "_HOLD_SECONDS", 0.01)
    draw = random.Random(side)
    with (
        socket.create_server(("127.0.0.1", 0)) as service,
        contextlib.closing(Relay("{}:{}".format(*service.getsockname()))) as relay,
    ):
        service.settimeout(SECONDS)
        name = relay.address.partition(":")[2]
        for number in range(ROUNDS):
            client = socket.socket(socket.AF_UNIX)
            client.settimeout(SECONDS)
            client.connect(f"\0{name}" if relay.address.startswith("unix-abstract") else name)
            theirs, steps = accepted(service), 4 if number == ROUNDS - 1 else draw.randrange(5)
            said = f"{number:5}".encode()
            if steps:
                client.sendall(said)
            while steps > 2 and theirs.recv(5) != said:  # the relay has tried again, where the service's end was gone at once
                theirs.close()
                theirs = accepted(service)
            if steps > 1:
                with contextlib.suppress(OSError):
                    theirs.sendall(said)
            if steps > 2:
                assert client.recv(5) == said
            for end in (client, theirs) if side == "client" else (theirs, client):
                end.close()
                time.sleep(draw.choice([0.0, 0.002]))
        assert relay._thread.is_alive()


def accepted(service):
    theirs, _ = service.accept()
    theirs.settimeout(SECONDS)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return theirs


def test_the_status_page():
    def asks(text):
        return lambda client: client.own.sendall(text)

    with StatusServer(0, {"/": ("text/plain", lambda: "x" * 1_000_000)}) as server:
        host = server.url[7:-1]
        cut(
            ("127.0.0.1", server.port),
            [asks(b"GET / HT"), asks(f"TP/1.1\r\nHost: {host}\r\n\r".encode()), asks(b"\n"), Client.hears],
        )
        with urllib.request.urlopen(server.url, timeout=SECONDS) as answer:
            assert answer.read() == b"x" * 1_000_000
        assert server._thread.is_alive()
