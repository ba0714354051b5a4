"""Entries of the cache of compiled programs that a killed process has left half-written are known from whole ones."""

import sys
import zlib

import pytest

from replicant.runtime._compile_cache import _whole

CONTENT = bytes(range(256)) * 600 + b"the end"


def test_packed_by_zlib() -> None:
    packed = zlib.compress(CONTENT)
    assert _whole(packed)
    assert not any(_whole(packed[:size]) for size in range(len(packed)))
    assert not _whole(b"neither of the two")


def test_packed_by_zstandard(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pytest.importorskip("zstandard", reason="pip install zstandard").ZstdCompressor().compress(CONTENT)
    assert _whole(packed)
    assert not any(_whole(packed[:size]) for size in range(len(packed)))
    assert not _whole(packed[:10] + b"\xff" * 200)
    monkeypatch.setitem(sys.modules, "zstandard", None)  # as if it were not installed: JAX could not read the entry
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    assert not _whole(packed)
