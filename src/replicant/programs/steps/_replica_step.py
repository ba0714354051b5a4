"""``strategy.run``: one replica function, traced once and computed by every replica.

Equal replicas become one SPMD program under ``jax.shard_map`` (this file) or, if they share one device, one vectorized program
(``tracing/replicas/_fused.py``). Replicas of different sizes are traced one by one and computed side by side (``_ragged.py``). All
of this happens inside the trace of a ``_compiled.Compiled``, which owns the state.
"""

import dataclasses
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.core import ShapedArray, Tracer
from jax.sharding import PartitionSpec

from ...errors import ContextError, DivergenceError, MixedStrategyError
from ...reductions import _checks
from ...reductions._causes import Input
from ...replicas._collectives import AXIS, Group, MeshAxis, SingleReplica
from ...replicas._context import ActiveStrategy, ReplicaContext, as_mirrored, entered
from ...replicas._copies import VariableAggregation
from ...replicas._model_axis import ModelCut
from ...replicas._placement import Placement
from ...replicas._values import Mirrored, PerReplica, is_distributed
from ...tracing._inputs import Inputs as VariableInputs
from ...tracing._inputs import make_jaxpr
from ...tracing.jaxprs._closed_jaxpr import ClosedJaxpr
from ...tracing.jaxprs._host_calls import host_call_in
from ...tracing.jaxprs._marks import sync_p
from ...tracing.replicas._fused import fuse
from ...tracing.replicas._interpreter import Question, run_alone
from ...tracing.replicas._piggyback_scalars import Riders
from ...tracing.replicas._varying import Varying
from ...variables._recorder import CrossRecorder, Facts, Recorder, ReplicaRecorder, recording
from ...variables._ref import Ref
from ..arguments._call_arguments import arguments_explained
from ..arguments._opaque import hide, show
from ..arguments._replica_inputs import Inputs, moves, stays_on_host
from ..validity._leaked_tracers import Arguments
from ._no_rows import no_rows_explained
from ._pathless_gradients import learn

# How a replica sees an array of the program: the whole (None), its row of a stack (_ROW), or its slice along an axis (0, 1, ...).
Layout: TypeAlias = int | None
_ROW = -1


def _spec(layout: Layout) -> PartitionSpec:
    if layout is None:
        return PartitionSpec()
    return PartitionSpec(AXIS) if layout == _ROW else PartitionSpec(*[None] * layout, AXIS)


class ReplicaStep:
    """One call of ``run`` in the trace of a program."""

    def __init__(self, strategy: ActiveStrategy, fn: Callable[..., Any], inputs: Inputs, cross: CrossRecorder):
        self.strategy = strategy
        self.inputs = inputs
        self.cross = cross
        self.num_replicas = inputs.num_replicas
        self.counts: list[tuple[int, int | None, Any]] = []  # noted by the last trace
        self._fn = fn

    def call(self, leaves: Sequence[Any], group: Group, recorder: Recorder, *, has_rows: bool = True) -> Any:
        """Call the replica function on one replica's leaves."""
        args, kwargs = show(jax.tree.unflatten(self.inputs.tree, leaves))
        context = ReplicaContext(self.strategy, group, has_rows=has_rows)
        self.counts = context.counts
        given = Arguments(args, kwargs, self._rows(leaves))
        with (
            recording(recorder),
            entered(self.strategy, context),
            no_rows_explained(self.inputs, leaves),
            arguments_explained(self._fn, args, kwargs),
        ):
            result = hide(self._fn(*args, **kwargs))
        self._check_layouts(recorder)
        given.check(f"run: {self.name}", result, copies_are_theirs=True)
        return result

    @property
    def name(self) -> str:
        """What messages call the function."""
        return repr(getattr(self._fn, "__qualname__", self._fn))

    def _check_layouts(self, recorder: Recorder) -> None:
        """Raise if a training step leaves a rule of a layout map without a variable."""
        layouts = self.strategy.placement.layouts
        if layouts is None or recorder.made_variables or not any(ref.trainable for ref in recorder.written):
            return
        for ref in (*recorder.known, *recorder.written):
            layouts.note(ref.name)
        layouts.check_all_matched()

    def _rows(self, leaves: Sequence[Any]) -> list[Any]:
        """Return those of one replica's leaves that are its part of the batch. With one replica, any of them may be."""
        if self.num_replicas == 1:
            return list(leaves)
        return [x for x, given in zip(leaves, self.inputs.leaves, strict=True) if isinstance(given, PerReplica)]

    # One replica: part of the surrounding program.

    def alone(self) -> Any:
        before = {*self.cross.values}
        result = self.call(self.inputs.of_replica(0), SingleReplica(), self.cross)
        self.check_owners([ref for ref in self.cross.values if ref not in before])
        return result

    def check_owners(self, refs: Iterable[Ref]) -> None:
        """Raise for variables that were made under a strategy on other devices."""
        if self.strategy.placement.planning is not None or not self.strategy.placement.devices:
            return
        for ref in refs:
            if ref.strategy is not None and ref.strategy.placement != self.strategy.placement:
                raise MixedStrategyError(
                    f"Variable {ref.name!r} belongs to {ref.strategy!r} but is used in `run` of {self.strategy!r}. To continue "
                    "with the other strategy, create the model or the variable again in its scope and assign the old values to it, "
                    "or save them in a checkpoint and restore that there."
                )

    # Equal replicas: one SPMD program.

    def spmd(self) -> Any:
        cross, n = self.cross, self.num_replicas
        leaves = self.inputs.leaves
        moving = [i for i, x in enumerate(leaves) if moves(x)]
        arrays = [_raw(leaves[i]) for i in moving]
        by_replica = [isinstance(leaves[i], PerReplica) for i in moving]

        traced = Replica(self, moving)
        closed = traced.trace(arrays, [_ROW if s else None for s in by_replica], self.facts(), has_rows=self.inputs.has_rows(0))
        refs = list(traced.layouts)
        layouts = [*traced.layouts.values(), *[_ROW if s else None for s in by_replica]]
        slices = {ref: axis for ref, axis in traced.layouts.items() if axis not in (None, _ROW)}
        raws = [cross.read_raw(ref) for ref in refs]
        self._check_reductions(closed, refs, [leaves[i] for i in moving], [self.inputs.names[i] for i in moving])
        varying = Varying(closed.jaxpr, [layout is not None for layout in layouts])
        num_outputs = traced.num_results + len(traced.written)
        check_agreement(traced.written, varying.outputs[traced.num_results : num_outputs], n, slices)
        check_agreement(traced.cut, varying.outputs[num_outputs:], n)
        is_out_stacked = varying.outputs[: traced.num_results]
        out_layouts = [_ROW if s else None for s in is_out_stacked]
        out_layouts += [traced.layout_of(ref) for ref in traced.written]

        if self.strategy.placement.fused:
            results = self._fused(closed, [*raws, *arrays], layouts, out_layouts)
        else:
            results = self._side_by_side(closed, [*raws, *arrays], layouts, out_layouts, num_results=traced.num_results)
        for ref, value in zip(traced.written, results[traced.num_results :], strict=True):
            cross.write_raw(ref, value)
        values = [
            PerReplica.from_stacked(x) if s else as_mirrored(x, n)
            for x, s in zip(results[: traced.num_results], is_out_stacked, strict=False)
        ]
        return traced.fill(values, leaves)

    def _check_reductions(self, closed: ClosedJaxpr, refs: list[Ref], arguments: list[Any], names: list[str]) -> None:
        """Warn of gradients that the sum over the replicas counts several times; see ``reductions/_checks.py``."""
        inputs = [Input(ref.copies(self.num_replicas), accumulates=_accumulates(ref)) for ref in refs]
        inputs += [Input(isinstance(x, PerReplica), name) for x, name in zip(arguments, names, strict=True)]
        counts = [_checks.Count(*count) for count in self.counts]
        found = _checks.find(closed.jaxpr, inputs, counts, self.num_replicas)
        _checks.tell(found, self.strategy.told, strict=self.strategy.strict)

    def _side_by_side(
        self, closed: ClosedJaxpr, inputs: list[Any], layouts: list[Layout], out_layouts: list[Layout], *, num_results: int
    ) -> Sequence[Any]:
        """Compute each replica on its own device. The first `num_results` are the function's results, and the rest its state."""
        varies = [layout is not None for layout in layouts]
        self._check_host_calls(closed)
        riders = self._riders(closed, out_layouts[:num_results])
        known = {*riders.indices} if riders else set[int]()

        def replica_program(consts: list[Any], inputs: list[Any]) -> list[Any]:
            local = [x[0] if layout == _ROW else x for x, layout in zip(inputs, layouts, strict=True)]
            answers = self._unmarked(closed, consts, local, varies, riders)[: len(out_layouts)]
            answers = [riders.stack(closed.jaxpr, i) if riders and i in known else x for i, x in enumerate(answers)]
            rows = [layout == _ROW and i not in known for i, layout in enumerate(out_layouts)]
            return [jnp.asarray(x)[None] if is_row else x for x, is_row in zip(answers, rows, strict=True)]

        in_specs = ([PartitionSpec()] * len(closed.consts), [_spec(layout) for layout in layouts])
        out_specs = [_spec(None if i in known else layout) for i, layout in enumerate(out_layouts)]
        return _on_replicas(replica_program, self.strategy.placement, in_specs, out_specs)(list(closed.consts), inputs)

    def _riders(self, closed: ClosedJaxpr, out_layouts: list[Layout]) -> Riders | None:
        """Return the results that every replica learns along with a sum; None where an exchange more costs little."""
        placement = self.strategy.placement
        if placement.world is None or not placement.deadlocks or placement.has_model_axis:
            return None
        wanted = [i for i, layout in enumerate(out_layouts) if layout == _ROW]
        return Riders(closed.jaxpr, wanted, self.num_replicas, self.mesh_axis().replica_id)

    def _check_host_calls(self, closed: ClosedJaxpr) -> None:
        """Raise if replicas of several devices call the host, which JAX cannot lower while XLA shares out their work."""
        found = host_call_in(closed.jaxpr) if self.strategy.placement.has_model_axis else None
        if found is not None:
            size = self.strategy.placement.model_parallel_size
            raise ContextError(
                f"The function that `run` computes calls the host ({found}), but each replica has {size} devices "
                "(model_parallel_size), and JAX has no such calls there. Return the values from the function and use them outside "
                "of `run`, or use model_parallel_size=1."
            )

    def _fused(self, closed: ClosedJaxpr, inputs: list[Any], layouts: list[Layout], out_layouts: list[Layout]) -> Sequence[Any]:
        """Compute all replicas on one device."""
        flags = [layout is not None for layout in layouts]
        shapes = [_shape(v.aval) for v in (*closed.jaxpr.constvars, *closed.jaxpr.invars)]
        k = len(closed.consts)
        trace = jax.make_jaxpr(lambda *xs: self._unmarked(closed, xs[:k], xs[k:], flags))
        unmarked = named(self.strategy.placement, lambda: trace(*shapes))
        results = fuse(unmarked, [*closed.consts, *inputs], [*[False] * k, *flags], self.num_replicas)
        return [
            jnp.asarray(x.value) if layout is None else x.stack(self.num_replicas)
            for x, layout in zip(results, out_layouts, strict=True)
        ]

    def _unmarked(
        self, closed: ClosedJaxpr, consts: Sequence[Any], local: Sequence[Any], flags: list[bool], riders: Riders | None = None
    ) -> list[Any]:
        """Compute one replica's results: evaluate its gradients, and agree with the others on writes to variables."""
        group = self.mesh_axis()
        unnamed = ClosedJaxpr(closed.jaxpr, list(consts))
        return run_alone(unnamed, local, flags, lambda exchange: answer_uniformly(exchange, group), riders)

    def mesh_axis(self) -> MeshAxis:
        """Return the group of equal replicas."""
        placement = self.strategy.placement
        rest = placement.model_axis_at_rest if placement.has_model_axis else None
        return MeshAxis(self.num_replicas, bucket=placement.deadlocks, bytes_per_pack=placement.bytes_per_pack, rest=rest)

    def facts(self) -> Facts:
        """Return what earlier traces have learned about this call of ``run`` in its program."""
        cross = self.cross
        index, cross.num_runs = cross.num_runs, cross.num_runs + 1
        while len(cross.run_facts) <= index:
            cross.run_facts.append(Facts())
        return cross.run_facts[index]


def named(placement: Placement, trace: Callable[[], ClosedJaxpr]) -> ClosedJaxpr:
    """Return the result of `trace`, called where the axis of the replicas has its name."""
    found: list[ClosedJaxpr] = []

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


def _shape(x: Any, layout: Layout = None, num_replicas: int = 1) -> jax.ShapeDtypeStruct:
    x = x if isinstance(x, ShapedArray) else jax.typeof(x)
    shape = list(x.shape[1:] if layout == _ROW else x.shape)
    if layout is not None and layout != _ROW:
        shape[layout] //= num_replicas
    return jax.ShapeDtypeStruct(tuple(shape), x.dtype, weak_type=x.weak_type)


class Replica:
    """The trace of a replica function: results first, then the values of the variables that it wrote.

    Last come values that were cut into slices. They are there for one check only, and no program computes them.
    """

    def __init__(self, step: ReplicaStep, moving: list[int], *, may_cut: bool = True):
        self._step = step
        self._moving = moving
        self._may_cut = may_cut
        self.layouts: dict[Ref, Layout] = {}  # how the replica sees each variable that it uses, which are its first inputs
        self.written: list[Ref] = []
        self.cut: list[Ref] = []
        self.num_results = 0
        self._tree: Any = None
        self._leaves: list[Any] = []
        self._inputs: VariableInputs | None = None

    def layout_of(self, ref: Ref) -> Layout:
        """Return how the replica sees a variable."""
        return _ROW if ref.copies(self._step.num_replicas) else self._slice_axis(ref)

    def _slice_axis(self, ref: Ref) -> int | None:
        return ref.slice_axis(self._step.strategy.placement) if self._may_cut else None

    def _model_cut(self, ref: Ref) -> ModelCut | None:
        return ref.model_cut(self._step.strategy.placement) if self._may_cut else None

    def _take(self, ref: Ref) -> Any:
        """Return the value of a variable in the replica's trace. The program that contains it gets the variable, too."""
        assert self._inputs is not None, "only called in the trace"
        self._step.cross.read_raw(ref)
        return self._inputs.take(ref, self._local(ref))

    def _local(self, ref: Ref) -> ShapedArray:
        shape, axis = list(ref.shape), self._slice_axis(ref)
        if axis is not None:
            shape[axis] //= self._step.num_replicas
        return ShapedArray(tuple(shape), jax.dtypes.canonicalize_dtype(ref.dtype, allow_extended_dtype=True))

    def trace(self, arrays: list[Any], layouts: list[Layout], facts: Facts, *, has_rows: bool) -> ClosedJaxpr:
        """Return the jaxpr of one of several equal replicas, which sees each array according to its layout."""
        local = [_shape(x, layout, self._step.num_replicas) for x, layout in zip(arrays, layouts, strict=True)]
        group, placement = self._step.mesh_axis(), self._step.strategy.placement
        while True:
            closed = named(placement, lambda: self.trace_once(local, group, facts, has_rows=has_rows))
            self.check_made()
            if not learn(facts, [closed.jaxpr]):
                self._step.check_owners(self.layouts)
                return self.arranged(closed, self.layouts)
            self._step.cross.undo_effects()

    def check_made(self) -> None:
        """End the trace of the program if the function has made variables: all that follows would be in vain."""
        self._step.cross.check_made(self.layouts)

    def trace_once(self, local: list[Any], group: Group, facts: Facts, *, has_rows: bool = True) -> ClosedJaxpr:
        """Return the jaxpr of the function on one replica's arrays, without its variables among the inputs."""
        return make_jaxpr(lambda inputs, arrays: self._flat(inputs, arrays, group, facts, has_rows=has_rows), local)[0]

    def arranged(self, closed: ClosedJaxpr, refs: Iterable[Ref]) -> ClosedJaxpr:
        """Return the jaxpr of the last trace with these variables as its first inputs."""
        assert self._inputs is not None, "there is a trace"
        return self._inputs.arranged(closed, [(ref, self._local(ref)) for ref in refs])

    def _flat(
        self, inputs: VariableInputs, arrays: list[Any], group: Group, facts: Facts, *, has_rows: bool, index: int = 0
    ) -> list[Any]:
        step, self._inputs = self._step, inputs
        recorder = ReplicaRecorder(
            self._take,
            Marked(group),
            facts,
            has_rows=has_rows,
            slice_axis=self._slice_axis,
            model_cut=self._model_cut,
            sums_of_slices=group.sums_of_slices if isinstance(group, MeshAxis) else None,
        )
        leaves = list(step.inputs.leaves)
        for position, value in zip(self._moving, arrays, strict=True):
            leaves[position] = value
        leaves = [x.values[index] if is_distributed(x) else x for x in leaves]
        result = step.call(leaves, group, recorder, has_rows=has_rows)
        self.layouts = {ref: self.layout_of(ref) for ref in (*recorder.known, *recorder.written)}
        passed = {id(leaves[p]): p for p in self._moving if not isinstance(step.inputs.leaves[p], PerReplica)}
        passed |= {id(leaves[p]): p for p, x in enumerate(step.inputs.leaves) if stays_on_host(x)}
        answers, self._tree = jax.tree.flatten(result)
        self._leaves = [_result_kind(x, passed) for x in answers]
        results = [jnp.asarray(x) for x, kind in zip(answers, self._leaves, strict=True) if kind is _COMPUTED]
        self.num_results = len(results)
        self.written = list(recorder.written)
        self.cut = [ref for ref, _ in recorder.cut_values]
        return [*results, *[recorder.values[ref] for ref in self.written], *[value for _, value in recorder.cut_values]]

    def fill(self, computed: Sequence[Any], arguments: Sequence[Any], other: Any = None) -> Any:
        """Return the function's result: computed values, arguments that were passed through, and Python objects (or `other`)."""
        rest = iter(computed)
        leaves = []
        for kind in self._leaves:
            if kind is _COMPUTED:
                leaves.append(next(rest))
            elif isinstance(kind, _Passed):
                leaves.append(arguments[kind.position])
            else:
                leaves.append(kind if other is None else other)
        return jax.tree.unflatten(self._tree, leaves)


@dataclasses.dataclass(frozen=True)
class _Passed:
    position: int


_COMPUTED = object()


def _result_kind(leaf: Any, passed: dict[int, int]) -> Any:
    if id(leaf) in passed:
        return _Passed(passed[id(leaf)])
    # As in TensorFlow, an object that is the same on all replicas (a constant, a captured array) is returned as it is.
    return _COMPUTED if isinstance(leaf, Tracer) else leaf


class Marked:
    """A group whose writes to variables become marks. They are answered once it is known whether the value varies."""

    def __init__(self, group: Group):
        self._group = group
        self.num_replicas = group.num_replicas
        self._count = 0

    def sync(self, aggregation: VariableAggregation, value: Any, rows_only: bool) -> jax.Array:
        index, self._count = self._count, self._count + 1
        return sync_p.bind(jnp.asarray(value), aggregation=aggregation, rows_only=rows_only, index=index)[0]

    def replica_id(self) -> jax.Array:
        return self._group.replica_id()

    def all_gather(self, leaf: jax.Array, axis: int) -> jax.Array:
        return self._group.all_gather(leaf, axis)


def answer_uniformly(exchange: Question, group: MeshAxis) -> list[Any]:
    """Compute what equal replicas store in a variable with an aggregation."""
    (value,), (varies,) = exchange.values, exchange.varying
    aggregation = exchange.eqn.params["aggregation"]
    if varies:
        return [group.sync(aggregation, value, exchange.eqn.params["rows_only"])]
    return [value * group.num_replicas if aggregation is VariableAggregation.SUM else value]


def check_agreement(written: Sequence[Ref], varies: Sequence[bool], num_replicas: int, slices: Container[Ref] = ()) -> None:
    """Raise DivergenceError if a mirrored variable would get a different value on each replica."""
    for ref, differs in zip(written, varies, strict=True):
        if differs and not ref.copies(num_replicas) and ref not in slices:
            raise DivergenceError(
                f"Variable {ref.name!r} (shape {ref.shape}, aggregation=NONE) was assigned a value that differs between the "
                f"{num_replicas} replicas, so its copies would no longer agree. {ref.if_copies_differ}"
            )


def _accumulates(ref: Ref) -> str | None:
    """Return the name of a variable whose value is combined over the replicas at each assignment; None for other variables."""
    combined = ref.aggregation in (VariableAggregation.SUM, VariableAggregation.MEAN) and not ref.on_read and not ref.rows_only
    return ref.name if combined else None


def _raw(leaf: Any) -> Any:
    if isinstance(leaf, PerReplica):
        return leaf.stacked
    return leaf.value if isinstance(leaf, Mirrored) else jnp.asarray(leaf)
