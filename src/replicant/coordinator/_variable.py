"""``replicant.Variable`` under a ParameterServerStrategy: it lives on the servers."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..replicas._context import active_strategy
from ..variables._variable import Variable
from .servers._refs import ServerRef, change, change_rows, check_readable
from .servers._site import Site, current_site
from .servers._store import VariableSpec
from .workers import _pickling

_KINDS = {
    "scatter_add": ("add", False),
    "scatter_sub": ("add", True),
    "scatter_mul": ("multiply", False),
    "scatter_div": ("divide", False),
    "scatter_max": ("max", False),
    "scatter_min": ("min", False),
    "scatter_update": ("assign", False),
}


class ServerVariable(Variable):
    """A variable on parameter servers, in one or several shards. Made by ``replicant.Variable`` in the strategy's scope.

    Reads copy its value from the servers' memory; changes are sent to the servers. A compiled function sends its changes when it
    has run.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        own = self._ref
        strategy: Any = active_strategy()
        strategy.place_variable(self, own.name, np.asarray(own.get_raw()[0]), trainable=own.trainable)

    def attach(self, spec: VariableSpec, site: Site) -> None:
        """Make this the site's object for the variable `spec`."""
        self._ref = ServerRef(spec, site)  # type: ignore[assignment]  # of all kinds of refs, this one
        site.variables[spec.number] = self

    @property
    def spec(self) -> VariableSpec:
        """Where its shards are."""
        return self._ref.spec  # type: ignore[attr-defined]  # a ServerRef

    @property
    def variables(self) -> list[np.ndarray]:
        """The values of the shards, in order."""
        value = self.numpy()
        return [value if len(self.spec.shards) == 1 else value[s.first : s.end] for s in self.spec.shards]

    def __len__(self) -> int:
        return len(self.spec.shards)

    def value(self) -> jax.Array:
        """The current value; in a compiled function, the value when it started."""
        check_readable(self._ref)
        return super().value()

    read_value = value

    def _assign(self, what: str, value: Any, update: Callable[[Any, Any], Any]) -> jax.Array:
        kind = "assign" if what == "assign" else "add"
        operand = self._checked(what, value)
        step = -operand if what == "assign_sub" else operand
        return change(self._ref, kind, step, lambda old: update(old, operand))  # type: ignore[arg-type]  # a ServerRef

    def _scatter(self, what: str, indices: Any, updates: Any) -> Any:
        kind, negative = _KINDS[what]
        change_rows(self._ref, kind, indices, updates, negative=negative)  # type: ignore[arg-type]  # a ServerRef
        return self

    def __reduce__(self) -> Any:
        return _restored, (self.spec,)


def _restored(spec: VariableSpec) -> ServerVariable:
    """This process's object for a variable that was made on the coordinator."""
    site = current_site()

    def make() -> ServerVariable:
        variable = object.__new__(ServerVariable)
        variable.attach(spec, site)
        return variable

    return site.variable(spec, make)


_pickling.rules[ServerVariable] = lambda variable: variable.__reduce__()
