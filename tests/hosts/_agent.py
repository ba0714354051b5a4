"""Starts workers on its host for a launcher on another one: ``_agent.py ADDRESS PORT``. What `sshd` would do, without keys.

Each connection stands for one worker. The launcher sends a line of JSON (argv, environ, log) and then lines with signals; the agent
sends the worker's process number and, later, its exit code.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading


def serve(connection: socket.socket) -> None:
    lines = connection.makefile("r")
    what = json.loads(lines.readline())
    with open(what["log"], "ab") as log:  # noqa: PTH123 - as in the launcher
        worker = subprocess.Popen(
            what["argv"],
            env=what["environ"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    connection.sendall(json.dumps({"pid": worker.pid}).encode() + b"\n")
    threading.Thread(target=tell_end, args=(worker, connection), daemon=True).start()
    with contextlib.suppress(OSError):
        for line in lines:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, int(line))


def tell_end(worker: "subprocess.Popen[bytes]", connection: socket.socket) -> None:
    code = worker.wait()
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps({"code": code}).encode() + b"\n")


if __name__ == "__main__":
    with socket.create_server((sys.argv[1], int(sys.argv[2]))) as listener:
        print("listens", flush=True)
        while True:
            threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
