"""ClusterResolver, the base class of everything that finds a cluster, and the resolver that is given one."""

import abc
import dataclasses
from collections.abc import Mapping

from ...errors import ArgumentTypeError
from .._spec import ClusterSpec
from ._membership import Membership, find_membership


class ClusterResolver(abc.ABC):
    """Finds out which processes there are and which one this is. Semantics: ``tf.distribute.cluster_resolver.ClusterResolver``.

    Subclasses define `cluster_spec`, and set `task_type` and `task_id`. Nothing here starts JAX or uses the network.
    """

    _task_type: str | None = None
    _task_id: int | None = None
    _rpc_layer: str | None = None
    _coordinator_address: str | None = None  # if it is not the address of process 0's task
    _bind_address: str | None = None
    _rendezvous: str | None = None  # where process 0 tells its address, if it is not known
    _local: tuple[int, int] | None = None  # rank on this host, and number of processes there
    _because: tuple[str, ...] = ()
    _job_id: str | None = None  # the launcher's name for the job

    @abc.abstractmethod
    def cluster_spec(self) -> ClusterSpec:
        """The cluster."""

    @property
    def task_type(self) -> str | None:
        """The job of this process, such as ``"worker"``, or None if there is no cluster."""
        return self._task_type

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        self._task_type = task_type

    @property
    def task_id(self) -> int | None:
        """The index of this process in its job, or None if there is no cluster."""
        return self._task_id

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        self._task_id = task_id

    @property
    def rpc_layer(self) -> str | None:
        """The prefix of `master`, such as ``"grpc"``. Nothing else depends on it."""
        return self._rpc_layer

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._rpc_layer = rpc_layer

    @property
    def environment(self) -> str | None:
        """TensorFlow's name for the place where the program runs, or an empty string unless given."""
        return ""

    @property
    def because(self) -> tuple[str, ...]:
        """The facts that the answers are based on, as ``NAME=value``."""
        return self._because

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """The address of a task, or an empty string if there is no cluster.

        Args:
            task_type: The job of the task. By default that of this process.
            task_id: The index of the task in its job. By default that of this process.
            rpc_layer: The prefix of the address. By default `rpc_layer`.

        Raises:
            ClusterError: If there is no such task, or if its address is not known.
        """
        task_type = self.task_type if task_type is None else task_type
        task_id = self.task_id if task_id is None else task_id
        spec = self.cluster_spec()
        if not spec or task_type is None or task_id is None:
            return ""
        return with_layer(spec.task_address(task_type, task_id), rpc_layer or self.rpc_layer)

    def num_accelerators(self, task_type: str | None = None, task_id: int | None = None) -> dict[str, int]:
        """The number of accelerators of each worker by type, if they were declared. Otherwise it is empty.

        This does not ask JAX, because that would start it before the workers have met. `replicant.list_devices` asks it.
        """
        return {}

    def membership(self) -> Membership:
        """The place of this process among those that train together.

        Raises:
            ClusterError: If the cluster's description breaks a rule.
        """
        found = find_membership(
            self.cluster_spec(),
            self.task_type,
            self.task_id,
            local=self._local,
            coordinator_address=self._coordinator_address,
            bind_address=self._bind_address,
            rendezvous=self._rendezvous,
        )
        return dataclasses.replace(found, job_id=self._job_id)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.cluster_spec()}, task_type={self.task_type!r}, task_id={self.task_id!r})"


class SimpleClusterResolver(ClusterResolver):
    """A resolver that is given everything. Semantics: ``tf.distribute.cluster_resolver.SimpleClusterResolver``.

    Args:
        cluster_spec: The cluster.
        master: What `master` returns if no task is named.
        task_type: The job of this process.
        task_id: The index of this process in that job.
        environment: What `environment` returns.
        num_accelerators: What `num_accelerators` returns, such as ``{"GPU": 8}``.
        rpc_layer: The prefix of `master`.
        bind_address: The ``host:port`` where process 0 listens, if it is not the coordinator's own address.

    Raises:
        ArgumentTypeError: If ``cluster_spec`` is not a ClusterSpec, or if ``master`` is not a string.

    >>> cluster = ClusterSpec({"worker": ["node1:2222", "node2:2222"]})
    >>> SimpleClusterResolver(cluster, task_type="worker", task_id=1).membership()
    Membership(process 1 of 2, coordinator node1:2222)
    """

    def __init__(  # noqa: PLR0917 - TensorFlow's order
        self,
        cluster_spec: ClusterSpec,
        master: str = "",
        task_type: str | None = None,
        task_id: int | None = None,
        environment: str = "",
        num_accelerators: Mapping[str, int] | None = None,
        rpc_layer: str | None = None,
        *,
        bind_address: str | None = None,
    ) -> None:
        if not isinstance(cluster_spec, ClusterSpec):
            raise ArgumentTypeError(f"SimpleClusterResolver: cluster_spec must be a ClusterSpec. Received: {cluster_spec!r}.")
        if not isinstance(master, str):
            raise ArgumentTypeError(f"SimpleClusterResolver: master must be a string. Received: {master!r}.")
        self._spec = cluster_spec
        self._master = master
        self._task_type = task_type
        self._task_id = task_id
        self._environment = environment
        self._num_accelerators = dict(num_accelerators or {})
        self._rpc_layer = rpc_layer
        self._bind_address = bind_address

    def cluster_spec(self) -> ClusterSpec:
        """The cluster, as given."""
        return self._spec

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """The address of the named task, or ``master`` as given if no task is named."""
        if task_type is not None and task_id is not None:
            return super().master(task_type, task_id, rpc_layer)
        return with_layer(self._master, rpc_layer or self.rpc_layer)

    @property
    def environment(self) -> str:
        """The environment, as given."""
        return self._environment

    def num_accelerators(self, task_type: str | None = None, task_id: int | None = None) -> dict[str, int]:
        """The number of accelerators by type, as given."""
        return self._num_accelerators


class FoundClusterResolver(ClusterResolver):
    """A cluster of equal workers that something in the environment describes."""

    def __init__(
        self,
        addresses: "list[str | None]",
        process_id: int,
        *,
        local: tuple[int, int] | None = None,
        bind_address: str | None = None,
        because: tuple[str, ...] = (),
        job_id: str | None = None,
        rendezvous: str | None = None,
    ) -> None:
        self._spec = ClusterSpec({"worker": addresses})
        self._task_type = "worker"
        self._task_id = process_id
        self._local = local
        self._bind_address = bind_address
        self._because = because
        self._job_id = job_id
        self._rendezvous = rendezvous

    def cluster_spec(self) -> ClusterSpec:
        """The cluster. An address that this process does not know is None."""
        return self._spec


def with_layer(address: str, rpc_layer: str | None) -> str:
    """Put the prefix before an address, as in ``layer://address``."""
    return f"{rpc_layer}://{address}" if rpc_layer else address
