"""Writes job files in YAML from dictionaries, so that no name, argument or path can change the structure of a file."""

import json
import re
from typing import Any, NamedTuple

# Words that YAML 1.1 reads as something else than text.
_NO_TEXT = frozenset("y n yes no on off true false null".split())  # noqa: SIM905 - a list of words
_PLAIN = re.compile("[A-Za-z][A-Za-z0-9./_-]*")


class Noted(NamedTuple):
    """A number or a text with a comment behind it."""

    value: Any
    why: str


def yaml_text(document: dict[str, Any]) -> str:
    r"""The document in YAML. Dictionaries are blocks; lists of texts, and short dictionaries in lists, are on one line.

    >>> print(yaml_text({"kind": "Job", "name": "on", "args": ["a", "\n"], "env": [{"name": "A", "value": "1"}]}))
    kind: Job
    name: "on"
    args: ["a", "\n"]
    env:
    - {name: A, value: "1"}
    """
    return "\n".join(_block(document))


def quoted(text: str) -> str:
    r"""A text in quotes. Beyond 16 bits, JSON writes characters as two halves, which YAML does not put together.

    >>> print(quoted('"\N{SLIGHTLY SMILING FACE}"'))
    "\"\U0001f642\""
    """
    return f'"{"".join(json.dumps(each)[1:-1] if each <= chr(0xFFFF) else f"{chr(92)}U{ord(each):08x}" for each in text)}"'


def _block(mapping: dict[str, Any]) -> list[str]:
    lines = []
    for key, given in mapping.items():
        name = _scalar(key)
        value, why = given if isinstance(given, Noted) else (given, "")
        if isinstance(value, dict):
            lines += [f"{name}:", *(f"  {line}" for line in _block(value))]
        elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
            lines += [f"{name}:", *(line for each in value for line in _item(each))]
        else:
            lines.append(f"{name}: {_flow(value)}" + (f"  # {why}" if why else ""))
    return lines


def _item(mapping: dict[str, Any]) -> list[str]:
    """One dictionary of a list."""
    if not any(isinstance(value, dict | list | Noted) for value in mapping.values()):
        return [f"- {{{', '.join(f'{_scalar(key)}: {_scalar(value)}' for key, value in mapping.items())}}}"]
    first, *rest = _block(mapping)
    return [f"- {first}", *(f"  {line}" for line in rest)]


def _flow(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(quoted(each) if isinstance(each, str) else _scalar(each) for each in value)}]"
    return _scalar(value)


def _scalar(value: str | int | bool) -> str:
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and value.lower() not in _NO_TEXT else quoted(value)
    return json.dumps(value)
