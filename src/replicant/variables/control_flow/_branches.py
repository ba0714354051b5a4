"""``jax.lax.cond`` and ``switch`` whose branches change variables. A branch that does not change one leaves it as it was."""

from collections.abc import Callable, Sequence
from typing import Any

from .._known import is_variable
from .._recorder import Recorder
from ._calls import Call, attempt, named_like

Function = Callable[..., Any]


def cond(original: Function, recorder: Recorder, *args: Any, **kwargs: Any) -> Any:
    """Call ``jax.lax.cond``."""
    given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
    places = [1 if 1 in given else "true_fun", 2 if 2 in given else "false_fun"]
    old_form = 2 in given and not callable(given[2])  # or a mistake, which JAX explains
    if old_form or not all(callable(given.get(place)) for place in places):
        return original(*args, **kwargs)

    def compute(branches: Sequence[Function]) -> Any:
        changed = {**given, **dict(zip(places, branches, strict=True))}
        return original(*[changed.pop(i) for i in range(len(args))], **changed)

    return attempt(recorder, lambda call: _branched(call, [given[place] for place in places], compute))


def switch(original: Function, recorder: Recorder, index: Any, branches: Any, *operands: Any, **kwargs: Any) -> Any:
    """Call ``jax.lax.switch``."""
    given = tuple(branches)
    if len(given) < 2 or not all(map(callable, given)):
        return original(index, given, *operands, **kwargs)
    return attempt(recorder, lambda call: _branched(call, given, lambda each: original(index, each, *operands, **kwargs)))


_NO_RESULT = "no result"


def _branched(call: Call, branches: Sequence[Function], compute: Callable[[Sequence[Function]], Any]) -> Any:
    results: list[Any] = []

    def wrapped(branch: Function) -> Function:
        def noted(*args: Any) -> Any:
            results.append(branch(*args))
            return None if _NO_RESULT in call.facts else results[-1]

        @named_like(branch)
        def traced(*args: Any) -> Any:
            result, values = call.trace(noted, args)
            if len(results) == len(branches) and call.changed:
                if _is_mixed(results):
                    call.learn(_NO_RESULT)
                call.check()
            return (result, values) if call.refs else result

        return traced

    found = compute([wrapped(branch) for branch in branches])
    if not call.refs:
        return found
    result, values = found
    call.store(values)
    return result


def _is_mixed(results: Sequence[Any]) -> bool:
    """Whether some branches return nothing and the others a variable, as ``apply_gradients`` does: then nobody wants a result."""
    return any(x is None for x in results) and all(x is None or is_variable(x) for x in results)
