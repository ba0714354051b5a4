"""Steps with equal replicas: the replica function is traced once, and computed by every replica.

The replicas become one SPMD program under ``jax.shard_map`` or, if they share one device, one vectorized program
(``tracing/replicas/_fused.py``).
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.sharding import PartitionSpec

from ...errors import ContextError
from ...reductions import _checks
from ...reductions._causes import Input
from ...replicas._collectives import AXIS, MeshAxis
from ...replicas._context import as_mirrored
from ...replicas._copies import VariableAggregation
from ...replicas._placement import Placement
from ...replicas._values import Mirrored, PerReplica
from ...tracing.jaxprs._closed_jaxpr import ClosedJaxpr
from ...tracing.jaxprs._host_calls import host_call_in
from ...tracing.replicas._fused import fuse
from ...tracing.replicas._interpreter import run_alone
from ...tracing.replicas._piggyback_scalars import Riders
from ...tracing.replicas._requests import Question
from ...tracing.replicas._varying import Varying
from ...variables._ref import Ref
from ._rehearsal import Rehearsal, rehearse, rehearse_until_learned
from ._step_inputs import ROW, Layout, StepInputs
from ._variable_checks import check_agreement

_Traced = TypeVar("_Traced")


def run_spmd(step: StepInputs) -> Any:
    """Compute one step with equal replicas."""
    cross, n = step.cross, step.num_replicas
    given = [step.arguments.leaves[i] for i in step.moving]
    arrays, in_rows = [_raw(x) for x in given], [ROW if isinstance(x, PerReplica) else None for x in given]
    local, group = [_shape(x, layout) for x, layout in zip(arrays, in_rows, strict=True)], step.mesh_axis()
    refs, (traced,) = rehearse_until_learned(step, lambda: [named(step.placement, lambda: rehearse(step, lambda: group, local))])
    layouts = [*[traced.layouts[ref] for ref in refs], *in_rows]
    inputs = [*[cross.read_raw(ref) for ref in refs], *arrays]
    _check_reductions(step, traced, refs, given)
    is_out_stacked = _check_writes(step, traced, layouts)
    out_layouts = [*[ROW if s else None for s in is_out_stacked], *[step.layout_of(ref) for ref in traced.written]]
    compute = _fused if step.placement.fused else _side_by_side
    results = compute(step, traced, inputs, layouts, out_layouts)
    for ref, value in zip(traced.written, results[traced.num_results :], strict=True):
        cross.write_raw(ref, value)
    values = [PerReplica.from_stacked(x) if s else as_mirrored(x, n) for x, s in zip(results, is_out_stacked, strict=False)]
    return traced.template.fill(values, step.arguments.leaves)


def _check_writes(step: StepInputs, traced: Rehearsal, layouts: list[Layout]) -> list[bool]:
    """Raise if the copies of a variable would differ. Return which of the results differ by replica."""
    varying = Varying(traced.closed.jaxpr, [layout is not None for layout in layouts]).outputs
    num_results, num_outputs = traced.num_results, traced.num_results + len(traced.written)
    slices = {ref for ref, layout in traced.layouts.items() if layout not in (None, ROW)}
    check_agreement(traced.written, varying[num_results:num_outputs], step.num_replicas, slices)
    check_agreement(traced.cut, varying[num_outputs:], step.num_replicas)
    return varying[:num_results]


def _check_reductions(step: StepInputs, traced: Rehearsal, refs: list[Ref], given: list[Any]) -> None:
    """Warn of gradients that the sum over the replicas counts several times; see ``reductions/_checks.py``."""
    names = step.arguments.names
    inputs = [Input(ref.copies(step.num_replicas), accumulates=_accumulates(ref)) for ref in refs]
    inputs += [Input(isinstance(x, PerReplica), names[i]) for i, x in zip(step.moving, given, strict=True)]
    found = _checks.find(traced.closed.jaxpr, inputs, traced.counts, step.num_replicas)
    _checks.tell(found, step.strategy.told, strict=step.strategy.strict)


def _accumulates(ref: Ref) -> str | None:
    """Return the name of a variable whose value is combined over the replicas at each assignment; None for other variables."""
    combined = ref.aggregation in (VariableAggregation.SUM, VariableAggregation.MEAN) and not ref.on_read and not ref.rows_only
    return ref.name if combined else None


def _side_by_side(
    step: StepInputs, traced: Rehearsal, inputs: list[Any], layouts: list[Layout], out_layouts: list[Layout]
) -> Sequence[Any]:
    """Compute each replica on its own device."""
    closed = traced.closed
    varies = [layout is not None for layout in layouts]
    _check_host_calls(step, closed)
    riders = _riders(step, closed, out_layouts[: traced.num_results])  # not for its state
    known = {*riders.indices} if riders else set[int]()

    def replica_program(consts: list[Any], inputs: list[Any]) -> list[Any]:
        local = [x[0] if layout == ROW else x for x, layout in zip(inputs, layouts, strict=True)]
        answers = _unmarked(step, ClosedJaxpr(closed.jaxpr, consts), local, varies, riders)[: len(out_layouts)]
        answers = [riders.stack(closed.jaxpr, i) if riders and i in known else x for i, x in enumerate(answers)]
        rows = [layout == ROW and i not in known for i, layout in enumerate(out_layouts)]
        return [jnp.asarray(x)[None] if is_row else x for x, is_row in zip(answers, rows, strict=True)]

    in_specs = ([PartitionSpec()] * len(closed.consts), [_spec(layout) for layout in layouts])
    out_specs = [_spec(None if i in known else layout) for i, layout in enumerate(out_layouts)]
    return _on_replicas(replica_program, step.placement, in_specs, out_specs)(list(closed.consts), inputs)


def _riders(step: StepInputs, closed: ClosedJaxpr, out_layouts: list[Layout]) -> Riders | None:
    """Return the results that every replica learns along with a sum; None where an exchange more costs little."""
    placement = step.placement
    if placement.world is None or not placement.deadlocks or placement.has_model_axis:
        return None
    wanted = [i for i, layout in enumerate(out_layouts) if layout == ROW]
    return Riders(closed.jaxpr, wanted, step.num_replicas, step.mesh_axis().replica_id)


def _check_host_calls(step: StepInputs, closed: ClosedJaxpr) -> None:
    """Raise if replicas of several devices call the host, which JAX cannot lower while XLA shares out their work."""
    found = host_call_in(closed.jaxpr) if step.placement.has_model_axis else None
    if found is not None:
        raise ContextError(
            f"The function that `run` computes calls the host ({found}), but each replica has "
            f"{step.placement.model_parallel_size} devices (model_parallel_size), and JAX has no such calls there. Return the "
            "values from the function and use them outside of `run`, or use model_parallel_size=1."
        )


def _fused(
    step: StepInputs, traced: Rehearsal, inputs: list[Any], layouts: list[Layout], out_layouts: list[Layout]
) -> Sequence[Any]:
    """Compute all replicas on one device."""
    closed, varies = traced.closed, [layout is not None for layout in layouts]
    shapes = [_shape(v.aval) for v in (*closed.jaxpr.constvars, *closed.jaxpr.invars)]
    k = len(closed.consts)
    trace = jax.make_jaxpr(lambda *xs: _unmarked(step, ClosedJaxpr(closed.jaxpr, list(xs[:k])), xs[k:], varies))
    unmarked = named(step.placement, lambda: trace(*shapes))
    results = fuse(unmarked, [*closed.consts, *inputs], [*[False] * k, *varies], step.num_replicas)
    return [
        jnp.asarray(x.value) if layout is None else x.stack(step.num_replicas)
        for x, layout in zip(results, out_layouts, strict=True)
    ]


def _unmarked(
    step: StepInputs, closed: ClosedJaxpr, local: Sequence[Any], varies: list[bool], riders: Riders | None = None
) -> list[Any]:
    """Compute one replica's results: evaluate its gradients, and agree with the others on writes to variables."""
    group = step.mesh_axis()
    return run_alone(closed, local, varies, lambda exchange: _answer(exchange, group), riders)


def _answer(exchange: Question, group: MeshAxis) -> list[Any]:
    """Compute what equal replicas store in a variable with an aggregation."""
    (value,), (varies,) = exchange.values, exchange.varying
    aggregation = exchange.eqn.params["aggregation"]
    if varies:
        return [group.sync(aggregation, value, exchange.eqn.params["rows_only"])]
    return [value * group.num_replicas if aggregation is VariableAggregation.SUM else value]


def named(placement: Placement, trace: Callable[[], _Traced]) -> _Traced:
    """Return the result of `trace`, called where the axis of the replicas has its name."""
    found: list[_Traced] = []

    def probe(row: Any) -> Any:
        found.append(trace())
        return row

    each = [jnp.zeros((placement.num_replicas,))]
    if placement.fused:
        jax.eval_shape(jax.vmap(probe, axis_name=AXIS), *each)
    else:
        split = PartitionSpec(AXIS)
        jax.eval_shape(_on_replicas(probe, placement, split, split), *each)
    return found[-1]


def _on_replicas(program: Callable[..., Any], placement: Placement, in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """Let each replica compute `program`. How the devices of one replica share its work is left to XLA."""
    mesh = placement.mesh
    return jax.shard_map(program, mesh=mesh, axis_names={AXIS}, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def _spec(layout: Layout) -> PartitionSpec:
    if layout is None:
        return PartitionSpec()
    return PartitionSpec(AXIS) if layout == ROW else PartitionSpec(*[None] * layout, AXIS)


def _shape(x: Any, layout: Layout = None) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of an argument as a replica sees it: the whole, or its row of a stack."""
    x = x if isinstance(x, ShapedArray) else jax.typeof(x)
    return jax.ShapeDtypeStruct(tuple(x.shape[1:] if layout == ROW else x.shape), x.dtype, weak_type=x.weak_type)


def _raw(leaf: Any) -> Any:
    if isinstance(leaf, PerReplica):
        return leaf.stacked
    return leaf.value if isinstance(leaf, Mirrored) else jnp.asarray(leaf)
