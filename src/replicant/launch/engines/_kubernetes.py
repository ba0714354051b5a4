"""Jobs in YAML for Kubernetes and for two operators on it: JobSet, and Kubeflow Trainer with its runtime ``jax-distributed``."""

from typing import Any

from ._job import Job
from ._yaml import Noted, yaml_text

_PORT = 55527  # of the coordinator in a pod, the same as in JAX's own detection
_LIMIT = (
    r"((?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?)="
    r"([0-9]+(?:\.[0-9]+)?(?:m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?)"
)
_TAKEN_AWAY = [{"type": "DisruptionTarget", "status": "True"}]  # a pod, because its node is


def kubernetes_file(job: Job) -> str:
    """An indexed Job, and the headless service that gives its pods names."""
    settings, name = job.settings, job.job_name
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": Noted(True, "pods look for pod 0 before it is ready"),
            "selector": {"batch.kubernetes.io/job-name": name},
            "ports": [{"port": _PORT}],
        },
    }
    taken = {"action": Noted("Ignore", "the node is taken away"), "onPodConditions": _TAKEN_AWAY}
    left = {
        "action": Noted("Ignore", "the pod was asked to leave, and has saved everything"),
        "onExitCodes": {"operator": "In", "values": [settings.preempted_code]},
    }
    backoff = Noted(settings.max_restarts * settings.num_workers, "every failed pod counts, and one failure ends the others")
    spec = {"backoffLimit": backoff, "podFailurePolicy": {"rules": [taken, left]}}
    indexed = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": _indexed(job, spec, {"subdomain": name}, f"{name}-0.{name}"),
    }
    return f"{yaml_text(service)}\n---\n{yaml_text(indexed)}\n"


def jobset_file(job: Job) -> str:
    """A JobSet with one job, which is restarted as a whole. Its service gives its pods names."""
    settings, name = job.settings, job.job_name
    left = {"operator": "In", "values": [settings.preempted_code]}
    rules = [{"action": "FailJob", "onPodConditions": _TAKEN_AWAY}, {"action": "FailJob", "onExitCodes": left}]
    spec = {"backoffLimit": 0, "podFailurePolicy": {"rules": rules}}
    rule = {
        "name": "askedToLeave",
        "action": Noted("RestartJobSetAndIgnoreMaxRestarts", "a pod was asked to leave, or its node is taken away"),
        "onJobFailureReasons": ["PodFailurePolicy"],
    }
    document = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": settings.max_restarts, "rules": [rule]},
            "replicatedJobs": [
                {
                    "name": "worker",
                    "replicas": 1,
                    "template": {"spec": _indexed(job, spec, {}, f"{name}-worker-0-0.{name}")},
                }
            ],
        },
    }
    return yaml_text(document) + "\n"


def trainer_file(job: Job) -> str:
    """A TrainJob of Kubeflow Trainer 2. Its runtime numbers the pods, and tells them the coordinator."""
    limits = _limits(job)
    trainer = {"numNodes": job.settings.num_workers, "image": job.image, "command": _command(job), "env": _env(job.variables)}
    document = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": job.job_name},
        "spec": {
            "runtimeRef": {"name": "jax-distributed"},
            "trainer": trainer | ({"resourcesPerNode": {"limits": limits}} if limits else {}),
        },
    }
    return yaml_text(document) + "\n"


def _indexed(job: Job, failures: dict[str, Any], pods: dict[str, Any], first: str) -> dict[str, Any]:
    """The specification of an indexed Job whose pod 0 has the host name `first`."""
    settings, limits = job.settings, _limits(job)
    variables = {"JAX_NUM_PROCESSES": str(settings.num_workers), "JAX_COORDINATOR_ADDRESS": f"{first}:{_PORT}"}
    container = {
        "name": "worker",
        "image": job.image,
        "command": _command(job),
        "env": _env(variables | job.variables),
    }
    return {
        "completionMode": "Indexed",
        "completions": settings.num_workers,
        "parallelism": settings.num_workers,
        **failures,
        "template": {
            "spec": {
                **pods,
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": round(settings.grace),
                "containers": [container | ({"resources": {"limits": limits}} if limits else {})],
            }
        },
    }


def _limits(job: Job) -> dict[str, str]:
    """The limits of a container's resources."""
    return job.fields(_LIMIT, "limits of a pod's resources, as in 'nvidia.com/gpu=8 memory=64Gi'")


def _command(job: Job) -> list[str]:
    return [unexpanded(word) for word in job.argv]


def _env(variables: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": unexpanded(value)} for name, value in variables.items()]


def unexpanded(text: str) -> str:
    """A text in which Kubernetes expands no ``$(NAME)``: it reads ``$$`` as one dollar sign.

    >>> unexpanded("$(HOME) costs $5")
    '$$(HOME) costs $$5'
    """
    return text.replace("$", "$$")
