"""A Keras optimizer on a server, which applies it to its own shards of the variables and of the optimizer's slots."""

import functools
import threading
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from ...errors import ParameterServerError
from ...keras import _internals
from ...replicas._own_mesh import at_once
from .._libraries import connect_libraries
from ..processes._cluster import Cluster
from ..servers._apply import subtract_scaled
from ..servers._client import Client
from ..servers._padded_update import update_padded
from ..servers._site import Site, at
from ..workers import _pickling
from ._variables import is_server_variable, server_ref, slot_of, spec_of

_preparing = threading.Lock()


def prepare_rule(optimizer: Any, cluster: Cluster, variables: list[int]) -> None:
    """On the coordinator: make the optimizer's variables, and send it to all servers, unless this has been done."""
    iterations = server_ref(iterations_of(optimizer))
    with _preparing:
        if not optimizer.built:
            build_optimizer(optimizer, [iterations.site.variables[v] for v in variables])
        if iterations.spec.number not in cluster.rules:
            cluster.add_rule(iterations.spec.number, rule_blob(optimizer))


def iterations_of(optimizer: Any) -> Any:
    """The variable in which an optimizer counts its steps."""
    return optimizer._iterations  # noqa: SLF001 - `iterations` may be a quotient of it


def updated_by(optimizer: Any) -> list[Any]:
    """The variables that an optimizer was built for."""
    return optimizer._trainable_variables  # noqa: SLF001 - Keras has no public name for them


def build_optimizer(optimizer: Any, variables: list[Any]) -> None:
    """Make an optimizer's variables now, even in the middle of a trace."""
    with _internals.outside_stateless_scope(), at_once(), keras.name_scope(optimizer.name, caller=optimizer):
        optimizer.build(variables)
        optimizer.built = True


def rule_blob(optimizer: Any) -> bytes:
    """Pickle the data from which a server makes its KerasRule."""
    return _pickling.dumps((KerasRule, (_pickling.dumps(optimizer, f"The optimizer {type(optimizer).__name__}"),)), "An optimizer")


class KerasRule:
    """Implements ``servers._apply.Rule``. Compiles one update per combination of shards and shapes that are pushed together."""

    def __init__(self, blob: bytes, server: int):
        connect_libraries()
        self._site = Site(Client(-1, [], lambda *_: None), lambda *_: None)
        with at(self._site):
            self._optimizer = _pickling.loads(blob)
        self._server = server
        optimizer = self._optimizer
        for name in ("clipnorm", "clipvalue", "global_clipnorm"):
            setattr(optimizer, name, None)  # workers clip
        self._variable_of: dict[int, tuple[Any, list[tuple[Any, int]]]] = {}
        slots: dict[int, list[Any]] = {}
        for variable in optimizer.variables:
            if (owner := slot_of(variable)) is not None:
                slots.setdefault(owner, []).append(variable)
        self._check(slots)
        for variable in updated_by(optimizer):
            spec = spec_of(variable)
            own = slots.get(spec.number, [])
            for i, shard in enumerate(spec.shards):
                beside = [(slot, spec_of(slot).shards[i].index) for slot in own]
                if shard.server == server:
                    self._variable_of[shard.index] = (variable, beside)
        self._is_plain_sgd = (
            type(optimizer) is keras.optimizers.SGD
            and not optimizer.momentum
            and optimizer.weight_decay is None
            and all(v.constraint is None for v in updated_by(optimizer))
        )

    def _check(self, slots: dict[int, list[Any]]) -> None:
        optimizer = self._optimizer
        known = {id(v) for own in slots.values() for v in own} | {id(iterations_of(optimizer)), id(_learning_rate_of(optimizer))}
        other = [v for v in optimizer.variables if id(v) not in known]
        if other:
            raise ParameterServerError(
                f"{type(optimizer).__name__} keeps {other[0].path!r} of shape {tuple(other[0].shape)}. Servers can keep only "
                "variables with the shape of one that the optimizer updates. Use SGD, Adam, AdamW, Adagrad, RMSprop, Adamax, Lion "
                "or Ftrl."
            )

    def slots(self, shard: int) -> list[int]:
        return [index for _, index in self._variable_of[shard][1]]

    def update(
        self, step: int, learning_rate: float, items: list[tuple[int, np.ndarray, list[np.ndarray]]], outs: list[list[np.ndarray]]
    ) -> None:
        if self._is_plain_sgd:
            for (_, gradient, (old,)), (new,) in zip(items, outs, strict=True):
                subtract_scaled(new, old, gradient, learning_rate)
            return
        shards = tuple(shard for shard, _, _ in items)
        program = functools.partial(self._compiled(shards), np.int32(step), np.float32(learning_rate))
        update_padded(program, self._shape_of, items, outs)

    def _shape_of(self, shard: int) -> tuple[int, ...]:
        variable, _ = self._variable_of[shard]
        return next(s.shape for s in spec_of(variable).shards if s.server == self._server and s.index == shard)

    @functools.cache  # noqa: B019 - a rule lives as long as its server
    def _compiled(self, shards: tuple[int, ...]) -> Any:
        pairs = [self._variable_of[shard] for shard in shards]

        def update(step: Any, rate: Any, gradients: list[Any], values: list[list[Any]]) -> list[list[Any]]:
            return [
                self._one(variable, [slot for slot, _ in beside], step, rate, gradient, old)
                for (variable, beside), gradient, old in zip(pairs, gradients, values, strict=True)
            ]

        return jax.jit(update)

    def _one(  # noqa: PLR0917 - everything that one update depends on
        self, variable: Any, slots: list[Any], step: Any, rate: Any, gradient: Any, old: list[Any]
    ) -> list[Any]:
        optimizer, own = self._optimizer, [variable, *slots]
        for item in own:
            item.__dict__["_shape"] = gradient.shape  # of the shard, or of the rows
        mapping = [*zip(own, old, strict=True), (iterations_of(optimizer), step)]
        learning_rate = _learning_rate_of(optimizer)
        if is_server_variable(learning_rate):
            mapping.append((learning_rate, rate))
        with keras.StatelessScope(state_mapping=mapping) as scope:
            optimizer._apply_weight_decay([variable])  # noqa: SLF001 - Keras calls it in `apply`, which does more
            optimizer.update_step(gradient, variable, optimizer.learning_rate)
            if variable.constraint is not None:
                variable.assign(variable.constraint(variable))
        return [jnp.asarray(scope.get_current_value(item)) for item in own]


def _learning_rate_of(optimizer: Any) -> Any:
    """The learning rate as the optimizer keeps it: a variable, a schedule, or a function."""
    return optimizer._learning_rate  # noqa: SLF001 - `learning_rate` is its current value
