"""TensorFlow's ParameterServerStrategy on loopback, with servers and workers as processes, as in its guide."""

import argparse
import importlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

from _ps_cases import RATE, ROWS, SERVERS, WIDTH, batch, parse
from _serve import Round, serve

tf: Any = importlib.import_module("tensorflow")


def _ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for sock in sockets:
        sock.bind(("127.0.0.1", 0))
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return [f"127.0.0.1:{port}" for port in ports]


def make(args: argparse.Namespace) -> Callable[[], Round]:
    """Make the contender."""
    cluster = {"ps": _ports(SERVERS), "worker": _ports(args.workers)}
    for job, tasks in cluster.items():
        for index in range(len(tasks)):
            subprocess.Popen([sys.executable, __file__, "serve", json.dumps([cluster, job, index])])
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(cluster), rpc_layer="grpc")
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(1 << 20, SERVERS)
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    first, hidden, last = args.case.sizes
    with strategy.scope():
        shapes = [(first, hidden), (hidden,), (hidden, last), (last,)]
        weights = [tf.Variable(tf.random.normal(shape, stddev=0.05)) for shape in shapes]
        tables = [tf.Variable(tf.random.uniform((ROWS, WIDTH), -0.05, 0.05)) for _ in range(2)] if args.case.embeddings else []
    x, y = map(tf.constant, batch(args.case))
    nap = args.slow

    def parts(variable):
        return list(getattr(variable, "variables", [variable]))

    @tf.function
    def step(iterator):
        x, y, sleep = next(iterator)
        if nap:
            tf.py_function(lambda s: time.sleep(float(s)), [sleep], [])
        variables = [part for v in [*weights, *tables] for part in parts(v)]
        with tf.GradientTape() as tape:
            h = x
            if tables:
                h = tf.concat([tf.nn.embedding_lookup(parts(t), x[:, i]) for i, t in enumerate(tables)], 1)
            w0, b0, w1, b1 = [tf.convert_to_tensor(w) for w in weights]
            h = tf.nn.relu(h @ w0 + b0) @ w1 + b1
            loss = tf.reduce_mean(((h if tables else tf.nn.relu(h)) - y) ** 2)
        for variable, gradient in zip(variables, tape.gradient(loss, variables)):  # noqa: B905 - equally many of both
            if isinstance(gradient, tf.IndexedSlices):
                variable.scatter_sub(tf.IndexedSlices(RATE * gradient.values, gradient.indices, gradient.dense_shape))
            else:
                variable.assign_sub(RATE * gradient)

    dataset = coordinator.create_per_worker_dataset(lambda: tf.data.Dataset.from_tensors((x, y, tf.constant(nap))).repeat())
    iterator = iter(dataset)

    def train_round() -> Round:
        for _ in range(args.steps):
            coordinator.schedule(step, args=(iterator,))
        coordinator.join()
        return Round(0.0)

    return train_round


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        spec, name, task = json.loads(sys.argv[2])
        tf.distribute.Server(tf.train.ClusterSpec(spec), job_name=name, task_index=task, protocol="grpc").join()
    else:
        serve(parse(), make)
