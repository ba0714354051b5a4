"""Functions that numba translates and LLVM optimizes once: they compute the right numbers, and numba works as ever after that."""

import ctypes
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from replicant.kernels.compiled import _kept_code, _registration, _translation

numba: Any = pytest.importorskip("numba")
absent = _registration.objection()
pytestmark = pytest.mark.skipif(absent is not None, reason=f"there are no such functions here: {absent}")


def called(code: tuple[str, bytes] | None, number: int, file: Path) -> int:
    assert code is not None
    address = _kept_code.load_from(_kept_code.store(file, *code))
    assert address is not None
    assert _kept_code.load(file)  # and from the file
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)(number)


@numba.njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def power(base: int, exponent: int) -> int:
    result = 1
    for _ in range(exponent):
        result *= base
    return result


def handle(number: int) -> int:
    return max(number // 3, 1) + power(number, 3) + abs(number % 5) ** 2 + power(2, 2)


def used_by_others(number: int) -> int:
    return abs(number // 3) ** 2 + min(number % 5, 3) + power(number, 2)


def broken(number: int) -> int:
    return number.nothing_of_this_name  # type: ignore[attr-defined]


@pytest.mark.parametrize("number", [-7, 0, 3, 41])
def test_it_computes_what_python_computes(number: int, tmp_path: Path) -> None:
    expected = max(number // 3, 1) + number**3 + (number % 5) ** 2 + 4
    assert called(_translation.translated(handle), number, tmp_path / "function.object") == expected


@pytest.mark.parametrize("before", ["nothing", "a translation", "a translation that failed"])
def test_numba_compiles_and_calls_functions_after_it(before: str) -> None:
    """Also those that share functions with what was translated, which have no machine code of their own."""
    if before == "a translation":
        _translation.translated(handle)
    elif before == "a translation that failed":
        with pytest.raises(numba.TypingError, match="nothing_of_this_name"):
            _translation.translated(broken)
    assert [numba.njit(used_by_others)(number) for number in (-7, 0, 41)] == [9 + 3 + 49, 0, 169 + 1 + 1681]
    function = numba.cfunc("int64(int64)")(used_by_others)
    assert function.ctypes(41) == 169 + 1 + 1681
    assert numba.njit(lambda x: x / 2)(3.0) == 1.5


def test_another_thread_compiles_meanwhile(tmp_path: Path) -> None:
    results: dict[int, int] = {}

    def translate(number: int) -> None:
        results[number] = called(_translation.translated(handle), 3, tmp_path / f"{number}.object")

    def compile_and_call(number: int) -> None:
        results[number] = int(numba.njit(lambda x: x + number)(10))

    threads = [threading.Thread(target=translate if i % 2 else compile_and_call, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {0: 10, 1: 41, 2: 12, 3: 41, 4: 14, 5: 41}


@pytest.mark.long
@pytest.mark.parametrize("names", ["_OF_LIBRARIES", "_OF_CODEGEN"])
def test_a_numba_with_other_insides_compiles_by_itself(names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_translation, names, ("no_such_name",))
    assert _translation.translated(handle) is None
    monkeypatch.setattr(_kept_code, "load", lambda _: None)  # what was kept
    function = _registration.Native(
        "numba_lstm", f"replicant_lstm_of{names}", "_lstm_code", ("_lstm_cells.py", "_vector_math.py"), "Nothing."
    )
    assert function.is_ready()
    assert not function.file().exists()


@pytest.mark.parametrize("module", ["numba.core.registry", "numba.core.compiler_lock"])
def test_a_numba_whose_modules_have_other_names_compiles_by_itself(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # importing it is an ImportError
    assert _translation.translated(handle) is None


@pytest.mark.long
def test_code_that_cannot_be_loaded_is_compiled_by_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_kept_code, "load", lambda _: None)
    monkeypatch.setattr(_kept_code, "store", lambda *_: b"damaged")
    function = _registration.Native(
        "numba_lstm", "replicant_lstm_of_another_test", "_lstm_code", ("_lstm_cells.py", "_vector_math.py"), "Nothing."
    )
    assert function.is_ready()
