"""An object store that answers as S3 does, and a proxy in front of it that fails, stalls and cuts connections at random."""

import contextlib
import http.client
import http.server
import logging
import random
import socket
import threading


class Proxy(http.server.ThreadingHTTPServer):
    """Passes requests on. A share of them, ``troubles``, fails: with 500 or 503, after a stall, or in the middle of the answer."""

    daemon_threads = True

    def __init__(self, port, seed, troubles, stall):
        super().__init__(("127.0.0.1", 0), Handler)
        self.port, self.rng, self.troubles, self.stall = port, random.Random(seed), troubles, stall
        self.counts = dict.fromkeys(["fine", "500", "503", "stalled", "cut", "closed"], 0)
        self.lock = threading.Lock()
        self.ended = threading.Event()

    def fate(self):
        with self.lock:
            kinds = ["500", "503", "stalled", "cut", "closed"]
            fate = self.rng.choice(kinds) if self.rng.random() < self.troubles else "fine"
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
        if fate == "stalled":
            self.server.ended.wait(self.server.stall)
            self.end_connection()
            return
        if fate in ("500", "503"):
            self.answer(int(fate), [], b"<Error><Code>SlowDown</Code><Message>Slow down</Message></Error>")
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            self.answer(answer.status, answer.getheaders(), answer.read(), cut=fate == "cut")

    def answer(self, status, headers, data, cut=False):
        self.send_response_only(status)
        left_out = {"connection", "transfer-encoding"} | (set() if self.command == "HEAD" else {"content-length"})
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
        server.stop()


@contextlib.contextmanager
def in_front_of(port, seed=0, troubles=0.0, stall=5.0):
    """Start a proxy, and provide it."""
    proxy = Proxy(port, seed, troubles, stall)
    thread = threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.ended.set()
        proxy.shutdown()
        proxy.server_close()
        thread.join(10)
