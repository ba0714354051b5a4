"""The names of JAX's primitives that are looked for in programs: all in one table, and all there in the installed JAX."""

import ast
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import pytest
from jax.extend.core import primitives

import replicant
from replicant.errors import BackendError
from replicant.tracing.jaxprs import _primitive_names
from replicant.tracing.replicas import _fused

SOURCE = Path(replicant.__file__).parent
PUBLIC = {each.name: each for each in vars(primitives).values() if isinstance(each, jex.Primitive)}


@pytest.fixture(autouse=True)
def check_anew() -> Iterator[None]:
    _primitive_names.check.cache_clear()
    yield
    _primitive_names.check.cache_clear()


def test_the_installed_jax_has_all_names():
    _primitive_names.check()


@pytest.mark.parametrize("name", ["psum", "all_gather", "axis_index", "cond", "while", "jit", "custom_vjp_call", "mul"])
def test_a_primitive_of_another_name_ends_the_first_trace(monkeypatch, name):
    monkeypatch.setattr(PUBLIC[name], "name", f"{name}_2")
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    with pytest.raises(BackendError) as raised:
        strategy.run(lambda: jnp.zeros(()))
    assert str(raised.value) == (
        f"JAX {jax.__version__} has no operations with these names, which Replicant looks for in programs: {name}. Use a JAX "
        "version that this release of Replicant was tested with (0.10 to 0.12), or a newer Replicant."
    )


def test_an_old_name_that_lives_on_for_something_else_is_not_taken_for_it(monkeypatch):
    monkeypatch.setattr(PUBLIC["pmax"], "name", "pmax_2")
    monkeypatch.setattr(PUBLIC["erf_inv"], "name", "pmax")
    with pytest.raises(BackendError, match="looks for in programs: pmax"):
        _primitive_names.check()


@pytest.mark.long
def test_no_name_of_a_primitive_is_used_that_is_not_in_the_table():
    """Every string in the files that read equations is looked at."""
    used = set()
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        words = {getattr(node, "id", getattr(node, "attr", None)) for node in ast.walk(tree)}
        tables = ("_primitive_names.py", "_row_rules.py")  # where the second knows no name, a step is left to XLA
        if path.name not in tables and "eqn" in words:
            used |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    others = {"call", "name"}  # also primitives, but here parameters
    assert (used & PUBLIC.keys()) - _primitive_names.NAMES - others == set()
    assert _fused._TOTALS.keys() <= _primitive_names.NAMES
    assert {"scan", "while", "cond", "mul", "dot_general"} <= used
