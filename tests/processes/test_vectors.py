"""Functions that numba compiles, on a processor with AVX-512, as they are on one that has AVX2 only."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from replicant.errors import ConfigurationError
from replicant.kernels.compiled import _registers, _registration

DEVICES = Path(__file__).parent.parent / "devices"
FILES = ("compiled", "numba_dot", "norm", "lstm_loops")
AVX2, AVX512 = frozenset({"sse2", "avx", "fma", "avx2"}), frozenset({"avx", "fma", "avx2", "avx512f", "avx512vl"})


@pytest.mark.parametrize(
    ("features", "bits", "width"),
    [
        (AVX512, "", 16),
        (AVX512, "256", 8),
        (AVX2, "", 8),
        (AVX2, "256", 8),
        (AVX2 - {"fma"}, "", None),
        (AVX512 - {"avx512vl"}, "", 8),
        (frozenset(), "256", None),
    ],
)
def test_widths(features: frozenset[str], bits: str, width: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_registers, "_features", lambda: features)
    monkeypatch.setenv("REPLICANT_VECTOR_BITS", bits)
    assert _registers.width() == width
    found = _registration.objection()
    if found is None or "processor" in found:  # else something else is missing here
        assert found == (None if width else "the processor has neither AVX-512 nor AVX2 with FMA")


@pytest.mark.parametrize("text", ["512", "8", "no"])
def test_another_width_is_an_error(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICANT_VECTOR_BITS", text)
    message = f"REPLICANT_VECTOR_BITS is '{text}'. Write 256 to compute with AVX2 on a processor with AVX-512, or leave it out."
    with pytest.raises(ConfigurationError) as found:
        _registers.width()
    assert str(found.value) == message


@pytest.mark.long
@pytest.mark.skipif(_registration.objection() is not None, reason=f"there are no such functions here: {_registration.objection()}")
@pytest.mark.skipif(_registers.width() == 8, reason="the other tests compute with AVX2 here")
def test_numbers_with_avx2() -> None:
    files = [str(DEVICES / f"test_kernel_{name}.py") for name in FILES]
    chosen = "test_values or test_large or test_sums or test_rows or test_a_row or test_only or test_logistic"
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-k", chosen, *files]
    kept = {name: value for name, value in os.environ.items() if name != "REPLICANT_TEST_SHARE"}  # the files may be of other shares
    environ = kept | {"REPLICANT_VECTOR_BITS": "256"}
    found = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600, check=False)
    assert found.returncode == 0, found.stdout[-3000:]
    assert "passed" in found.stdout
    assert "skipped" not in found.stdout
