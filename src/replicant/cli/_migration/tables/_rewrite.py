"""What a handler of calls returns, and what all handlers need."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import libcst as cst


@dataclass(frozen=True)
class Rewrite:
    """The translation of a call.

    Attributes:
        node: The new expression, or None to leave the call as it is.
        modules: The modules that it needs to import.
        check: The assumption to show to the user, if any.
        left: Why the call could not be translated, if it could not.
        definitions: The names in `DEFINITIONS` that the new expression calls.
    """

    node: cst.BaseExpression | None = None
    modules: frozenset[str] = field(default_factory=frozenset)
    check: str = ""
    left: str = ""
    definitions: frozenset[str] = field(default_factory=frozenset)


def code(node: cst.CSTNode) -> str:
    """The source code of a node."""
    return cst.Module([]).code_for_node(node)


def by_name(arguments: Sequence[cst.Arg], *names: str) -> dict[str, cst.BaseExpression] | None:
    """The arguments by their names, or None if there are other arguments or stars."""
    found: dict[str, cst.BaseExpression] = {}
    for i, argument in enumerate(arguments):
        name = argument.keyword.value if argument.keyword else names[i] if i < len(names) else ""
        if argument.star or name not in names:
            return None
        found[name] = argument.value
    return found
