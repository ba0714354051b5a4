"""The environment variables of servers and workers."""

import os

CHILD = "REPLICANT_PARAMETER_SERVER_CHILD"  # the role of a child process: "server" or "worker"
_DEVICE_COUNT = "--xla_force_host_platform_device_count"


def child_role() -> str | None:
    """This process's role for a ParameterServerStrategy in another process: "server", "worker" or None."""
    return os.environ.get(CHILD)


def settings_of(role: str, num_threads: int) -> dict[str, str]:
    """The environment variables of a server or worker, wherever it runs, with `num_threads` in XLA's pool."""
    settings = {CHILD: role, "KERAS_BACKEND": "jax", "NPROC": str(num_threads)}
    if role == "server":
        settings["JAX_PLATFORMS"] = "cpu"  # a server keeps its variables in host memory
    return settings


def without_virtual_devices(flags: str) -> str:
    """XLA_FLAGS without the number of virtual devices: servers and workers have one."""
    return " ".join(flag for flag in flags.split() if not flag.startswith(_DEVICE_COUNT))
