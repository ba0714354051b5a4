"""``replicant checkpoint convert``: the arrays of a file in another format, under the same names."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ...checkpoint.weights import WeightsFile, open_weights, write_keras_weights, write_own, write_safetensors
from ...errors import CommandError
from ...storage._urls import local_path
from .._escaped import escaped
from .._named_function import named_function

_WRITERS = {".safetensors": write_safetensors, ".weights.h5": write_keras_weights}


def convert(source: str, destination: str, model: str | None = None) -> int:
    """Write the arrays, all of which are in memory at once.

    Args:
        source: What to read.
        destination: What to write.
        model: The function that makes the model whose weights are read and written, or None for all arrays as they are.

    Raises:
        ArgumentError: If there is no such function, or if it makes no model.
        CheckpointError: If the source is missing, damaged or unknown, or if an array does not fit into the other format.
        CommandError: If the destination exists, or is of a format that is not written.
    """
    place = local_path("DST", destination)
    ending = next((each for each in _WRITERS if place.name.endswith(each)), "")
    if not ending and (place.suffix[1:].isalpha() or place.suffix in (".h5", ".hdf5")):  # folders are "step-1.5" or "new.v2"
        raise CommandError(
            f"DST {destination!r}: files {place.suffix} are not written. Name a file that ends in {' or '.join(_WRITERS)}, or a "
            "folder for a checkpoint of Replicant. Files of Keras models are written by model.save, after "
            "replicant.keras.load_weights."
        )
    if place.exists():
        raise CommandError(f"DST {destination!r} exists. Remove it, or name another.")
    if model is not None:
        print(escaped(_through_model(source, place, ending, model)))
        return 0
    with open_weights("SRC", source) as file:
        arrays, strings = _arrays(file)
    _WRITERS.get(ending, write_own)(place, arrays)
    print(escaped(f"{place}: {len(arrays)} array(s) of {file.path}"))
    if strings:
        print(escaped(f"left out, because they are strings: {', '.join(strings)}"))
    return 0


def _arrays(file: WeightsFile) -> tuple[Mapping[str, np.ndarray], list[str]]:
    """The arrays of numbers, and the names of those of strings."""
    strings = [name for name, entry in file.entries.items() if entry.dtype == object]
    return {name: np.asarray(file.read(name)) for name in sorted(file.entries.keys() - set(strings))}, strings


def _through_model(source: str, place: Path, ending: str, name: str) -> str:
    """Load the weights into a model, and let the model write them. Return what to say."""
    make = named_function(name, "not MODULE:FUNCTION, a function that makes a Keras model")
    from ...checkpoint import Checkpoint
    from ...export import save_safetensors
    from ...keras import load_weights

    model = make()
    report = load_weights(model, source)
    if ending == ".weights.h5":
        model.save_weights(place)
    elif ending:
        save_safetensors(model, place)
    else:
        Checkpoint(model=model).write(str(place))
    return f"{place}: {report}"
