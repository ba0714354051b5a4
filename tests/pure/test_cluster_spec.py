"""ClusterSpec, the resolver that is told everything, and who a task is in its cluster. Expected values are TensorFlow's."""

import pytest

from replicant.cluster import ClusterResolver, ClusterSpec, Membership, SimpleClusterResolver, check_group
from replicant.cluster._addresses import default_bind_address, split_address
from replicant.errors import ArgumentTypeError, ClusterError

DENSE = {"worker": ["w0:1", "w1:1"], "ps": ["p0:1"]}
SPARSE = {"worker": {1: "w1:1"}, "ps": {0: "p0:1", 2: "p2:1"}}


def test_a_dense_cluster():
    spec = ClusterSpec(DENSE)
    assert spec.jobs == ["worker", "ps"]
    assert spec.num_tasks("worker") == 2
    assert spec.task_indices("worker") == [0, 1]
    assert spec.task_address("worker", 1) == "w1:1"
    assert spec.job_tasks("worker") == ["w0:1", "w1:1"]
    assert spec.as_dict() == DENSE
    assert repr(spec) == "ClusterSpec({'ps': ['p0:1'], 'worker': ['w0:1', 'w1:1']})"


def test_a_sparse_cluster():
    spec = ClusterSpec(SPARSE)
    assert spec.num_tasks("ps") == 2
    assert spec.task_indices("ps") == [0, 2]
    assert spec.job_tasks("ps") == ["p0:1", None, "p2:1"]
    assert spec.as_dict() == {"worker": {1: "w1:1"}, "ps": {0: "p0:1", 2: "p2:1"}}


def test_an_empty_job_and_an_empty_cluster():
    assert ClusterSpec({"worker": []}).as_dict() == {"worker": {}}
    assert ClusterSpec({"worker": []}).job_tasks("worker") == []
    assert not ClusterSpec({})
    assert ClusterSpec(DENSE)


def test_equality():
    spec = ClusterSpec(DENSE)
    assert spec == ClusterSpec({"ps": {"0": "p0:1"}, "worker": ("w0:1", "w1:1")})
    assert spec == ClusterSpec(spec)
    assert spec == DENSE
    assert spec == {"worker": {0: "w0:1", 1: "w1:1"}, "ps": {0: "p0:1"}}
    assert spec != ClusterSpec({"worker": ["w0:1", "w2:1"], "ps": ["p0:1"]})
    assert spec != {"worker": 3}
    assert spec != "worker"
    assert len({spec, ClusterSpec(DENSE)}) == 1


@pytest.mark.parametrize(
    ("cluster", "error", "message"),
    [
        (
            ["w0:1"],
            ArgumentTypeError,
            r"^ClusterSpec: a cluster is a dictionary from job names to addresses\. Received: \['w0:1'\]\.$",
        ),
        ({1: ["w0:1"]}, ArgumentTypeError, "a job's name is a string. Received: 1"),
        ({"worker": "w0:1"}, ArgumentTypeError, "the tasks of job 'worker' must be a list of addresses, or .* Received: 'w0:1'"),
        ({"worker": ["w0:1", 5]}, ArgumentTypeError, "the address of task 1 of job 'worker' must be a string.* Received: 5"),
        ({"worker": {-1: "w0:1"}}, ClusterError, "-1 is not the index of a task of job 'worker': indices are whole numbers from 0"),
        ({"worker": {"one": "w0:1"}}, ClusterError, "'one' is not the index of a task"),
        ({"worker": {True: "w0:1"}}, ClusterError, "True is not the index of a task"),
        ({"worker": {"0": "w0:1", "00": "w1:1"}}, ClusterError, "index 0 of job 'worker' is there twice, as '0' and '00'"),
    ],
)
def test_what_is_no_cluster(cluster, error, message):
    with pytest.raises(error, match=message):
        ClusterSpec(cluster)


def test_questions_without_an_answer():
    spec = ClusterSpec({**SPARSE, "evaluator": [None]})
    for ask in (spec.num_tasks, spec.task_indices, spec.job_tasks, lambda job: spec.task_address(job, 0)):
        with pytest.raises(ClusterError, match=r"The cluster has no job 'chief'\. Its jobs are \['worker', 'ps', 'evaluator'\]\."):
            ask("chief")
    with pytest.raises(ValueError, match=r"Job 'ps' has no task with index 1\. Its indices are \[0, 2\]\."):
        spec.task_address("ps", 1)
    with pytest.raises(
        ClusterError, match="address of task 0 of job 'evaluator' is not known: the launcher tells a process only the"
    ):
        spec.task_address("evaluator", 0)


def test_the_simple_resolver_answers_what_it_was_told():
    resolver = SimpleClusterResolver(
        ClusterSpec(DENSE), "m:1", "worker", 1, "cloud", num_accelerators={"GPU": 8}, rpc_layer="grpc", bind_address="0.0.0.0:9"
    )
    assert resolver.cluster_spec() == DENSE
    assert (resolver.task_type, resolver.task_id, resolver.environment) == ("worker", 1, "cloud")
    assert resolver.num_accelerators() == {"GPU": 8}
    assert resolver.master() == "grpc://m:1"
    assert resolver.master("worker", 0) == "grpc://w0:1"
    assert resolver.master("worker", 0, rpc_layer="x") == "x://w0:1"
    assert resolver.membership() == Membership(1, 2, "w0:1", "0.0.0.0:9", 0, 1)
    resolver.task_id, resolver.rpc_layer = 0, None
    assert resolver.master() == "m:1"
    assert resolver.membership().is_chief
    assert repr(resolver) == f"SimpleClusterResolver({ClusterSpec(DENSE)}, task_type='worker', task_id=0)"


def test_the_simple_resolver_wants_the_right_types():
    with pytest.raises(ArgumentTypeError, match=r"cluster_spec must be a ClusterSpec\. Received: \{\}"):
        SimpleClusterResolver({})
    with pytest.raises(ArgumentTypeError, match=r"master must be a string\. Received: 3"):
        SimpleClusterResolver(ClusterSpec({}), master=3)


def test_a_resolver_of_ones_own():
    class Mine(ClusterResolver):
        def cluster_spec(self):
            return ClusterSpec(DENSE)

    resolver = Mine()
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer, resolver.environment) == (None, None, None, "")
    assert (resolver.num_accelerators(), resolver.because, resolver.master()) == ({}, (), "")
    resolver.task_type, resolver.task_id = "worker", 1
    assert resolver.membership() == Membership(1, 2, "w0:1", "w0:1", 0, 1)
    assert resolver.master() == "w1:1"


def member(cluster, task_type, task_id):
    return SimpleClusterResolver(ClusterSpec(cluster), task_type=task_type, task_id=task_id).membership()


@pytest.mark.parametrize(
    ("cluster", "task", "expected"),
    [
        # process id, number, coordinator, where it listens, rank on the host, processes there
        ({}, (None, None), (0, 1, None, None, 0, 1)),
        ({"worker": ["a:1"]}, ("worker", 0), (0, 1, None, None, 0, 1)),
        ({"chief": ["a:1"], "worker": ["b:1", "c:1"]}, ("chief", 0), (0, 3, "a:1", "a:1", 0, 1)),
        ({"worker": ["b:1", "c:1"], "chief": ["a:1"]}, ("worker", 1), (2, 3, "a:1", "a:1", 0, 1)),
        ({"master": ["a:1"], "worker": ["b:1"]}, ("worker", 0), (1, 2, "a:1", "a:1", 0, 1)),
        ({"worker": ["a:1", "b:1"], "ps": ["p:1"]}, ("worker", 1), (1, 2, "a:1", "a:1", 0, 1)),
        ({"worker": ["a:1", "b:1"]}, ("evaluator", 0), (0, 1, None, None, None, None)),
        ({"worker": ["a:1", "b:1"], "evaluator": ["e:1"]}, ("evaluator", 0), (0, 1, None, None, None, None)),
        ({"worker": ["localhost:1", "localhost:2"]}, ("worker", 1), (1, 2, "localhost:1", "127.0.0.1:1", 1, 2)),
        ({"worker": ["a:1", "b:1", "a:2", "b:2"]}, ("worker", 0), (0, 4, "a:1", "a:1", 0, 2)),
        ({"worker": ["a:1", "b:1", "a:2", "b:2"]}, ("worker", 3), (3, 4, "a:1", "a:1", 1, 2)),
        ({"worker": ["[fd00::1]:1", "[fd00::2]:1"]}, ("worker", 1), (1, 2, "[fd00::1]:1", "[fd00::1]:1", 0, 1)),
        ({"worker": ["a:1", None]}, ("worker", 1), (1, 2, "a:1", "a:1", None, None)),
    ],
)
def test_who_a_task_is(cluster, task, expected):
    assert member(cluster, *task) == Membership(*expected)


@pytest.mark.parametrize(
    ("cluster", "task", "message"),
    [
        (
            DENSE,
            (None, None),
            "describes a cluster, but not which task this process is: task_type is None, task_id is None. Give both",
        ),
        (DENSE, ("worker", None), "task_type is 'worker', task_id is None"),
        (DENSE, ("ps", 0), "Task 0 of job 'ps' is a parameter server: it takes no part in synchronous training"),
        (DENSE, ("worker", 2), r"index 2 is outside job 'worker', which has 2 task\(s\): it must be from 0 to 1\."),
        (SPARSE, ("worker", 1), r"job 'worker' has 1 tasks with indices \[1\]: index 0 is missing\."),
        ({"ps": {2: "p:1"}}, ("ps", 0), r"index 0 is outside job 'ps', which has 1 task\(s\): it must be one of \[2\]\."),
        (DENSE, ("chief", 0), "task type 'chief' is not a job of the cluster, which has worker, ps."),
        (DENSE, ("trainer", 0), "task type 'trainer' is not known. It is one of chief, master, worker, ps, evaluator."),
        (
            {"trainer": ["a:1"]},
            ("trainer", 0),
            "job 'trainer' is not known. A cluster's jobs are chief, master, worker, ps, evaluator.",
        ),
        ({"chief": ["a:1", "b:1"]}, ("chief", 0), "job 'chief' has 2 tasks; there can be at most one."),
        (
            {"chief": ["a:1"], "master": ["b:1"]},
            ("chief", 0),
            "jobs 'chief' and 'master' are two names for the same thing. Leave one of them out.",
        ),
        (
            {"worker": ["a:1", "a:1"]},
            ("worker", 0),
            "task 1 of job 'worker' has the address 'a:1', which is also that of task 0 of job",
        ),
        (
            {"worker": ["a:1", "b"]},
            ("worker", 0),
            "task 1 of job 'worker': 'b' is not an address. Write host:port, as in 'node1:2222'",
        ),
        ({"worker": [None, "b:1"]}, ("worker", 1), "address of task 0 of job 'worker' is not known"),
    ],
)
def test_rules_that_a_cluster_breaks(cluster, task, message):
    with pytest.raises(ClusterError, match=message):
        member(cluster, *task)


def test_addresses():
    assert split_address("10.0.0.1:65535", "x") == ("10.0.0.1", 65535)
    for text in ("node1", "node1:", ":1", "a:b", "grpc://a:1", "fd00::1:80", "a b:1", "a:1 ", "[a:1"):
        with pytest.raises(ClusterError, match=r"x: .* is not an address\. Write host:port"):
            split_address(text, "x")
    for port in ("0", "65536"):
        with pytest.raises(ClusterError, match=f"x: 'a:{port}' has port {port}; a port is from 1 to 65535."):
            split_address(f"a:{port}", "x")


@pytest.mark.parametrize(
    ("coordinator", "bound"),
    [("localhost:1", "127.0.0.1:1"), ("127.0.0.1:1", "127.0.0.1:1"), ("[::1]:1", "[::1]:1"), ("node1:1", "node1:1")],
)
def test_the_coordinator_listens_at_its_own_address_only(coordinator, bound):
    assert default_bind_address(coordinator) == bound


def test_processes_that_do_not_form_one_group():
    two = [Membership(0, 2, "a:1"), Membership(1, 2, "a:1")]
    check_group(dict(zip("ab", two, strict=True)))
    check_group({})
    with pytest.raises(
        ClusterError, match=r"two of them have the process id 0\.\n  one  Membership\(process 0 of 2, coordinator a:1\)\n  two  "
    ):
        check_group({"one": two[0], "two": two[0]})
    with pytest.raises(ClusterError, match=r"they disagree on the number of processes: \[2, 3\]\."):
        check_group({"one": two[0], "two": Membership(1, 3, "a:1")})
    with pytest.raises(ClusterError, match=r"there are 1 of them, but each expects 2\."):
        check_group({"one": two[0]})
    with pytest.raises(ClusterError, match=r"they name different coordinators\.\n"):
        check_group({"one": two[0], "two": Membership(1, 2, "b:1")})
