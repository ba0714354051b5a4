"""TF_CONFIG: the JSON that tells TensorFlow programs about their cluster."""

import os
from typing import Any

from ...errors import ClusterError
from .._spec import MOST_TASKS, ClusterSpec, Problem, as_index, structure_problem
from ._environ import Environ, told_bind_address
from ._json_places import Path, load_with_places
from ._membership import find_problem
from ._resolver import ClusterResolver

VARIABLE = "TF_CONFIG"


class TFConfigClusterResolver(ClusterResolver):
    """Finds the cluster in ``TF_CONFIG``. Semantics: ``tf.distribute.cluster_resolver.TFConfigClusterResolver``.

    Unlike TensorFlow's, this resolver reads the variable only once, when you make it. It then reports any mistake with its line and
    column.

    Args:
        task_type: The job of this process, instead of TF_CONFIG's ``task.type``.
        task_id: The index of this process, instead of TF_CONFIG's ``task.index``.
        rpc_layer: The prefix of `master`, instead of TF_CONFIG's ``rpc_layer``.
        environment: What `environment` returns.
        environ: The environment to read. By default the process's own.

    Raises:
        ClusterError: If TF_CONFIG is not JSON, or if the description breaks a rule.

    >>> environ = {"TF_CONFIG": '{"cluster": {"worker": ["node1:2222", "node2:2222"]}, "task": {"type": "worker", "index": "1"}}'}
    >>> resolver = TFConfigClusterResolver(environ=environ)
    >>> resolver.task_type, resolver.task_id, resolver.membership()
    ('worker', 1, Membership(process 1 of 2, coordinator node1:2222))
    """

    def __init__(
        self,
        task_type: str | None = None,
        task_id: int | str | None = None,
        rpc_layer: str | None = None,
        environment: str | None = None,
        *,
        environ: Environ | None = None,
    ) -> None:
        environ = os.environ if environ is None else environ
        text = environ.get(VARIABLE, "")
        config, self._places = load_with_places(text if text.strip() else "{}", VARIABLE)
        self._overridden: set[Path] = {
            ("task", name) for name, given in (("type", task_type), ("index", task_id)) if given is not None
        }
        self._check(_shape_problem(config, self._overridden))
        task = config.get("task") or {}
        task_type = task.get("type") if task_type is None else task_type
        task_id = task.get("index") if task_id is None else task_id
        self._check(_task_shape_problem(task_type, task_id))
        self._spec = ClusterSpec(config.get("cluster") or {})
        self._task_type = None if task_type is None else str(task_type)
        self._task_id = None if task_id is None else as_index(task_id)
        self._rpc_layer = config.get("rpc_layer") if rpc_layer is None else rpc_layer
        self._session_master = config.get("session_master")
        self._environment = environment
        self._bind_address = told_bind_address(environ)
        if self._spec:
            self._check(find_problem(self._spec, self._task_type, self._task_id))
            tasks = ", ".join(f"{self._spec.num_tasks(job)} {job}" for job in self._spec.jobs)
            self._because = (f"{VARIABLE}: task {self._task_id} of job {self._task_type!r}; {tasks}",)

    def cluster_spec(self) -> ClusterSpec:
        """The cluster, which is empty if TF_CONFIG names none."""
        return self._spec

    @property
    def environment(self) -> str | None:
        """The environment, as given."""
        return self._environment

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """TF_CONFIG's ``session_master``, or else the task's address. It is empty if there is at most one task."""
        if self._session_master is not None:
            return str(self._session_master)
        jobs = self._spec.jobs
        if not jobs or (len(jobs) == 1 and self._spec.num_tasks(jobs[0]) == 1):
            return ""
        return super().master(task_type, task_id, rpc_layer)

    def _check(self, problem: Problem | None) -> None:
        if problem is None:
            return
        if problem.path in self._overridden:
            argument = "task_type" if problem.path[-1] == "type" else "task_id"
            raise ClusterError(f"TFConfigClusterResolver, argument {argument}: {problem.text}")
        raise ClusterError(f"{VARIABLE}, {self._place(problem.path)}: {problem.text}")

    def _place(self, path: Path) -> str:
        """The line and column of a path. In an object whose keys are digits, the indices are these keys."""
        for at in (path, (*path[:-1], str(path[-1])) if path else path, path[:-1]):
            if at in self._places:
                dotted = ".".join(map(str, path))
                return self._places[at] + (f" ({dotted})" if dotted else "")
        return self._places[()]


def _shape_problem(config: Any, overridden: set[Path]) -> Problem | None:
    """The first value in the JSON that has the wrong type, or None."""
    if not isinstance(config, dict):
        return Problem((), f'it must be an object, {{"cluster": {{...}}, "task": {{...}}}}. Received: {config!r}.')
    cluster = config.get("cluster")
    if cluster is not None and (problem := structure_problem(cluster)) is not None:
        return Problem(("cluster", *problem.path), problem.text)
    for job, tasks in (cluster or {}).items():
        for key, address in tasks.items() if isinstance(tasks, dict) else enumerate(tasks):
            if address is None:
                return Problem(("cluster", job, key), f"the address of task {key} of job {job!r} is null. Write 'host:port'.")
    task = config.get("task")
    if task is not None and not isinstance(task, dict):
        return Problem(("task",), f'"task" must be an object, {{"type": "worker", "index": 0}}. Received: {task!r}.')
    if cluster and task is not None:
        for name in ("type", "index"):
            if name not in task and ("task", name) not in overridden:
                return Problem(("task",), f'"task" has no {name!r}. Write {{"type": "worker", "index": 0}}.')
    return None


def _task_shape_problem(task_type: Any, task_id: Any) -> Problem | None:
    if task_type is not None and not isinstance(task_type, str):
        return Problem(("task", "type"), f"a task's type is a string, such as 'worker'. Received: {task_type!r}.")
    if task_id is not None and as_index(task_id) is None:
        return Problem(("task", "index"), f"a task's index is a whole number from 0 to {MOST_TASKS - 1}. Received: {task_id!r}.")
    return None


def find(environ: Environ) -> TFConfigClusterResolver | None:
    """The resolver, if TF_CONFIG describes a cluster, or None.

    Raises:
        ClusterError: If TF_CONFIG breaks a rule, or does not say which task this process is.
    """
    if not environ.get(VARIABLE, "").strip():
        return None
    resolver = TFConfigClusterResolver(environ=environ)
    if not resolver.cluster_spec():
        return None
    if resolver.task_type is None:
        raise ClusterError(
            f'{VARIABLE} describes a cluster, but has no "task": add "task": {{"type": "worker", "index": 0}}, '
            "with the index of each process."
        )
    return resolver
