"""Names of compiled CPU programs on disk: the same for all workers."""

import hashlib

import jax
import numpy as np
import pytest
from jax._src import cache_key

from replicant.cluster.jax import _program_cache


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is replaced in JAX is put back after the test."""
    monkeypatch.setattr(_program_cache, "_state", {})
    for name in _program_cache._EXPECTED:
        monkeypatch.setattr(cache_key, name, getattr(cache_key, name))


def devices_hashed(*devices: jax.Device) -> str:
    found = hashlib.sha256()
    cache_key._hash_accelerator_config(found, np.array(devices))
    return found.hexdigest()


def test_a_programs_name_does_not_depend_on_which_device_of_a_process_it_is_for() -> None:
    assert _program_cache.share_programs()
    assert _program_cache.share_programs()  # once is enough
    one, two, *_ = jax.devices()
    assert devices_hashed(one) == devices_hashed(two)
    assert devices_hashed(one) != devices_hashed(one, two)


@pytest.mark.parametrize("name", _program_cache._EXPECTED)
def test_a_jax_that_has_changed_is_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_key, name, lambda hash_obj: None)
    before = dict(vars(cache_key))
    assert not _program_cache.share_programs()
    assert vars(cache_key) == before
    monkeypatch.setattr(_program_cache, "_state", {})
    monkeypatch.delattr(cache_key, name)
    assert not _program_cache.share_programs()
