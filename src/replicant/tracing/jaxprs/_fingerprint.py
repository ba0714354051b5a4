"""Describes a traced program as text that is the same in every process that has traced the same program.

Each equation becomes a line with the operation, its operands and its parameters. Values are numbered in the order in which they are
made, and constants are named by their bytes. Whatever differs between processes that compute the same is left out: names,
functions, addresses, devices, and what is printed. A program inside another one (the body of a loop, a branch) is represented by a
digest of its lines.
"""

import contextlib
import dataclasses
import enum
import functools
import hashlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from ._closed_jaxpr import ClosedJaxpr
from ._marks import scan_counts
from ._primitive_names import PRINTING

_DIGITS = 12  # hexadecimal digits of a digest
_BLOCK = 256  # lines that are compared at once
_MAX_SHOWN = 240  # characters of a line that messages show
_VALUES_SHOWN = 3  # values of a constant that messages show
# Parameters without influence on what is computed. Some differ between hosts, such as the paths of source files.
_SILENT = frozenset(
    {"name", "name_and_src_info", "src_info", "debug_info", "ctx_mesh", "context_mesh", "metadata"}
    | {"compiler_options_kvs", "donated_invars", "in_layouts", "inline", "keep_unused", "out_layouts"}
)


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of a fingerprint: a constant, an equation, or the inputs or results of a program.

    Args:
        text: What the line does.
        inner: The programs inside the equation.
        eqn: The equation, if the line is one.
    """

    text: str
    inner: "tuple[Fingerprint, ...]" = ()
    eqn: Any = None

    @functools.cached_property
    def digest(self) -> str:
        """The digest of the line, with everything inside it."""
        return _digest_of([self.text, *[each.digest for each in self.inner]])

    def __str__(self) -> str:
        """Format the line for messages."""
        return f"{self.text[:_MAX_SHOWN]}{'...' if len(self.text) > _MAX_SHOWN else ''}{_place(self.eqn)}"


@dataclasses.dataclass(frozen=True)
class Fingerprint:
    """A program as lines. `num_operations` includes those of the programs inside it."""

    lines: tuple[Line, ...]
    digest: str
    num_operations: int


def _digest_of(texts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:_DIGITS]


def fingerprint(closed: ClosedJaxpr) -> Fingerprint:
    """Compute the fingerprint of a traced program.

    >>> import jax, jax.numpy as jnp
    >>> def traced(rate):
    ...     return fingerprint(jax.make_jaxpr(lambda x: jnp.sin(x) * rate)(1.0))
    >>> traced(0.1).digest == traced(0.1).digest, traced(0.1).digest == traced(0.2).digest
    (True, False)
    """
    return Reader().program(closed)


def first_difference(mine: Fingerprint, exchange: Callable[[str], list[str]]) -> list[str]:
    """Find the first place where the workers' programs differ. All workers must call this together.

    Args:
        mine: This worker's program.
        exchange: A function that sends a text to all workers, and returns the texts of all.

    Returns:
        Each worker's line at that place; an empty list if the programs are the same.
    """
    if len(set(exchange(mine.digest))) == 1:
        return []
    program = mine
    while True:
        digests = [line.digest for line in program.lines]
        block = _first_unlike(exchange, [_digest_of(digests[i : i + _BLOCK]) for i in range(0, len(digests), _BLOCK)]) * _BLOCK
        index = block + _first_unlike(exchange, digests[block : block + _BLOCK])
        line = program.lines[index] if index < len(program.lines) else Line("nothing more")
        inner = [each.digest for each in line.inner]
        said = [json.loads(text) for text in exchange(json.dumps([_digest_of([line.text]), inner, str(line)]))]
        if len({text for text, _, _ in said}) > 1:
            return [shown for _, _, shown in said]
        program = line.inner[
            next(i for i, each in enumerate(zip(*[inner for _, inner, _ in said], strict=True)) if len(set(each)) > 1)
        ]


def _first_unlike(exchange: Callable[[str], list[str]], mine: list[str]) -> int:
    lists = [json.loads(text) for text in exchange(json.dumps(mine))]
    return next(i for i, each in enumerate(itertools.zip_longest(*lists)) if len(set(each)) > 1)


class Reader:
    """Reads programs into fingerprints. A part that occurs several times, such as a jitted function, is read once."""

    def __init__(self) -> None:
        # By id. The programs and arrays are kept, so that no other object gets the same id.
        self._known: dict[int, tuple[Any, Fingerprint]] = {}
        self._arrays: dict[int, tuple[Any, str]] = {}

    def program(self, program: ClosedJaxpr | jex.Jaxpr) -> Fingerprint:
        """Return the fingerprint of a program."""
        known = self._known.get(id(program))
        if known is None:
            known = self._known[id(program)] = (program, self._read(program))
        return known[1]

    def _read(self, program: ClosedJaxpr | jex.Jaxpr) -> Fingerprint:
        jaxpr, consts = (program.jaxpr, program.consts) if isinstance(program, ClosedJaxpr) else (program, ())
        numbers: dict[Any, str] = {}
        for var in (*jaxpr.constvars, *jaxpr.invars):
            numbers[var] = f"%{len(numbers)}"
        lines = [Line(f"inputs {', '.join(v.aval.str_short() for v in jaxpr.invars)}")]
        for var, value in zip(jaxpr.constvars, consts, strict=False):
            lines.append(Line(f"{numbers[var]} = constant {self.array(value)}"))
        lines += [self._equation(eqn, numbers) for eqn in jaxpr.eqns]
        lines.append(Line(f"returns {', '.join(self._operand(v, numbers) for v in jaxpr.outvars)}"))
        operations = len(jaxpr.eqns) + sum(inner.num_operations for line in lines for inner in line.inner)
        return Fingerprint(tuple(lines), _digest_of([line.digest for line in lines]), operations)

    def _equation(self, eqn: jex.JaxprEqn, numbers: dict[Any, str]) -> Line:
        name = eqn.primitive.name
        given = ", ".join(self._operand(v, numbers) for v in eqn.invars)
        for var in eqn.outvars:
            numbers[var] = f"%{len(numbers)}"
        made = ", ".join(f"{numbers[v]} {v.aval.str_short()}" for v in eqn.outvars)
        params, inner = self._params(eqn)
        return Line(f"{made} = {name}({given}){params}", tuple(inner), eqn)

    def operation(self, eqn: jex.JaxprEqn) -> str:
        """Describe what an equation does, without its operands. A digest stands for each program inside it."""
        params, inner = self._params(eqn)
        return " ".join([f"{eqn.primitive.name}{params}", *[each.digest for each in inner]])

    def _params(self, eqn: jex.JaxprEqn) -> tuple[str, list[Fingerprint]]:
        """Return an equation's parameters as text, and the programs in them."""
        inner: list[Fingerprint] = []
        silent = eqn.primitive.name in PRINTING  # workers may print different things
        params = {} if silent else _counted(eqn)
        keys = sorted(key for key in params.keys() - _SILENT if params[key] is not None)
        return "".join(f" {key}={self._value(params[key], inner)}" for key in keys), inner

    def _operand(self, v: Any, numbers: dict[Any, str]) -> str:
        return f"{self.array(v.val)}" if isinstance(v, jex.Literal) else numbers[v]

    def _value(self, value: Any, inner: list[Fingerprint]) -> str:
        """Return a parameter as text, and add the programs in it to `inner`."""
        if isinstance(value, ClosedJaxpr | jex.Jaxpr):
            inner.append(self.program(value))
            return "<program>"
        if value is None or isinstance(value, bool | int | float | complex | str | bytes | enum.Enum | np.generic | np.dtype):
            return value.name if isinstance(value, enum.Enum) else repr(value)
        if isinstance(value, np.ndarray | jax.Array):
            return self.array(value)
        if isinstance(value, Mesh | AbstractMesh | PartitionSpec | NamedSharding):
            return _sharding(value)
        if isinstance(value, tuple | list):
            return f"({', '.join([self._value(item, inner) for item in value])})"
        if isinstance(value, set | frozenset):  # the order of strings differs between processes
            return f"{{{', '.join(sorted(self._value(item, inner) for item in value))}}}"
        if isinstance(value, dict):
            named = sorted(((str(key), item) for key, item in value.items()), key=lambda pair: pair[0])
            return f"{{{', '.join([f'{key}: {self._value(item, inner)}' for key, item in named])}}}"
        if callable(value):  # what a function computes has been traced, except for callbacks to the host
            return value.__name__ if isinstance(value, type) else "<function>"
        if dataclasses.is_dataclass(value) and type(value).__module__.startswith("jax."):
            fields = [field.name for field in dataclasses.fields(value) if field.name not in _SILENT]
            return f"({', '.join([self._value(getattr(value, field), inner) for field in fields])})"
        return f"<{type(value).__name__}>"

    def array(self, value: Any) -> str:
        """Describe a constant by its shape and dtype, and its value or a digest of its bytes."""
        known = self._arrays.get(id(value))
        if known is None:
            known = self._arrays[id(value)] = (value, _described(value))
        return known[1]


def _counted(eqn: jex.JaxprEqn) -> Mapping[str, Any]:
    """Return the parameters of an equation; those of a scan with its counts, which JAX 0.11 and later keep in trees."""
    if eqn.primitive.name != "scan":
        return eqn.params
    num_consts, num_carry = scan_counts(eqn)
    others = {key: value for key, value in eqn.params.items() if key not in ("ft_in", "ft_out")}
    return others | {"num_consts": num_consts, "num_carry": num_carry}


def _sharding(value: Mesh | AbstractMesh | PartitionSpec | NamedSharding) -> str:
    """Describe a sharding without its devices."""
    if isinstance(value, NamedSharding):
        return f"{_sharding(value.mesh)} {value.spec}"
    return str(value) if isinstance(value, PartitionSpec) else f"mesh {dict(value.shape)}"


def _described(value: Any) -> str:
    array = _on_host(value)
    if array is None:
        return f"{value.dtype}{list(value.shape)} of which each worker has a part"
    if array.ndim == 0:
        return f"{array[()]!s} ({array.dtype})"  # short, and exact
    first = ", ".join(map(str, array.reshape(-1)[:_VALUES_SHOWN]))
    data: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return f"{array.dtype}{list(array.shape)} [{first}, ...] {hashlib.sha256(data).hexdigest()[:_DIGITS]}"


def _on_host(value: Any) -> np.ndarray | None:
    """Return the numbers of a constant; None if no worker has all of them."""
    if not isinstance(value, jax.Array):
        return np.asarray(value)
    if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        return _on_host(jax.random.key_data(value))
    return np.asarray(value) if value.is_fully_addressable or value.is_fully_replicated else None


def _place(eqn: Any) -> str:
    """Say which line of the user's program an equation comes from, if JAX knows it."""
    libraries = _libraries()
    for frame in getattr(getattr(getattr(eqn, "source_info", None), "traceback", None), "frames", ()):
        if not frame.file_name.startswith(libraries):
            return f", from {frame.file_name}:{frame.line_num} in {frame.function_name}"
    return ""


def _libraries() -> tuple[str, ...]:
    """Return the beginnings of the paths of source files that are not the user's."""
    packages = [sys.modules.get(name) for name in ("jax", "jaxlib", "keras", "replicant")]
    files = [package.__file__ for package in packages if package is not None and package.__file__ is not None]
    folders = [os.path.join(os.path.dirname(file), "") for file in files]  # noqa: PTH118, PTH120 - as Python spells them in frames
    return ("<", functools.__file__, contextlib.__file__, *folders)
