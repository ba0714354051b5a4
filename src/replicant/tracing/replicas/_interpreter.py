"""Evaluates a traced replica function and answers its marks: gradients with ``jax.vjp`` of their paths, exchanges with the caller.

``evaluate`` is a generator. It yields a ``Question`` wherever a replica needs the others, and is sent the answer. So it serves all
ways to run: one replica, one SPMD program, and several replicas of different sizes side by side. The last also differentiate
together where an exchange lies on the path of a gradient (``JointPath``, ``JointPull``).
"""

from collections import ChainMap
from collections.abc import Callable, MutableMapping, Sequence
from functools import partial
from typing import Any, TypeVar

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from ...errors import GradientError, RaggedStepError
from ..gradients._cheap_to_recompute import LightValues
from ..gradients._gathered_variable import axis_of_gather, gathered_p, read_again, vjp
from ..gradients._gradient_paths import GradientPath, find_paths, in_order
from ..jaxprs._closed_jaxpr import ClosedJaxpr
from ..jaxprs._marks import asks_outer_tape, exchange_p, gradient_p, has_exchanges, has_markers, inner_jaxprs, own_p, sync_p
from ..jaxprs._primitive_names import BARRIER, JIT, LOOPS, REMAT
from ._piggyback_scalars import Riders
from ._requests import Answer, JointControl, JointPath, JointPull, JointPullback, Question, Steps
from ._varying import Reached, Varying

Env = MutableMapping[Any, Any]
_T = TypeVar("_T")


def run_alone(
    closed: ClosedJaxpr,
    args: Sequence[Any],
    varying: Sequence[bool],
    answer: Answer,
    riders: Riders | None = None,
    *,
    kind: type[Varying] = Varying,
) -> list[Any]:
    """Evaluate `closed` on `args`, asking `answer` at each exchange. `riders` travel with one of its sums."""
    steps = evaluate(closed.jaxpr, closed.consts, args, varying, answer, riders=riders, kind=kind)
    try:
        question = next(steps)
        while True:
            assert isinstance(question, Question), "with an answer at hand, nobody differentiates together"
            question = steps.send(answer(question))
    except StopIteration as stop:
        return stop.value


def evaluate(
    jaxpr: jex.Jaxpr,
    consts: Sequence[Any],
    args: Sequence[Any],
    varying: Sequence[bool],
    answer: Answer | None,
    *,
    riders: Riders | None = None,
    kind: type[Varying] = Varying,
) -> Steps[list[Any]]:
    """Evaluate step by step. `answer` answers the exchanges inside the path of a gradient; None to differentiate together.

    `kind` is `Reached` where it is not known what varies, and what is around has been checked.
    """
    env: Env = dict(zip(jaxpr.constvars, consts, strict=True))
    env.update(zip(jaxpr.invars, args, strict=True))
    machine = _Machine(jaxpr, env, kind(jaxpr, varying), answer)
    yield from machine.run(riders)
    return [machine.read(env, v) for v in jaxpr.outvars]


class _Machine:
    def __init__(self, jaxpr: jex.Jaxpr, env: Env, varying: Varying, answer: Answer | None):
        self._jaxpr = jaxpr
        self._env = env
        self._varying = varying
        self._answer = answer
        self._paths = find_paths(jaxpr)
        self._by_mark = {id(path.mark): path for path in self._paths.values()}
        self._pullbacks: dict[int, Callable[..., Any]] = {}
        self._held = [v for v in jaxpr.invars if not varying(v)]
        self._light = LightValues(jaxpr, self._held, _reads_a_variable(jaxpr)) if self._paths else None

    @staticmethod
    def read(env: Env, var: Any) -> Any:
        return var.val if isinstance(var, jex.Literal) else env[var]

    def run(self, riders: Riders | None) -> Steps[None]:
        env = self._env
        last_use = _last_uses(self._jaxpr)
        for step in in_order(self._jaxpr, self._paths):
            if isinstance(step, GradientPath):
                yield from self._run_path(step, last_use)
                continue
            values = [self.read(env, v) for v in step.invars]
            if step.primitive is gradient_p:
                results = yield from self._gradient(step, env)
            elif step.primitive is own_p:  # no path goes through it, but a tape outside `run` differentiates everything here
                results = [jax.lax.stop_gradient(values[0])]
            elif step.primitive in (sync_p, exchange_p):
                results = yield self._exchange(step, values)
            elif riders is not None and riders.travel_with(step):
                results = [riders.sum(step, values[0], partial(self.read, env))]
            elif step.primitive.name == JIT and has_markers(step.params["jaxpr"].jaxpr):
                results = yield from self._call(step, values)
            elif self._needs_others(step):
                results = yield self._joint(step, values)
            else:
                results = _bind(step, values, self._answer)
            env.update(zip(step.outvars, results, strict=True))

    def _needs_others(self, eqn: jex.JaxprEqn) -> bool:
        """Whether an equation is a branch or a loop with exchanges, which all replicas compute together."""
        return self._answer is None and eqn.primitive.name in (*LOOPS, REMAT) and has_exchanges([eqn])

    def _joint(self, eqn: jex.JaxprEqn, values: list[Any]) -> JointControl:
        for inner in inner_jaxprs(eqn):
            _check_tapes(inner, eqn)
        arrays = [jnp.asarray(value, _dtype(var)) for value, var in zip(values, eqn.invars, strict=True)]
        return JointControl(eqn, arrays, [self._varying(v) for v in eqn.invars])

    def _call(self, eqn: jex.JaxprEqn, values: list[Any]) -> Steps[list[Any]]:
        """Evaluate the body of a call that contains marks."""
        body = eqn.params["jaxpr"]
        _check_tapes(body.jaxpr, eqn)
        varying, kind = [self._varying(v) for v in eqn.invars], type(self._varying)
        return (yield from evaluate(body.jaxpr, body.consts, values, varying, self._answer, kind=kind))

    def _run_path(self, path: GradientPath, used: set[jex.Var]) -> Steps[None]:
        """Evaluate a path once, for both its values and its gradient."""
        made = [v for eqn in path.eqns for v in eqn.outvars if v in used]
        pullback, values = yield from self._differentiate(path, self._env, made)
        self._pullbacks[id(path.mark)] = pullback
        self._env.update(zip(made, values, strict=True))

    def _gradient(self, mark: jex.JaxprEqn, env: Env) -> Steps[list[Any]]:
        path = self._by_mark[id(mark)]
        pullback = self._pullbacks.get(id(mark)) if env is self._env else None
        if pullback is None:
            pullback, _ = yield from self._differentiate(path, env, [])
        cotangents = [jnp.asarray(self.read(env, v)) for v in path.cotangents]
        if isinstance(pullback, JointPullback):
            return (yield JointPull(mark, pullback, cotangents))
        return list(pull_rows(lambda row: pullback(row)[0], cotangents, mark.params["rows"], at_once=mark.params["at_once"]))

    def _differentiate(self, path: GradientPath, env: Env, made: list[jex.Var]) -> Steps[tuple[Any, list[Any]]]:
        produced = {v for eqn in path.eqns for v in eqn.outvars}
        # Inside another path, the value that this one has in the other counts.
        gathered = self._gathered(path) if env is self._env else {}
        before = self._before(path) if env is self._env else []

        def steps(sources: list[Any]) -> Steps[tuple[list[Any], list[Any]]]:
            local: Env = ChainMap({}, env)
            shifts = {}
            for var, value in zip(path.sources, sources, strict=True):
                if var in gathered:
                    local[var] = gathered[var](value)
                elif var in produced:
                    shifts[var] = value
                else:
                    local[var] = value
            for eqn in before:
                local.update(zip(eqn.outvars, read_again(eqn, [self.read(local, v) for v in eqn.invars]), strict=True))
            for eqn in path.eqns:
                local.update(zip(eqn.outvars, (yield from self._bind_inside(eqn, local)), strict=True))
                for var in eqn.outvars:
                    if var in shifts:
                        local[var] = local[var] + shifts[var]
            return [self.read(local, v) for v in path.targets], [local[v] for v in made]

        # A source that the path itself computes, or that is gathered, is differentiated through a shift by zero.
        inputs = [_zeros(v) if v in produced or v in gathered else self.read(env, v) for v in path.sources]
        if self._answer is None and self._exchanges(path):
            return (yield JointPath(path.mark, steps, inputs))
        forward = partial(_finished, steps)
        if gathered or before:  # for the backward pass, they are gathered again
            _, pullback, values = vjp(forward, inputs, [env[v] for v in self._held])
        else:
            _, pullback, values = jax.vjp(forward, inputs, has_aux=True)
        return pullback, values

    def _exchanges(self, path: GradientPath) -> bool:
        """Whether an exchange lies on a path, or on that of a gradient inside it."""
        inner = [self._by_mark[id(eqn)] for eqn in path.eqns if eqn.primitive is gradient_p]
        return has_exchanges(path.eqns) or any(map(self._exchanges, inner))

    def _before(self, path: GradientPath) -> list[jex.JaxprEqn]:
        """Return the equations outside of a path that gather what it needs, such as frozen weights, and make it ready."""
        assert self._light is not None, "it has a path"
        inside = {*path.sources, *(v for eqn in path.eqns for v in eqn.outvars)}
        used = [v for eqn in path.eqns for v in eqn.invars if isinstance(v, jex.Var) and v not in inside]
        return self._light.to_compute(used)[0]

    def _gathered(self, path: GradientPath) -> dict[Any, Callable[[Any], Any]]:
        """Return a function for each source that lies in slices, which gathers it and adds a shift of zero."""
        found = path.mark.params["gathered"]
        slices = path.mark.invars[len(path.mark.invars) - len(found) :]
        return {
            path.sources[position]: partial(gathered_p.bind, self.read(self._env, part), axis=axis, cut=cut)
            for (position, axis, cut), part in zip(found, slices, strict=True)
        }

    def _exchange(self, eqn: jex.JaxprEqn, values: list[Any]) -> Question:
        arrays = [jnp.asarray(value, _dtype(var)) for value, var in zip(values, eqn.invars, strict=True)]
        return Question(eqn, arrays, [self._varying(v) for v in eqn.invars])

    def _bind_inside(self, eqn: jex.JaxprEqn, local: Env) -> Steps[list[Any]]:
        """Evaluate one equation inside a path. With an answer at hand, nothing is yielded."""
        if eqn.primitive is gradient_p:
            return (yield from self._gradient(eqn, local))
        values = [self.read(local, v) for v in eqn.invars]
        if eqn.primitive in (sync_p, exchange_p):
            question = self._exchange(eqn, values)
            return (yield question) if self._answer is None else self._answer(question)
        if self._answer is None and eqn.primitive.name == JIT and has_exchanges([eqn]):
            return (yield from self._call(eqn, values))
        if self._needs_others(eqn):
            return (yield self._joint(eqn, values))
        return _bind(eqn, values, self._answer)


def _finished(steps: Callable[..., Steps[_T]], *args: Any) -> _T:
    """Return what `steps` return, which ask nobody."""
    try:
        request = next(steps(*args))
    except StopIteration as stop:
        return stop.value
    raise AssertionError(f"unexpected {request}")


def _reads_a_variable(jaxpr: jex.Jaxpr) -> Callable[[jex.JaxprEqn], bool]:
    inputs = set(jaxpr.invars)
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == BARRIER:  # in the body of a loop, see Recorder.reading_in_loop
            inputs |= {new for old, new in zip(eqn.invars, eqn.outvars, strict=True) if isinstance(old, jex.Var) and old in inputs}
    return lambda eqn: axis_of_gather(eqn) is not None and isinstance(eqn.invars[0], jex.Var) and eqn.invars[0] in inputs


def pull_rows(pull: Callable[[Any], Any], cotangents: Any, rows: int | None, *, at_once: bool) -> Any:
    """Apply a pullback to the cotangents, or if there are `rows` of them, to each row: to all at once, or one after the other."""
    if rows is None:
        return pull(cotangents)
    return jax.vmap(pull)(cotangents) if at_once else jax.lax.map(pull, cotangents)


def _dtype(var: Any) -> Any:
    return var.aval.dtype


def _zeros(var: Any) -> jax.Array:
    return jnp.zeros(var.aval.shape, var.aval.dtype)


def _last_uses(jaxpr: jex.Jaxpr) -> set[jex.Var]:
    used = {v for eqn in jaxpr.eqns for v in eqn.invars if not isinstance(v, jex.Literal)}
    return used | {v for v in jaxpr.outvars if not isinstance(v, jex.Literal)}


def _bind(eqn: jex.JaxprEqn, values: list[Any], answer: Answer | None) -> list[Any]:
    params = eqn.params
    marked = [inner for inner in inner_jaxprs(eqn) if has_markers(inner)]
    if marked:
        for inner in marked:
            _check_tapes(inner, eqn)
        params = {key: _without_marks(value, eqn, answer) for key, value in params.items()}
    with eqn.ctx.manager:
        results = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(params))
    return list(results) if eqn.primitive.multiple_results else [results]


def _check_tapes(body: jex.Jaxpr, eqn: jex.JaxprEqn) -> None:
    """Refuse a gradient in a body whose tape was opened outside, as what happened before is not seen there."""
    if asks_outer_tape(body):
        raise GradientError(
            f"`tape.gradient` was called inside a loop, a branch or another function that JAX traces ({eqn.primitive.name}), but "
            "the tape was opened outside of it. Open the tape inside it as well, or call `tape.gradient` outside."
        )


def _without_marks(param: Any, eqn: jex.JaxprEqn, answer: Answer | None) -> Any:
    """Replace the marks in the bodies of a scan, cond or while loop by what they stand for."""
    if isinstance(param, tuple):
        return tuple(_without_marks(item, eqn, answer) for item in param)
    if isinstance(param, jex.Jaxpr) and not hasattr(param, "consts"):  # the body of jax.checkpoint, before JAX 0.11
        if not has_markers(param):
            return param
        closed = _without_marks(ClosedJaxpr(param, ()), eqn, answer)
        if closed.consts:
            raise GradientError(
                f"`tape.gradient` was called inside a function that JAX transforms ({eqn.primitive.name}) and that captures "
                "constants. Call it outside that function, or use jax.grad inside it."
            )
        return closed.jaxpr
    if not isinstance(param, ClosedJaxpr) or not has_markers(param.jaxpr):
        return param
    avals: list[Any] = [v.aval for v in param.jaxpr.invars]  # of arrays, since an operation is called with them
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    all_of_them = [True] * len(shapes)
    return jax.make_jaxpr(lambda *args: run_alone(param, args, all_of_them, answer or _refuse(eqn), kind=Reached))(*shapes)


def _refuse(eqn: jex.JaxprEqn) -> Answer:
    def answer(exchange: Question) -> list[Any]:
        raise RaggedStepError(
            f"The replicas have different numbers of rows in this step, and {exchange.eqn.params.get('label', 'an assignment')} "
            f"lies inside a function that JAX transforms ({eqn.primitive.name}), where exchanges need equal numbers. Move it "
            "outside, or use a global batch size that is a multiple of the number of replicas."
        )

    return answer
