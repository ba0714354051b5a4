"""Where other hosts find this one."""

import re
import socket

import pytest

from replicant.cluster.meeting._own_address import seen_by_others, source_towards
from replicant.errors import UnreachableError

HOST = re.escape(socket.gethostname())


def test_a_name_that_stands_for_nothing_leads_nowhere() -> None:
    with pytest.raises(
        UnreachableError, match=rf"^This machine \({HOST}\) has no address from which it can reach nowhere\.invalid:1: "
    ):
        source_towards("nowhere.invalid:1")


def test_all_on_one_host_speak_over_loopback() -> None:
    assert seen_by_others(1, ["127.0.0.1", "127.0.0.1", "127.0.1.1"], "node1:1") == "127.0.0.1"


def test_a_worker_that_has_nothing_but_loopback_says_so() -> None:
    message = rf"^Worker 0 \({HOST}\) talks to the coordinator at node1:1 from 127\.0\.0\.1, and to the worker at 0\.0\.0\.0"
    with pytest.raises(UnreachableError, match=message):
        seen_by_others(0, ["127.0.0.1", "0.0.0.0"], "node1:1")
