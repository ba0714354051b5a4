"""Cuts a traced step by the rows of its batch, so that all sums over the batch are made in as few exchanges as possible.

XLA cuts a step by itself, and sums over the devices wherever the program sums over rows: once for each weight and each metric.
Between CPU workers, each of these sums is an exchange, which takes as long as the link's delay. Here, the equations are sorted by
the number of exchanges that they need before them, and between these ranks all sums are made as one flat vector. A training step
without statistics of batches has one exchange, whatever it computes.

The numbers are those of XLA's own cut: each replica sums its rows, and then the replicas add up their sums. What has no rule in
``_row_rules.py`` is left to XLA.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from ...replicas._collectives import AXIS, MeshAxis, ReduceOp
from ..jaxprs._bind import bind
from ..jaxprs._closed_jaxpr import ClosedJaxpr
from ..jaxprs._host_calls import host_call_in
from ..jaxprs._marks import inner_jaxprs
from ..jaxprs._primitive_names import CONSTRAINT, INLINED
from ._row_rules import Mixed, Rows, Ruling, rule_of

_OF_ALL_DEVICES = frozenset({"shard_map", CONSTRAINT, "custom_partitioning"})  # they do not fit into one replica's part


@dataclasses.dataclass(frozen=True)
class _Planned:
    """An equation, what each replica does for it, and the number of exchanges before it."""

    eqn: jex.JaxprEqn
    ruling: Ruling
    rank: int

    @property
    def is_whole(self) -> bool:
        """Whether all replicas compute the same."""
        return not self.ruling.summed and all(axis is None for axis in (*self.ruling.inputs, *self.ruling.outputs))


@dataclasses.dataclass(frozen=True)
class Plan:
    """A step that is cut by rows."""

    closed: ClosedJaxpr
    equations: list[_Planned]
    outputs: list[Rows]
    num_exchanges: int

    def __call__(self, args: Sequence[Any], mesh: Mesh, group: MeshAxis) -> list[Any]:
        """Compute the step in a trace of all replicas. What is the same for all and needs no exchange is left to XLA."""
        env: dict[Any, Any] = dict(zip(self.closed.jaxpr.constvars, self.closed.consts, strict=True))
        env.update(zip(self.closed.jaxpr.invars, args, strict=True))
        rest = list[_Planned]()
        for each in self.equations:
            if (
                each.is_whole
                and all(v in env for v in each.eqn.invars if not isinstance(v, jex.Literal))
                and not inner_jaxprs(each.eqn)
            ):
                env.update(zip(each.eqn.outvars, bind(each.eqn, [_read(env, v) for v in each.eqn.invars]), strict=True))
            else:
                rest.append(each)
        known = {*env}
        needed = dict.fromkeys(_needed(rest, known))
        needed.update(
            dict.fromkeys((v, axis) for v, axis in zip(self.closed.jaxpr.outvars, self.outputs, strict=True) if v in known)
        )
        keys = list(needed)

        def on_replica(*parts: Any) -> list[Any]:
            return _Replica(dict(zip(keys, parts, strict=True)), group).compute(self, rest)

        return jax.shard_map(
            on_replica,
            mesh=mesh,
            in_specs=tuple(_spec(axis) for _, axis in keys),
            out_specs=[_spec(axis) for axis in self.outputs],
            check_vma=False,
        )(*[env[v] for v, _ in keys])


def plan_by_rows(closed: ClosedJaxpr, inputs: Sequence[Rows], num_replicas: int) -> Plan | None:
    """Return a plan for a step whose arguments have rows along the axes `inputs`; None if it is to be left to XLA."""
    if all(axis is None for axis in inputs) or closed.effects or host_call_in(closed.jaxpr) is not None:
        return None
    closed = _inlined(closed)
    rows: dict[Any, Rows] = dict(zip(closed.jaxpr.invars, inputs, strict=True))
    ranks: dict[Any, int] = {}
    planned = list[_Planned]()
    try:
        for eqn in _used(closed.jaxpr):
            each = _planned(eqn, rows, ranks, num_replicas)
            planned.append(each)
            for var, axis in zip(eqn.outvars, each.ruling.outputs, strict=True):
                rows[var], ranks[var] = axis, each.rank + each.ruling.summed
    except Mixed:
        return None
    outputs = [None if isinstance(v, jex.Literal) else rows.get(v) for v in closed.jaxpr.outvars]
    return Plan(closed, planned, outputs, max(ranks.values(), default=0))


def _used(jaxpr: jex.Jaxpr) -> list[jex.JaxprEqn]:
    """Return the equations whose results are used: a sum that nobody reads need not be sent."""
    live, used = {v for v in jaxpr.outvars if not isinstance(v, jex.Literal)}, list[jex.JaxprEqn]()
    for eqn in reversed(jaxpr.eqns):
        if not live.isdisjoint(eqn.outvars):
            used.append(eqn)
            live.update(v for v in eqn.invars if not isinstance(v, jex.Literal))
    return used[::-1]


def _planned(eqn: jex.JaxprEqn, rows: dict[Any, Rows], ranks: dict[Any, int], num_replicas: int) -> _Planned:
    variables = [v for v in eqn.invars if not isinstance(v, jex.Literal)]
    rank = max((ranks.get(v, 0) for v in variables), default=0)
    operands = [None if isinstance(v, jex.Literal) else rows.get(v) for v in eqn.invars]
    if any(axis is not None for axis in operands):
        ruling = rule_of(eqn, operands)
        _check_sizes(eqn, ruling, num_replicas)
    else:
        if _names(eqn) & _OF_ALL_DEVICES:
            raise Mixed(eqn.primitive.name)
        ruling = Ruling(operands, [None] * len(eqn.outvars))
    return _Planned(eqn, ruling, rank)


def _check_sizes(eqn: jex.JaxprEqn, ruling: Ruling, num_replicas: int) -> None:
    pairs = [*zip(eqn.invars, ruling.inputs, strict=True), *zip(eqn.outvars, ruling.outputs, strict=True)]
    avals: list[tuple[Any, Rows]] = [(v.aval, axis) for v, axis in pairs]
    if any(axis is not None and (not aval.shape[axis] or aval.shape[axis] % num_replicas) for aval, axis in avals):
        raise Mixed(eqn.primitive.name)
    if ruling.summed and any(not jnp.issubdtype(aval.dtype, jnp.number) for aval, _ in avals[len(eqn.invars) :]):
        raise Mixed(eqn.primitive.name)


def _names(eqn: jex.JaxprEqn) -> set[str]:
    return {eqn.primitive.name}.union(*[_names(inner) for body in inner_jaxprs(eqn) for inner in body.eqns])


def _inlined(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Return the same program without calls that mean no more than their bodies."""

    def flat(*args: Any) -> list[Any]:
        return _evaluated(closed.jaxpr, closed.consts, args)

    avals: list[Any] = list(closed.in_avals)
    return jax.make_jaxpr(flat)(*[jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=x.weak_type) for x in avals])


def _evaluated(jaxpr: jex.Jaxpr, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    env.update(zip(jaxpr.invars, args, strict=True))
    for eqn in jaxpr.eqns:
        values = [_read(env, v) for v in eqn.invars]
        bodies = [x for x in eqn.params.values() if isinstance(x, ClosedJaxpr)] if eqn.primitive.name in INLINED else []
        if len(bodies) == 1 and len(bodies[0].jaxpr.invars) == len(values):
            results = _evaluated(bodies[0].jaxpr, bodies[0].consts, values)
        else:
            results = bind(eqn, values)
        env.update(zip(eqn.outvars, results, strict=True))
    return [_read(env, v) for v in jaxpr.outvars]


def _read(env: dict[Any, Any], var: Any) -> Any:
    return var.val if isinstance(var, jex.Literal) else env[var]


def _needed(equations: Iterable[_Planned], known: set[Any]) -> Iterable[tuple[Any, Rows]]:
    """Yield what each replica needs of the values that are known before, and along which axis it gets its rows of them."""
    for each in equations:
        for var, axis in zip(each.eqn.invars, each.ruling.inputs, strict=True):
            if not isinstance(var, jex.Literal) and var in known:
                yield var, axis


def _spec(axis: Rows) -> PartitionSpec:
    return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, AXIS)


class _Replica:
    """The part of one replica, which starts from values that it has with these rows."""

    def __init__(self, given: dict[tuple[Any, Rows], Any], group: MeshAxis):
        self._values, self._group = given, group

    def compute(self, plan: Plan, equations: list[_Planned]) -> list[Any]:
        for rank in range(plan.num_exchanges + 1):
            summands: dict[Any, Any] = {}
            for each in equations:
                if each.rank == rank:
                    results = self._equation(each)
                    if each.ruling.summed:
                        summands.update(zip(each.eqn.outvars, results, strict=True))
                    else:
                        keys = zip(each.eqn.outvars, each.ruling.outputs, strict=True)
                        self._values.update(zip(keys, results, strict=True))
            if summands:
                sums = self._group.all_reduce(ReduceOp.SUM, list(summands.values()))
                self._values.update(zip([(v, None) for v in summands], sums, strict=True))
        return [self._value(v, axis) for v, axis in zip(plan.closed.jaxpr.outvars, plan.outputs, strict=True)]

    def _equation(self, each: _Planned) -> list[Any]:
        ruling, eqn = each.ruling, each.eqn
        values = [self._value(v, axis) for v, axis in zip(eqn.invars, ruling.inputs, strict=True)]
        for i in ruling.counts_once:
            values[i] = jnp.where(self._group.replica_id() == 0, values[i], jnp.zeros_like(values[i]))
        if not ruling.sizes:
            return bind(eqn, values)
        sizes = {name: self._divided(eqn.params[name], axis) for name, axis in ruling.sizes.items()}
        with eqn.ctx.manager:
            results = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params({**eqn.params, **sizes}))
        return list(results) if eqn.primitive.multiple_results else [results]

    def _divided(self, sizes: Sequence[int], axis: int) -> tuple[int, ...]:
        return tuple(size // self._group.num_replicas if i == axis else size for i, size in enumerate(sizes))

    def _value(self, var: Any, axis: Rows) -> Any:
        """Return a value, of which a whole one is cut if rows are wanted."""
        if isinstance(var, jex.Literal):
            return var.val if axis is None else self._cut(jnp.asarray(var.val), axis)
        if (var, axis) not in self._values:
            self._values[var, axis] = self._cut(self._values[var, None], axis)
        return self._values[var, axis]

    def _cut(self, value: Any, axis: Rows) -> Any:
        assert axis is not None, "what has rows is never wanted whole"
        size = value.shape[axis] // self._group.num_replicas
        return lax.dynamic_slice_in_dim(value, self._group.replica_id() * size, size, axis)


def compute_by_rows(step: Callable[..., Any], args: Any, rows: Any, mesh: Mesh, group: MeshAxis) -> Any:
    """Return ``step(*args)``, computed by rows in a trace of all replicas; None if that is to be left to XLA.

    `rows` has the structure of `args`, with the axis of the rows of each array, or -1.
    """
    flat, tree = jax.tree.flatten(args)
    # In their own trace, so that nothing in it belongs to the mesh on which the arguments lie.
    given = [jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=jax.typeof(x).weak_type) for x in flat]
    closed, shapes = jax.make_jaxpr(step, return_shape=True)(*jax.tree.unflatten(tree, given))
    plan = plan_by_rows(closed, [None if axis < 0 else axis for axis in jax.tree.leaves(rows)], group.num_replicas)
    return None if plan is None else jax.tree.unflatten(jax.tree.structure(shapes), plan(flat, mesh, group))
