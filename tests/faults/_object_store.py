"""An object store that answers as S3 does, and a proxy in front of it that fails, stalls and cuts connections at random."""

import contextlib
import http.client
import http.server
import logging
import random
import socket
import threading

TROUBLES = ("500", "503", "stalled", "cut", "closed", "lost")


class Proxy(http.server.ThreadingHTTPServer):
    """Passes requests on. A share of them, ``troubles``, fails: with 500 or 503, after a stall, or in the middle of the answer.

    The answer of the store may also be "lost". One more trouble is for those who name it in ``kinds``: a request is passed on
    "late", after the stall, when the client has given up. ``conditions`` says what becomes of "If-None-Match": it is "kept",
    "dropped", or "rejected" with 501. Answers to the requests in ``no_etag``, such as "GET", say no ETag.
    """

    daemon_threads = True
    conditions = "kept"
    no_etag = ()

    def __init__(self, port, seed, troubles, stall, kinds):
        super().__init__(("127.0.0.1", 0), Handler)
        self.port, self.rng, self.troubles, self.stall = port, random.Random(seed), troubles, stall
        self.kinds = kinds
        self.counts = dict.fromkeys(["fine", *kinds], 0)
        self.lock = threading.Lock()
        self.ended = threading.Event()

    def fate(self):
        with self.lock:
            fate = self.rng.choice(self.kinds) if self.rng.random() < self.troubles else "fine"
            self.counts[fate] += 1
            return fate

    def handle_error(self, request, client_address):
        """Clients that went away are none."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_any(self):
        fate = self.server.fate()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if fate == "closed":
            self.end_connection()
            return
        if fate in ("stalled", "late"):
            self.server.ended.wait(self.server.stall)
        if fate == "stalled" or (fate == "late" and self.server.ended.is_set()):
            self.end_connection()
            return
        if fate in ("500", "503"):
            self.answer(int(fate), [], b"<Error><Code>SlowDown</Code><Message>Slow down</Message></Error>")
            return
        headers = {name: value for name, value in self.headers.items() if not self.drops(name)}
        if len(headers) < len(self.headers) and self.server.conditions == "rejected":
            self.answer(501, [], b"<Error><Code>NotImplemented</Code><Message>A header is not implemented</Message></Error>")
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            if fate in ("lost", "late"):
                answer.read()
                self.end_connection()
                return
            self.answer(answer.status, answer.getheaders(), answer.read(), cut=fate == "cut")

    def drops(self, name):
        return self.server.conditions != "kept" and name.lower() == "if-none-match"

    def answer(self, status, headers, data, cut=False):
        self.send_response_only(status)
        left_out = {"connection", "transfer-encoding"} | (set() if self.command == "HEAD" else {"content-length"})
        left_out |= {"etag"} if self.command in self.server.no_etag else set()
        for name, value in headers:
            if name.lower() not in left_out:
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if cut else data)
        self.wfile.flush()
        if cut:
            self.end_connection()

    def end_connection(self):
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815 - the names that http.server looks for

    def log_message(self, format, *args):  # noqa: A002
        """Say nothing."""


@contextlib.contextmanager
def s3_server():
    """Start a server in this process, and provide its port."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        yield server.get_host_and_port()[1]
    finally:
        close_connections()
        server.stop()


def close_connections():
    """Close what the client keeps open. Sockets that are left to the garbage collector would warn in any later test."""
    from s3fs import S3FileSystem

    for system in list(S3FileSystem._cache.values()):
        if (session := getattr(system, "_s3creator", None)) is not None:
            S3FileSystem.close_session(system.loop, session)
    S3FileSystem.clear_instance_cache()


@contextlib.contextmanager
def in_front_of(port, seed=0, troubles=0.0, stall=5.0, kinds=TROUBLES):
    """Start a proxy, and provide it."""
    proxy = Proxy(port, seed, troubles, stall, kinds)
    thread = threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.ended.set()
        proxy.shutdown()
        proxy.server_close()
        thread.join(10)
