"""Makes a plan: finds the program's first training step, compiles it for the topology, and counts what it does."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import DatasetError
from ..input.sharding._plan import InputPlan
from ..replicas._model_axis import check_divides
from ..replicas._planning import Held, zeros
from ..replicas._values import PerReplica, is_array, map_replicas
from ._chips import Target, parse_target
from ._compile import FoundStep, compile_step, find_step
from ._cpu import measured_cpu
from ._plan import Plan
from ._waiting import waiting


def make_plan(program: Callable[[], Any], topology: str, *, quick: bool = False) -> Plan:
    """Plan what the first training step of a program will do on a topology.

    The program gets as many replicas as the topology has devices. It is ended at its first training step, which is compiled but not
    computed.

    Args:
        program: A function without arguments that makes a strategy, a model and data, and trains with ``model.fit``, or with
            ``strategy.run`` of a function that assigns trainable variables.
        topology: The name of the devices, such as ``"cpu:8"``, ``"gpu:8xh100"``, ``"v5e:16x16"``, or ``"v6e:16x16*4"`` for four
            slices.
        quick: Whether XLA optimizes little for TPUs. A large model is then planned in a tenth of the time, but its memory traffic
            is only roughly that of the program that will run.

    Returns:
        The plan, which prints as a table.

    Raises:
        ArgumentError: If the topology is unknown, or if the first batch cannot be divided evenly among the replicas.
        ConfigurationError: If libtpu is needed but not installed, or does not know the topology.
        ContextError: If the program ends without a training step.

    >>> import keras, numpy as np, replicant
    >>> def program():
    ...     with replicant.MirroredStrategy().scope():
    ...         model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    ...         model.compile("sgd", "mse")
    ...     model.fit(np.zeros((8, 4)), np.zeros((8, 2)), batch_size=8, verbose=0)
    >>> plan = make_plan(program, "cpu:4")
    >>> plan.batch, plan.weights, plan.examples_per_step
    (((2, 4), (2, 2)), 40, 8)
    """
    target = parse_target(topology)
    with waiting("plan"):
        return plan_of(find_step(program, target), target, quick=quick)


def plan_run(strategy: Any, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], topology: str) -> Plan:
    """Plan ``strategy.run(fn, args, kwargs)``, or the call of a compiled function with these arguments, for ``strategy.plan``."""
    target = parse_target(topology)
    size = strategy.placement.model_parallel_size
    check_divides("plan", size, target.num_devices)
    args, kwargs = _for_replicas((tuple(args), kwargs), strategy.num_replicas_in_sync, target.num_devices // size)

    def program() -> None:
        if hasattr(fn, "python_function"):
            with strategy.scope():
                fn(*args, **kwargs)
        else:
            strategy.run(fn, args, kwargs)

    with waiting("plan"):
        return plan_of(find_step(program, target, strategy, keeps=True), target)


def _for_replicas(values: Any, before: int, num_replicas: int) -> Any:
    """Replace values with one row for each of `before` replicas by zeros for `num_replicas`, in the shape of the first row."""

    def spread(leaf: Any) -> Any:
        if isinstance(leaf, PerReplica):
            first = leaf.values[0]
            shape, dtype = np.shape(first), getattr(first, "dtype", None) or np.asarray(first).dtype
            rows = zeros((num_replicas, *shape), dtype)
            return rows[0] if num_replicas == 1 else PerReplica.from_stacked(rows)
        if before == 1 and num_replicas > 1 and is_array(leaf) and leaf.ndim > 0:  # a single replica's batch is not a PerReplica
            return PerReplica.from_stacked(zeros((num_replicas, *leaf.shape), leaf.dtype))
        return leaf

    return map_replicas(spread, values)


def plan_of(step: FoundStep, target: Target, *, quick: bool = False) -> Plan:
    """Plan a step that was found."""
    n = target.num_devices // step.model_parallel_size
    held, sliced = step.held(target), step.held(target, slices_slots=True)
    compiled = compile_step(step, target, quick=quick)
    return Plan(
        target,
        tuple(share_of(x, n) for x in held if x.kind == "batch" and x.shape),
        total_bytes(held, "weights", n),
        total_bytes(held, "optimizer state", n),
        total_bytes(held, "untrained weights", n),
        total_bytes(held, "other state", n),
        total_bytes(held, "batch", n) * (n if target.kind == "cpu" else 1),
        total_bytes(sliced, "optimizer state", n),
        compiled,
        target.chip or measured_cpu(),
        tuple(_shared(explain, target, step.model_parallel_size) for explain in step.inputs),
        step.model_parallel_size,
    )


def _shared(explain: Callable[[int, int], InputPlan], target: Target, model_parallel_size: int) -> InputPlan | str:
    num_workers, devices_per_worker = target.workers
    try:
        return explain(num_workers, max(1, devices_per_worker // model_parallel_size))
    except DatasetError as error:
        return str(error)


def share_of(held: Held, num_replicas: int) -> tuple[int, ...]:
    """Return the shape of one replica's part of an array."""
    if held.layout == "stacked":
        return held.shape[1:]
    if held.layout == "cut" and held.shape and held.shape[0] % num_replicas == 0:
        return (held.shape[0] // num_replicas, *held.shape[1:])
    return held.shape


def total_bytes(held: Sequence[Held], kind: str, num_replicas: int) -> int:
    """Return the bytes on each device of all arrays of one kind."""
    total = 0
    for x in held:
        if x.kind == kind:
            whole = dataclasses.replace(x, shape=share_of(x, num_replicas)).num_bytes
            total += whole // x.pieces if x.layout == "sliced" else whole
    return total
