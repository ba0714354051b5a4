"""``replicant launch --engine ray``: the workers of a job on the nodes of a Ray cluster.

The supervisor is the same, and runs in the process that launches the job: it receives heartbeats, decides, and starts workers
again. Only the workers' processes are elsewhere. Each is a child of an actor that Ray places (``_ray_actor``), which hands its
output and exit code back.
"""

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from ...cluster.resolvers._ray import join_ray, leave_ray
from ...errors import ArgumentError, ConfigurationError
from .._environment import Place, carried, worker_environment
from .._settings import Settings
from ..team._processes import Worker
from ..team._team import Team, Tools

_END_SECONDS = 10.0
_RENEW_SECONDS = 5.0  # for Ray to give a worker of a lost node another place
_SPREAD_SECONDS = 15.0  # to wait for a node for each worker before some share one
_LOST = -signal.SIGKILL  # the exit code of a worker whose node or actor is gone


class RayNodes:
    """A place on a Ray cluster for each worker: on a node of its own if there are enough. It is a context manager.

    If there are not, `note` says why.

    Args:
        settings: The settings of the job.

    Raises:
        ArgumentError: If the job is elastic. On Ray, all workers are started again together.
        ConfigurationError: If Ray is not installed, does not start, or has no room.
    """

    def __init__(self, settings: Settings):
        if settings.elastic is not None:
            raise ArgumentError(
                "--elastic works only with --engine local. With --engine ray, all workers are started again from the last backup: "
                "leave --elastic out, and give --max-restarts."
            )
        self._settings = settings
        self.ray = join_ray(num_cpus=settings.num_workers)
        self._group: Any = None
        self.note = ""  # why some workers share a node; "" if none do
        self.key = secrets.token_hex(32)
        self.address = str(self.ray.util.get_node_ip_address())

    def __enter__(self) -> Self:
        """Reserve the places."""
        try:
            self._reserve()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the places back."""
        if self._group is not None:
            self.ray.util.remove_placement_group(self._group)
            self._group = None
        leave_ray()

    def make_team(self, tools: Tools, generation: int, stack: contextlib.ExitStack, restarts_left: int) -> Team:
        """The workers of one generation."""
        del restarts_left
        return RayTeam(tools, generation, stack)

    def listen(self, tools: Tools) -> None:
        """Do nothing: Ray's actors need no answer."""

    def start(self, rank: int, command: Sequence[str], environ: Mapping[str, str]) -> Any:
        """The actor of a worker. It starts as soon as Ray lets it."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        from ._ray_actor import WorkerHost

        where = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=rank)
        place: Any = WorkerHost
        return place.options(scheduling_strategy=where, **self.share()).remote(list(command), dict(environ), str(Path.cwd()))

    def renew(self) -> None:
        """Reserve other places if those of a lost node cannot be had elsewhere. To be called when no worker runs.

        Raises:
            ConfigurationError: If there is no room.
        """
        if not self._group.wait(_RENEW_SECONDS):
            self.ray.util.remove_placement_group(self._group)
            self._reserve()

    def share(self) -> dict[str, float]:
        """The resources that each worker gets, including its GPUs if the cluster has any."""
        devices = self._settings.devices_per_worker
        if self.ray.cluster_resources().get("GPU", 0) and os.environ.get("JAX_PLATFORMS") != "cpu":
            return {"num_cpus": 1, "num_gpus": devices or 1}
        return {"num_cpus": 1}

    def _reserve(self) -> None:
        share, count = self.share(), self._settings.num_workers
        bundle = {"CPU": share["num_cpus"]} | ({"GPU": share["num_gpus"]} if "num_gpus" in share else {})
        able = [
            node for node in self.ray.nodes() if node["Alive"] and all(node["Resources"].get(n, 0) >= x for n, x in bundle.items())
        ]
        if len(able) >= count:
            self._group = self.ray.util.placement_group([bundle] * count, strategy="STRICT_SPREAD")
            if self._group.wait(min(_SPREAD_SECONDS, self._settings.start)):
                return
            self.ray.util.remove_placement_group(self._group)
            self.note = f"{len(able)} nodes of the Ray cluster have room for one each, but others use them"
        elif len(self.ray.nodes()) > 1 or os.environ.get("RAY_ADDRESS"):
            self.note = f"only {len(able)} node(s) of the Ray cluster have room for one"
        self._group = self.ray.util.placement_group([bundle] * count, strategy="SPREAD")
        if not self._group.wait(self._settings.start):
            there = ", ".join(
                f"{amount:g} {name}" for name, amount in sorted(self.ray.cluster_resources().items()) if name in bundle
            )
            raise ConfigurationError(
                f"Ray found no place for {count} worker(s) with {' and '.join(f'{n:g} {name}' for name, n in bundle.items())} each "
                f"within {self._settings.start:g} s (--start). The cluster has {there or 'none of these'}, and others may use it."
            )


class RayTeam(Team):
    """The workers of one generation, on the nodes of a Ray cluster."""

    def _start(self) -> None:
        nodes = self._tools.nodes
        if self.generation:
            nodes.renew()
        if nodes.note:
            self._console.say(f"some workers share a node: {nodes.note}. Losing one node may end several of them.")
            nodes.note = ""
        super()._start()

    def _launch(self, place: Place, **more: str) -> "RayWorker":
        tools, settings, nodes = self._tools, self._settings, self._tools.nodes
        assert isinstance(nodes, RayNodes)
        environ = worker_environment(
            tools.environ, place, None if "num_gpus" in nodes.share() else settings.devices_per_worker, (), settings.start
        )
        log = tools.logs.begin(place.rank, place.generation, place.num_workers)
        actor = nodes.start(place.rank, settings.argv[1:], {**carried(environ), "REPLICANT_LOG": str(log), **more})
        return RayWorker(place.rank, actor, log, nodes.ray)

    def _is_expected(self, rank: int, generation: int, pid: int) -> bool:
        """Whether a worker belongs to the job. It knows the job's key, and its process number may not be known yet."""
        return generation == self.generation and any(w.rank == rank and w.pid in (pid, 0) for w in self.workers)


class RayWorker(Worker):
    """A worker on any node, as `Worker` is one on this machine. Its `pid` is 0 as long as it is not known."""

    def __init__(self, rank: int, actor: Any, log: Path, ray: Any):
        self.rank, self.log, self.code, self.signals, self.pid = rank, log, None, set(), 0
        self._actor, self._ray = actor, ray
        self._hello: Any = actor.hello.remote()
        self._look = actor.look.remote()

    def poll(self) -> bool:
        """Whether it has ended. What it has written is added to its log."""
        while self.code is None and self._ray.wait([self._look], timeout=0)[0]:
            try:
                if not self.pid:
                    self.pid = self._ray.get(self._hello, timeout=_END_SECONDS)[0]
                text, self.code = self._ray.get(self._look)
            except self._ray.exceptions.RayError as error:
                lines = str(error).strip().splitlines() or [""]
                why = f"{type(error).__name__}: " + " ... ".join(dict.fromkeys([lines[0], lines[-1]]))
                text, self.code = f"replicant launch: Ray has lost this worker: {why}\n".encode(), _LOST
            if text:
                with self.log.open("ab") as file:
                    file.write(text)
            if self.code is None:
                self._look = self._actor.look.remote()
        return self.code is not None

    def is_stopped(self) -> bool:
        """Return False, because this is not known about a process on another machine."""
        return False

    def signal(self, number: int) -> None:
        """Send it a signal."""
        if not self.poll():
            self.signals.add(number)
            self._actor.signal.remote(number)

    def kill(self) -> None:
        """Kill it and its actor."""
        self.signal(signal.SIGKILL)
        deadline = time.monotonic() + _END_SECONDS
        while not self.poll() and time.monotonic() < deadline:
            time.sleep(0.01)
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._actor, no_restart=True)  # the kernel then kills the process
        self.code = _LOST if self.code is None else self.code
