"""A Keras optimizer as a server has it: applied to its shards of variables, with the optimizer's own shards beside them."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from ...errors import ParameterServerError
from ..servers._apply import subtract_scaled
from ..servers._client import Client
from ..servers._push import pad_rows
from ..servers._site import Site, at
from ..workers import _pickling
from ._variables import connect, is_server_variable


def rule_blob(optimizer: Any) -> bytes:
    """What a server makes the rule from."""
    return _pickling.dumps((KerasRule, (_pickling.dumps(optimizer, f"The optimizer {type(optimizer).__name__}"),)), "An optimizer")


class KerasRule:
    """See ``_apply.Rule``. Compiles one update for each combination of shards and shapes that is pushed together."""

    def __init__(self, blob: bytes, server: int):
        connect()
        self._site = Site(Client(-1, [], lambda *_: None), lambda *_: None)
        with at(self._site):
            self._optimizer = _pickling.loads(blob)
        self._server = server
        optimizer = self._optimizer
        for name in ("clipnorm", "clipvalue", "global_clipnorm"):
            setattr(optimizer, name, None)  # the workers clip
        self._variable_of: dict[int, tuple[Any, list[tuple[Any, int]]]] = {}
        slots: dict[int, list[Any]] = {}
        for variable in optimizer.variables:
            if "_replicant_slot_of" in variable.__dict__:
                slots.setdefault(variable.__dict__["_replicant_slot_of"], []).append(variable)
        self._check(slots)
        for variable in optimizer._trainable_variables:
            spec = variable.__dict__["_replicant_spec"]
            own = slots.get(spec.number, [])
            for i, shard in enumerate(spec.shards):
                beside = [(slot, slot.__dict__["_replicant_spec"].shards[i].index) for slot in own]
                if shard.server == server:
                    self._variable_of[shard.index] = (variable, beside)
        self._is_plain_sgd = (
            type(optimizer) is keras.optimizers.SGD
            and not optimizer.momentum
            and optimizer.weight_decay is None
            and all(v.constraint is None for v in optimizer._trainable_variables)
        )

    def _check(self, slots: dict[int, list[Any]]) -> None:
        optimizer = self._optimizer
        known = {id(v) for own in slots.values() for v in own} | {id(optimizer._iterations), id(optimizer._learning_rate)}
        other = [v for v in optimizer.variables if id(v) not in known]
        if other:
            raise ParameterServerError(
                f"{type(optimizer).__name__} keeps {other[0].path!r} of the shape {tuple(other[0].shape)}, which is not of the "
                "shape of a variable that it updates, so no server can keep it. Use SGD, Adam, AdamW, Adagrad, RMSprop, Adamax, "
                "Lion or Ftrl."
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
        sizes = [self._size(shard, gradient) for shard, gradient, _ in items]
        gradients = [pad_rows(gradient, size) for (_, gradient, _), size in zip(items, sizes, strict=True)]
        values = [[pad_rows(x, size) for x in old] for (_, _, old), size in zip(items, sizes, strict=True)]
        news = self._compiled(shards)(np.int32(step), np.float32(learning_rate), gradients, values)
        for new, out in zip(news, outs, strict=True):
            for x, target in zip(new, out, strict=True):
                np.copyto(target, np.asarray(x)[: target.shape[0]] if target.ndim else np.asarray(x))

    def _size(self, shard: int, gradient: np.ndarray) -> int | None:
        """How many rows are computed for some rows of a shard; None for the whole shard."""
        variable, _ = self._variable_of[shard]
        whole = next(s.shape for s in variable.__dict__["_replicant_spec"].shards if s.server == self._server and s.index == shard)
        return None if gradient.shape == whole else 1 << (gradient.shape[0] - 1).bit_length()

    @functools.cache  # noqa: B019 - a rule lives as long as its server
    def _compiled(self, shards: tuple[int, ...]) -> Any:
        pairs = [self._variable_of[shard] for shard in shards]

        def update(step: Any, rate: Any, gradients: list[Any], values: list[list[Any]]) -> list[list[Any]]:
            return [
                self._one(variable, [slot for slot, _ in beside], step, rate, gradient, old)
                for (variable, beside), gradient, old in zip(pairs, gradients, values, strict=True)
            ]

        return jax.jit(update)

    def _one(  # noqa: PLR0917 - one update, with all that it depends on
        self, variable: Any, slots: list[Any], step: Any, rate: Any, gradient: Any, old: list[Any]
    ) -> list[Any]:
        optimizer, own = self._optimizer, [variable, *slots]
        for item in own:
            item.__dict__["_shape"] = gradient.shape  # of the shard, or of the rows
        mapping = [*zip(own, old, strict=True), (optimizer._iterations, step)]
        if is_server_variable(optimizer._learning_rate):
            mapping.append((optimizer._learning_rate, rate))
        with keras.StatelessScope(state_mapping=mapping) as scope:
            optimizer._apply_weight_decay([variable])
            optimizer.update_step(gradient, variable, optimizer._get_current_learning_rate())
            if variable.constraint is not None:
                variable.assign(variable.constraint(variable))
        return [jnp.asarray(scope.get_current_value(item)) for item in own]
