"""The option of XLA's CPU compiler that decides who computes convolutions, set in XLA_FLAGS before JAX starts.

jaxlib 0.10.2 hands dots, convolutions and reductions to YNNPACK unless told otherwise. Its convolutions, and above all their
gradients, take up to 2.5 times as long as Eigen's. The option lists what YNNPACK gets; VALUE is jaxlib's own list without the
convolutions.
"""

import importlib.metadata
import importlib.util
import os

import jax

OPTION = "--xla_cpu_experimental_ynn_fusion_type"
VALUE = "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_REDUCE"
# XLA ends the process when it meets an option that it does not know, and what options do changes: only where it was tried.
_TRIED = ((0, 10),)


def set_conv_option(wanted: bool) -> str:
    """Add the option to XLA_FLAGS if `wanted`, it can still have an effect, and nothing speaks against it.

    An option that is there already is left as it is. Nothing is set where JAX might start an accelerator: its own compiler reads
    XLA_FLAGS too and may not know the option.

    Returns what happened, as ``status()`` shows it: beginning with "on" or "off".
    """
    flags = os.environ.get("XLA_FLAGS", "")
    for flag in reversed(flags.split()):  # the last one counts
        name, _, value = flag.partition("=")
        if name == OPTION:
            return "on" if value == VALUE else f"off: XLA_FLAGS sets {OPTION}={value} already"
    if not wanted:
        return "off: REPLICANT_KERNELS does not ask for it"
    version = importlib.metadata.version("jaxlib")
    if tuple(int(part) for part in version.split(".")[:2]) not in _TRIED:
        tried = ", ".join(".".join(map(str, line)) for line in _TRIED)
        return f"off: jaxlib {version} has not been tried with it (only {tried})"
    if reason := accelerator():
        return f"off: {reason}, whose compiler may not know the option"
    if jax_has_started():
        return "off: JAX had started before replicant was imported; import replicant first"
    os.environ["XLA_FLAGS"] = f"{flags} {OPTION}={VALUE}".strip()
    return "on"


def accelerator() -> str | None:
    """What makes us think that JAX will start more than the CPU, if anything does."""
    platforms = jax.config.values["jax_platforms"] or os.environ.get("JAX_PLATFORMS", "")
    if platforms:
        return None if platforms == "cpu" else f"JAX_PLATFORMS={platforms!r} may start an accelerator"
    plugins = sorted({entry.name for entry in importlib.metadata.entry_points(group="jax_plugins")})
    if plugins:
        return f"JAX has plugins ({', '.join(plugins)})"
    if importlib.util.find_spec("libtpu") is not None:
        return "libtpu is installed"
    return None


def jax_has_started() -> bool:
    """JAX refuses to change the number of CPU devices once its backends exist, and changes nothing else by it before."""
    name = "jax_num_cpu_devices"
    now = jax.config.values[name]
    try:
        jax.config.update(name, 2 if now == 1 else 1)
    except RuntimeError:
        return True
    jax.config.update(name, now)
    return False
