"""Files of safetensors: a format that many libraries read, and that holds nothing but arrays."""

import contextlib
import importlib
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ...errors import CheckpointError, ConfigurationError
from ._stored import Entry, WeightsFile

# What safetensors.numpy writes and reads, by their names in a file. It writes some types of 8 bits, too, but cannot read them.
DTYPES: Mapping[str, np.dtype] = {
    "BOOL": np.dtype(bool),
    **{f"{sign}{8 * size}": np.dtype(f"{kind}{size}") for sign, kind in (("I", "i"), ("U", "u")) for size in (1, 2, 4, 8)},
    **{f"F{8 * size}": np.dtype(f"f{size}") for size in (2, 4, 8)},
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "C64": np.dtype(np.complex64),
}


class SafetensorsFile(WeightsFile):
    """The tensors of a file of safetensors.

    Raises:
        CheckpointError: If the file is missing or damaged, or has a dtype that NumPy lacks.
        ConfigurationError: If the package safetensors is not installed.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.format = str(path), "a file of safetensors"
        opener = import_library("safetensors").safe_open
        with self._telling():
            self._file = opener(path, "numpy")
            slices = {name: self._file.get_slice(name) for name in self._file.keys()}  # noqa: SIM118 - it is not a dict
            self.entries = {name: self._entry(name, each) for name, each in slices.items()}

    def read(self, name: str) -> np.ndarray:
        self.entry(name)
        with self._telling():
            return self._file.get_tensor(name)

    def close(self) -> None:
        with contextlib.suppress(AttributeError):  # older releases close it with its last array
            self._file.__exit__(None, None, None)

    def _entry(self, name: str, tensor: Any) -> Entry:
        kind = tensor.get_dtype()
        if kind not in DTYPES:
            raise CheckpointError(f"{self.path}: {name!r} has the dtype {kind}, which safetensors cannot read as a NumPy array.")
        return Entry(name, tuple(tensor.get_shape()), DTYPES[kind])

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be read: {error}.") from error
        except import_library("safetensors").SafetensorError as error:
            raise CheckpointError(f"{self.path} is not a safetensors file, or it is damaged: {error}.") from error


def write_safetensors(file: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a file, which appears at one stroke and replaces one of its name.

    Raises:
        CheckpointError: If it cannot be written.
        ConfigurationError: If the package safetensors is not installed.
    """
    part = file.with_name(f".{file.name}.{uuid.uuid4().hex}.partial")
    writer, problem = import_library("safetensors.numpy"), import_library("safetensors").SafetensorError
    try:
        part.touch()
        mode = part.stat().st_mode
        writer.save_file(dict(arrays), part)
        part.chmod(mode)  # the library lets only its owner read the file
        part.replace(file)
    except (problem, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(
            f"{file} cannot be written: {reason}. Name a file in a folder that exists and can be written."
        ) from error
    finally:
        part.unlink(missing_ok=True)


def import_library(name: str) -> Any:
    """Import a module of safetensors.

    Raises:
        ConfigurationError: If the package is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigurationError(
            "Files of safetensors need the package safetensors: run pip install 'replicant-jax[export]'."
        ) from error
