"""``replicant launch`` on several hosts: through ssh, or started on each of them."""

import argparse
import os
from dataclasses import replace

from ..errors import ArgumentError
from ..launch import Settings, Supervisor
from ..launch.engines._hosts import parse_hosts

RANKS = ("nodes", "node_rank", "address")
_PORT = 29500  # that of torchrun
_CLOCK_SKEW = 60.0  # seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that are about several hosts."""
    add = parser.add_argument
    hosts = "the hosts, and how many workers each of them runs (default: 1); they are reached by ssh, or are for slurm and mpi"
    add("--hosts", metavar="H,H:N", help=hosts)
    add("--hosts-file", type=os.path.abspath, metavar="FILE", help="file with one of these hosts in each line")
    add("--python", metavar="PATH", help="with --hosts: the interpreter on the hosts (default: the path of this one)")
    add("--nodes", type=int, metavar="N", help="number of hosts, on each of which you start this command yourself")
    add("--node-rank", type=int, metavar="I", help="with --nodes: the number of this host, from 0")
    address = "with --nodes: the address of node 0 (default port: 29500); with --hosts: that of this machine (default: found)"
    add("--address", metavar="H[:P]", help=address)
    skew = f"seconds by which the clocks of several hosts may differ (default: {_CLOCK_SKEW:g})"
    add("--max-clock-skew", type=float, metavar="S", help=skew)


def is_on_hosts(arguments: argparse.Namespace, hosts: tuple[str, ...]) -> bool:
    """Whether the job runs on several hosts."""
    return bool(hosts) or any(getattr(arguments, name) is not None for name in RANKS)


def run_on_hosts(settings: Settings, arguments: argparse.Namespace, hosts: tuple[str, ...]) -> int:
    """Run this host's part of a job on several hosts.

    Returns:
        The exit code of the job.

    Raises:
        ArgumentError: If options break a rule.
        ConfigurationError: If the job cannot start on all of its hosts.
        WorkerLostError: If this is one of the other hosts, and the job was lost.
    """
    skew = _CLOCK_SKEW if arguments.max_clock_skew is None else arguments.max_clock_skew
    if not skew > 0:
        raise ArgumentError(f"--max-clock-skew must be a positive number of seconds. Got {skew:g}.")
    if hosts:
        return _run_by_ssh(settings, arguments, hosts, skew)
    return _run_node(settings, arguments, skew)


def _run_by_ssh(settings: Settings, arguments: argparse.Namespace, hosts: tuple[str, ...], skew: float) -> int:
    from ..launch.hosts import SshHosts

    if arguments.nodes is not None or arguments.node_rank is not None:
        raise ArgumentError("--hosts starts the job on all hosts by ssh, and --nodes on this one only: give one of the two.")
    slots = parse_hosts(hosts)
    total = sum(slots.values())
    if arguments.workers not in (None, total):
        raise ArgumentError(
            f"--hosts {','.join(hosts)} has {total} worker(s), but --workers is {arguments.workers}. Leave --workers out, and "
            "write HOST:N for N workers on a host."
        )
    address = arguments.address
    if address is not None and ":" in address:
        raise ArgumentError(f"--address {address!r}: with --hosts it is a host without a port. The launcher takes a free port.")
    settings = replace(settings, num_workers=total)
    with SshHosts(settings, slots, python=arguments.python, address=address, max_clock_skew=skew) as found:
        code = Supervisor(settings, nodes=found).run()
        found.finish(code)
        return code


def _run_node(settings: Settings, arguments: argparse.Namespace, skew: float) -> int:
    from ..launch.hosts import Joining, NodeRanks, key_of_nodes

    missing = [f"--{name.replace('_', '-')}" for name in RANKS if getattr(arguments, name) is None]
    if missing:
        raise ArgumentError(
            f"{' and '.join(missing)} is missing: a job that is started on each host needs --nodes, --node-rank and --address, as "
            "in --nodes 2 --node-rank 0 --address 10.0.0.1:29500."
        )
    if arguments.python is not None:
        raise ArgumentError("--python is only for --hosts. A node runs its workers with the interpreter of this command.")
    nodes, rank = arguments.nodes, arguments.node_rank
    if nodes < 1:
        raise ArgumentError(f"--nodes must be at least 1. Got {nodes}.")
    if not 0 <= rank < nodes:
        raise ArgumentError(f"--node-rank must be from 0 to {nodes - 1}, because --nodes is {nodes}. Got {rank}.")
    place = _place(arguments.address)
    key = key_of_nodes(os.environ)
    if rank:
        return Joining(settings, rank, nodes, place, key).run()
    with NodeRanks(settings, nodes, place, key, max_clock_skew=skew) as found:
        code = Supervisor(found.settings, nodes=found).run()
        found.finish(code)
        return code


def _place(address: str) -> tuple[str, int]:
    from ..launch.hosts import split_address

    return split_address(address if ":" in address else f"{address}:{_PORT}", "--address")
