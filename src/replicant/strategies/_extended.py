"""``strategy.extended``: what programs read there, and for every other name of TensorFlow what to write instead."""

from typing import Any

import jax

from ..errors import ArgumentTypeError, ContextError, MissingNameError
from ..variables._known import is_variable, ref_of

_INSTEAD = {
    "batch_reduce_to": "strategy.reduce for each value, or all_reduce of a list in replica context",
    "broadcast_to": "the value itself: run takes any array, and all replicas get it",
    "call_for_each_replica": "strategy.run",
    "colocate_vars_with": "strategy.scope(): all variables of a strategy lie on the same devices",
    "experimental_make_numpy_dataset": "replicant.data.Dataset.from_tensor_slices",
    "experimental_run_steps_on_iterator": "a loop over the distributed dataset that calls strategy.run",
    "non_slot_devices": "worker_devices",
    "read_var": "variable.value()",
    "reduce_to": "strategy.reduce, or all_reduce in replica context",
    "update": "variable.assign, in cross-replica context or in the function of merge_call",
    "update_non_slot": "ordinary code in cross-replica context",
    "value_container": "the value itself",
}


class Extended:
    """What TensorFlow programs read of ``strategy.extended``.

    Semantics: tf.distribute.StrategyExtended. Its methods for those who write strategies do not exist.

    >>> import replicant
    >>> replicant.MirroredStrategy(["cpu:0"]).extended.worker_devices
    (CpuDevice(id=0),)
    """

    def __init__(self, strategy: Any):
        self._strategy = strategy

    @property
    def worker_devices(self) -> tuple[Any, ...]:
        """The devices of this worker's replicas, as ``jax.Device`` objects.

        Raises:
            ContextError: With parameter servers, whose workers are other processes.
        """
        placement = self._strategy.placement
        if hasattr(self._strategy, "variable_class"):
            raise ContextError(
                f"{type(self._strategy).__name__}.extended has no devices: its workers and servers are other processes. "
                "strategy.cluster_resolver.cluster_spec() tells how many there are."
            )
        if not placement.devices:
            return tuple(jax.numpy.zeros(()).devices())
        return tuple(placement.first_devices[i] for i in placement.local_ids)

    @property
    def parameter_devices(self) -> tuple[Any, ...]:
        """The devices on which variables lie: those of `worker_devices`."""
        return self.worker_devices

    @property
    def should_checkpoint(self) -> bool:
        """Whether this process writes checkpoints."""
        return self._strategy.should_checkpoint

    @property
    def should_save_summary(self) -> bool:
        """Whether this process writes summaries."""
        return self._strategy.should_save_summary

    @property
    def experimental_between_graph(self) -> bool:
        """Whether several processes run this program, or processes of parameter servers."""
        return self._strategy.placement.world is not None or hasattr(self._strategy, "variable_class")

    @property
    def experimental_require_static_shapes(self) -> bool:
        """False: the last batch may be smaller, and cut unevenly."""
        return False

    @property
    def experimental_should_init(self) -> bool:
        """True: every process makes the variables."""
        return True

    def _in_multi_worker_mode(self) -> bool:  # KerasTuner and other libraries ask for this name
        return self._strategy.topology.num_workers > 1

    def variable_created_in_scope(self, v: Any) -> bool:
        """Return whether a variable was made under this strategy.

        Args:
            v: A variable of Replicant or Keras.

        Raises:
            ArgumentTypeError: If it is none.
        """
        if not is_variable(v):
            raise ArgumentTypeError(f"variable_created_in_scope takes a variable; got {v!r} of type {type(v).__name__}.")
        owner = ref_of(v).made_under
        has_own = bool(self._strategy.placement.devices) or hasattr(self._strategy, "variable_class")
        return owner is (self._strategy if has_own else None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        instead = _INSTEAD.get(name)
        advice = f"Use {instead}." if instead else "It has " + ", ".join(n for n in vars(Extended) if not n.startswith("_")) + "."
        raise MissingNameError(f"strategy.extended has no {name}. {advice}")

    def __repr__(self) -> str:
        return f"{self._strategy!r}.extended"
