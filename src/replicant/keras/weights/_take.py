"""Gives weights the arrays that were found for them: all of them, or none after an error."""

import jax.numpy as jnp
import numpy as np

from ...checkpoint.weights import WeightsFile
from ...checkpoint.weights._stored import listed
from ...errors import CheckpointError
from ..saving._exported import assign
from ..tensorflow._layers import refresh
from ._report import WeightsReport
from ._sources import Model, Source, Sources, all_of, called_in

_KINDS = ("bool", "integer", "floating", "complexfloating")


def take(model: Model, file: WeightsFile, sources: Sources, *, partly: bool, skip_mismatch: bool) -> WeightsReport:
    """Check every array against its weight, read them, and assign them.

    Args:
        model: The model.
        file: The file.
        sources: The array for each weight.
        partly: Whether the file may lack weights of the model.
        skip_mismatch: Whether an array may have another shape than its weight, which then keeps its value.

    Raises:
        CheckpointError: If nothing can be taken, or something is missing or does not fit. The model is unchanged.
    """
    missing = [name for name in model.weights if name not in sources.found]
    if missing and not (partly or skip_mismatch):
        raise CheckpointError(
            f"{file.path} has no array for {len(missing)} of the {len(model.weights)} weights of the model {model.keras.name!r}: "
            f"{listed(missing)}.{sources.why} To load what there is, pass skip_mismatch=True, and look at the report."
        )
    values: dict[str, np.ndarray] = {}
    mismatched: dict[str, str] = {}
    for name, source in ((name, sources.found[name]) for name in model.weights if name in sources.found):
        _require_kind(model, file, name, source)
        reason = _mismatch(model, file, name, source, values)
        if reason is not None:
            mismatched[name] = reason
    _require_fit(model, file, sources, mismatched, skip_mismatch=skip_mismatch)
    if not values:
        raise CheckpointError(_nothing(model, file, sources, mismatched))
    for name, value in values.items():
        assign(model.weights[name], value)
    refresh(model.keras)
    taken = {name: sources.found[name].name for name in values}
    used = set(taken.values())
    left = tuple(name for name in file.entries if name not in used)
    return WeightsReport(file.path, taken, left, tuple(missing), mismatched)


def _mismatch(model: Model, file: WeightsFile, name: str, source: Source, values: dict[str, np.ndarray]) -> str | None:
    """Read an array into `values`, or say why its shape is wrong, if possible without reading it."""
    wanted = tuple(model.weights[name].shape)
    shape = file.entry(source.name).shape
    if source.value is None and source.change is None and shape != wanted:
        return f"{source.name!r} has the shape {shape} in the file, and {wanted} in the model"
    value = np.asarray(file.read(source.name)) if source.value is None else source.value
    if source.change is not None:
        value = np.asarray(source.change(value))
    if value.shape != wanted:
        return f"the function for {source.name!r} makes the shape {value.shape} of {shape}, and the model has {wanted}"
    _require_same_integers(model, file, name, source, value)
    values[name] = value
    return None


def _require_same_integers(model: Model, file: WeightsFile, name: str, source: Source, value: np.ndarray) -> None:
    wanted = np.dtype(model.weights[name].dtype)
    if value.dtype.kind in "iu" and wanted.kind in "iu" and not np.array_equal(value.astype(wanted), value):
        raise CheckpointError(
            f"{file.path} does not fit the model {model.keras.name!r}: {source.name!r} has integers of {value.dtype} that {name!r} "
            f"of the dtype {wanted} cannot hold."
        )


def _require_fit(model: Model, file: WeightsFile, sources: Sources, mismatched: dict[str, str], *, skip_mismatch: bool) -> None:
    if not mismatched or skip_mismatch:
        return
    name, reason = next(iter(mismatched.items()))
    shape, wanted = file.entry(sources.found[name].name).shape, tuple(model.weights[name].shape)
    hint = " Its axes are in another order: pass rename= with a pair of the weight's name and a function, such as np.transpose."
    raise CheckpointError(
        f"{file.path} does not fit the model {model.keras.name!r}: for {name!r}, {reason}. {len(mismatched)} of "
        f"{len(sources.found)} arrays do not fit.{hint if shape != wanted and sorted(shape) == sorted(wanted) else ''} To keep the "
        "model's own values there, pass skip_mismatch=True."
    )


def _nothing(model: Model, file: WeightsFile, sources: Sources, mismatched: dict[str, str]) -> str:
    names = list(dict.fromkeys(called_in(file, name) for name in all_of(file)))
    text = f"Nothing of {file.path} was taken: no array in it is for a weight of the model {model.keras.name!r}."
    if mismatched:
        text = f"Nothing of {file.path} was taken, because no shape fits: {'; '.join(list(mismatched.values())[:3])}."
    return f"{text}{sources.why} It has {listed(names)}, and the model {listed(list(model.weights))}."


def _require_kind(model: Model, file: WeightsFile, name: str, source: Source) -> None:
    """Check that numbers stay what they are: floats become floats of another size, and no integers."""
    found, wanted = file.entry(source.name).dtype, np.dtype(model.weights[name].dtype)
    if source.change is None and _kind(found) != _kind(wanted):
        raise CheckpointError(
            f"{file.path} does not fit the model {model.keras.name!r}: {source.name!r} has the dtype {found} in the file, and "
            f"{name!r} has {wanted}."
        )


def _kind(dtype: np.dtype) -> str:
    return next(
        (kind for kind in _KINDS if not dtype.hasobject and jnp.issubdtype(dtype, getattr(jnp, kind, np.bool_))), str(dtype)
    )
