"""Has programs run on the CPU in the thread that starts them.

By default, JAX hands each program to a thread of its own. That takes tens of microseconds, and both threads then wait for each
other at glibc's heap, which they share (see _memory.py). A loop of tiny steps is up to twice as fast without. In return, what the
loop does itself no longer happens beside a program: the Python of a step, and batches that are made when they are asked for.

Programs of several processes are left alone. Each waits for the others, and the loop has to see when one of them is lost.
"""

import jax

from ._flags import accelerator, jax_has_started

OPTION = "jax_cpu_enable_async_dispatch"

_done = {"installed": False}


def install(wanted: bool) -> str:
    """Set the option if it is `wanted`, and JAX computes on CPUs only and has not started.

    Returns:
        What was done, as ``status()`` shows it. The text begins with "on" or "off".
    """
    if not wanted:
        return "off: REPLICANT_KERNELS does not ask for it"
    if reason := accelerator():
        return f"off: {reason}, and may compute on more than the CPU"
    if jax_has_started():
        return "off: JAX started before replicant was imported; import replicant first"
    _done["installed"] = jax.config.values[OPTION]
    jax.config.update(OPTION, False)
    return "on"


def leave_to_jax() -> None:
    """Undo `install`, before JAX starts, because this will be one of several processes."""
    if _done["installed"]:
        jax.config.update(OPTION, True)


def state(installed: str) -> str:
    """Return what `install` returned, or that the option has been set otherwise since."""
    if installed == "on" and jax.config.values[OPTION]:
        return f"off: {OPTION} has been set to True"
    return installed
