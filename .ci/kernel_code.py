"""Makes the machine code that comes with the package, for each kind of processor: ``python .ci/kernel_code.py FOLDER``.

Any x86-64 machine with Linux and numba can make all of it, also for processors of another kind.
"""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

from replicant.kernels.compiled import _kept_code, _registers, _translation

# The modules that each have a FUNCTION which numba compiles.
MODULES = (
    "replicant.kernels.compiled._convolutions",
    "replicant.kernels.compiled._dot",
    "replicant.kernels.compiled._lstm_loops",
    "replicant.kernels.functions._norm",
)


def make(folder: Path, width: int) -> None:
    """Write the code of all functions for processors whose vectors have so many numbers. A process can do so for one width."""
    _registers.width = lambda: width  # before the functions are imported, whose code depends on it
    kind = _registers.KINDS[width]
    for module in MODULES:
        function: Any = importlib.import_module(module).FUNCTION
        code = _translation.translated(function.handle(), kind)
        if code is None:
            sys.exit(f"{module}: this numba cannot translate. Install the one that constraints.txt names.")
        path = folder / function.shipped_file(kind).name
        _kept_code.store(path, *code)
        print(f"{path.name}: {path.stat().st_size:,} bytes", flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        make(Path(sys.argv[1]), int(sys.argv[2]))
    else:
        for each in _registers.KINDS:
            subprocess.run([sys.executable, __file__, sys.argv[1], str(each)], check=True)
