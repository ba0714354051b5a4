"""Starts a Ray cluster of several nodes on 127.0.0.1, places workers and servers on it, and prints where they are as JSON."""

import faulthandler
import json
import logging
import os
import sys
import time

import replicant
from replicant.cluster import ClusterSpec, SimpleClusterResolver
from replicant.coordinator import ClusterCoordinator, RayTransport

SECONDS = 120


def groups(cluster, ray):
    """Where the workers of `replicant launch` are placed: how many nodes, and what is said."""
    from replicant.launch._settings import Settings
    from replicant.launch.engines._ray import RayNodes

    def places(nodes):
        ray.get(nodes._group.ready(), timeout=SECONDS)
        return len(set(ray.util.placement_group_table(nodes._group)["bundles_to_node_id"].values()))

    found = {}
    for count in (3, 4, 5):
        with RayNodes(Settings(("train.py",), num_workers=count)) as nodes:
            found[f"{count} on 4"] = places(nodes), nodes.note
    hold = ray.remote(num_cpus=2)(type("Hold", (), {"here": lambda self: True})).remote()
    assert ray.get(hold.here.remote(), timeout=SECONDS)
    with RayNodes(Settings(("train.py",), num_workers=4)) as nodes:
        found["one in use"] = places(nodes), nodes.note
    ray.kill(hold)
    with RayNodes(Settings(("train.py",), num_workers=4)) as nodes:
        cluster.add_node(num_cpus=2)  # so that there is a place for the worker of the node that is lost
        others = list(cluster.worker_nodes)
        cluster.remove_node(others[0])
        deadline = time.monotonic() + SECONDS
        while sum(node["Alive"] for node in ray.nodes()) != 4:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        nodes.renew()
        found["a node lost, a new one"] = places(nodes), nodes.note
        cluster.remove_node(others[1])
        while sum(node["Alive"] for node in ray.nodes()) != 3:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        nodes.renew()
        found["a node lost"] = places(nodes), nodes.note
    return found


def servers(ray):
    """Where servers and workers are placed: the nodes of each, and what is said."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("replicant.coordinator").addHandler(handler)
    found = {}
    for num_servers, num_workers, options in ((1, 2, {}), (2, 3, {}), (4, 1, {}), (2, 1, {"num_cpus": 1})):
        spec = ClusterSpec({"ps": ["a:0"] * num_servers, "worker": ["b:0"] * num_workers})
        transport = RayTransport(server_options=options)
        strategy = replicant.ParameterServerStrategy(SimpleClusterResolver(spec), transport=transport)
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            variable = replicant.Variable(0.0)
        for _ in range(10):
            coordinator.schedule(lambda v=variable: v.assign_add(1.0))
        coordinator.join()
        from ray._private import state

        live = [actor for actor in state.actors().values() if actor["State"] == "ALIVE"]
        nodes = {
            kind: [a["Address"]["NodeID"] for a in live if a["ActorClassName"] == kind] for kind in ("ServerActor", "WorkerActor")
        }
        every = nodes["ServerActor"] + nodes["WorkerActor"]
        assert float(variable.numpy()) == 10.0
        found[f"{num_servers} and {num_workers}"] = [
            *((len(each), len(set(each))) for each in (nodes["ServerActor"], nodes["WorkerActor"], every)),
            said[:],
        ]
        print(time.monotonic(), found, file=sys.stderr, flush=True)
        said.clear()
        strategy.close()
        deadline = time.monotonic() + SECONDS
        while any(actor["State"] == "ALIVE" for actor in state.actors().values()):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    return found


def main():
    faulthandler.dump_traceback_later(4 * SECONDS, exit=True)
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": os.urandom(32).hex(), "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    os.environ |= {"RAY_worker_niceness": "0"}  # as this process: a busy machine would not let them start in time
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        for _ in range(3):
            cluster.add_node(num_cpus=2)
        os.environ["RAY_ADDRESS"] = cluster.address
        ray.init(log_to_driver=False, logging_level="error")
        cluster.wait_for_nodes()
        answers = {"servers": servers(ray), "groups": groups(cluster, ray)}
    finally:
        ray.shutdown()
        cluster.shutdown()
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
