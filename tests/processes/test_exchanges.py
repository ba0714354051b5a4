"""Sums over workers: the same bits on all, those that NumPy computes, and no more exchanges in a step than needed."""

import hashlib
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # test folders are no packages

import _group  # noqa: E402

DTYPES = ("float32", "bfloat16", "float16", "int32", "uint8", "complex64")
SPECIAL = {2: ["nan", "nan", "-inf", "-0.0", "3e-45"], 3: ["nan", "nan", "-inf", "0.0", "3e-45"]}
WORKERS = [2, pytest.param(3, marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    known = {}

    def of(workers):
        if known.get(workers) == "failed":
            pytest.fail("this group of workers failed in an earlier test")
        if workers not in known:
            known[workers] = "failed"
            folder = tmp_path_factory.mktemp("group")

            def variables(rank):
                dumps = folder / "dumps" / str(rank)
                flags = f"--xla_dump_to={dumps} --xla_dump_hlo_as_text --xla_dump_hlo_module_re=jit__with_token"
                return {"DUMPS": str(folder / "dumps"), "XLA_FLAGS": flags, "REPLICANT_COMPILATION_CACHE": "0"}

            known[workers] = _group.Group(HERE / "_worker_exchanges.py", workers, folder, environ=variables).ended_well()
        return known[workers]

    return of


def rows_of(rank, dtype):
    return np.random.default_rng(rank).normal(scale=100, size=33).astype(jnp.dtype(dtype))


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.long
def test_sums_are_the_same_bits_on_all_workers(answers, workers):
    first, *others = answers(workers)
    for other in others:
        assert other["sums"] == first["sums"]
        assert other["in flight"] == first["in flight"]
        assert other["steps"] | {"local": None} == first["steps"] | {"local": None}


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning")  # a negative number as uint8
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.long
def test_sums_of_two_are_those_of_numpy(answers, dtype):
    found = answers(2)[0]["sums"][dtype]
    assert found == (rows_of(0, dtype) + rows_of(1, dtype)).tobytes().hex()


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.long_cases("2")
def test_special_values(answers, workers):
    sums = answers(workers)[0]["sums"]
    expected = SPECIAL[workers]
    assert [x for x in sums["special"] if x != "3e-45"][:4] == expected[:4]
    assert sums["empty"] == [0, 3]
    assert sums["scalar"] == sum(range(1, workers + 1))


@pytest.mark.parametrize("workers", WORKERS)
def test_many_sums_in_flight_each_meet_their_own(answers, workers):
    assert answers(workers)[0]["in flight"] == [workers * i + sum(range(workers)) for i in reversed(range(60))]


@pytest.mark.parametrize("workers", WORKERS)
def test_sums_in_loops_and_under_gradients(answers, workers):
    mean, total = (workers + 1) / 2, sum(range(1, workers + 1))
    for answer in answers(workers):
        looped, gradient = answer["inside"]
        np.testing.assert_allclose(looped, [3 * mean] * 3, rtol=1e-6)
        np.testing.assert_allclose(gradient, [2 * total * workers] * 3, rtol=1e-6)  # as TensorFlow's: the sum of all gradients


@pytest.mark.parametrize("workers", WORKERS)
def test_a_step_with_its_loss_is_one_exchange(answers, workers):
    rows = (np.arange(48, dtype=np.float32) / 48).reshape(12, 4)
    weight, bias, losses = np.full((4, 3), 0.5, np.float32), np.zeros(3, np.float32), []
    for _ in range(4):
        out = rows @ weight + bias
        losses.append(float((out**2).sum() / 12))
        weight, bias = weight - 0.1 * rows.T @ (out / 6), bias - 0.1 * (out / 6).sum(0)
    for rank, answer in enumerate(answers(workers)):
        found = answer["steps"]
        assert found["exchanges"] == ["all-reduce"]
        np.testing.assert_allclose(found["losses"], losses, rtol=1e-5)
        np.testing.assert_allclose(found["weights"][0], weight, rtol=1e-5)
        assert found["local"] == [pytest.approx((12 // workers * 4 * (rank + 1) - 1) / 48), 2 * rank]


@pytest.mark.parametrize("workers", WORKERS)
def test_your_own_psum_is_one_of_them(answers, workers):
    assert answers(workers)[0]["plain"] == ["all_reduce"]


@pytest.mark.parametrize("workers", WORKERS)
def test_sums_within_another_mapping(answers, workers):
    assert [answer["nested"] for answer in answers(workers)] == [[float(workers)] * 4] * workers


def large_rows_of(rank, dtype):
    return np.random.default_rng(rank).integers(0, 100, 1 << 21).astype(jnp.dtype(dtype))


def digest_of(array):
    return hashlib.sha256(array.tobytes()).hexdigest()


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8", "int32"])
def test_sums_of_large_arrays(answers, workers, dtype):
    expected = large_rows_of(0, dtype)
    for rank in range(1, workers):
        expected += large_rows_of(rank, dtype)
    for answer in answers(workers):
        assert answer["large"][dtype] == [digest_of(expected)]


@pytest.mark.parametrize("workers", WORKERS)
def test_two_large_sums_and_those_in_loops(answers, workers):
    total = sum(large_rows_of(rank, "float32") for rank in range(workers))
    for answer in answers(workers):
        assert answer["large"]["twice"] == [digest_of(total), digest_of(2 * total)]
        assert answer["large"]["loop"] == [digest_of(workers * total)]


@pytest.mark.parametrize("workers", WORKERS)
def test_the_memory_of_large_sums_is_kept_from_the_second_run_on(answers, workers):
    for answer in answers(workers):
        assert answer["kept"] == ["watching", "keeping", "keeping"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    flags = "--xla_dump_hlo_as_text"
    group = _group.Group(HERE / "_worker_exchanges.py", 1, folder, environ={"DUMPS": str(folder), "XLA_FLAGS": flags})
    return group.ended_well()[0]["fit"]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.long_cases("2")
def test_a_step_of_fit_is_one_exchange_with_its_loss_and_metrics(answers, alone, workers):
    first, *others = [answer["fit"] for answer in answers(workers)]
    assert first["exchanges"] == ["all-reduce"]
    assert first["in evaluate"] == ["all-reduce"]
    assert all(other == first for other in others)
    for part in ("history", "evaluated"):
        assert first[part].keys() == alone[part].keys()
        for name, values in first[part].items():
            np.testing.assert_allclose(values, alone[part][name], rtol=1e-5)
    for a, b in zip(first["weights"], alone["weights"], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
