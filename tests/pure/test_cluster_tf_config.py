"""TF_CONFIG: read as TensorFlow reads it, and every mistake found with its line and column."""

import json
import re
import time

import pytest

from replicant.cluster import Membership, TFConfigClusterResolver
from replicant.cluster.resolvers._json_places import load_with_places
from replicant.cluster.resolvers._tf_config import find
from replicant.errors import ClusterError

CLUSTER = {"chief": ["c:1"], "worker": ["a:1", "b:1"], "ps": ["p:1"], "evaluator": ["e:1"]}


def resolver(config, **arguments):
    text = config if isinstance(config, str) else json.dumps(config)
    return TFConfigClusterResolver(**arguments, environ={"TF_CONFIG": text})


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ({"type": "chief", "index": 0}, Membership(0, 3, "c:1", "c:1", 0, 1)),
        ({"type": "worker", "index": 0}, Membership(1, 3, "c:1", "c:1", 0, 1)),
        ({"type": "worker", "index": "1"}, Membership(2, 3, "c:1", "c:1", 0, 1)),
        ({"type": "evaluator", "index": 0}, Membership(0, 1)),
    ],
)
def test_every_kind_of_task(task, expected):
    found = resolver({"cluster": CLUSTER, "task": task})
    assert (found.task_type, found.task_id) == (task["type"], int(task["index"]))
    assert found.cluster_spec() == CLUSTER
    assert found.membership() == expected


def test_a_parameter_server_is_found_and_takes_no_part():
    found = resolver({"cluster": CLUSTER, "task": {"type": "ps", "index": 0}})
    assert (found.task_type, found.task_id) == ("ps", 0)
    with pytest.raises(ClusterError, match="Task 0 of job 'ps' is a parameter server"):
        found.membership()


def test_the_older_name_of_the_chief():
    found = resolver({"cluster": {"master": ["m:1"], "worker": ["a:1"]}, "task": {"type": "worker", "index": 0}})
    assert found.membership() == Membership(1, 2, "m:1", "m:1", 0, 1)


def test_indices_as_keys():
    cluster = {"worker": {"0": "a:1", "1": "b:1"}, "ps": {"3": "p:1"}}
    found = resolver({"cluster": cluster, "task": {"type": "worker", "index": 1}})
    assert found.cluster_spec().as_dict() == {"worker": ["a:1", "b:1"], "ps": {3: "p:1"}}
    assert found.membership().process_id == 1


@pytest.mark.parametrize(
    "environ", [{}, {"TF_CONFIG": ""}, {"TF_CONFIG": " \n"}, {"TF_CONFIG": "{}"}, {"TF_CONFIG": '{"cluster": {}}'}]
)
def test_no_cluster_is_one_process(environ):
    found = TFConfigClusterResolver(environ=environ)
    assert found.cluster_spec() == {}
    assert (found.task_type, found.task_id, found.rpc_layer, found.master()) == (None, None, None, "")
    assert found.membership() == Membership(0, 1, None, None, 0, 1)
    assert find(environ) is None


def test_the_process_s_own_environment(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}))
    assert TFConfigClusterResolver().task_id == 1


def test_arguments_win_over_the_variable():
    config = {"cluster": CLUSTER, "task": {"type": "chief", "index": 0}, "rpc_layer": "http"}
    assert resolver(config).rpc_layer == "http"
    found = resolver(config, task_type="worker", task_id="1", rpc_layer="grpc", environment="cloud")
    assert (found.task_type, found.task_id, found.rpc_layer, found.environment) == ("worker", 1, "grpc", "cloud")
    assert resolver({"cluster": CLUSTER, "task": {"index": 1}}, task_type="worker").membership().process_id == 2
    later = resolver({"cluster": CLUSTER})
    later.task_type, later.task_id = "worker", 1
    assert later.membership().process_id == 2


def test_master():
    config = {"cluster": CLUSTER, "task": {"type": "worker", "index": 1}, "rpc_layer": "grpc"}
    assert resolver(config).master() == "grpc://b:1"
    assert resolver(config).master("worker", 0, "x") == "x://a:1"
    assert resolver({**config, "session_master": "s:1"}).master() == "s:1"
    assert resolver({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}).master() == ""


def test_where_the_coordinator_listens_can_be_told():
    text = json.dumps({"cluster": CLUSTER, "task": {"type": "chief", "index": 0}})
    environ = {"TF_CONFIG": text, "JAX_COORDINATOR_BIND_ADDRESS": "10.0.0.5:1"}
    assert TFConfigClusterResolver(environ=environ).membership().bind_address == "10.0.0.5:1"
    with pytest.raises(ClusterError, match="JAX_COORDINATOR_BIND_ADDRESS: 'all' is not an address"):
        TFConfigClusterResolver(environ={**environ, "JAX_COORDINATOR_BIND_ADDRESS": "all"})


TWO = '{"cluster": {"worker": ["a:1", "b:1"]},\n "task": {"type": "worker", "index": 0}}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{'cluster'}",
            "TF_CONFIG is not JSON: line 1, column 2, at \"'cluster'}\": Expecting property name enclosed in double quotes.",
        ),
        (
            '{"cluster": {\n  "worker": ["a:1" "b:1"]}}',
            "TF_CONFIG is not JSON: line 2, column 20, at '\"b:1\"]}}': Expecting ',' delimiter.",
        ),
        ('{"cluster":', "TF_CONFIG is not JSON: line 1, column 12, at its end: Expecting value."),
        ("[" * 100_000, "TF_CONFIG is nested more than 64 deep."),
        ('{"cluster": {},\n "cluster": {}}', "TF_CONFIG, line 2, column 2: the key 'cluster' occurs twice."),
        ('["a:1"]', 'TF_CONFIG, line 1, column 1: it must be an object, {"cluster": {...}, "task": {...}}. Received: [\'a:1\'].'),
        (
            '\n {"cluster": ["a:1"]}',
            "TF_CONFIG, line 2, column 14 (cluster): a cluster is a dictionary from job names to addresses.",
        ),
        ('{"cluster": ["a:1"]}', "TF_CONFIG, line 1, column 13 (cluster): a cluster is a dictionary from job names to addresses."),
        (
            '{"cluster": {"worker": "a:1"}}',
            "TF_CONFIG, line 1, column 24 (cluster.worker): the tasks of job 'worker' must be a list",
        ),
        (
            '{"cluster": {"worker": ["a:1", 7]}}',
            "TF_CONFIG, line 1, column 32 (cluster.worker.1): the address of task 1 of job 'worker'",
        ),
        (
            '{"cluster": {"worker": [null]}}',
            "TF_CONFIG, line 1, column 25 (cluster.worker.0): the address of task 0 of job 'worker' is null",
        ),
        (
            '{"cluster": {"worker": {"x": "a:1"}}}',
            "TF_CONFIG, line 1, column 30 (cluster.worker.x): 'x' is not the index of a task",
        ),
        ('{"cluster": {"worker": {"0": "a:1", "00": "b:1"}}}', "(cluster.worker.00): index 0 of job 'worker' is there twice"),
        (
            '{"cluster": {"worker": {"0": "a:1", "2": "b:1"}}}',
            "(cluster.worker): job 'worker' has 2 tasks with indices [0, 2]: index 1 is",
        ),
        (
            '{"cluster": {"worker": ["a:1",\n"a:1"]}}',
            "TF_CONFIG, line 2, column 1 (cluster.worker.1): task 1 of job 'worker' has the address",
        ),
        (
            '{"cluster": {"ps": {"5": "a"}}}',
            "TF_CONFIG, line 1, column 26 (cluster.ps.5): task 5 of job 'ps': 'a' is not an address.",
        ),
        ('{"cluster": {"boss": ["a:1"]}}', "TF_CONFIG, line 1, column 22 (cluster.boss): job 'boss' is not known."),
        ('{"task": "worker"}', 'TF_CONFIG, line 1, column 10 (task): "task" must be an object'),
        (TWO.replace(', "index": 0', ""), "TF_CONFIG, line 2, column 10 (task): \"task\" has no 'index'"),
        (TWO.replace('"type": "worker", ', ""), "TF_CONFIG, line 2, column 10 (task): \"task\" has no 'type'"),
        (
            TWO.replace("0}", "2}"),
            "TF_CONFIG, line 2, column 38 (task.index): index 2 is outside job 'worker', which has 2 task(s): it must",
        ),
        (
            TWO.replace("0}", '"x"}'),
            "TF_CONFIG, line 2, column 38 (task.index): a task's index is a whole number from 0 to 65535. Received: 'x'.",
        ),
        (TWO.replace("0}", "1.0}"), "(task.index): a task's index is a whole number from 0 to 65535. Received: 1.0."),
        (TWO.replace("0}", "-1}"), "(task.index): a task's index is a whole number from 0 to 65535. Received: -1."),
        (TWO.replace("0}", "true}"), "(task.index): a task's index is a whole number from 0 to 65535. Received: True."),
        (
            TWO.replace('"type": "worker"', '"type": "chief"'),
            "TF_CONFIG, line 2, column 19 (task.type): task type 'chief' is not a job of",
        ),
        (
            TWO.replace('"type": "worker"', '"type": "boss"'),
            "TF_CONFIG, line 2, column 19 (task.type): task type 'boss' is not known.",
        ),
        (TWO.replace('"type": "worker"', '"type": 3'), "(task.type): a task's type is a string, such as 'worker'. Received: 3."),
    ],
)
def test_mistakes_are_found_where_they_are(text, message):
    with pytest.raises(ClusterError, match=re.escape(message)):
        resolver(text)


def test_mistakes_in_arguments_are_said_to_be_there():
    with pytest.raises(ClusterError, match=r"^TFConfigClusterResolver, argument task_id: index 7 is outside job 'worker'"):
        resolver(TWO, task_id=7)
    with pytest.raises(ClusterError, match=r"^TFConfigClusterResolver, argument task_type: task type 'ps' is not a job"):
        resolver(TWO, task_type="ps")


def test_a_cluster_without_a_task():
    with pytest.raises(
        ClusterError, match=r'TF_CONFIG describes a cluster, but has no "task": add "task": \{"type": "worker", "index": 0\}'
    ):
        find({"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}}'})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 5000 + "]" * 5000, "TF_CONFIG is nested more than 64 deep."),
        (" " * (8 << 20) + "{}", "TF_CONFIG is longer than 8388608 bytes."),
        ('{"cluster": {"worker": ["\\ud800:1"]}}', r"TF_CONFIG has half of a character, \ud800, which no UTF-8 can hold."),
        (
            '{"cluster": {"worker": {"65536": "a:1"}}}',
            (
                "TF_CONFIG, line 1, column 34 (cluster.worker.65536): '65536' is not the index of a task of job 'worker': "
                "indices are whole numbers from 0 to 65535."
            ),
        ),
        (
            f'{{"cluster": {{"worker": {{"{"9" * 5000}": "a:1"}}}}}}',
            f"{'9' * 5000}' is not the index of a task of job 'worker': indices are whole numbers from 0 to 65535.",
        ),
    ],
    ids=["deep", "long", "half a character", "a great index", "many digits"],
)
def test_what_nobody_has_written_for_a_cluster(text, message):
    with pytest.raises(ClusterError) as raised:
        TFConfigClusterResolver(environ={"TF_CONFIG": text})
    assert str(raised.value).endswith(message)


def test_many_workers_take_no_time():
    """Each look at the text or at all tasks for each task would take minutes."""
    cluster = {"worker": [f"node{i}.example.org:2222" for i in range(20_000)]}
    began = time.process_time()
    resolver = TFConfigClusterResolver(
        environ={"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 19_999}})}
    )
    assert repr(resolver.membership()) == "Membership(process 19999 of 20000, coordinator node0.example.org:2222)"
    assert time.process_time() - began < 5.0


def test_places_of_everything_in_a_json_text():
    text = '\n {"a" : [1, {"b\\"": null}, []],\n  "c": {} , "d": "x,]}"}'
    value, places = load_with_places(text, "text")
    assert value == json.loads(text)
    assert places == {
        (): "line 2, column 2",
        ("a",): "line 2, column 9",
        ("a", 0): "line 2, column 10",
        ("a", 1): "line 2, column 13",
        ("a", 1, 'b"'): "line 2, column 21",
        ("a", 2): "line 2, column 28",
        ("c",): "line 3, column 8",
        ("d",): "line 3, column 18",
    }
