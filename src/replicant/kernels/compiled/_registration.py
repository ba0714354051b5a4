"""Functions that numba compiles and XLA calls by their names: whether this machine can have them, and how XLA gets them.

A program with such a call can only run in a process that has registered the function: lowering does. The machine code is kept for
the next process.
"""

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import sys
import threading
import warnings
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

from . import _kept_code, _registers, _shipped_code, _translation

_SHARED = ("_machine_code.py", "_xla_calls.py", "_tiles.py", "_translation.py")
_lock = threading.Lock()


def objection() -> str | None:
    """Why this machine cannot have such functions, or None. Does not load numba."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "it needs Linux on x86-64"
    if importlib.util.find_spec("numba") is None:
        return "numba is not installed; pip install 'replicant-jax[numba]'"
    if _registers.width() is None:
        return "the processor has neither AVX-512 nor AVX2 with FMA"
    return None


@dataclass
class Native:
    """A function of one pointer that XLA calls.

    Args:
        family: The kernel that needs it, which is a key of ``_switch.FAMILIES``.
        target: The name by which XLA knows it.
        module: The module whose `handle` it is. It imports numba.
        sources: The files that its machine code depends on besides those that all share.
        instead: What becomes of the operations without it, a sentence for the warning.
    """

    family: str
    target: str
    module: str
    sources: tuple[str, ...]
    instead: str
    _failed: str | None = None
    _is_registered: bool = field(default=False, repr=False)

    def objection(self) -> str | None:
        """Why it cannot be used on this machine, or None. Does not load numba."""
        return objection() or self._failed

    def is_ready(self) -> bool:
        """Compile the function and give it to XLA, once. If that fails, warn, and return False from now on."""
        with _lock:
            if not self._is_registered and self._failed is None:
                self._failed = self._register()
                self._is_registered = self._failed is None
                if self._failed:
                    warnings.warn(
                        f"The CPU kernel {self.family!r} is off: {self._failed}. {self.instead}", RuntimeWarning, stacklevel=3
                    )
        return self._is_registered

    def _register(self) -> str | None:
        """Returns what is wrong, or None."""
        if reason := objection():
            return reason
        try:
            address = self._address()
        except Exception as error:  # noqa: BLE001 - whatever a broken or unknown numba raises
            reason = str(error).partition("\n")[0]  # the rest is numba's view of the code
            return f"numba {importlib.metadata.version('numba')} could not compile it ({type(error).__name__}: {reason})"
        jax.ffi.register_ffi_target(self.target, jax.ffi.pycapsule(address), platform="cpu", api_version=1)
        return None

    def _address(self) -> int:
        """The address of the compiled function. Its machine code is kept for the next process."""
        if address := _kept_code.load(self.shipped_file()):
            return address
        file = self.file()
        if address := _kept_code.load(file):
            return address
        handle = self.handle()
        if (code := _translation.translated(handle)) and (address := _kept_code.load_from(_kept_code.store(file, *code))):
            return address
        numba: Any = importlib.import_module("numba")
        function = numba.cfunc(numba.types.int64(numba.types.int64), error_model="numpy")(handle)
        _functions.append(function)
        return function.address

    def handle(self) -> Any:
        """The function that numba compiles."""
        return importlib.import_module(f".{self.module}", __package__).handle

    @property
    def _source(self) -> bytes:
        return b"".join(Path(__file__).with_name(name).read_bytes() for name in (*_SHARED, *self.sources, f"{self.module}.py"))

    @property
    def _name(self) -> str:
        return self.target.removeprefix("replicant_")

    def shipped_file(self, kind: str | None = None) -> Path:
        """Where the machine code is in an installed package: for a kind of processor, this one's by default."""
        return _shipped_code.file(self._name, self._source, kind)

    def file(self) -> Path:
        """Where the machine code is kept: beside that of Python, or where this user keeps such things if that cannot be written."""
        versions = [importlib.metadata.version(name) for name in ("numba", "llvmlite")]
        key = zlib.crc32(repr((self._source, versions, _kept_code.machine(), _registers.width())).encode())
        folder = Path(importlib.util.cache_from_source(__file__)).parent
        if not os.access(folder if folder.exists() else folder.parent, os.W_OK):
            folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "replicant"
        return folder / f"{self._name}-{key:08x}.object"


_functions: list[Any] = []  # they own their machine code
