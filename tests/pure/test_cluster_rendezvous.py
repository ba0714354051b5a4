"""Process 0 tells the others its address through a file of a folder that all share. What is there counts only if it may."""

import json
import os
import socket
import threading
from pathlib import Path

import pytest

from replicant.cluster import Membership
from replicant.cluster.meeting._rendezvous import located, own_address
from replicant.cluster.meeting._rendezvous_file import RendezvousFile
from replicant.errors import ClusterError, UnreachableError

KEY = "k" * 32
NAMED = {"REPLICANT_JOB_ID": "run 7"}


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def file_of(folder, job="run 7", count=2, key=""):
    return RendezvousFile(str(folder), job, count, key)


def member(folder, rank=1, count=2, **more):
    return Membership(rank, count, rendezvous=str(folder), **more)


@pytest.mark.parametrize("key", ["", KEY])
def test_what_process_0_writes_is_read(tmp_path, listener, key):
    mine = file_of(tmp_path, key=key)
    assert file_of(tmp_path, key=key).read() is None
    mine.write(listener)
    assert file_of(tmp_path, key=key).read() == listener
    assert file_of(tmp_path, key=key).wait("Process 1 of 2", 5) == listener
    assert (mine.path.stat().st_mode & 0o777) == 0o644
    assert os.listdir(tmp_path) == [mine.path.name]  # noqa: PTH208 - nothing half-written is left
    mine.remove()
    mine.remove()
    assert not os.listdir(tmp_path)  # noqa: PTH208


def test_two_jobs_share_a_folder(tmp_path):
    file_of(tmp_path, "a").write("127.0.0.1:1")
    file_of(tmp_path, "b").write("127.0.0.1:2")
    assert (file_of(tmp_path, "a").read(), file_of(tmp_path, "b").read()) == ("127.0.0.1:1", "127.0.0.1:2")


def test_an_earlier_run_s_file_is_replaced(tmp_path, listener):
    """It expects other processes, has another key, or names a place where nobody listens. The others wait for the new one."""
    for old in (file_of(tmp_path, count=9, key=KEY), file_of(tmp_path, key="x" * 32), file_of(tmp_path, key=KEY)):
        old.write("127.0.0.1:1")
        found = []
        reader = threading.Thread(target=lambda found=found: found.append(file_of(tmp_path, key=KEY).wait("Process 1 of 2", 30)))
        reader.start()
        reader.join(0.3)
        assert not found
        file_of(tmp_path, key=KEY).write(listener)
        reader.join()
        assert found == [listener]


def test_nobody_writes_or_listens(tmp_path):
    file = file_of(tmp_path)
    with pytest.raises(UnreachableError) as error:
        file.wait("Process 1 of 2", 0.1)
    assert str(error.value) == (
        f"Process 1 of 2 ({socket.gethostname()}) waited 0.1 s for process 0 to write {file.path}. Has process 0 started, with the "
        "same REPLICANT_RENDEZVOUS and REPLICANT_JOB_ID, and do the hosts share this folder? (To wait longer, set "
        "REPLICANT_START_TIMEOUT=seconds.)"
    )
    file.write("127.0.0.1:1")
    with pytest.raises(
        UnreachableError, match=r"Process 1 of 2 \(.*\) found nobody within 0.1 s at 127.0.0.1:1, where process 0 is by"
    ):
        file.wait("Process 1 of 2", 0.1)


def written(file, text, mode=0o644):
    file.path.write_text(text, encoding="utf-8")
    file.path.chmod(mode)


GOOD = {"magic": "replicant-rendezvous-1", "job": "run 7", "num_processes": 2, "address": "127.0.0.1:5"}
FORGED = [
    (json.dumps(GOOD), 0o666, r"others may write to it \(mode 666\)"),
    (json.dumps(GOOD), 0o664, r"others may write to it \(mode 664\)"),
    ("{", 0o644, "it is not JSON: "),
    (" " * 5000, 0o644, "it is not JSON: is longer than 4096 bytes"),
    ("[]", 0o644, "it was not written by process 0 of a job"),
    (json.dumps(GOOD | {"magic": "x"}), 0o644, "it was not written by process 0 of a job"),
    (json.dumps(GOOD | {"address": 5}), 0o644, "it was not written by process 0 of a job"),
    (json.dumps(GOOD | {"address": "127.0.0.1"}), 0o644, "'127.0.0.1' is not an address"),
    (json.dumps(GOOD | {"job": "run 8"}), 0o644, "it is that of job 'run 8', and this one is 'run 7'"),
    (json.dumps(GOOD | {"num_processes": 3}), 0o644, "process 0 expects 3 processes, and this one 2"),
]


@pytest.mark.parametrize(("text", "mode", "rule"), FORGED)
def test_what_does_not_count(tmp_path, text, mode, rule):
    file = file_of(tmp_path)
    written(file, json.dumps(GOOD))
    assert file.read() == "127.0.0.1:5"
    written(file, text, mode)
    with pytest.raises(ClusterError, match=rule):
        file.wait("Process 1 of 2", 0.1)


@pytest.mark.parametrize(
    "change", [{"address": "127.0.0.1:6"}, {"job": "run 8"}, {"num_processes": 3}, {"proof": None}, {"proof": 5}]
)
def test_with_a_key_every_field_is_proved(tmp_path, change):
    file = file_of(tmp_path, key=KEY)
    file.write("127.0.0.1:5")
    written(file, json.dumps(json.loads(file.path.read_text(encoding="utf-8")) | change))
    with pytest.raises(ClusterError, match="it does not prove this job's REPLICANT_JOB_KEY: give all processes the same one"):
        file.read()


def test_a_key_counts_more_than_the_owner(tmp_path):
    file = file_of(tmp_path, key=KEY)
    file.write("127.0.0.1:5")
    file.path.chmod(0o666)
    assert file.read() == "127.0.0.1:5"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_another_user_s_file(tmp_path):
    file = file_of(tmp_path)
    file.write("127.0.0.1:5")
    os.chown(file.path, 1234, -1)
    with pytest.raises(ClusterError, match="user 1234 owns it, and this process runs as user 0"):
        file.read()


def test_links_pipes_and_folders(tmp_path):
    file = file_of(tmp_path)
    target = tmp_path / "target"
    target.write_text(json.dumps(GOOD), encoding="utf-8")
    file.path.symlink_to(target)
    with pytest.raises(ClusterError, match="it is a link"):
        file.read()
    file.path.unlink()
    os.mkfifo(file.path)
    with pytest.raises(ClusterError, match="it is not a regular file"):
        file.read()
    file.path.unlink()
    file.path.mkdir()
    with pytest.raises(ClusterError, match="it is not a regular file"):
        file.read()
    with pytest.raises(ClusterError, match=r"process 0 cannot write .*json: "):
        file.write("127.0.0.1:5")
    assert [path.name for path in tmp_path.glob("*.new")] == []


def test_mistakes():
    with pytest.raises(ClusterError, match="REPLICANT_RENDEZVOUS=/no/such: there is no such folder on this host"):
        file_of(Path("/no/such"))
    with pytest.raises(ClusterError, match=r"needs a name for this run, .* Set REPLICANT_JOB_ID in each process"):
        file_of(Path("/tmp"), job="")


def test_located(tmp_path, listener):
    """Process 0 tells the address that it was given, the other one finds it, and the file is gone when they have met."""
    known = Membership(1, 2, "a:1", "a:1")
    with located(known, {}, 1) as found:
        assert found == known
    environ = NAMED | {"JAX_COORDINATOR_BIND_ADDRESS": listener}
    with located(member(tmp_path, 0, bind_address=listener), environ, 5) as first:
        assert first == Membership(0, 2, listener, listener)
        with located(member(tmp_path, 1), environ, 5) as second:
            assert second == Membership(1, 2, listener, listener)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ClusterError, match="needs a name for this run"), located(member(tmp_path), {}, 1):
        pass


def test_the_address_of_process_0(listener):
    on_one_host = Membership(0, 2, rendezvous="/shared", local_rank=0, num_local_processes=2)
    host, _, port = own_address(on_one_host, {}).rpartition(":")
    assert (host, 0 < int(port) < 65536) == ("127.0.0.1", True)
    assert own_address(on_one_host, {"JAX_COORDINATOR_BIND_ADDRESS": "10.0.0.1:5"}) == "10.0.0.1:5"
    assert own_address(on_one_host, {"JAX_COORDINATOR_BIND_ADDRESS": "0.0.0.0:61234"}) == "127.0.0.1:61234"
    taken = {"JAX_COORDINATOR_PORT": listener.rpartition(":")[2]}
    with pytest.raises(ClusterError, match=rf"Process 0 cannot listen at {listener}: .*Set JAX_COORDINATOR_BIND_ADDRESS"):
        own_address(on_one_host, taken)


def test_a_host_with_loopback_only(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(socket.AF_INET, 1, 6, "", ("127.0.1.1", 0))])
    monkeypatch.setattr(socket, "gethostname", lambda: "alone")
    with pytest.raises(
        ClusterError, match=r"The host of process 0 \(alone\) has no address but loopback, where processes on other"
    ):
        own_address(Membership(0, 2, rendezvous="/shared"), {})
