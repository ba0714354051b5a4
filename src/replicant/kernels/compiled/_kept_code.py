"""Keeps machine code of functions that numba translates in a file, which llvmlite loads in a tenth of the time of numba's import.

Numba's own cache needs numba, which takes 0.4 s to import with what it looks at. The object file refers to functions of numba that
report an exception of Python. The function here raises none, so where numba is not loaded, these names lead to ``abort``.
"""

import contextlib
import ctypes
import importlib
import struct
import zlib
from pathlib import Path
from typing import Any

from ..._whole_file import write_whole

_MAGIC = b"replicant object code 1\n"
_NEVER_CALLED = (
    "NRT_Free",
    "numba_do_raise",
    "numba_gil_ensure",
    "numba_gil_release",
    "numba_runtime_build_excinfo_struct",
    "numba_unpickle",
)
_SYMBOL = struct.Struct("<IBBHQQ")  # Elf64_Sym: name, info, other, section, value, size

_loaded: list[Any] = []  # the engines, which own the code


def machine() -> str:
    """What machine code depends on besides its source: the processor's name and features."""
    llvm: Any = importlib.import_module("llvmlite.binding")
    return f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()} {llvm.llvm_version_info}"


def load(file: Path) -> int | None:
    """The address of the function in a file, or None if there is no such file, or it is damaged or of another kind."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    return load_from(content)


def load_from(content: bytes) -> int | None:
    """The address of the function in the content of a file, or None as `load` says."""
    head, _, data = content[len(_MAGIC) :].partition(b"\n")
    checksum, _, name = head.decode("ascii", "replace").partition(" ")
    if not content.startswith(_MAGIC) or checksum != str(zlib.crc32(data)):
        return None
    llvm: Any = importlib.import_module("llvmlite.binding")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    process = ctypes.CDLL(None)
    code = llvm.ObjectFileRef.from_data(data)
    for symbol in _undefined(code):
        if llvm.address_of_symbol(symbol) or hasattr(process, symbol):
            continue
        if symbol not in _NEVER_CALLED:
            return None  # LLVM would end the process
        llvm.add_symbol(symbol, ctypes.cast(process.abort, ctypes.c_void_p).value)
    target = llvm.Target.from_default_triple().create_target_machine(codemodel="jitdefault", jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)
    engine.add_object_file(code)
    engine.finalize_object()
    _loaded.append(engine)
    return engine.get_function_address(name) or None


def _undefined(code: Any) -> list[str]:
    """The names that an ELF object file refers to and does not define."""
    sections = {section.name(): section.data() for section in code.sections()}
    names = sections[b".strtab"]
    symbols = list(_SYMBOL.iter_unpack(sections[b".symtab"]))
    places = [place for place, _, _, section, _, _ in symbols if section == 0 and place]
    return [names[place : names.index(b"\0", place)].decode() for place in places]


def store(file: Path, name: str, data: bytes) -> bytes:
    """Keep an object file, and the name of the function in it. Returns the content, also where nothing can be written."""
    content = _MAGIC + f"{zlib.crc32(data)} {name}\n".encode() + data
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, content)
    return content
