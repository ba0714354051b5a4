"""What a replica's evaluation asks of the other replicas: an exchange, or to differentiate together."""

import dataclasses
from collections.abc import Callable, Generator
from typing import Any, TypeAlias, TypeVar

import jax.extend.core as jex


@dataclasses.dataclass(frozen=True)
class Question:
    """A question to the other replicas: the mark, this replica's values, and whether they may differ from the others'."""

    eqn: jex.JaxprEqn
    values: list[Any]
    varying: list[bool]


@dataclasses.dataclass(frozen=True)
class JointPath:
    """A request to differentiate a path with exchanges, together with the paths of the other replicas.

    The answer is a ``JointPullback``, and the path's inner values that the rest of the function uses.

    Attributes:
        eqn: The gradient mark.
        evaluate: Evaluates the path on its sources, step by step. Returns the targets and these inner values.
        sources: The values of the sources.
    """

    eqn: jex.JaxprEqn
    evaluate: Callable[[list[Any]], "Steps[tuple[list[Any], list[Any]]]"]
    sources: list[Any]


@dataclasses.dataclass(frozen=True)
class JointPullback:
    """Maps the cotangents of all replicas to the gradients of all replicas."""

    pull: Callable[[list[list[Any]]], list[list[Any]]]


@dataclasses.dataclass(frozen=True)
class JointPull:
    """A request to pull this replica's cotangents back, together with those of the other replicas."""

    eqn: jex.JaxprEqn
    pullback: JointPullback
    cotangents: list[Any]


@dataclasses.dataclass(frozen=True)
class JointControl:
    """A request to compute a branch, a loop or a checkpoint with exchanges inside, together with those of the other replicas."""

    eqn: jex.JaxprEqn
    values: list[Any]
    varying: list[bool]


Request: TypeAlias = Question | JointPath | JointPull | JointControl
_T = TypeVar("_T")
Steps: TypeAlias = Generator[Request, Any, _T]
Answer: TypeAlias = Callable[[Question], list[Any]]
