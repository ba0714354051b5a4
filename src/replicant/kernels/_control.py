"""Switches kernels on and off, and reports which of them are on."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..errors import ArgumentError, ConfigurationError
from ._switch import (
    FAMILIES,
    LOWERINGS,
    VARIABLE,
    choose,
    choose_here,
    chosen,
    chosen_everywhere,
    from_environment,
    is_named,
)
from .compiled import _convolutions, _dot, _lstm_loops
from .functions import _attention, _lstm, _norm
from .lowerings import _argmax, _few_products, _pooling, _strided_convolutions, _transposed_dot
from .lowerings._lowering import Kernel, register
from .xla import _heap, _same_thread
from .xla._flags import set_conv_option


@dataclass(frozen=True)
class Status:
    """Which kernels are on, and why others are off.

    Attributes:
        kernels: For each kernel "on", or "off: " and the reason.
    """

    kernels: Mapping[str, str]

    def __str__(self) -> str:
        """The status in one line, for logs and ``replicant doctor``."""
        return "CPU kernels: " + ", ".join(f"{name} {state}" for name, state in self.kernels.items())

    def __repr__(self) -> str:
        """The status with a line for each kernel."""
        width = max(map(len, self.kernels))
        return "\n".join(["CPU kernels:", *(f"  {n:{width}}  {s}  ({FAMILIES[n]})" for n, s in self.kernels.items())])


@dataclass
class _Installed:
    conv: str = "off: not installed"
    memory: str = "off: not installed"
    registered: set[Kernel] = field(default_factory=set)
    families: set[str] = field(default_factory=set)


_installed = _Installed()
_KERNELS = (
    *_pooling.KERNELS,
    *_argmax.KERNELS,
    # Of several for one primitive, the last is asked first.
    *(_few_products.KERNEL, *_strided_convolutions.KERNELS, _convolutions.KERNEL),
    *(_transposed_dot.KERNEL, _dot.KERNEL),
    *_lstm_loops.KERNELS,
    *_norm.KERNELS,
)
_NATIVE = {each.family: each for each in (_convolutions.FUNCTION, _dot.FUNCTION, _lstm_loops.FUNCTION, _norm.FUNCTION)}
_OPTION_OF = {"conv": "XLA", "memory": "the allocator"}


def install() -> None:
    """Switch on the kernels that REPLICANT_KERNELS names. ``import replicant`` calls this before anything starts JAX.

    Raises:
        ConfigurationError: If REPLICANT_KERNELS names a kernel that does not exist.
    """
    wanted = from_environment()
    _installed.conv = set_conv_option("conv" in wanted)
    _installed.memory = _heap.install("memory" in wanted)
    if _same_thread.FAMILY in wanted:
        _same_thread.objection()  # which prepares it
    choose({name for name in wanted & LOWERINGS if is_named(name) or not _objection(name)})
    if wanted & LOWERINGS:
        _register()


def _objection(name: str) -> str | None:
    """Why a kernel cannot be used on this machine, or None."""
    if name == _same_thread.FAMILY:
        return _same_thread.objection()
    return _NATIVE[name].objection() if name in _NATIVE else None


def _register() -> None:
    """Give the lowerings to JAX, once. _switch.py decides which of them compute."""
    for kernel in _KERNELS:
        if kernel not in _installed.registered and register(kernel):
            _installed.registered.add(kernel)
            _installed.families.add(kernel.family)
    # The users of these ask whether they are on.
    _installed.families |= {_attention.FAMILY, _lstm.FAMILY, "flat_update", _same_thread.FAMILY}


def enable(*names: str) -> None:
    """Switch kernels on.

    Programs are compiled again when they are next called. Programs that were compiled ahead of time do not change.

    Args:
        *names: "max_pool", "avg_pool", "argmax", "direct_conv", "strided_conv", "dot", "attention", "flat_update", "inline",
            "lstm", "numba_conv", "numba_dot", "numba_lstm" or "numba_norm". Without names, all that can be used on this machine
            are switched on. You can choose "conv" and "memory" only before JAX starts, with the environment variable
            REPLICANT_KERNELS.

    Raises:
        ArgumentError: If there is no such kernel, or if it cannot be switched now.
        ConfigurationError: If one is named that cannot be used on this machine, or with this JAX.

    >>> from replicant import kernels
    >>> kernels.disable("avg_pool")
    >>> kernels.enable("avg_pool")
    >>> kernels.enable("pool")
    Traceback (most recent call last):
    ...
    replicant.errors.ArgumentError: There is no kernel 'pool' to switch. Use 'argmax', 'attention', 'avg_pool', 'direct_conv',
    'dot', 'flat_update', 'inline', 'lstm', 'max_pool', 'numba_conv', 'numba_dot', 'numba_lstm', 'numba_norm',
    'strided_conv', or no name to switch all.
    """
    wanted = chosen_everywhere() | _checked(names)
    for name in sorted(wanted):
        if reason := _objection(name):
            if name in names:
                raise ConfigurationError(f"The kernel {name!r} cannot be switched on: {reason}.")
            wanted -= {name}
    _register()
    choose(wanted)


def disable(*names: str) -> None:
    """Switch kernels off, so that JAX's own lowerings are used instead. Arguments and errors are those of `enable`."""
    choose(chosen_everywhere() - _checked(names))


@contextmanager
def disabled(*names: str) -> Iterator[None]:
    """Switch kernels off within the ``with`` block and in this thread. Without names, all are switched off.

    Programs that are compiled inside are kept apart from those outside, so nothing is compiled again after the block. Arguments and
    errors are those of `enable`.

    >>> import jax, jax.numpy as jnp
    >>> from replicant import kernels
    >>> with kernels.disabled():
    ...     print(jax.jit(jnp.sum)(jnp.ones((256, 256))))
    65536.0
    """
    with choose_here(chosen() - _checked(names)):
        yield


def _checked(names: tuple[str, ...]) -> frozenset[str]:
    if fixed := sorted(_OPTION_OF.keys() & set(names)):
        name, others = fixed[0], ",".join(sorted(FAMILIES.keys() - set(fixed[:1])))
        raise ArgumentError(
            f"The kernel {name!r} is an option of {_OPTION_OF[name]} that is read when JAX starts, so it cannot be switched later. "
            f"Start the program with {VARIABLE}=1 to have it, or with {VARIABLE}={others} for all except this one."
        )
    if unknown := sorted(set(names) - LOWERINGS):
        raise ArgumentError(
            f"There is no kernel {', '.join(map(repr, unknown))} to switch. Use {', '.join(map(repr, sorted(LOWERINGS)))}, or no "
            "name to switch all."
        )
    return frozenset(names) or LOWERINGS


def status() -> Status:
    """Report which kernels are on in this thread, at this moment.

    >>> from replicant import kernels
    >>> with kernels.disabled("avg_pool"):
    ...     print(kernels.status().kernels["max_pool"], "|", kernels.status().kernels["avg_pool"])
    on | off: switched off
    """
    asked = from_environment()
    states = {"conv": _installed.conv, "memory": _installed.memory}
    for name in sorted(LOWERINGS):
        if name in asked | chosen() and (reason := _objection(name)):
            states[name] = f"off: {reason}"
        elif name in chosen():
            states[name] = "on" if name in _installed.families else "off: this JAX has changed the lowering that it replaces"
        else:
            states[name] = "off: switched off" if name in asked else f"off: {VARIABLE} does not ask for it"
    return Status(states)
