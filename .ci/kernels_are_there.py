"""Fails unless the CPU kernels of an installed package are there without a translation by numba, on processors that have them."""

import importlib
import os
import sys

os.environ["KERAS_BACKEND"] = "jax"

from kernel_code import MODULES

from replicant.kernels.compiled import _registers

if _registers.kind() is None:
    sys.exit(0)
for module in MODULES:
    function = importlib.import_module(module).FUNCTION
    if not function.shipped_file().exists() or not function.is_ready() or "numba" in sys.modules:
        sys.exit(f"{module}: the code in {function.shipped_file()} is not used.")
print(f"The package has the code of its CPU kernels for {_registers.kind()}.")
