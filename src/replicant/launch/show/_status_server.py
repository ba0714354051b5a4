"""A small page on 127.0.0.1 that shows how a job is. It reads nothing but a request line and the name of the host.

Other users of the machine can open it, as they can list its processes; so it shows no arguments, no texts of errors and no paths. A
page of another site cannot read it, even if the name of that site leads to 127.0.0.1: the browser sends that name as `Host`.
"""

import asyncio
import contextlib
import functools
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from typing import Self

from ...errors import ConfigurationError
from ..record._events import Event
from ._status import Status, View
from ._status_text import json_of, page_of

_CLIENT_SECONDS = 5.0  # from the connection to the last byte of the answer
_MOST_CLIENTS = 16  # at a time; others are turned away
_LONGEST_HEAD = 8192  # bytes
_END_SECONDS = 5.0
_REST_SECONDS = 0.2
_HEADERS = (
    "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; form-action 'none'",
    "Cross-Origin-Opener-Policy: same-origin",
    "Cross-Origin-Resource-Policy: same-origin",
    "X-Content-Type-Options: nosniff",
    "X-Frame-Options: DENY",
    "Referrer-Policy: no-referrer",
    "Cache-Control: no-store",
    "Connection: close",
)
# In one line: what a browser and a proxy read differently, such as a value folded over two lines, is refused.
_HEADER = re.compile(r"(?P<name>[!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(?P<value>[\t -~]*?)[ \t]*")
_REASONS = {200: "OK", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed"}


class Live:
    """The status of the job that this process runs, for other threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._status: Status | None = None

    def hear(self, event: Event) -> None:
        """Take in an event as it happens."""
        with self._lock:
            if self._status is None:
                self._status = Status(event)
            else:
                self._status.take(event)

    def view(self) -> View:
        """Return how the job is now."""
        with self._lock:
            assert self._status is not None, "the server starts after the job"
            return self._status.view(time.time())

    def pages(self) -> "Pages":
        """What the server shows of it."""
        return {
            "/": ("text/html", lambda: page_of(self.view())),
            "/status.json": ("application/json", lambda: json_of(self.view())),
        }


Pages = dict[str, tuple[str, Callable[[], str]]]  # path: type of content, and what makes it


class StatusServer:
    """Serves pages to clients on this machine, from a thread of its own. It is a context manager.

    Args:
        port: The port; 0 for a free one.
        pages: What is at each path. It is made in the server's thread, when it is asked for.

    Raises:
        ConfigurationError: If the port is in use.
    """

    def __init__(self, port: int, pages: Pages):
        try:
            self._listener = socket.create_server(("127.0.0.1", port))
        except OSError as error:
            raise ConfigurationError(
                f"--status-port {port}: port {port} of 127.0.0.1 cannot be used: {os.strerror(error.errno or 0)}. Give another "
                "one, or 0 for a free one."
            ) from error
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        self._hosts = {f"{name}:{self.port}" for name in ("127.0.0.1", "localhost")}
        self._pages = pages
        self._clients: set[asyncio.Task[None]] = set()
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="replicant-status", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._is_ready.wait()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join(_END_SECONDS)

    async def _serve(self) -> None:
        self._loop, self._is_over = asyncio.get_running_loop(), asyncio.Event()
        self._is_ready.set()
        with self._listener:
            self._listener.setblocking(False)
            self._listen()
            await self._is_over.wait()
            self._loop.remove_reader(self._listener)
        for task in self._clients:
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    def _listen(self) -> None:
        if not self._is_over.is_set():
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            own, _ = self._listener.accept()
        except OSError:  # the client has gone, or there are no file descriptors left, and then this would be called again at once
            self._loop.remove_reader(self._listener)
            self._loop.call_later(_REST_SECONDS, self._listen)
            return
        if len(self._clients) >= _MOST_CLIENTS:
            own.close()
            return
        own.setblocking(False)
        task = self._loop.create_task(self._answer(own))
        self._clients.add(task)
        task.add_done_callback(functools.partial(self._forget, own))

    def _forget(self, own: socket.socket, task: "asyncio.Task[None]") -> None:
        self._clients.discard(task)
        own.close()  # if the task was cancelled before it began

    async def _answer(self, own: socket.socket) -> None:
        with contextlib.suppress(OSError):  # with TimeoutError: the client is gone, or too slow
            async with asyncio.timeout(_CLIENT_SECONDS):
                reader, writer = await asyncio.open_connection(sock=own, limit=_LONGEST_HEAD)
                try:
                    writer.write(await self._respond(reader))
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
                finally:
                    writer.transport.abort()

    async def _respond(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, UnicodeDecodeError):
            return _response(400, "This is not an HTTP request.")
        request, *lines = head.split("\r\n")[:-2]
        words = request.split(" ")
        headers = [_HEADER.fullmatch(line) for line in lines]
        if len(words) != 3 or words[2] not in ("HTTP/1.0", "HTTP/1.1") or None in headers:
            return _response(400, "This is not an HTTP request.")
        hosts = [header["value"] for header in headers if header and header["name"].lower() == "host"]
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            return _response(403, f"The host must be {' or '.join(sorted(self._hosts))}.")
        if words[0] != "GET":
            return _response(405, "Only GET is answered.", "Allow: GET")
        if words[1] not in self._pages:
            return _response(404, f"There is only {' and '.join(self._pages)}.")
        kind, make = self._pages[words[1]]
        return _response(200, make(), content=kind)


def _response(status: int, text: str, *headers: str, content: str = "text/plain") -> bytes:
    body = text.encode("utf-8", "replace")
    lines = (
        f"HTTP/1.1 {status} {_REASONS[status]}",
        f"Content-Type: {content}; charset=utf-8",
        f"Content-Length: {len(body)}",
        *_HEADERS,
        *headers,
    )
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body
