"""Machine code that comes with the package: for which processors, of which source, and what becomes of other code."""

import ctypes
from pathlib import Path
from typing import Any

import pytest

from replicant.kernels.compiled import _kept_code, _registers, _registration, _shipped_code, _translation

OF_V3 = {"abm", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}
OF_V4 = OF_V3 | {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"}


@pytest.mark.parametrize(
    ("features", "bits", "expected"),
    [
        (OF_V4, "", "x86-64-v4"),
        (OF_V4, "256", "x86-64-v3"),
        (OF_V3, "", "x86-64-v3"),
        (OF_V4 - {"avx512bw"}, "", None),  # vectors of 16 numbers, but not all that code for this kind may use
        (OF_V3 - {"movbe"}, "", None),
        (OF_V3 - {"avx2"}, "", None),
        (set(), "", None),
    ],
)
def test_the_kind_of_processor(features: set[str], bits: str, expected: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_registers, "_features", lambda: frozenset(features))
    monkeypatch.setenv(_registers.VARIABLE, bits)
    assert _registers.kind() == expected


def handle(number: int) -> int:
    return 3 * number + 4


def native(*sources: str) -> _registration.Native:
    function = _registration.Native("dot", "replicant_three_times", "_registers", sources, "It is only a test.")
    function.handle = lambda: handle  # type: ignore[method-assign]
    return function


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the package has its code, with that of `native()` in it."""
    pytest.importorskip("numba")
    if absent := _registration.objection():
        pytest.skip(f"there are no such functions here: {absent}")
    if _registers.kind() is None:
        pytest.skip("this processor is of no kind that the package has code for")
    monkeypatch.setattr(_shipped_code, "FOLDER", tmp_path / "code")
    monkeypatch.setattr(_registration.Native, "file", lambda self: tmp_path / "kept" / self.shipped_file().name)
    code = _translation.translated(handle, _registers.kind())
    assert code is not None
    _kept_code.store(native().shipped_file(), *code)
    return tmp_path


def called(function: _registration.Native) -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(function._address())(5)


@pytest.fixture
def translated(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What numba translates from here on."""
    seen: list[Any] = []
    original = _translation.translated
    monkeypatch.setattr(_translation, "translated", lambda fn, kind=None: (seen.append(fn), original(fn, kind))[1])
    return seen


def test_code_of_the_package_is_used(folder: Path, translated: list[Any]) -> None:
    assert called(native()) == 19
    assert not translated
    assert not (folder / "kept").exists()


def test_code_of_other_source_is_not_used(folder: Path, translated: list[Any]) -> None:
    assert called(native("_tiles.py")) == 19
    assert translated == [handle]
    assert [file.name for file in (folder / "kept").iterdir()] == [native("_tiles.py").shipped_file().name]


def test_damaged_code_is_not_used(folder: Path, translated: list[Any]) -> None:
    file = native().shipped_file()
    file.write_bytes(file.read_bytes()[:-1])
    assert called(native()) == 19
    assert translated == [handle]


def test_code_for_another_kind_is_not_used(folder: Path, translated: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_registers, "kind", lambda: "x86-64-v9")
    assert called(native()) == 19
    assert translated == [handle]
