"""The environment variables of servers and workers."""

import os

CHILD = "REPLICANT_PARAMETER_SERVER_CHILD"  # what a process is for a strategy in another one: "server" or "worker"
_DEVICE_COUNT = "--xla_force_host_platform_device_count"


def child_role() -> str | None:
    """What this process is for a parameter-server strategy in another one: "server", "worker" or None."""
    return os.environ.get(CHILD)


def settings_of(role: str, num_threads: int) -> dict[str, str]:
    """What a server's or worker's process is told, wherever it runs. num_threads: of XLA's pool."""
    settings = {CHILD: role, "KERAS_BACKEND": "jax", "NPROC": str(num_threads)}
    if role == "server":
        settings["JAX_PLATFORMS"] = "cpu"  # a server's variables lie in the host's memory
    return settings


def without_virtual_devices(flags: str) -> str:
    """What XLA_FLAGS says, but for the number of virtual devices: servers and workers have one."""
    return " ".join(flag for flag in flags.split() if not flag.startswith(_DEVICE_COUNT))
