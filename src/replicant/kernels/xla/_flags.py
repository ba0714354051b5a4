"""Sets the option of XLA's CPU compiler that decides which library computes convolutions, in XLA_FLAGS before JAX starts.

By default, jaxlib 0.10 to 0.12 compute dots, convolutions and reductions with YNNPACK. Its convolutions, and above all their
gradients, take up to 2.5 times as long as those of Eigen. The option lists what YNNPACK computes. VALUE is jaxlib's own list
without the convolutions. Which versions of jaxlib get it is decided in _flag_trial.py.
"""

import importlib.metadata
import importlib.util
import os

import jax

from ._flag_trial import objection

OPTION = "--xla_cpu_experimental_ynn_fusion_type"
VALUE = "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_REDUCE"


def set_conv_option(wanted: bool) -> str:
    """Add the option to XLA_FLAGS if it is `wanted`, can still have an effect, and does no harm.

    If the option is already there, it is left as it is. Nothing is set if JAX might start an accelerator, whose compiler also reads
    XLA_FLAGS and may not know the option.

    Returns:
        What was done, as ``status()`` shows it. The text begins with "on" or "off".
    """
    flags = os.environ.get("XLA_FLAGS", "")
    for flag in reversed(flags.split()):  # the last flag counts
        name, _, value = flag.partition("=")
        if name == OPTION:
            return "on" if value == VALUE else f"off: XLA_FLAGS already sets {OPTION}={value}"
    if not wanted:
        return "off: REPLICANT_KERNELS does not ask for it"
    if reason := accelerator():
        return f"off: {reason}, whose compiler may not know the option"
    if jax_has_started():
        return "off: JAX started before replicant was imported; import replicant first"
    if reason := objection(importlib.metadata.version("jaxlib"), f"{OPTION}={VALUE}"):
        return f"off: {reason}"
    os.environ["XLA_FLAGS"] = f"{flags} {OPTION}={VALUE}".strip()
    return "on"


def accelerator() -> str | None:
    """Why JAX may start more than the CPU, or None if nothing suggests it."""
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
    """Whether JAX has started. It refuses to change the number of CPU devices once its backends exist, which is tried here."""
    name = "jax_num_cpu_devices"
    now = jax.config.values[name]
    try:
        jax.config.update(name, 2 if now == 1 else 1)
    except RuntimeError:
        return True
    jax.config.update(name, now)
    return False
