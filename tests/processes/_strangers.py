"""Sends thousands of random and hostile messages to a port, as strangers may. A careful program is not harmed by them."""

import contextlib
import json
import random
import socket
import struct
import time

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
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
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
        said = dict(draw.choice([_HELLO, _CLAIM]))
        for _ in range(draw.randrange(1, 4)):
            said[draw.choice(list(said))] = _value(draw, 2)
        return json.dumps(said).encode() + b"\n"
    if kind == 3:
        return json.dumps(_value(draw, 4)).encode() + b"\n"
    line = json.dumps(draw.choice([_HELLO, _CLAIM])).encode()
    cut = draw.randrange(len(line))
    return line[:cut] + draw.randbytes(3) + line[cut + 3 :] + b"\n" * draw.randrange(3)


def harass(port: int, count: int, seed: int) -> None:
    """Send `count` messages, each over its own connection. Some connections stay open until all messages have been sent."""
    draw, held = random.Random(seed), []
    for number in range(count):
        connection = _connected(port)
        with contextlib.suppress(OSError):  # the other side may have closed it already
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
        "\x1b[2J\u202e" * draw.randrange(9),
    ]
    if kind < 7:
        return simple[kind]
    if kind == 7:
        return [_value(draw, depth - 1) for _ in range(draw.randrange(4))]
    return {draw.choice(_WORDS): _value(draw, depth - 1) for _ in range(draw.randrange(6))}
