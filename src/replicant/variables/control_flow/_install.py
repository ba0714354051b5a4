"""Lets functions change variables that JAX traces by themselves. JAX has no public hooks at these places.

Each of JAX's functions here is a wrapper that keeps the function itself in a closure. What is there is replaced, and not the name
in ``jax``: so it makes no difference who has imported the name before, and the functions that are made of others, such as
``fori_loop``, need nothing of their own. Where no program of ours is traced, they do what they did.
"""

import contextlib
import functools
from collections.abc import Callable, Mapping
from types import CellType
from typing import Any

import jax

from ...errors import BackendError
from .._recorder import Recorder, current_recorder
from . import _branches, _loops, _results, _rules, _transforms

_Replacement = Callable[..., Any]

# Called in the trace of a program, with the original, the recorder, and the arguments.
_CALLED: Mapping[Callable[..., Any], _Replacement] = {
    jax.lax.cond: _branches.cond,
    jax.lax.switch: _branches.switch,
    jax.lax.scan: _loops.scan,
    jax.lax.while_loop: _loops.while_loop,
    jax.custom_vjp.__call__: _rules.custom_vjp,
}
# Called with the original and the arguments. What they return is called in the trace of a program.
_TRANSFORMING: Mapping[Callable[..., Any], _Replacement] = {
    jax.jit: _results.jit,
    jax.checkpoint: _results.checkpoint,
    jax.vmap: _transforms.vmap,
    jax.value_and_grad: _transforms.value_and_grad,
}


def follow_state() -> None:
    """Replace the functions as early as possible, because some return others. With another JAX, programs say that it is unknown."""
    with contextlib.suppress(BackendError):
        install()


@functools.cache
def install() -> None:
    """Replace the functions, once per process.

    Raises:
        BackendError: If the installed JAX keeps them in another way.
    """
    cells = {function: _cell(function) for function in (*_CALLED, *_TRANSFORMING)}
    for function, replacement in _CALLED.items():
        cells[function].cell_contents = _replaced(cells[function].cell_contents, replacement)
    for function, replacement in _TRANSFORMING.items():
        original = cells[function].cell_contents
        cells[function].cell_contents = functools.wraps(original)(functools.partial(replacement, original))


def _cell(function: Any) -> CellType:
    """Return the place in a wrapper of JAX that has the function itself."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    inner = getattr(function, "__wrapped__", None)
    cells = [cell for name, cell in zip(names, function.__closure__ or (), strict=True) if cell.cell_contents is inner]
    if inner is None or len(cells) != 1:
        raise BackendError(
            f"JAX {jax.__version__} is not supported: {function.__module__}.{function.__name__} is not what Replicant knows. Use "
            "a JAX version that this release of Replicant was tested with (0.10 to 0.12), or a newer Replicant."
        )
    return cells[0]


def _replaced(original: Callable[..., Any], replacement: _Replacement) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        recorder: Recorder | None = current_recorder()
        return original(*args, **kwargs) if recorder is None else replacement(original, recorder, *args, **kwargs)

    return call
