"""Branches and loops with exchanges, where the replicas have different sizes: one branch or loop for all replicas together.

In it, the replicas' branches or bodies are evaluated side by side, as the replicas themselves are. That needs a condition that is
the same on all of them, and loops of equal lengths (``reductions/_same_values.py`` makes sure of the former).
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ...errors import RaggedStepError
from ...tracing.jaxprs._closed_jaxpr import ClosedJaxpr
from ...tracing.jaxprs._marks import scan_counts
from ...tracing.jaxprs._primitive_names import REMAT
from ...tracing.replicas._interpreter import evaluate
from ...tracing.replicas._requests import JointControl, Steps
from ...tracing.replicas._varying import Reached, carried_flags
from ._ragged_exchanges import Rows

Together = Callable[[Sequence[Steps[Any]]], Rows]  # evaluates steps of all replicas


def kind_of(request: JointControl) -> tuple[str, str, int]:
    """Return what must be equal on all replicas: the operation, its name in messages, its number of branches or iterations."""
    name, params = request.eqn.primitive.name, request.eqn.params
    if name == "cond":
        return name, f"a cond with {len(params['branches'])} branches and exchanges in them", len(params["branches"])
    if name == "scan":
        return name, f"a scan of length {params['length']} with exchanges in it", params["length"]
    return name, f"a {name} with exchanges in it", 0


def compute_together(asked: Sequence[JointControl], together: Together) -> Rows:
    """Compute the operations that all replicas have reached."""
    compute = {"cond": _cond, "scan": _scan, "while": _while, REMAT: _recomputed}[asked[0].eqn.primitive.name]
    return compute(asked, together)


def _cond(asked: Sequence[JointControl], together: Together) -> Rows:
    def branch(number: int) -> Callable[[Rows], Rows]:
        def compute(operands: Rows) -> Rows:
            bodies = [request.eqn.params["branches"][number] for request in asked]
            flags = [request.varying[1:] for request in asked]
            return _strong(together([_steps(*each) for each in zip(bodies, operands, flags, strict=True)]))

        return compute

    branches = [branch(i) for i in range(len(asked[0].eqn.params["branches"]))]
    return lax.switch(asked[0].values[0], branches, [request.values[1:] for request in asked])


def _scan(asked: Sequence[JointControl], together: Together) -> Rows:
    params, counts = asked[0].eqn.params, [scan_counts(request.eqn) for request in asked]
    if len({request.eqn.params["reverse"] for request in asked}) > 1:
        raise RaggedStepError("Only some replicas make a scan with reverse=True and exchanges in it. All must make the same one.")
    consts = [request.values[:k] for request, (k, _) in zip(asked, counts, strict=True)]
    carries = [request.values[k : k + c] for request, (k, c) in zip(asked, counts, strict=True)]
    rows = [request.values[k + c :] for request, (k, c) in zip(asked, counts, strict=True)]
    flags = [
        request.varying[:k] + carried_flags(_jaxpr(request, "jaxpr"), request.varying, k, c) + request.varying[k + c :]
        for request, (k, c) in zip(asked, counts, strict=True)
    ]

    def body(carries: Rows, rows: Rows) -> tuple[Rows, Rows]:
        inputs = [[*x, *y, *z] for x, y, z in zip(consts, carries, rows, strict=True)]
        bodies = [request.eqn.params["jaxpr"] for request in asked]
        made = _strong(together([_steps(*each) for each in zip(bodies, inputs, flags, strict=True)]))
        return [x[:c] for x, (_, c) in zip(made, counts, strict=True)], [x[c:] for x, (_, c) in zip(made, counts, strict=True)]

    options = {"length": params["length"], "reverse": params["reverse"], "unroll": params["unroll"]}
    after, ys = lax.scan(body, _strong(carries), rows, **options)
    return [[*x, *y] for x, y in zip(after, ys, strict=True)]


def _while(asked: Sequence[JointControl], together: Together) -> Rows:
    sizes = [(request.eqn.params["cond_nconsts"], request.eqn.params["body_nconsts"]) for request in asked]
    of_test = [request.values[:t] for request, (t, _) in zip(asked, sizes, strict=True)]
    of_body = [request.values[t : t + b] for request, (t, b) in zip(asked, sizes, strict=True)]
    carries = [request.values[t + b :] for request, (t, b) in zip(asked, sizes, strict=True)]
    carried = [
        carried_flags(_jaxpr(request, "body_jaxpr"), request.varying[t:], b, len(request.values) - t - b)
        for request, (t, b) in zip(asked, sizes, strict=True)
    ]

    def evaluated(name: str, consts: Rows, carries: Rows, flags: list[list[bool]]) -> Rows:
        inputs = [[*x, *y] for x, y in zip(consts, carries, strict=True)]
        bodies = [request.eqn.params[name] for request in asked]
        return together([_steps(*each) for each in zip(bodies, inputs, flags, strict=True)])

    test_flags = [request.varying[:t] + mine for request, mine, (t, _) in zip(asked, carried, sizes, strict=True)]
    body_flags = [request.varying[t : t + b] + mine for request, mine, (t, b) in zip(asked, carried, sizes, strict=True)]
    return lax.while_loop(
        lambda carries: evaluated("cond_jaxpr", of_test, carries, test_flags)[0][0],
        lambda carries: _strong(evaluated("body_jaxpr", of_body, carries, body_flags)),
        _strong(carries),
    )


def _recomputed(asked: Sequence[JointControl], together: Together) -> Rows:
    @jax.checkpoint
    def compute(inputs: Rows) -> Rows:
        bodies = [ClosedJaxpr(_jaxpr(request, "jaxpr"), ()) for request in asked]
        flags = [request.varying for request in asked]
        return together([_steps(*each) for each in zip(bodies, inputs, flags, strict=True)])

    return compute([request.values for request in asked])


def _jaxpr(request: JointControl, name: str) -> Any:
    body = request.eqn.params[name]
    return body.jaxpr if isinstance(body, ClosedJaxpr) else body


def _steps(body: ClosedJaxpr, inputs: Sequence[Any], flags: Sequence[bool]) -> Steps[Any]:
    return evaluate(body.jaxpr, body.consts, inputs, flags, None, kind=Reached)


def _strong(rows: Rows) -> Rows:
    """Return values without weak types, which a loop must keep, and in which the replicas may differ."""
    return [[lax.convert_element_type(x, jnp.result_type(x)) for x in map(jnp.asarray, row)] for row in rows]
