"""Gradients that a sum over the replicas counts n times: found in the trace of a replica function, before anything is computed.

A gradient is right if the sum of the replicas' gradients is that of one device. Three mistakes make it n times as large, and each
leaves a mark in the trace: the loss is a mean over one replica's rows, all replicas get the same rows, or a gradient that is
already summed is summed again. Dividing by the number of replicas (in the loss, in the gradient or after the sum) corrects each of
them, so nothing is reported where that may have been done. Whatever cannot be known for certain is taken to be right.
"""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import jax.extend.core as jex

from ..errors import ReductionError, ReductionWarning
from ..tracing.jaxprs._graph import Graph, Line
from ._causes import Finding, Input, not_distributed
from ._search import Search, sums_over_replicas


@dataclasses.dataclass(frozen=True)
class Count:
    """One ``compute_average_loss`` in the traced function: its rows on this replica, the count passed or None, and its line."""

    num_rows: int
    global_batch_size: int | None
    line: Line | None


def find(jaxpr: jex.Jaxpr, inputs: Sequence[Input], counts: Sequence[Count], num_replicas: int) -> list[Finding]:
    """The mistakes in a replica function's trace; `inputs` describes each of its input variables."""
    wrong = _wrong_counts(jaxpr, inputs, counts, num_replicas)
    graph = Graph(jaxpr)
    if not any(map(sums_over_replicas, graph.nodes)):
        return wrong
    told = {finding.line for finding in wrong}
    found = Search(graph, inputs, num_replicas).findings()
    return wrong + [finding for finding in found if finding.line is None or finding.line not in told]


def tell(findings: Sequence[Finding], told: set[Any], *, strict: bool) -> None:
    """Warn about each line once, or raise ReductionError for the first one if `strict` is true."""
    for finding in findings:
        file, number = finding.line or ("<unknown>", 1)
        if strict:
            raise ReductionError(f"{file}:{number}: {finding.text}" if finding.line else finding.text)
        if (finding.line or finding.text) not in told:
            told.add(finding.line or finding.text)
            warnings.warn_explicit(f"{finding.text} (line {number} of {file})", ReductionWarning, file, number)


def _wrong_counts(jaxpr: jex.Jaxpr, inputs: Sequence[Input], counts: Sequence[Count], num_replicas: int) -> list[Finding]:
    shapes = [tuple(getattr(v.aval, "shape", ())) for v in jaxpr.invars]
    rows = {shape[0]: x for shape, x in zip(shapes, inputs, strict=True) if x.argument and shape}
    found = []
    for count in counts:
        total = count.num_rows * num_replicas
        if count.num_rows in rows and count.global_batch_size is not None and 0 < count.global_batch_size < total:
            whose = rows[count.num_rows]
            shared = "" if whose.differs else f" {not_distributed(whose)}"
            found.append(
                Finding(
                    f"compute_average_loss was given global_batch_size={count.global_batch_size}, but this step has {total} "
                    f"examples: {count.num_rows} on each of the {num_replicas} replicas.{shared} The sum over the replicas is "
                    f"{total / count.global_batch_size:g} times the mean, and so is its gradient. Pass the number of rows of the "
                    "whole batch, which is the size that the dataset was batched with.",
                    count.line,
                )
            )
    return found
