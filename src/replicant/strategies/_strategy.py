"""``Strategy``: the public methods that all synchronous strategies share. A strategy is a Placement with these methods."""

import collections
import dataclasses
import importlib
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax

from .. import _display
from ..errors import ArgumentTypeError
from ..input._contexts import InputContext, ValueContext
from ..input._shapes_only import planned
from ..input.adapters import as_dataset
from ..input.distributed._direct import OneByOne, PlaceAtOnce
from ..input.distributed._distributed import DistributedDataset
from ..programs._compiled import Compiled
from ..programs.steps._run import run_replicas
from ..programs.validity._function_key import function_key
from ..replicas._collectives import ReduceOp
from ..replicas._context import entered, planning, require_cross_replica
from ..replicas._own_device import on_one_device
from ..replicas._own_mesh import on_own_mesh
from ..replicas._placement import Placement
from ..replicas._topology import Topology
from ..replicas._values import is_distributed, map_replicas
from ..variables._known import value_of
from ..variables._libraries import connect_libraries
from ..variables._recorder import CrossRecorder, current_recorder
from . import _reduce
from ._extended import Extended
from ._place_batches import PlacesAtOnce, WorkersPlaces, distribute_values, place_batch, place_each

_MAX_EAGER_FUNCTIONS = 128  # of one strategy; the least recently used are dropped, so that new lambdas do not pile up


class Strategy:
    """The base class of all strategies. Make a MirroredStrategy or another strategy instead.

    Semantics of all methods: tf.distribute.Strategy.
    """

    # The dtype in which the gradients of a custom loop travel between replicas; None for their own.
    gradient_dtype: Any = None

    def __init__(self, placement: Placement, *, strict: bool | None = None):
        self._placement: Placement = self._planned(placement)
        # Whether a gradient that is counted several times is an error, and the lines that a warning has named already.
        self.strict = os.environ.get("REPLICANT_STRICT", "0") not in ("", "0") if strict is None else bool(strict)
        self.told: set[Any] = set()
        self._eager: collections.OrderedDict[Any, Compiled] = collections.OrderedDict()

    def _planned(self, placement: Placement) -> Placement:
        """Return the placement of the plan, if the strategy is made while one is; else `placement`."""
        plan = planning()
        if plan is None:
            return placement
        if not placement.devices:
            return dataclasses.replace(placement, planning=plan)
        plan.strategies.append(self)
        return placement.planned(plan)

    @property
    def placement(self) -> Placement:
        """The devices of the replicas."""
        return self._placement

    @contextmanager
    def on(self, placement: Placement) -> Iterator[None]:
        """Move the replicas to another placement within the ``with`` block, in order to plan a step."""
        before, self._placement = self._placement, placement
        try:
            yield
        finally:
            self._placement = before

    @property
    def topology(self) -> Topology:
        """The numbers of workers and replicas."""
        world = self._placement.world
        if world is None:
            return Topology(replicas_per_worker=self._placement.num_replicas)
        return Topology(world.num_processes, world.process_id, len(self._placement.local_ids))

    @property
    def is_chief(self) -> bool:
        """Whether this process is the chief, which writes what only one worker must write: worker 0, or the only process."""
        return self._placement.world is None or self._placement.world.is_chief

    @property
    def should_checkpoint(self) -> bool:
        """Whether this process writes checkpoints, as the chief does. Semantics: ``strategy.extended.should_checkpoint``."""
        return self.is_chief

    @property
    def should_save_summary(self) -> bool:
        """Whether this process writes summaries, as the chief does. Semantics: ``strategy.extended.should_save_summary``."""
        return self.is_chief

    @property
    def extended(self) -> Extended:
        """What programs use of TensorFlow's ``strategy.extended``: `worker_devices`, `should_checkpoint` and others."""
        return Extended(self)

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas that compute in lockstep."""
        return self._placement.num_replicas

    @property
    def cluster_resolver(self) -> Any:
        """The resolver that told the strategy about its cluster; None on one machine."""
        return None

    def __deepcopy__(self, memo: dict[int, Any]) -> "Strategy":
        return self  # devices cannot be copied, and a copied model computes where the original does

    def __repr__(self) -> str:
        return f"{type(self).__name__}({[str(d) for d in self._placement.devices]})"

    def _repr_html_(self) -> str:
        topology, placement = self.topology, self._placement
        facts = [("replicas", str(topology.num_replicas)), ("workers", str(topology.num_workers))]
        if placement.fused:
            facts.append(("computed as", f"one program on {placement.devices[0]}"))
        if placement.slices_slots:
            facts.append(("optimizer state", "in slices"))
        if placement.slices_from is not None:
            facts.append(("variables", f"in slices, from {placement.slices_from} elements"))
        return _display.strategy(type(self).__name__, [str(device) for device in placement.devices], facts)

    @contextmanager
    def scope(self) -> Iterator["Strategy"]:
        """Make this the current strategy: ``with strategy.scope(): model = ...``.

        You may enter the scope of the current strategy again.

        Raises:
            ContextError: Inside ``run``.
            MixedStrategyError: Inside another strategy's scope.

        >>> import replicant
        >>> strategy = replicant.OneDeviceStrategy("cpu:0")
        >>> with strategy.scope():
        ...     print(replicant.get_strategy() is strategy)
        True
        """
        require_cross_replica(self, "scope()")
        connected = len(connect_libraries())
        with entered(self, None):
            yield self
        if len(connect_libraries()) > connected:
            warnings.warn(
                "Keras was imported inside strategy.scope(). Models that were made there before do not know the strategy and train "
                "on one device. Import keras before you enter the scope.",
                stacklevel=3,
            )

    def run(self, fn: Callable[..., Any], args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Compute ``fn(*args, **kwargs)`` on every replica.

        Args:
            fn: A function of ordinary Python and JAX or Keras code. It is traced, not called at every step. Inside a
                ``replicant.function`` it becomes part of that program. Outside, it is compiled separately, and traced again when
                something that it names has changed (a global, an attribute, `trainable` of a layer).
            args: Positional arguments. Each replica gets its own part of PerReplica values, even nested ones. All replicas get
                everything else.
            kwargs: Keyword arguments, treated like `args`.

        Returns:
            The structure that `fn` returns. Arrays that differ by replica become PerReplica. Arrays that are provably equal on all
            replicas become Mirrored. Python objects are returned as they are. With one replica, everything is returned bare.

        Raises:
            ArgumentTypeError: If `fn` is not callable, or `args` is not a tuple or list.
            ContextError: Inside ``run``.
            DivergenceError: If `fn` would give a mirrored variable a different value on each replica.
            LostStateError: If `fn` changes an object whose change nobody would see (an ``nnx.State`` among the arguments, an
                attribute, a list).
            MixedStrategyError: Inside another strategy's scope, or if `fn` uses another strategy's variables.
            RaggedStepError: If replicas of different sizes do not make the same exchanges, or return different structures.
            ReductionError: If the strategy is strict and the sum over the replicas counts a gradient several times.

        >>> import replicant, jax.numpy as jnp
        >>> strategy = replicant.OneDeviceStrategy("cpu:0")
        >>> print(strategy.run(lambda x: x + 1, args=(jnp.asarray(2),)))
        3
        """
        if not callable(fn):
            raise ArgumentTypeError(f"run: fn must be callable; got {fn!r}.")
        if not isinstance(args, tuple | list):
            raise ArgumentTypeError(
                f"run: args must be a tuple or list of positional arguments; got {type(args).__name__}. Write args=(value,)."
            )
        require_cross_replica(self, "run()")
        fn = getattr(fn, "python_function", fn)
        if current_recorder() is not None:
            return run_replicas(self, fn, tuple(args), dict(kwargs or {}))
        connect_libraries()
        with entered(self, None):
            return self._compiled(fn)(*args, **(kwargs or {}))

    def plan(self, fn: Callable[..., Any], args: Any = (), kwargs: dict[str, Any] | None = None, *, topology: str) -> Any:
        """Plan what a training step would do on another topology. Nothing is trained.

        Args:
            fn: A function that you would give to ``run``, or a ``replicant.function`` that calls ``run``. It must assign trainable
                variables.
            args: Positional arguments. A PerReplica gets as many values as the topology has devices, with the shape of its first
                value. Under a strategy of one replica, every array that is not a scalar counts as part of the batch.
            kwargs: Keyword arguments, treated like `args`.
            topology: "cpu:8", "gpu:8xh100", "v5e:16x16" or another topology that ``replicant.plan.make_plan`` takes.

        Returns:
            A ``replicant.plan.Plan``.

        Raises:
            ReplicantError: As ``replicant.plan.make_plan`` does.

        >>> import replicant, jax.numpy as jnp
        >>> strategy = replicant.OneDeviceStrategy("cpu:0")
        >>> weight = replicant.Variable(jnp.zeros(3), name="weight")
        >>> def step(x):
        ...     weight.assign_sub(replicant.get_replica_context().all_reduce("SUM", jnp.sum(x, axis=0)))
        >>> plan = strategy.plan(step, args=(jnp.ones((4, 3)),), topology="gpu:8xh100")
        >>> plan.batch, plan.weights, plan.examples_per_step
        (((4, 3),), 12, 32)
        """
        require_cross_replica(self, "plan()")
        module = importlib.import_module("replicant.plan._make")  # it imports strategies, not the other way round
        return module.plan_run(self, fn, args, dict(kwargs or {}), topology)

    def memory(self, model: Any, batch: Any, *, limit: float | None = None) -> Any:
        """Say how much memory a training step needs on each device of this strategy, and which batch fits.

        The step is compiled ahead of time, for each device by itself, and nothing is computed. The optimizer of a model is built.

        Args:
            model: A compiled Keras model; or a function without arguments that makes one, which is called in the scope, without
                memory for large variables; or a function of one replica's batch that you would give to ``run``. The step must
                assign trainable variables.
            batch: A global batch as ``model.train_on_batch`` takes it, ``x`` or ``(x, y)`` or ``(x, y, sample_weight)``, or as the
                function takes it. It may consist of arrays or of ``jax.ShapeDtypeStruct``. Its number of rows must be a multiple of
                the number of replicas.
            limit: The bytes of each device's memory. The largest batch that fits is then searched for, by compiling some more
                steps. By default it is what the devices say, without such a search.

        Returns:
            A ``replicant.plan.Memory``, which prints as a table. How many of the temporary bytes are gradients is an estimate: as
            many as those of the trained weights.

        Raises:
            ArgumentError: If the arrays have different numbers of rows, the replicas cannot share these evenly, `limit` is not
                positive, or the devices belong to several processes.
            ArgumentTypeError: If `model`, `batch` or `limit` is something else.
            ContextError: Inside ``run``; or if the step assigns no trainable variables.

        >>> import replicant, keras, numpy as np
        >>> strategy = replicant.OneDeviceStrategy("cpu:0")
        >>> with strategy.scope():
        ...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        ...     model.compile(keras.optimizers.SGD(momentum=0.9), "mse")
        >>> memory = strategy.memory(model, (np.zeros((8, 4), "float32"), np.zeros((8, 2), "float32")))
        >>> memory.weights, memory.optimizer_state, memory.batch  # the state also has a number of steps and a learning rate
        (40, 48, 192)
        """
        require_cross_replica(self, "memory()")
        module = importlib.import_module("replicant.plan._memory")  # it imports strategies, not the other way round
        return module.memory_of(self, model, batch, limit)

    def _compiled(self, fn: Callable[..., Any]) -> Compiled:
        key = function_key(fn)
        if key not in self._eager:

            def call(*args: Any, **kwargs: Any) -> Any:
                return run_replicas(self, fn, args, kwargs)

            call.__qualname__ = getattr(fn, "__qualname__", type(fn).__name__)  # for messages
            self._eager[key] = Compiled(call, of_run=fn)
            if len(self._eager) > _MAX_EAGER_FUNCTIONS:
                self._eager.popitem(last=False)
        self._eager.move_to_end(key)
        return self._eager[key]

    @on_own_mesh
    def reduce(self, op: ReduceOp | str, value: Any, axis: Any = None) -> Any:
        """Combine the replicas' values into one.

        Args:
            op: "SUM" or "MEAN", or a ReduceOp.
            value: A PerReplica or Mirrored value, or a nested structure of them. A variable with one copy per replica counts as
                PerReplica.
            axis: None to combine the replicas' values element by element, which needs equal shapes. An int or a tuple of ints also
                reduces along these axes of each value. Sizes along them may differ, and MEAN is then the mean of all elements.

        Returns:
            One array for each leaf. MEAN of integers gives floats.

        Raises:
            ArgumentError: If `op` is unknown, `axis` is out of range, shapes differ, or the value to SUM is not distributed.
            ArgumentTypeError: If a replica's value is not a numeric array.
            ContextError: Inside ``run`` (use ``get_replica_context().all_reduce``).

        >>> import replicant
        >>> strategy = replicant.OneDeviceStrategy("cpu:0")
        >>> print(strategy.reduce("MEAN", replicant.PerReplica([jax.numpy.asarray([1.0, 3.0])]), axis=0))
        2.0
        """
        require_cross_replica(self, "reduce()", "use get_replica_context().all_reduce(op, value)")
        parsed, recorder = ReduceOp.parse(op), current_recorder()
        if isinstance(recorder, CrossRecorder):  # the copies of a variable belong to this strategy
            recorder.use(self._placement)
        return jax.tree.map(
            lambda leaf: _reduce.reduce_leaf(parsed, value_of(leaf), axis, self.num_replicas_in_sync),
            value,
            is_leaf=lambda x: is_distributed(x) or x is None,
        )

    @on_own_mesh
    def gather(self, value: Any, axis: int) -> Any:
        """Concatenate the replicas' values along `axis`, in replica order.

        Args:
            value: PerReplica arrays of rank >= 1, or a nested structure of them. Sizes along `axis` may differ.
            axis: An int in [-rank, rank).

        Returns:
            One array for each leaf. A value that is not distributed is returned as it is.

        Raises:
            ArgumentError: If `axis` is out of range, or other dimensions differ.
            ArgumentTypeError: If a value is not a numeric array.
            ContextError: Inside ``run`` (use ``get_replica_context().all_gather``).

        >>> import replicant, jax.numpy as jnp
        >>> strategy = replicant.OneDeviceStrategy("cpu:0")
        >>> print(strategy.gather(replicant.PerReplica([jnp.asarray([1, 2])]), axis=0))
        [1 2]
        """
        require_cross_replica(self, "gather()", "use get_replica_context().all_gather(value, axis)")
        return jax.tree.map(lambda leaf: _reduce.gather_leaf(leaf, axis), value, is_leaf=lambda x: is_distributed(x) or x is None)

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """Return what each of this worker's replicas holds, as a tuple; ``(value,)`` for a value that is not distributed.

        A nested structure that contains distributed values becomes one structure per replica. The arrays lie on this worker's first
        device, so that you can compute with several of them. ``value.values`` has them on the devices of their replicas.

        >>> import replicant
        >>> replicant.OneDeviceStrategy("cpu:0").experimental_local_results(replicant.PerReplica([3]))
        (3,)
        """
        found = [leaf for leaf in jax.tree.leaves(value, is_leaf=is_distributed) if is_distributed(leaf)]
        local_ids = self._placement.local_ids if self._placement.world is not None else None

        def of_replica(i: int) -> Any:
            def own(x: Any) -> Any:  # with several workers, some values hold all replicas, others only this worker's
                values = x.values
                return values[i if local_ids is None or len(values) == len(local_ids) else local_ids[i]]

            return map_replicas(lambda x: own(x) if is_distributed(x) else x, value)

        count = found[0].num_replicas if found and local_ids is None else len(local_ids or ())
        return on_one_device(tuple(of_replica(i) for i in range(count)), self._placement) if found else (value,)

    def experimental_distribute_values_from_function(self, value_fn: Callable[[ValueContext], Any]) -> Any:
        """Make PerReplica values by calling ``value_fn(context)`` once per replica.

        Args:
            value_fn: A function that gets a ValueContext (``replica_id_in_sync_group``, ``num_replicas_in_sync``) and returns
                arrays, Python objects or nested structures of them. It must return the same structure for every replica.

        Raises:
            ArgumentError: If the structures differ.
            ArgumentTypeError: With several workers, if an object cannot be sent to the others.
            ContextError: Inside ``run``.

        >>> import replicant
        >>> strategy = replicant.OneDeviceStrategy("cpu:0")
        >>> values = strategy.experimental_distribute_values_from_function(lambda context: context.num_replicas_in_sync)
        >>> strategy.experimental_local_results(values)
        (1,)
        """
        require_cross_replica(self, "experimental_distribute_values_from_function()")
        return distribute_values(value_fn, self._placement)

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> DistributedDataset:
        """Distribute a dataset of global batches, so that each replica gets its share of every batch.

        A batch of b examples is cut into chunks of ceil(b/n) for n replicas. The last chunks may be shorter or empty.

        Args:
            dataset: A ``replicant.data.Dataset`` whose elements are global batches, or a dataset of another library
                (docs/input.md).
            options: ``replicant.data.InputOptions``.

        Raises:
            ContextError: Inside ``run``.
            DatasetError: If an element has no batch axis.
            ElementError: If the components of an element have different sizes.

        >>> import replicant
        >>> from replicant.data import Dataset
        >>> strategy = replicant.OneDeviceStrategy("cpu:0")
        >>> for batch in strategy.experimental_distribute_dataset(Dataset.range(6).batch(4)):
        ...     print(batch)
        [0 1 2 3]
        [4 5]
        """
        require_cross_replica(self, "experimental_distribute_dataset()")
        plan = self._placement.planning
        return DistributedDataset(
            dataset if plan is None or isinstance(dataset, DistributedDataset) else planned(as_dataset(dataset), plan),
            self.topology,
            lambda leaf, sizes: place_batch(leaf, sizes, self._placement),
            options,
            self._exchange("dataset"),
            workers=self._workers_places(),
            at_once=self._at_once(PlacesAtOnce),
        )

    def _at_once(self, places: Callable[[Placement], PlaceAtOnce]) -> PlaceAtOnce | None:
        """Return what places batches when they are asked for, if placing is quick and depends on nothing but the batch."""
        placement = self._placement
        if not placement.devices or not placement.on_cpu or placement.planning is not None:
            return None
        return places(placement) if placement.on_one_device else OneByOne()

    def _exchange(self, label: str) -> Callable[[Any], list[Any]] | None:
        world = self._placement.world
        return None if world is None else world.exchange.values(label)

    def _workers_places(self) -> WorkersPlaces | None:
        return None if self._placement.world is None else WorkersPlaces(self._placement)

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: Any = None
    ) -> DistributedDataset:
        """Distribute datasets of per-replica batches that a function makes. Each replica in turn gets the next element uncut.

        A last step with fewer elements than replicas is never dropped: the other replicas get batches without rows, or empty
        vectors if the elements are scalars.

        Args:
            dataset_fn: A function that gets a ``replicant.data.InputContext`` (``num_input_pipelines``, ``input_pipeline_id``,
                ``num_replicas_in_sync``, ``get_per_replica_batch_size(global_batch_size)``) and returns a
                ``replicant.data.Dataset``, which it must batch and shard itself. It is called once per worker, or once per replica
                if the options say so.
            options: ``replicant.data.InputOptions``.

        Raises:
            ArgumentTypeError: If `dataset_fn` is not a function, or does not return a dataset.
            ContextError: Inside ``run``.

        >>> import replicant
        >>> from replicant.data import Dataset
        >>> strategy = replicant.OneDeviceStrategy("cpu:0")
        >>> def dataset_fn(context):
        ...     batch_size = context.get_per_replica_batch_size(4)
        ...     return Dataset.range(8).shard(context.num_input_pipelines, context.input_pipeline_id).batch(batch_size)
        >>> for batch in strategy.distribute_datasets_from_function(dataset_fn):
        ...     print(batch)
        [0 1 2 3]
        [4 5 6 7]
        """
        require_cross_replica(self, "distribute_datasets_from_function()")
        return DistributedDataset.from_function(
            dataset_fn,
            self.topology,
            lambda values: place_each(values, self._placement),
            options,
            self._exchange("dataset"),
            workers=self._workers_places(),
            at_once=self._at_once(lambda _: OneByOne()),
        )
