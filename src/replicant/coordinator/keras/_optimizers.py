"""Keras optimizers under a ParameterServerStrategy: the servers apply them.

On a worker, ``optimizer.apply`` clips the gradients and pushes them. Each server has a copy of the optimizer without state, and
applies it to its shards and to the optimizer's slots for them.
"""

import functools
from typing import Any

from ...errors import ArgumentError
from ...keras import _internals
from ..servers._gradients import Part, push_gradients
from ..servers._rows_gradient import RowsGradient
from ..servers._site import Site, in_worker
from ._rule import build_optimizer, iterations_of, prepare_rule, updated_by
from ._variables import is_server_variable, server_ref, spec_of

_UNSUPPORTED = ("use_ema", "gradient_accumulation_steps", "loss_scale_factor")


def check_optimizer(optimizer: Any, variables: list[Any]) -> None:
    """Raise ArgumentError if servers cannot apply `optimizer` to `variables`."""
    kind = type(optimizer).__name__
    if isinstance(optimizer, _internals.LossScaleOptimizer):
        raise ArgumentError(
            "LossScaleOptimizer does not work with parameter servers. Use the optimizer itself, without loss scaling."
        )
    for name in _UNSUPPORTED:
        if getattr(optimizer, name, None):
            raise ArgumentError(
                f"{kind}({name}={getattr(optimizer, name)!r}) does not work with parameter servers, where each update is one step. "
                f"Make the optimizer without {name}."
            )
    for variable in variables:
        if not is_server_variable(variable):
            raise ArgumentError(
                f"{kind}: the variable {variable.path!r} is in this process, not on servers. Make it in strategy.scope()."
            )
        if variable.constraint is not None and len(spec_of(variable).shards) > 1:
            raise ArgumentError(
                f"The variable {variable.path!r} has a constraint and {len(spec_of(variable).shards)} shards, but a constraint "
                "needs the whole value. Remove the constraint, or keep the variable in one shard."
            )


def apply(original: Any, optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
    """Wrap ``optimizer.apply``: servers apply an optimizer that was made for their variables."""
    if trainable_variables is not None:
        trainable_variables = list(trainable_variables)
    if not is_server_variable(optimizer.__dict__.get("_iterations", getattr(optimizer, "iterations", None))):
        return original(optimizer, grads, trainable_variables)
    variables = updated_by(optimizer) if trainable_variables is None else trainable_variables
    apply_parts(optimizer, [Part(list(grads))], list(variables))
    return None


def apply_parts(optimizer: Any, parts: list[Part], variables: list[Any]) -> None:
    """Have the servers apply an optimizer to the sum of the parts' gradients."""
    used = [any(g is not None for g in found) for found in zip(*[part.grads for part in parts], strict=True)]
    if len(used) != len(variables) or not any(used):
        raise ArgumentError(
            f"{type(optimizer).__name__}.apply: there is no gradient for any of the {len(variables)} variables. Pass a gradient or "
            "None for each, and at least one gradient."
        )
    chosen = [v for v, is_used in zip(variables, used, strict=True) if is_used]
    check_optimizer(optimizer, chosen)
    iterations = server_ref(iterations_of(optimizer))
    number = iterations.spec.number
    if not in_worker() and not optimizer.built:
        build_optimizer(optimizer, list(variables))
    iterations.site.prepare_rule(number, [spec_of(v).number for v in variables])
    _check_clipping(optimizer, iterations.site)
    kept = [part._replace(grads=[g for g, is_used in zip(part.grads, used, strict=True) if is_used]) for part in parts]
    if len(kept) == 1:
        kept = [kept[0]._replace(grads=_clipped(optimizer, list(kept[0].grads)))]
    rate = optimizer.learning_rate
    push_gradients(iterations, iterations_of(optimizer).value, rate, kept, [server_ref(v) for v in chosen])


_CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")


def _check_clipping(optimizer: Any, site: Site) -> None:
    name = next((name for name in _CLIPPING if getattr(optimizer, name) is not None), None)
    if site.client.holds and name is not None:
        raise ArgumentError(
            f"{type(optimizer).__name__}({name}={getattr(optimizer, name)!r}) would clip the gradients of each closure by itself, "
            f"but ClusterCoordinator(synchronous=True) sums those of several closures. Make the optimizer without {name}."
        )


def apply_scaled(original: Any, optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
    """Wrap ``LossScaleOptimizer.apply``: refuse it where servers apply the optimizer."""
    if any(is_server_variable(variable) for variable in optimizer.variables):
        check_optimizer(optimizer, [])
    return original(optimizer, grads, trainable_variables)


def _clipped(optimizer: Any, grads: list[Any]) -> list[Any]:
    """Clip gradients as the optimizer says. Rows without a gradient would add nothing to a norm."""
    if all(getattr(optimizer, name) is None for name in _CLIPPING):
        return grads
    grads = [g.summed() if isinstance(g, RowsGradient) else g for g in grads]
    plain = [g.values if isinstance(g, RowsGradient) else g for g in grads]
    clipped = optimizer._clip_gradients(plain)  # noqa: SLF001 - Keras calls it in `apply`, which does more
    return [g.replace(c) if isinstance(g, RowsGradient) else c for g, c in zip(grads, clipped, strict=True)]


def made_optimizer(original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
    """Wrap the constructor: register an optimizer whose variables live on servers, to send it there before it is applied."""
    original(optimizer, *args, **kwargs)
    iterations = optimizer.__dict__.get("_iterations")
    if iterations is not None and is_server_variable(iterations):
        server_ref(iterations).site.optimizers[spec_of(iterations).number] = functools.partial(prepare_rule, optimizer)
