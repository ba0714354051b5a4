"""``Compiled``: keeps one program for each combination of structure, shapes and dtypes of a function's arguments.

It serves ``replicant.function``, and ``strategy.run`` outside a function. The first call traces the code (``_trace.py``), and
``jax.jit`` compiles what that gives.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..errors import LostStateError, ReplicantError
from ..replicas._context import active_strategy
from ..replicas._own_mesh import handed_over, in_a_trace, mesh_is_set, without_mesh
from ..runtime import _steps
from ..runtime._collector import CollectionPaused
from ..runtime._jax_dtypes import in_jax_dtypes
from ..tracing._inputs import Inputs
from ..variables import _recorder
from ..variables._libraries import tracing
from ..variables._recorder import CrossRecorder, VariablesMade, recording, require_eager
from ._advice import Advice
from ._planned import found_in_run
from ._program import Program
from ._programs import Programs
from ._trace import Call, trace
from .arguments._number_guards import Refused, Tape
from .arguments._opaque import hide, show
from .arguments._recording_number import recording_numbers
from .arguments._signature import Signature, argument_names
from .steps._pathless_gradients import MAX_TRACES, log_traces
from .validity._dependencies import Reach
from .validity._guards import Watch, follow_libraries, watch_code, watch_layers, watch_trainable
from .validity._leaked_tracers import Arguments, Outside
from .validity._traced_values import naming_the_line


class Compiled:
    """A function of cross-replica code, compiled once per structure, shapes and dtypes of its arguments.

    Arrays are inputs of the compiled program. Arrays that stay on the host (strings) bypass it, identified by position. Python
    numbers are inputs where an array takes them, and each program has guards for what its code has seen of them. All other
    arguments are part of the signature.

    Args:
        fn: The function to trace.
        of_run: The replica function that `fn` runs, if `fn` does nothing else. Replicant then watches what its code names, because
            in tf.distribute ``run`` is eager outside a function.
    """

    def __init__(self, fn: Callable[..., Any], of_run: Callable[..., Any] | None = None):
        self._fn = fn
        self._of_run = of_run
        self._programs = Programs()
        self.num_traces = 0  # how many times the code has run in a trace
        self._refusing: set[Any] = set()  # signatures whose code is not traced with numbers that record
        self._advice = Advice(self._name, of_run or fn, of_run=of_run is not None)

    @property
    def num_programs(self) -> int:
        """The number of programs that are kept."""
        return len(self._programs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*jax.tree.flatten(hide((args, kwargs))))

    def call(self, leaves: list[Any], tree: Any, *, is_other: bool = False) -> Any:
        """Call the function with these leaves of ``(args, kwargs)``. `is_other` says that this call is not like the last one."""
        if in_a_trace():
            require_eager(self._name)
        if not mesh_is_set():
            return show(self._run(leaves, tree, is_other=is_other))
        # A function may use other strategies than the current one.
        with without_mesh(self._of_run is None or bool(active_strategy().placement.devices)):
            result = show(self._run(leaves, tree))
        return handed_over(result)

    @property
    def may_be_same(self) -> bool:
        """Whether nothing is to be done for a call that is like the last one, but to run its program."""
        return not _recorder.before_use and not mesh_is_set()

    def same_again(self, leaves: list[Any], tree: Any) -> Program | None:
        """Return the program of the last call if this one, outside of a trace, is like it; else None."""
        return self._programs.same_again(leaves, tree, active_strategy().placement)

    def _run(self, leaves: list[Any], tree: Any, *, is_other: bool = False) -> Any:
        if _recorder.before_use:
            _recorder.settle(in_step=True)
        leaves = in_jax_dtypes(leaves, lambda: argument_names(tree))
        placement = active_strategy().placement
        program = None if is_other else self._programs.same_again(leaves, tree, placement)
        if program is not None:
            return program.run(leaves, [])
        signature = Signature(leaves, tree, placement)
        program = self._programs.find(signature) or self._compile_any(signature)
        return program.run(signature.arrays, signature.on_host, signature.computed)

    def concrete(self, leaves: list[Any], tree: Any) -> tuple[Signature, Program]:
        """Return the program for these leaves of ``(args, kwargs)``, which is compiled if it is new, without running it."""
        if _recorder.before_use:
            _recorder.settle(in_step=True)
        placement = active_strategy().placement
        with without_mesh(bool(placement.devices)):
            signature = Signature(in_jax_dtypes(leaves, lambda: argument_names(tree)), tree, placement)
            return signature, self._programs.find(signature) or self._compile_any(signature)

    @property
    def _name(self) -> str:
        return _name_of(self._fn)

    def _call(self, signature: Signature, numbers: Tape, outside: Outside) -> Call:
        """Return what is traced: the function of its inputs, with all other arguments as they are."""
        count = len(signature.arrays)

        def call(recorder: CrossRecorder, arrays: Sequence[Any], inputs: Inputs | None) -> Any:
            self.num_traces += 1
            if self._of_run is not None:
                outside.start()
                recorder.undo_effects = outside.put_back
            traced = repr(_name_of(self._of_run or self._fn))
            with naming_the_line(traced), recording(recorder), recording_numbers(numbers, arrays[count:], inputs) as recorded:
                args, kwargs = show(signature.arguments(arrays, recorded))
                given = Arguments(args, kwargs)
                result = hide(self._fn(*args, **kwargs))
            given.check(repr(self._name), result, copies_are_theirs=False)
            return result

        return call

    def _compile_any(self, signature: Signature) -> Program:
        """Make a program for these arguments. If the code refuses numbers that record, it gets the numbers themselves."""
        with CollectionPaused(), _steps.compiling():
            reach = Reach(self._of_run or self._fn, *signature.arguments(signature.arrays))
            outside = Outside(reach)
            if signature.numbers and signature.placement.planning is None and signature.key not in self._refusing:
                numbers = Tape(signature.numbers)
                try:
                    return self._compile(signature, numbers, reach, outside)
                except Refused:
                    in_doubt = numbers.in_doubt
                except LostStateError:  # the number itself would be lost as well, and nothing would tell
                    raise
                except Exception:  # noqa: BLE001 - if the code itself is wrong, its error comes again
                    in_doubt = True
                if in_doubt:
                    self._refusing.add(signature.key)
            return self._compile(signature, Tape(signature.numbers, plain=True), reach, outside)

    def _compile(self, signature: Signature, numbers: Tape, reach: Reach, outside: Outside) -> Program:
        placement, arrays = signature.placement, signature.arrays
        call = self._call(signature, numbers, outside)
        made, before = list[str](), self.num_traces
        for _ in range(MAX_TRACES):
            found = None
            try:
                with tracing(), reach.watching():
                    found = trace(call, signature.avals, numbers, placement)
            except VariablesMade as error:  # now that `tracing` has ended, they have their values
                made = error.names[-2:]
            outside.convert_numbers()
            outside.check(repr(self._name))
            if found is None:
                outside.accept()
                continue
            program = Program(self._name, call, found, numbers)
            program.trace([*arrays, *numbers.input_values(numbers.values)])
            if placement.planning is not None and any(ref.trainable for ref in program.written):
                raise found_in_run(functools.partial(Program, self._name, call), found, arrays, *signature.key[:2])
            refs = dict.fromkeys(found.refs)
            watch_trainable(program.watch, refs)
            follow_libraries(program.watch, refs)
            self._watch(program.watch, reach, outside)
            self._advice.on_effects(outside)
            outside.release()
            signature.computed = numbers.evaluate(signature.numbers) or []
            self._remember(signature, program)
            log_traces(repr(_name_of(self._of_run or self._fn)), self.num_traces - before, made=bool(made))
            return program
        raise ReplicantError(
            f"{self._name!r} made variables in each of its {MAX_TRACES} traces, such as {made} in the last one. Create variables, "
            "layers and optimizers once, outside the compiled function, such as in `with strategy.scope():`, and only call them "
            "inside."
        )

    def _watch(self, watch: Watch, reach: Reach, outside: Outside) -> None:
        """Watch what the code has read and Python code can change."""
        if self._of_run is None:
            watch_layers(watch, reach.settle())
            return
        watch_code(watch, reach.settle())
        watch.changes = outside.changed()
        self._advice.on_unseen(watch)
        self._advice.on_changes(watch)

    def _remember(self, signature: Signature, program: Program) -> None:
        chain = self._programs.add(signature, program)
        self._advice.on_states(chain)
        self._advice.on_numbers(signature, chain)
        alike = self._programs.alike(signature)
        self._advice.on_values(signature, alike)
        self._programs.forget(alike)


def _name_of(fn: Callable[..., Any]) -> str:
    """Return what messages call a function."""
    return getattr(fn, "__qualname__", None) or repr(fn)
