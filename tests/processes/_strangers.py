"""Sends thousands of random and hostile messages to a port, as strangers may. A careful program is not harmed by them."""

import contextlib
import json
import random
import re
import resource
import socket
import struct
import time
from pathlib import Path

_SECONDS = 5.0
_HELD = 100  # the most connections that stay open without a whole message
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closed connections leave nothing behind, even if there are ten thousand
_WORDS = ["kind", "hello", "beat", "rank", "generation", "pid", "nonce", "proof", "host", "step", "at", "waited", "phase", "magic"]
_WORDS += [
    "replicant-roll-call-3",
    "process_id",
    "num_processes",
    "who",
    "facts",
    "job",
    "told",
    "found",
    "script",
    "error",
    "form",
]
_HELLO = {"kind": "hello", "rank": 0, "generation": 0, "pid": 1, "host": "h", "nonce": "n", "proof": "p"}
_CLAIM = {"magic": "replicant-roll-call-3", "process_id": 1, "num_processes": 2, "who": "w", "facts": {}}
_FACTS = {"nonce": "5f", "proof": "0" * 64, "node": 1, "nodes": 2, "workers": 1, "process": "p"}
_CLAIM["job"] = {"told": "another job", "found": "", "script": ""}
_WHOLE = [
    b"[" * 50_000,
    b"[" * 1000 + b"\n",
    b'{"a":' * 10_000,
    b'{"a":' * 150 + b"\n",
    b'"' + b"x" * 70_000,
    b"9" * 1000 + b"\n",
    b'{"rank": ' + b"9" * 1000 + b"}\n",
    b'{"step": 1e999, "kind": "beat", "at": NaN, "waited": -Infinity}\n',
    b"\xff\xfe\x00\n",
    b"\0" * 1000,
    b"\n" * 500,
    b'{"nonce": "\\ud800"}\n',
    b'{"nonce": "1", "proof": "\\udfff"}\n',
    b'{"kind": "hello", "\\ud800": {"\\udc00": ["\\ud83d"]}}\n',
    b'{"nonce": "\xed\xa0\x80"}\n',
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost:\r\n 127.0.0.1\r\n\r\n",
    b"GET /status.json HTTP/1.1\r\n" + b"Host: 127.0.0.1\r\n" * 900 + b"\r\n",
    b"GET " + b"/" * 9000 + b" HTTP/1.1\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"\x80\x05\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07nothing\x94.\n",  # a pickle
    b"{}\n",
    b"null\n",
    b"",
]


def message(draw: random.Random) -> bytes:
    """Draw one message."""
    kind = draw.randrange(5)
    if kind == 0:
        return draw.choice(_WHOLE)
    if kind == 1:
        return draw.randbytes(draw.randrange(2000)) + draw.choice([b"", b"\n"])
    if kind == 2:  # almost right
        said: dict[str, object] = dict(draw.choice([_HELLO, _CLAIM, _FACTS]))
        for _ in range(draw.randrange(1, 4)):
            said[draw.choice(list(said))] = _value(draw, 2)
        return json.dumps(said).encode() + b"\n"
    if kind == 3:
        return json.dumps(_value(draw, 4)).encode() + b"\n"
    line = json.dumps(draw.choice([_HELLO, _CLAIM])).encode()
    cut = draw.randrange(len(line))
    return line[:cut] + draw.randbytes(3) + line[cut + 3 :] + b"\n" * draw.randrange(3)


def harass(port: int, count: int, seed: int) -> None:
    """Send `count` messages, each over its own connection. Some connections stay open until all messages have been sent.

    Each is reset in the end. Some wait for the greeting first, and then repeat what others were told or have said.
    """
    draw, held = random.Random(seed), []
    heard, speaks = [b"{}\n"], True
    for number in range(count):
        connection = _connected(port)
        with contextlib.suppress(OSError):  # the other side may have closed it already
            if number % 5 == 0 and speaks:
                connection.settimeout(0.3)
                try:
                    heard = [*heard[-20:], connection.recv(4096)]
                except TimeoutError:
                    speaks = False
                connection.sendall(draw.choice(heard))
            else:
                connection.sendall(message(draw))
            if number % 7 == 0:
                connection.shutdown(socket.SHUT_WR)
        if number % 11 == 0 and len(held) < _HELD:
            held.append(connection)
            continue
        if number % 3 == 0:
            connection.settimeout(0.0)
            with contextlib.suppress(OSError):
                connection.recv(4096)
        connection.close()
    for connection in held:
        with contextlib.suppress(OSError):
            connection.sendall(b"{")
        connection.close()


def flood(port: int, count: int = 1500) -> None:
    """Open many connections at once, say half a line on some of them, and reset them all."""
    with _many_descriptors(count):
        held = [_connected(port) for _ in range(count)]
        for connection in held[::3]:
            with contextlib.suppress(OSError):
                connection.sendall(b'{"nonce": ')
        for connection in held:
            connection.close()


@contextlib.contextmanager
def _many_descriptors(count: int):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(count + 500, hard)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


SERVICE = "/xla.coordination.CoordinationService/"
_OVERWRITE = b"\x18\x01"


def field(number: int, value: bytes) -> bytes:
    """A field of bytes in a message of Protocol Buffers."""
    size, rest = bytearray(), len(value)
    while rest >= 128:
        size.append(rest % 128 + 128)
        rest //= 128
    return bytes([number * 8 + 2, *size, rest]) + value


def scribble(port: int, count: int, seed: int, generation: int = 0) -> None:
    """Write `count` times into the key-value store at a port, where workers say what is sealed: nonsense, and what was there."""
    import grpc

    draw = random.Random(seed)
    places = [
        f"{folder}/{rank}" for folder in ("beat", "fate/failed", "fate/ended", "fate/left", "fate/leave") for rank in range(3)
    ]
    places += ["news/now", "news/\u20ac", "fate/failed", "fate/failed/x", "beat/" + "9" * 500, "fate//", "news/"]
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        list_, insert = (channel.unary_unary(SERVICE + name) for name in ("GetKeyValueDir", "InsertKeyValue"))
        folder, me = field(2, f"replicant/{generation}/".encode()), b""
        try:
            list_(folder, timeout=20, wait_for_ready=True)
        except grpc.RpcError as error:  # the service itself says what it wants to hear
            me = field(1, b"\x19" + struct.pack("<Q", int(next(re.finditer(r"currently (\d+)", str(error)))[1])))
        old: list[bytes] = []
        for number in range(count):
            if number % 100 == 0:  # what is there now: it may be said again, there or elsewhere
                found = list_(me + folder, timeout=20)
                old = [*old[-100:], *re.findall(rb"[0-9a-f]{32}[ -~]{0,60}", found)]
            key = f"replicant/{generation}/{draw.choice(places)}".encode()
            text = draw.choice(old) if old and number % 3 == 0 else message(draw)[:2000]
            try:
                insert(me + field(2, field(1, key) + field(2, text)) + _OVERWRITE, timeout=20)
            except grpc.RpcError as error:
                assert error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL), error  # noqa: PT017
        assert f"replicant/{generation}/fate/failed/x".encode() in list_(me + folder, timeout=20)


def resident(pid: int) -> float:
    """The memory of a process, in MB."""
    return int(next(re.finditer(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text()))[1]) / 1024


def _connected(port: int) -> socket.socket:
    deadline = time.monotonic() + _SECONDS
    while True:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        connection.settimeout(1.0)
        try:
            connection.connect(("127.0.0.1", port))
        except OSError:
            connection.close()
            assert time.monotonic() < deadline, f"nobody listens at {port} any more"
            time.sleep(0.01)
        else:
            return connection


def _value(draw: random.Random, depth: int) -> object:
    kind = draw.randrange(9 if depth else 7)
    simple = [
        None,
        True,
        -1,
        10 ** draw.randrange(400),
        draw.random() * 1e9,
        draw.choice(_WORDS),
        draw.choice(["\x1b[2J\u202e" * draw.randrange(9), "\ud800", "a\udfff"]),
    ]
    if kind < 7:
        return simple[kind]
    if kind == 7:
        return [_value(draw, depth - 1) for _ in range(draw.randrange(4))]
    return {draw.choice(_WORDS): _value(draw, depth - 1) for _ in range(draw.randrange(6))}
