"""OptaxOptimizer: gradient transformations, as optax makes them, applied by the servers."""

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
    """Applies a gradient transformation of optax where the variables lie, so that only gradients travel.

    Make it in ``strategy.scope()`` and call `apply` in scheduled functions.

    Args:
        transformation: what optax makes, or anything with its ``init(params)`` and ``update(gradients, state, params)``, that works
            element by element: adam, adamw, sgd, adagrad, rmsprop, lion, with schedules, clip and weight decay.
        variables: what it updates: variables made in the scope, in any pytree.

    Raises ContextError outside a ParameterServerStrategy's scope; ArgumentError for something else than server variables, and for
    a transformation that servers, which see a shard or some rows at a time, cannot apply: one that mixes elements, such as
    clip_by_global_norm, or keeps other state than arrays of the variables' shapes, constants and counts of its updates.

    Rows of an embedding that a step does not look up stay as they are, and so does the state for them. As with Keras's optimizers
    the count is that which the worker saw.

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
        strategy: Any = active_strategy()  # the coordinator's: on a worker the first variable below raises
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
        """Push gradients, for the servers to apply.

        Args:
            gradients: of the structure of the variables, as ``tape.gradient(loss, variables)`` gives them; None for a variable
                that stays as it is.

        Raises ArgumentError for another structure, and where all are None.
        """
        refs, is_leaf = self._refs(), lambda x: x is None or isinstance(x, RowsGradient)
        found = jax.tree.leaves(gradients, is_leaf=is_leaf)
        if len(found) != len(refs):
            raise ArgumentError(f"OptaxOptimizer.apply: got {len(found)} gradients for {len(refs)} variables.")
        pairs = [(gradient, ref) for gradient, ref in zip(found, refs, strict=True) if gradient is not None]
        if not pairs:
            raise ArgumentError(f"OptaxOptimizer.apply: there is no gradient for any of the {len(refs)} variables.")
        refs = [ref for _, ref in pairs]
        push_gradients(self._counter(), self.iterations.value(), 0.0, [Part([g for g, _ in pairs])], refs)

    def _counter(self) -> ServerRef:
        return ref_of(self.iterations)  # type: ignore[return-value]

    def _refs(self) -> list[ServerRef]:
        leaves = jax.tree.leaves(self.variables, is_leaf=is_variable)
        refs = [ref_of(leaf) if is_variable(leaf) else None for leaf in leaves]
        for leaf, ref in zip(leaves, refs, strict=True):
            if not isinstance(ref, ServerRef):
                raise ArgumentError(
                    f"OptaxOptimizer: {leaf!r} is no variable that lies on servers. Pass variables made in strategy.scope()."
                )
        if not refs:
            raise ArgumentError("OptaxOptimizer: there are no variables to update. Received an empty structure.")
        return refs  # type: ignore[return-value]

    def _make_state(self, strategy: Any, transformation: Any, probe: Probe, ref: ServerRef) -> list[ServerVariable]:
        """The transformation's arrays for one variable, each beside it."""
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
