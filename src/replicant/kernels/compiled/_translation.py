"""Object code of a function that numba translates and LLVM optimizes as one module.

By itself, numba optimizes each function that another one calls, makes machine code of it, and optimizes it again inside its
callers. For a convolution, with 54 functions, that takes more than twice as long (`benchmarks/translation.py`).
"""

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

LEVEL = 3  # of LLVM's optimization, as numba's

# The private names of numba's that are used here. Where there is no such name, numba does it all.
_OF_LIBRARIES = (
    "_optimize_functions",
    "_optimize_final_module",
    "_finalize_final_module",
    "_finalize_dynamic_globals",
    "_ensure_finalized",
    "get_pointer_to_function",
)
_OF_CODEGEN = ("_library_class", "_data_layout", "set_env")


def translated(handle: Callable[[int], int], kind: str | None = None) -> tuple[str, bytes] | None:
    """The name and the object file of a function of one whole number that returns one. None if this numba has other insides.

    The code is for this processor or, if there is a `kind` such as "x86-64-v3", for all processors of it.
    """
    numba: Any = importlib.import_module("numba")
    try:
        target: Any = importlib.import_module("numba.core.registry").cpu_target.target_context
        lock: Any = importlib.import_module("numba.core.compiler_lock").global_compiler_lock
    except (ImportError, AttributeError):
        return None
    target.refresh()  # what numba needs for itself is compiled as ever
    with lock, _translating(target.codegen()) as can_translate:
        if not can_translate:
            return None
        function = numba.cfunc(numba.types.int64(numba.types.int64), error_model="numpy")(handle)
    return function.native_name, _optimized(function.inspect_llvm(), kind)


@contextlib.contextmanager
def _translating(codegen: Any) -> Iterator[bool]:
    """Meanwhile, numba makes no machine code of what it translates. The value says whether this numba can do so."""
    kind: Any = getattr(codegen, "_library_class", None)
    if not (all(hasattr(kind, name) for name in _OF_LIBRARIES) and all(hasattr(codegen, name) for name in _OF_CODEGEN)):
        yield False
        return

    class Library(kind):
        def _optimize_functions(self, ll_module: Any) -> None:
            ll_module.data_layout = codegen._data_layout  # noqa: SLF001

        def _optimize_final_module(self) -> None:
            pass

        def _finalize_final_module(self) -> None:
            self._finalize_dynamic_globals()
            self._finalized = True

        def get_pointer_to_function(self, name: str) -> int:
            self._ensure_finalized()
            return 0  # "there is no such function"

    codegen._library_class, codegen.set_env = Library, lambda *_: None  # noqa: SLF001
    try:
        yield True
    finally:
        del codegen._library_class, codegen.set_env  # noqa: SLF001 - those of its class are back


def _optimized(text: str, kind: str | None) -> bytes:
    """The object file of a module of LLVM's."""
    llvm: Any = importlib.import_module("llvmlite.binding")
    module = llvm.parse_assembly(text)
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=kind or llvm.get_host_cpu_name(),
        # LLVM takes it that processors of the newest kind slow down where they compute with their whole vectors.
        features="-prefer-256-bit" if kind else llvm.get_host_cpu_features().flatten(),
        opt=LEVEL,
        reloc="static",
        codemodel="jitdefault",
        jit=True,
    )
    options = llvm.create_pipeline_tuning_options(speed_level=LEVEL)
    options.loop_vectorization = options.slp_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    for _ in range(2):  # what the first run inlines late, the second one simplifies; depthwise convolutions need it
        builder.getModulePassManager().run(module, builder)
    return machine.emit_object(module)
