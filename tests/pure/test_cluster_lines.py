"""Reading one line of whoever is at the other end, and nothing that follows it."""

import socket
import time

import pytest

from replicant.cluster.wire._json_lines import read_line


@pytest.fixture
def ends():
    with socket.create_server(("127.0.0.1", 0)) as server:
        mine = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    with mine, theirs:
        yield mine, theirs


def test_lines_are_read_one_by_one_and_the_rest_stays(ends):
    mine, theirs = ends
    theirs.sendall(b"one\n\ntwo\nrest")
    assert [read_line(mine, 8) for _ in range(3)] == [b"one", b"", b"two"]
    assert mine.recv(100) == b"rest"


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (b"", None),
        (b"half", b"half"),
        (b"12345678\n", b"12345678"),
        (b"123456789\n", b"123456789"),  # longer than the longest, which its reader refuses
    ],
    ids=["nothing", "no end", "the longest", "longer"],
)
def test_what_is_read_before_the_connection_is_closed(ends, sent, read):
    mine, theirs = ends
    theirs.sendall(sent)
    theirs.close()
    assert read_line(mine, 8) == read


@pytest.mark.parametrize(("sent", "message"), [(b"", "it says nothing"), (b"half", "it does not finish a line")])
def test_a_line_that_does_not_come_in_time(ends, sent, message):
    mine, theirs = ends
    theirs.sendall(sent)
    with pytest.raises(TimeoutError, match=f"^{message}$"):
        read_line(mine, 8, time.monotonic() + 0.1)
