"""The one table of what Replicant wraps, calls, reads and adds inside Keras.

Keras has no public hooks at these places, so its methods are wrapped. Every wrapper does what Keras does unless a strategy is
active; `steps/_symbolic_build.build` only spares all models a warning of JAX. A row lists the wrappers of one method in their
order, whatever was imported first. A module that is loaded later, or never, has a slot in the row and fills it when needed. Before
wrapping anything, this module checks that the installed Keras has everything that the table names.
"""

import dis
import functools
import inspect
import itertools
import types
from collections.abc import Iterator, Mapping
from typing import Any

import keras

from . import _batch_statistics
from ._hook import Added, Hook, Slot, Wrapper
from ._internals import (
    ArrayDataAdapter,
    BaseOptimizer,
    CompileLoss,
    EpochIterator,
    Functional,
    JAXEpochIterator,
    JaxOptimizer,
    JAXTrainer,
    JaxVariable,
    KerasVariable,
    Loss,
    LossScaleOptimizer,
    SeedGenerator,
    Tracker,
    Trainer,
    api_export,
    backend,
    data_adapters,
    loss_module,
    moved,
    saving_lib,
    seed_generator,
    warn_if_newer,
)
from .cpu import _attention, _batch_norm, _recurrent
from .data import _adapter, _batch_dtypes, _host_inputs, _normalization_adapt
from .loops import _batch_ends, _compile, _fit_position, _loop, _step_functions, _step_loop
from .losses import _call, _labels, _loss_sums
from .optimizers import _apply, _flat_update, _minimize, _mistakes, _sliced
from .saving import _files, _saved_layers
from .state import _autocast, _gathered_weights, _loop_state, _loop_values, _owner, _seeds, _tracked, _variables
from .steps import _remat, _steps_of_model, _symbolic_build

_LOOP = ("self", "x")
_STEP = ("self", "state", "data")
_APPLY = ("self", "grads", "trainable_variables")
_END = ("self", "batch", "logs")
_DATA = ("x", "y", "sample_weight", "batch_size", "steps_per_epoch", "shuffle", "class_weight")

HOOKS = (
    # Variables
    Hook(KerasVariable, "__init__", ("self", "initializer"), (_variables.make_variable, Slot.SERVERS)),
    Hook(KerasVariable, "value", None, (_variables.value,)),
    Hook(KerasVariable, "_initialize_with_initializer", ("self", "initializer"), (_variables.initialize,)),
    Hook(KerasVariable, "_deferred_initialize", ("self",), (Slot.SERVERS,)),
    Hook(KerasVariable, "assign", ("self", "value"), (_variables.assign,)),
    Hook(KerasVariable, "assign_add", ("self", "value"), (functools.partial(_variables.assign_change, sign=1),)),
    Hook(KerasVariable, "assign_sub", ("self", "value"), (functools.partial(_variables.assign_change, sign=-1),)),
    Hook(SeedGenerator, "next", ("self", "ordered"), (_seeds.draw_seed,)),
    Hook(seed_generator, "global_seed_generator", (), (_seeds.global_generator,)),
    # Optimizers
    Hook(BaseOptimizer, "__init__", ("self", "learning_rate"), (_mistakes.make, Slot.SERVERS)),
    Hook(BaseOptimizer, "add_variable_from_reference", ("self", "reference_variable"), (_tracked.add_slot, Slot.SERVERS)),
    Hook(BaseOptimizer, "build", ("self", "variables"), (_tracked.build,)),
    Hook(BaseOptimizer, "apply", _APPLY, (_apply.apply, Slot.SERVERS, _tracked.apply)),
    Hook(LossScaleOptimizer, "apply", _APPLY, (_apply.apply, Slot.SERVERS, _tracked.apply)),
    Hook(JaxOptimizer, "_backend_apply_gradients", ("self", "grads", "trainable_variables"), (_sliced.accumulate,)),
    Hook(BaseOptimizer, "_backend_update_step", ("self", "grads", "trainable_variables", "learning_rate"), (_flat_update.update,)),
    Hook(BaseOptimizer, "_clip_gradients", ("self", "grads"), (_sliced.clip,)),
    Hook(
        BaseOptimizer,
        "stateless_apply",
        ("self", "optimizer_variables", "grads", "trainable_variables"),
        (_mistakes.stateless_apply,),
    ),
    Hook(BaseOptimizer, "__setattr__", ("self", "name", "value"), (_mistakes.set_attribute,)),
    Hook(BaseOptimizer, "finalize_variable_values", ("self", "var_list"), (_step_functions.finalize,)),
    # Losses
    Hook(Loss, "__call__", ("self", "y_true", "y_pred", "sample_weight"), (_call.call_loss,)),
    Hook(loss_module, "apply_mask", ("sample_weight", "mask", "dtype", "reduction")),
    Hook(
        loss_module, "reduce_weighted_values", ("values", "sample_weight", "mask", "reduction"), (_loss_sums.reduced, Slot.SERVERS)
    ),
    Hook(Trainer, "compute_loss", ("self", "x", "y", "y_pred", "sample_weight"), (_labels.compute_loss,)),
    # Layers
    Hook(keras.Layer, "__call__", ("self",), (_owner.call_layer, _autocast.call_layer, Slot.RESTORE, _host_inputs.call_layer)),
    Hook(keras.Operation, "__call__", ("self",), (_autocast.call_operation,)),
    Hook(keras.Layer, "__delattr__", ("self", "name"), (_tracked.delete,)),
    Hook(Tracker, "track", ("self", "attr"), (_tracked.track,)),
    Hook(Tracker, "untrack", ("self", "value"), (_tracked.untrack,)),
    Hook(keras.layers.Normalization, "adapt", ("self", "data"), (_normalization_adapt.adapt,)),
    Hook(keras.layers.BatchNormalization, "call", ("self", "inputs", "training", "mask"), (_batch_statistics.call,)),
    Hook(keras.layers.Embedding, "call", ("self", "inputs"), (Slot.SERVERS,)),
    # What Keras computes with
    Hook(backend.core, "stop_gradient", ("variable",), (_tracked.stop_gradient,)),
    Hook(backend.core, "remat", ("f",), (_remat.rematerialized,)),
    Hook(backend.numpy, "expand_dims", ("x", "axis"), (_host_inputs.expand_dims,)),
    # Older versions of Keras do not know cuDNN's LSTM of both directions, and have one that only raises for one direction.
    Hook(backend, "lstm", (), (_recurrent.lstm,)),
    *([Hook(backend, "bidirectional_lstm", ("inputs",), (_recurrent.lstm,))] if hasattr(backend, "bidirectional_lstm") else []),
    Hook(backend.nn, "moments", ("x", "axes", "keepdims"), (_batch_norm.moments_of,)),
    Hook(backend.nn, "batch_normalization", ("x", "mean", "variance", "axis"), (_batch_norm.normalized,)),
    Hook(backend.nn, "relu", ("x",), (_batch_norm.rectified,)),
    Hook(backend.nn, "dot_product_attention", ("query", "key", "value", "bias", "mask", "scale"), (_attention.attend,)),
    Hook(keras.layers.LSTM, "inner_loop", ("self", "sequences", "initial_state", "mask", "training"), (_recurrent.inner_loop,)),
    # Saved layers
    Hook(api_export, "get_symbol_from_name", ("name",), (_saved_layers.class_of,)),
    Hook(api_export, "get_name_from_symbol", ("symbol",), (_saved_layers.name_of,)),
    # Saved models
    Hook(keras.Model, "save", ("self", "filepath"), (_files.save,)),
    Hook(keras.Model, "save_weights", ("self", "filepath"), (_files.save,)),
    Hook(keras.Model, "export", ("self", "filepath", "format", "verbose"), (_files.export,)),
    Hook(saving_lib, "save_model", ("model", "filepath"), (_files.save_file, _files.save)),
    Hook(saving_lib, "save_weights_only", ("model", "filepath"), (_files.save_file, _files.save)),
    Hook(saving_lib, "_load_state", ("saveable", "weights_store", "assets_store", "inner_path")),
    # Models and their steps
    Hook(Functional, "call", ("self", "inputs", "training", "mask"), (_host_inputs.call_graph,)),
    Hook(JAXTrainer, "__init__", ("self",), (_compile.remember,)),
    Hook(Trainer, "compile", ("self", "optimizer", "loss"), (_compile.compile_model,)),
    Hook(Trainer, "_symbolic_build", ("self", "iterator", "data_batch"), (_symbolic_build.build,)),
    Hook(JAXTrainer, "make_train_function", ("self", "force"), (_step_functions.make_train,)),
    Hook(JAXTrainer, "make_test_function", ("self", "force"), (_step_functions.make_test,)),
    Hook(JAXTrainer, "make_predict_function", ("self", "force"), (_step_functions.make_predict,)),
    Hook(JAXTrainer, "_make_function", ("self", "step_function"), (_step_functions.note_steps,)),
    Hook(
        JAXTrainer,
        "compute_loss_and_updates",
        ("self", *_loop_state.PARTS["predict_step"], "metrics_variables", "x", "y", "sample_weight", "training"),
        (_gathered_weights.compute_loss,),
    ),
    Hook(JAXTrainer, "train_step", _STEP, (functools.partial(_steps_of_model.take, name="train_step"),)),
    Hook(JAXTrainer, "test_step", _STEP, (functools.partial(_steps_of_model.take, name="test_step"),)),
    Hook(JAXTrainer, "predict_step", _STEP, (functools.partial(_steps_of_model.take, name="predict_step"),)),
    Hook(JAXTrainer, "jax_state_sync", ("self",), (_loop_values.assign_state,)),
    Hook(
        JAXTrainer,
        "_get_jax_state",
        ("self", *_loop_state.PARTS["train_step"], "purge_model_variables"),
        (_step_loop.get_state,),
    ),
    # Loops. A fit on parameter servers does not reach the wrapper inside its own.
    Hook(
        JAXTrainer,
        "fit",
        (*_LOOP, "y", "batch_size", "epochs", "verbose", "callbacks"),
        (_fit_position.fit, Slot.SERVERS, _loop.run),
    ),
    Hook(JAXTrainer, "evaluate", (*_LOOP, "y", "batch_size"), (Slot.SERVERS, _loop.run)),
    Hook(JAXTrainer, "predict", (*_LOOP, "batch_size"), (_loop.run,)),
    Hook(JAXTrainer, "train_on_batch", (*_LOOP, "y"), (_batch_dtypes.on_batch, _loop.run)),
    Hook(JAXTrainer, "test_on_batch", (*_LOOP, "y"), (_batch_dtypes.on_batch, _loop.run)),
    Hook(JAXTrainer, "predict_on_batch", _LOOP, (_batch_dtypes.on_batch, _loop.run)),
    Hook(EpochIterator, "__init__", _LOOP, (_fit_position.make_epochs,)),
    Hook(EpochIterator, "_enumerate_iterator", ("self",), (_fit_position.enumerate_steps,)),
    Hook(JAXEpochIterator, "_get_iterator", ("self",), (_fit_position.get_iterator,)),
    Hook(ArrayDataAdapter, "_get_iterator", ("self", "slice_and_convert_fn", "inputs")),
    Hook(data_adapters, "get_data_adapter", _DATA, (_adapter.adapt,)),
    Hook(keras.callbacks.CallbackList, "on_train_batch_end", _END, (_batch_ends.end,)),
    Hook(keras.callbacks.CallbackList, "on_test_batch_end", _END, (_batch_ends.end,)),
    Hook(keras.callbacks.CallbackList, "on_predict_batch_end", _END, (_batch_ends.end,)),
)

ADDED = (
    Added(BaseOptimizer, "minimize", _minimize.minimize),
    Added(BaseOptimizer, "__getattr__", _mistakes.missing_attribute),
    Added(Trainer, "distribute_strategy", property(_compile.distribute_strategy)),
    Added(
        Trainer,
        "distribute_reduction_method",
        property(lambda _: "auto", _compile.set_distribute_reduction_method),
    ),
)

# The private names of Keras that Replicant reads, writes or calls, by class.
PRIVATE: Mapping[type, tuple[str, ...]] = {
    KerasVariable: ("_dtype", "_initialize", "_initializer", "_maybe_autocast", "_shape", "_trainable", "_value"),
    JaxVariable: ("_direct_assign",),
    BaseOptimizer: (
        "_accumulated_gradients",
        "_apply_weight_decay",
        "_clip_gradients",
        "_get_variable_index",
        "_iterations",
        "_learning_rate",
        "_model_variables_moving_average",
        "_trainable_variables",
        "_trainable_variables_indices",
        "_variables",
    ),
    keras.optimizers.Adadelta: ("_accumulated_delta_vars", "_accumulated_grads"),
    keras.optimizers.Adagrad: ("_accumulators",),
    keras.optimizers.Adam: ("_momentums", "_velocities", "_velocity_hats"),
    keras.optimizers.Adamax: ("_m", "_u"),
    keras.optimizers.Ftrl: ("_linears",),
    keras.optimizers.Nadam: ("_u_product",),
    keras.optimizers.RMSprop: ("_average_gradients",),
    keras.losses.SparseCategoricalCrossentropy: ("_fn_kwargs",),
    keras.Layer: (
        "_call_has_training_arg",
        "_clear_losses",
        "_dtype_policy",
        "_flatten_layers",
        "_inbound_nodes",
        "_layers",
        "_non_trainable_variables",
        "_remat_mode",
        "_supports_masking",
        "_trainable",
        "_untrack_variable",
    ),
    keras.layers.Embedding: ("_embeddings",),
    CompileLoss: ("_flat_losses",),
    keras.Sequential: ("_functional",),
    Functional: ("_inputs_struct", "_outputs_struct"),
    Trainer: (
        "_compile_loss",
        "_compile_metrics",
        "_flatten_metrics_in_order",
        "_initial_epoch",
        "_loss_tracker",
    ),
    JAXTrainer: ("_get_jax_state", "_jax_state", "_jax_state_synced"),
    EpochIterator: ("_current_iterator", "_steps_seen"),
    ArrayDataAdapter: ("_inputs",),
    keras.callbacks.Callback: ("_model",),
    keras.callbacks.CallbackList: ("_model",),
    keras.callbacks.BackupAndRestore: ("_save_model",),
}


def _check_private() -> None:
    for owner, names in PRIVATE.items():
        for name in names:
            if not hasattr(owner, name) and not any(_assigns(code, name) for code in _methods(owner)):
                raise moved(f"{owner.__name__}.{name} is gone")


def _methods(owner: type) -> Iterator[types.CodeType]:
    """Yield the code of all methods of a class: it is where instances get their attributes."""
    for item in itertools.chain.from_iterable(vars(kind).values() for kind in owner.__mro__):
        function = inspect.unwrap(item) if callable(item) else None
        if isinstance(function, types.FunctionType):
            yield function.__code__


def _assigns(code: types.CodeType, name: str) -> bool:
    return name in code.co_names and any(step.opname == "STORE_ATTR" and step.argval == name for step in dis.get_instructions(code))


def fill(slot: Slot, wrappers: Mapping[tuple[Any, str], Wrapper]) -> None:
    """Fill a slot of the table. `wrappers` must name exactly the methods (owner and name) that have the slot."""
    rows = {(hook.owner, hook.name): hook for hook in HOOKS if slot in hook.wrappers}
    assert rows.keys() == wrappers.keys(), f"{slot} belongs to {sorted(name for _, name in rows)}"
    for key, hook in rows.items():
        hook.fill(slot, wrappers[key])


def _connect() -> None:
    for hook in HOOKS:
        hook.check()
    _check_private()
    warn_if_newer()
    for hook in HOOKS:
        hook.install()
    for each in ADDED:
        each.install()


_connect()
