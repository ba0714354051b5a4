"""OptaxOptimizer: optax gradient transformations that the servers apply."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import ArgumentError, ContextError
from ..replicas._context import active_strategy
from ..variables._known import is_variable, ref_of
from ..variables._variable import Variable
from ._optax_rule import OptaxRule, Probe, check_transformation
from ._server_strategy import ServerStrategy
from ._variable import ServerVariable
from .servers._gradients import Part, push_gradients
from .servers._refs import ServerRef
from .servers._rows_gradient import RowsGradient
from .workers import _pickling


class OptaxOptimizer:
    """Applies an optax gradient transformation on the servers, so that only gradients travel.

    Make it in ``strategy.scope()``, and call `apply` in scheduled functions. Rows of an embedding that a step does not look up keep
    their values and their state. As with Keras's optimizers, an update uses the step count that the worker saw.

    Args:
        transformation: an optax transformation, or any object with ``init(params)`` and ``update(gradients, state, params)``, that
            works element by element: adam, adamw, sgd, adagrad, rmsprop, lion, with schedules, clip and weight decay.
        variables: the variables to update, in any pytree. They must have been made in the scope.

    Raises:
        ContextError: outside the scope of a ParameterServerStrategy.
        ArgumentError: if `variables` has none or holds anything but server variables, or if servers, which see a shard or some
            rows at a time, cannot apply the transformation: because it mixes elements, as clip_by_global_norm does, or keeps
            state other than arrays of the variables' shapes, constants and counts of its updates.

    >>> import optax, replicant
    >>> from replicant.coordinator import ClusterCoordinator, OptaxOptimizer
    >>> strategy = replicant.ParameterServerStrategy(transport="threads")
    >>> with strategy.scope():
    ...     v = replicant.Variable([1.0, 2.0])
    ...     optimizer = OptaxOptimizer(optax.sgd(0.5), v)
    >>> @replicant.function
    ... def step():
    ...     with replicant.GradientTape() as tape:
    ...         loss = (v.value() ** 2).sum()
    ...     optimizer.apply(tape.gradient(loss, v))
    ...     return loss
    >>> print(ClusterCoordinator(strategy).schedule(step).fetch(), v.numpy())
    5.0 [0. 0.]
    >>> strategy.close()
    """

    def __init__(self, transformation: Any, variables: Any):
        if not isinstance(active_strategy(), ServerStrategy):
            raise ContextError("Make an OptaxOptimizer in the scope of a ParameterServerStrategy: with strategy.scope(): ...")
        strategy: Any = active_strategy()  # the coordinator's: on a worker, making the first variable below raises
        self.variables = variables
        refs = self._refs()
        probe = check_transformation(transformation)
        self.iterations = Variable(np.zeros((), np.int32), name="iterations", trainable=False)
        self.state: list[Variable] = []
        table: dict[tuple[int, int], tuple[tuple[int, ...], list[int]]] = {}
        for ref in refs:
            slots = self._make_state(strategy, transformation, probe, ref)
            for i, shard in enumerate(ref.spec.shards):
                table[shard.server, shard.index] = shard.shape, [slot.spec.shards[i].index for slot in slots]
            self.state += slots
        blob = _pickling.dumps((transformation, probe), "The optax transformation")
        strategy.cluster.add_rule(self._counter().spec.number, _pickling.dumps((OptaxRule, (blob, table)), "An optimizer"))

    def apply(self, gradients: Any) -> None:
        """Push gradients to the servers, which apply them.

        Args:
            gradients: a pytree with the structure of the variables, as ``tape.gradient(loss, variables)`` returns it. None leaves
                a variable unchanged.

        Raises:
            ArgumentError: if the number of gradients differs from that of the variables, or all are None.
        """
        refs, is_leaf = self._refs(), lambda x: x is None or isinstance(x, RowsGradient)
        found = jax.tree.leaves(gradients, is_leaf=is_leaf)
        if len(found) != len(refs):
            raise ArgumentError(
                f"OptaxOptimizer.apply: got {len(found)} gradients for {len(refs)} variables. Pass one for each, or None."
            )
        pairs = [(gradient, ref) for gradient, ref in zip(found, refs, strict=True) if gradient is not None]
        if not pairs:
            raise ArgumentError(
                f"OptaxOptimizer.apply: there is no gradient for any of the {len(refs)} variables. Received only None."
            )
        refs = [ref for _, ref in pairs]
        push_gradients(self._counter(), self.iterations.value(), 0.0, [Part([g for g, _ in pairs])], refs)

    def _counter(self) -> ServerRef:
        return ref_of(self.iterations)  # type: ignore[return-value]  # it lies on servers

    def _refs(self) -> list[ServerRef]:
        leaves = jax.tree.leaves(self.variables, is_leaf=is_variable)
        refs = [ref_of(leaf) if is_variable(leaf) else None for leaf in leaves]
        for leaf, ref in zip(leaves, refs, strict=True):
            if not isinstance(ref, ServerRef):
                raise ArgumentError(
                    f"OptaxOptimizer: {leaf!r} is not a variable on parameter servers. Pass variables made in strategy.scope()."
                )
        if not refs:
            raise ArgumentError("OptaxOptimizer: there are no variables to update. Received an empty structure.")
        return refs  # type: ignore[return-value]  # checked above

    def _make_state(self, strategy: Any, transformation: Any, probe: Probe, ref: ServerRef) -> list[ServerVariable]:
        """Make the transformation's state for one variable, on the same servers."""
        leaves = jax.tree.leaves(transformation.init(jnp.asarray(ref.get_raw()[0])))
        slots = []
        for i, leaf in enumerate(leaves):
            if probe.kinds[i] == "slot":
                slot = object.__new__(ServerVariable)
                strategy.place_variable(slot, f"{ref.name}_{i}", np.asarray(leaf), trainable=False, beside=ref.spec)
                slots.append(slot)
        return slots

    def __getstate__(self) -> dict[str, Any]:
        return {"variables": self.variables, "iterations": self.iterations, "state": []}  # what workers need
