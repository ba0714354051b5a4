"""`Dataset.load`: the shards of a folder that Replicant or tf.data has saved."""

from pathlib import Path
from typing import Any

import numpy as np

from ....errors import DatasetError
from ...graph._graph import UNKNOWN, Node
from ...graph._structure import flatten, show_structure
from .._file_names import FileNames
from .._files import ReadFiles
from ..tfdata._elements import TfDataElements
from ..tfdata._folder import is_tfdata, read_folder
from ._index import is_saved
from ._saved import fits, load


def is_there(path: Path) -> bool:
    """Return whether there is a saved dataset."""
    return is_saved(path) or is_tfdata(path)


def shards_of(path: Path, element_spec: Any, compression: str, max_record_bytes: int) -> list[Node]:
    """Return the shards of a saved dataset: at least one, which may be empty.

    Raises:
        DatasetError: If there is none, it is damaged, or it is not what was expected.
    """
    if is_saved(path) or not is_tfdata(path):
        return [*load(path, element_spec, compression, max_record_bytes)]
    found = read_folder(path, compression)
    if element_spec is not None:
        _check(path, element_spec, found.spec)
    size = found.num_elements if len(found.shards) == len(found.shards[0]) == 1 else UNKNOWN
    form = TfDataElements(path.name, found.spec, compression, max_record_bytes, 0 if found.shards == ((),) else size)
    names = [FileNames(size=len(files), tables=(np.array(files, object),)) for files in found.shards]
    return [ReadFiles(inputs=(each,), form=form) for each in names]


def _check(path: Path, wanted: Any, spec: Any) -> None:
    """Check what the user expects against what tf.data has saved."""
    (leaves, structure), (its, saved) = flatten(wanted), flatten(spec)
    if structure != saved or not all(map(fits, leaves, its)):
        raise DatasetError(
            f"load: element_spec is {wanted} ({show_structure(structure)}), but the elements in {str(path)!r} are {spec}. Leave it "
            "out."
        )
