"""Reads from bytecode what a piece of code names: globals, variables, and attributes of what they hold."""

import dis
import functools
import string
import types
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

_LOADS_ATTRIBUTE = {"LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR"}
_LOADS_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"}
_LOADS_CELL = {"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF", "STORE_DEREF"}
_BETWEEN = {"CACHE", "PUSH_NULL", "RESUME", "PRECALL", "NOP", "EXTENDED_ARG", "COPY_FREE_VARS", "NOT_TAKEN"}
_BY_TEXT = {"getattr", "hasattr", "setattr", "delattr"}  # they take the name of an attribute
_OF_MODULES = {"globals", "vars", "locals", "import_module", "__import__", "modules"}  # with these, it may name globals by text
_ANY = {"__dict__", "__getstate__", "__getattribute__", "__reduce__", "__reduce_ex__"}  # with these, code may read any attribute


_MAX_TEXT = 1_000  # longer ones are prose


class Chain(NamedTuple):
    """Names that follow each other in the code, ``root.attribute.attribute``. `kind` is "global", "local" or "import"."""

    kind: str
    root: str
    attributes: tuple[str, ...] = ()


class Names(NamedTuple):
    """What a piece of code names.

    Attributes:
        chains: The chains in it.
        loose: The attributes of anything else.
        steady: The local variables that always hold what they hold when the code returns.
        reads_any: Whether it reads attributes whose names it computes.
        texts: The names in its texts, which functions written in C may look up.
        reads_modules: Whether it may look them up in a module.
        codes: The code inside it.
    """

    chains: tuple[Chain, ...]
    loose: frozenset[str]
    steady: frozenset[str]
    reads_any: bool
    texts: frozenset[str]
    reads_modules: bool
    codes: tuple[types.CodeType, ...]


@functools.lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> Names:
    """Return what a piece of code names."""
    found: dict[Chain, None] = {}
    loose: set[str] = set()
    by_text, with_text = 0, 0
    last: Chain | None = None
    chain: Chain | None = None
    for instruction in dis.get_instructions(code):
        name, value = instruction.opname, instruction.argval
        if name in _BETWEEN:
            continue
        if name in _LOADS_ATTRIBUTE:
            if chain is None:
                loose.add(value)
            else:
                chain = chain._replace(attributes=(*chain.attributes, value))
            continue
        if chain is not None:
            found[chain] = None
            if name == "LOAD_CONST" and isinstance(value, str) and last is not None and last.root in _BY_TEXT:
                found[chain._replace(attributes=(*chain.attributes, *value.split(".")))] = None
                with_text += 1
        last, chain = chain, None
        if name == "LOAD_SUPER_ATTR":
            loose.add(value)
            continue
        starts = _started(name, value)
        found.update(dict.fromkeys(starts))
        if starts and not name.startswith("STORE_FAST"):
            chain = starts[-1]
            by_text += chain.kind == "global" and chain.root in _BY_TEXT
    if chain is not None:
        found[chain] = None
    reads_any = by_text > with_text or bool(_ANY & loose) or any(_ANY & {*each.attributes} for each in found)
    reads_modules = bool(_OF_MODULES & {*loose, *(name for each in found for name in (each.root, *each.attributes))})
    inner = tuple(constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    texts = frozenset(name for constant in code.co_consts for name in _names_in_text(constant))
    return Names(tuple(found), frozenset(loose), _steady(code), reads_any, texts, reads_modules, inner)


def _names_in_text(constant: Any) -> Iterator[str]:
    """Yield the names in a text, as getters and formats have them: "x", "model.scale", "{0.x}"; and those in a tuple of texts."""
    if isinstance(constant, tuple):
        for item in constant:
            yield from _names_in_text(item)
    if not isinstance(constant, str) or len(constant) > _MAX_TEXT:
        return
    texts = [constant]
    if "{" in constant:
        with suppress(ValueError):  # it is not a format
            texts += [field for _, field, _, _ in string.Formatter().parse(constant) if field]
    for text in texts:
        parts = text.split(".")
        if all(part.isidentifier() or i == 0 for i, part in enumerate(parts)):
            yield from filter(str.isidentifier, parts)


def _started(name: str, value: object) -> list[Chain]:
    """Return the chains that begin with an instruction. Those of one that loads two variables end on top of the stack in order."""
    if name in _LOADS_GLOBAL:
        return [Chain("global", str(value))]
    if name == "IMPORT_NAME":
        return [Chain("import", str(value))]
    if name in _LOADS_CELL or name.startswith(("LOAD_FAST", "STORE_FAST")):
        return [Chain("local", str(each)) for each in (value if isinstance(value, tuple) else (value,))]
    return []


def _steady(code: types.CodeType) -> frozenset[str]:
    """Return the arguments that are never stored to, and the variables that are stored to once, outside of loops."""
    stores: dict[str, list[int]] = {}
    loops: list[tuple[int, int]] = []
    for instruction in dis.get_instructions(code):
        name, value = instruction.opname, instruction.argval
        if name.startswith(("STORE_", "DELETE_")) and not name.endswith(("ATTR", "SUBSCR", "SLICE")):
            for each in value if isinstance(value, tuple) else (value,):
                stores.setdefault(str(each), []).append(instruction.offset)
        elif "JUMP_BACKWARD" in name:
            loops.append((value, instruction.offset))
    count = code.co_argcount + code.co_kwonlyargcount
    arguments = {*code.co_varnames[:count], *code.co_freevars}
    once = {
        name
        for name, offsets in stores.items()
        if len(offsets) == 1 and not any(start <= offsets[0] <= end for start, end in loops)
    }
    return frozenset((arguments - stores.keys()) | (once - arguments))
