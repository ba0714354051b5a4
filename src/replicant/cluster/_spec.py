"""ClusterSpec: the jobs of a cluster, and the addresses of their tasks."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..errors import ArgumentTypeError, ClusterError

MOST_TASKS = 65536  # so that a mistyped number does not fill the memory
_LONGEST_INDEX = 100  # characters


class Problem(NamedTuple):
    """What is wrong in a cluster's description, and where. The caller adds the source of the description."""

    path: tuple[str | int, ...]
    text: str
    is_type: bool = False


class ClusterSpec:
    """The processes of a cluster: tasks, grouped in jobs. Semantics: ``tf.train.ClusterSpec``.

    Args:
        cluster: A dictionary from job names (``"worker"``, ``"chief"``, ``"ps"``, ``"evaluator"``) to a list of ``"host:port"``
            addresses, or to a dictionary from task index to address if only some tasks are known. It can also be another
            ClusterSpec. ``None`` in place of an address means that the task exists, but that its address is not known: some
            launchers tell a process only the coordinator's address.

    Raises:
        ArgumentTypeError: If ``cluster`` is not such a dictionary.
        ClusterError: If an index is negative, is not a number, or is there twice.

    >>> cluster = ClusterSpec({"worker": ["node1:2222", "node2:2222"], "ps": {"1": "node3:2222"}})
    >>> cluster.jobs, cluster.num_tasks("worker"), cluster.task_address("ps", 1)
    (['worker', 'ps'], 2, 'node3:2222')
    >>> cluster
    ClusterSpec({'ps': {1: 'node3:2222'}, 'worker': ['node1:2222', 'node2:2222']})
    """

    def __init__(self, cluster: "Mapping[str, Any] | ClusterSpec") -> None:
        if isinstance(cluster, ClusterSpec):
            self._jobs: dict[str, dict[int, str | None]] = cluster._jobs  # noqa: SLF001 - of the same class
            return
        problem = structure_problem(cluster)
        if problem is not None:
            error = ArgumentTypeError if problem.is_type else ClusterError
            raise error(f"ClusterSpec: {problem.text}")
        self._jobs = {job: _by_index(tasks) for job, tasks in cluster.items()}

    @property
    def jobs(self) -> list[str]:
        """The names of the jobs, in the given order."""
        return list(self._jobs)

    def num_tasks(self, job_name: str) -> int:
        """The number of tasks of a job.

        Raises:
            ClusterError: If there is no such job.
        """
        return len(self._job(job_name))

    def task_indices(self, job_name: str) -> list[int]:
        """The indices of a job's tasks, in ascending order.

        Raises:
            ClusterError: If there is no such job.
        """
        return sorted(self._job(job_name))

    def task_address(self, job_name: str, task_index: int) -> str:
        """The address of one task.

        Raises:
            ClusterError: If there is no such job or index, or if the address is not known.
        """
        tasks = self._job(job_name)
        if task_index not in tasks:
            raise ClusterError(
                f"Job {job_name!r} has no task with index {task_index!r}. Its indices are {self.task_indices(job_name)}."
            )
        address = tasks[task_index]
        if address is None:
            raise ClusterError(
                f"The address of task {task_index} of job {job_name!r} is not known: the launcher tells a process only the "
                "coordinator's address."
            )
        return address

    def job_tasks(self, job_name: str) -> list[str | None]:
        """The addresses of a job's tasks by index, with None for an index without a task.

        Raises:
            ClusterError: If there is no such job.
        """
        tasks = self._job(job_name)
        return [tasks.get(index) for index in range(max(tasks, default=-1) + 1)]

    def as_dict(self) -> dict[str, Any]:
        """A dictionary from jobs to lists of addresses, or to dictionaries from index to address if indices are missing.

        >>> ClusterSpec({"worker": {0: "a:1"}, "ps": {2: "b:1"}}).as_dict()
        {'worker': ['a:1'], 'ps': {2: 'b:1'}}
        """
        return {
            job: self.job_tasks(job) if tasks and max(tasks) + 1 == len(tasks) else dict(sorted(tasks.items()))
            for job, tasks in self._jobs.items()
        }

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ClusterSpec):
            return self._jobs == other._jobs
        if isinstance(other, Mapping):
            return structure_problem(other) is None and self == ClusterSpec(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(frozenset((job, frozenset(tasks.items())) for job, tasks in self._jobs.items()))

    def __repr__(self) -> str:
        return f"ClusterSpec({dict(sorted(self.as_dict().items()))})"

    def _job(self, job_name: str) -> dict[int, str | None]:
        if job_name not in self._jobs:
            raise ClusterError(f"The cluster has no job {job_name!r}. Its jobs are {self.jobs}.")
        return self._jobs[job_name]


def structure_problem(cluster: Any) -> Problem | None:
    """The first thing that keeps a value from being a cluster's description, or None."""
    if not isinstance(cluster, Mapping):
        return Problem((), f"a cluster is a dictionary from job names to addresses. Received: {cluster!r}.", is_type=True)
    for job, tasks in cluster.items():
        if not isinstance(job, str):
            return Problem((job,), f"a job's name is a string. Received: {job!r}.", is_type=True)
        if isinstance(tasks, Mapping):
            problem = _index_problem(job, tasks)
            if problem is not None:
                return problem
        elif not isinstance(tasks, list | tuple):
            text = (
                f"the tasks of job {job!r} must be a list of addresses, or a dictionary from index to address. Received: {tasks!r}."
            )
            return Problem((job,), text, is_type=True)
        for key, address in tasks.items() if isinstance(tasks, Mapping) else enumerate(tasks):
            if address is not None and not isinstance(address, str):
                text = f"the address of task {key} of job {job!r} must be a string, 'host:port'. Received: {address!r}."
                return Problem((job, key), text, is_type=True)
    return None


def _index_problem(job: str, tasks: Mapping[Any, Any]) -> Problem | None:
    seen: dict[int, Any] = {}
    for key in tasks:
        index = as_index(key)
        if index is None:
            return Problem(
                (job, key),
                f"{key!r} is not the index of a task of job {job!r}: indices are whole numbers from 0 to {MOST_TASKS - 1}.",
            )
        if index in seen:
            return Problem((job, key), f"index {index} of job {job!r} is there twice, as {seen[index]!r} and {key!r}.")
        seen[index] = key
    return None


def as_index(value: Any) -> int | None:
    """A task's index from a number or from digits (TF_CONFIG may contain both), or None for anything else."""
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit() and len(value) < _LONGEST_INDEX:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_TASKS else None


def _by_index(tasks: Any) -> dict[int, str | None]:
    items = tasks.items() if isinstance(tasks, Mapping) else enumerate(tasks)
    return {int(index): address for index, address in items}
