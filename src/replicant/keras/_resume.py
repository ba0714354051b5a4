"""Where a ``fit`` is in its data, and how another one goes on from there.

Keras's loop asks an epoch iterator for passes over the data and takes steps from them. A ``FitRun`` counts both. To go on, another
fit begins as many passes as there were, goes to the position in the last one, and leaves out the steps of the epoch that are done.
Replicant's own datasets go to their position directly; in everything else the batches before it are read and thrown away, with the
random numbers of NumPy and Python as they were when the pass began.
"""

import contextvars
import dataclasses
import functools
import inspect
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import numpy as np

from ..errors import CheckpointError
from ..input.graph._graph import Node
from ..input.sources._foreign import Foreign
from ..input.sources._generator import Generator
from ._array_batches import Several, several
from ._batches import wants_states
from ._data import DatasetAdapter
from ._train_function import Rank, Step, TrainFunction, train_function_of

_RUN = "_replicant_fit_run"
_LAST = 99  # the rank of all other callbacks
_current: contextvars.ContextVar["FitRun | None"] = contextvars.ContextVar(_RUN, default=None)


@dataclasses.dataclass
class Randomness:
    """The states of the global random generators of NumPy and Python, as arrays."""

    numpy: np.ndarray
    python: np.ndarray
    rest: list[Any]

    @classmethod
    def now(cls) -> "Randomness":
        """As they are."""
        name, keys, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002 - the global one is what Keras shuffles with
        version, internal, following = random.getstate()
        rest = [name, position, has_gauss, repr(gauss), version, None if following is None else repr(following)]
        return cls(np.array(keys), np.array(internal, np.uint32), rest)

    def bring_back(self) -> None:
        """Make them what they were.

        Raises CheckpointError if they cannot have been that.
        """
        try:
            name, position, has_gauss, gauss, version, following = self.rest
            _check_position(position, len(self.numpy))
            np.random.set_state((name, self.numpy, position, has_gauss, float(gauss)))  # noqa: NPY002 - as above
            random.setstate((version, tuple(map(int, self.python)), None if following is None else float(following)))
        except (TypeError, ValueError, OverflowError) as error:
            raise CheckpointError(f"The saved states of the random generators of NumPy and Python are none: {error}.") from error


def _check_position(position: Any, size: int) -> None:
    """NumPy itself would read beyond its memory."""
    if type(position) is not int or not 0 <= position <= size:
        raise ValueError(f"{position!r} is no position in {size} numbers")


@dataclasses.dataclass
class Position:
    """Where a fit is.

    epoch: that goes on. num_steps: of it that are done. all_done: whether no step of it is left, only its end. passes: of all
    passes over the data that were begun, whether anything was read. is_live: whether the last pass goes on. num_batches: read from
    it. seen: steps that Keras counts in it. state: of the last batch that a dataset of ours gave. size: batches of an epoch, None
    if unknown. begin: the random generators before the pass.
    """

    epoch: int
    num_steps: int
    all_done: bool
    passes: list[bool]
    is_live: bool
    num_batches: int
    seen: int
    state: Any
    size: int | None
    begin: Randomness

    @classmethod
    def of(cls, saved: Any) -> "Position":
        """The position of which `saved` has the fields, as ``dataclasses.asdict`` gives them.

        Raises CheckpointError if it is none.
        """
        try:
            found = cls(**{**saved, "begin": Randomness(**saved["begin"])})
        except (TypeError, KeyError) as error:
            raise CheckpointError(f"The saved position in the data is none: {type(error).__name__}: {error}.") from error
        counts = [found.epoch, found.num_steps, found.num_batches, *([] if found.size is None else [found.size])]
        truths = [found.all_done, found.is_live, *(found.passes if isinstance(found.passes, list) else [None])]
        if {type(count) for count in [*counts, found.seen]} != {int} or min(counts) < 0 or {type(x) for x in truths} != {bool}:
            raise CheckpointError(
                f"The saved position in the data is none: {found.epoch=}, {found.num_steps=}, {found.num_batches=}."
            )
        return found


class FitRun:
    """One call of ``fit``. `resume`: where it goes on, if it does."""

    def __init__(self, model: Any, callbacks: Sequence[Any]):
        self.model = model
        self._callbacks = callbacks
        self.resume: Position | None = None
        self.logs: Any = {}  # of the last step
        self.before_saving: list[Callable[[], None]] = []  # called before the state of the fit is saved; they may end it
        self._function: TrainFunction | None = None
        self._epochs: Any = None
        self._passes: list[bool] = []
        self._pass: _Pass | None = None
        self._state: Any = None
        self._begin = Randomness.now()

    def callbacks(self) -> list[Any]:
        """All callbacks: those that were given, and Keras's own History."""
        history = self.model.history
        return [*self._callbacks, *([] if any(each is history for each in self._callbacks) else [history])]

    def watch(self, epochs: Any) -> None:
        """The first epoch iterator that a fit makes is that of the training data."""
        if self._epochs is None:
            self._epochs = epochs
            epochs.__dict__[_RUN] = self

    def position(self, epoch: int, num_steps: int, *, all_done: bool = False) -> Position:
        """Where it is, before step `num_steps` of `epoch`, which Keras has announced if it is not the first one."""
        epochs = self._epochs
        goes_on = num_steps > 0 and not all_done
        current = self._pass
        is_live = current is not None and (
            num_steps > 0 or (epochs.steps_per_epoch is not None and epochs._current_iterator is not None)
        )
        return Position(
            epoch=epoch,
            num_steps=num_steps,
            all_done=all_done,
            passes=list(self._passes),
            is_live=is_live,
            num_batches=current.num_batches if current is not None else 0,
            seen=epochs._steps_seen - (epochs.steps_per_execution if goes_on else 0),
            state=self.state,
            size=epochs.num_batches,
            begin=self._begin,
        )

    @property
    def state(self) -> Any:
        """Where the pass over a dataset of ours is, or the last pass in which something was read."""
        if self._pass is not None and self._pass.num_batches and self._source is not None:
            self._state = self._source.state_after(self._pass.num_batches)
        return self._state

    @property
    def _source(self) -> Any:
        """The batches of a dataset of ours, if that is what is read."""
        adapter = self._epochs.data_adapter
        return adapter.batches if isinstance(adapter, DatasetAdapter) else None

    def begin_pass(self, begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """A new pass; the first one of a fit that goes on is brought to its position."""
        _ = self.state  # of the pass before
        resume = self.resume
        if resume is None:
            return self._begin_pass(begin)
        self.resume = None
        self._state = resume.state
        now = Randomness.now()
        self._replay(begin, resume.passes[: -1 if resume.is_live else None])
        if not resume.is_live:
            self._forward(begin)
            now.bring_back()
            return self._begin_pass(begin)
        resume.begin.bring_back()
        current = self._begin_pass(begin)
        current.go_to(resume.num_batches, self._source if self._is_exact() else None, resume.state)
        now.bring_back()
        self._begin = resume.begin
        return current

    def _begin_pass(self, begin: Callable[[], Iterator[Any]]) -> "_Pass":
        self._passes.append(False)
        self._pass = _Pass(iter(begin()), functools.partial(self._first_read, len(self._passes) - 1))
        return self._pass

    def _first_read(self, number: int) -> None:
        self._passes[number] = True
        self._begin = Randomness.now()

    def _is_exact(self) -> bool:
        return isinstance(self._epochs.data_adapter, DatasetAdapter) and not self._is_foreign()

    def _is_foreign(self) -> bool:
        return any(isinstance(node, Foreign | Generator) for node in _nodes(self._epochs.data_adapter.nodes))

    def _replay(self, begin: Callable[[], Iterator[Any]], passes: list[bool]) -> None:
        """Begin the passes that the other fit began: some libraries shuffle each one differently, by its number."""
        for was_read in passes[len(self._passes) :]:
            if self._is_exact():
                self._passes.append(was_read)
                continue
            dummy = self._begin_pass(begin)
            if was_read:
                next(dummy, None)
        self._pass = None

    def _forward(self, begin: Callable[[], Iterator[Any]]) -> None:
        """Let the shuffles of our dataset know how many passes there were."""
        if self._state is not None and self._is_exact():
            iter(begin())
            self._source.go_to(self._state, 0)
            self._source.close()

    def steps(self, steps: Iterator[Any]) -> Iterator[Any]:
        """Keras's steps of one epoch; in the first one, those that are still to do."""
        self._note_logs()
        resume = self.resume
        if resume is None:
            yield from steps
            return
        done = -(-resume.num_steps // self._epochs.steps_per_execution)
        if sum(1 for _ in itertools.islice(steps, done)) < done:
            steps = iter(())  # Keras ends an epoch where the data do
        if resume.num_steps:
            self._epochs._steps_seen = resume.seen
        first = None if resume.all_done else next(steps, None)
        if resume.is_live and not resume.num_steps:
            self._epochs._steps_seen = resume.seen + self._epochs.steps_per_execution
        self.resume = None
        if resume.num_steps and (first is None or self._pass is None or not self._pass.has_next()):
            yield self._end_of_epoch(resume)
        if first is not None:
            yield first
            yield from steps

    def _end_of_epoch(self, resume: Position) -> tuple[int, int, Any]:
        """Keras cannot end an epoch without a step: it takes one that changes nothing and reports what the last one did."""
        function, logs = train_function_of(self.model), self.logs

        def nothing(inner: Step, state: Any, iterator: Any) -> tuple[Any, Any]:
            del inner, iterator
            function.take(nothing)
            return logs, state

        function.put(Rank.SKIP, nothing)
        last = max(0, resume.num_steps - self._epochs.steps_per_execution)
        return last, resume.num_steps - 1, None

    def _note_logs(self) -> None:
        """What the last step reports is only told to callbacks, and there at the price of waiting for it."""
        if self.model.train_function is not None:  # Keras looks at the data before it makes its function
            self._function = train_function_of(self.model)
            self._function.put(Rank.NOTE, self._noting)

    def _noting(self, inner: Step, state: Any, iterator: Any) -> tuple[Any, Any]:
        self.logs, state = inner(state, iterator)
        return self.logs, state

    def close(self) -> None:
        """Leave the model as it was."""
        if self._function is not None:
            self._function.take(self._noting)

    def check(self, resume: Position, num_epochs: int) -> None:
        """Raise CheckpointError unless this fit, of so many epochs, has as many batches as the other one."""
        found = self._epochs.num_batches
        if None not in (found, resume.size) and found != resume.size:
            raise CheckpointError(
                f"This fit has {found} batches per epoch, the one that was saved had {resume.size}: it cannot go on with other "
                "data. Train with the same data and batch size, or choose another backup_dir to begin anew."
            )
        if resume.size is not None and resume.num_batches > resume.size * (min(resume.epoch, num_epochs) + 1):
            raise CheckpointError(
                f"The fit that was saved had read {resume.num_batches} batches in {resume.epoch + 1} epochs of {resume.size}: that "
                "cannot be. Delete the backup to begin anew."
            )


class _Pass:
    """One pass over the data, which counts what is read and can look one batch ahead."""

    def __init__(self, batches: Iterator[Any], when_first_read: Callable[[], None]):
        self._batches = batches
        self._ahead: list[Any] = []
        self._when_first_read: Callable[[], None] | None = when_first_read
        self.num_batches = 0

    def __iter__(self) -> "_Pass":
        return self

    def __next__(self) -> Any:
        batch = self._ahead.pop() if self._ahead else self._read()
        self.num_batches += 1
        return batch

    def several(self, num: int) -> list[Any]:
        """As `_rows.several`."""
        if self._ahead:
            return list(itertools.islice(self, num))
        self._begin_reading()
        found = several(self._batches, num)
        self.num_batches += sum(each.count if isinstance(each, Several) else 1 for each in found)
        return found

    def _read(self) -> Any:
        self._begin_reading()
        return next(self._batches)

    def _begin_reading(self) -> None:
        if self._when_first_read is not None:
            self._when_first_read()
            self._when_first_read = None

    def has_next(self) -> bool:
        """Whether there is another batch, which is read then."""
        if not self._ahead:
            try:
                self._ahead.append(self._read())
            except StopIteration:
                return False
        return True

    def go_to(self, num_batches: int, source: Any, state: Any) -> None:
        """Go on after so many batches: directly where `source` can, else by reading them."""
        if source is None or state is None:
            num_read = sum(1 for _ in itertools.islice(self, num_batches))
            if num_read < num_batches:
                raise CheckpointError(
                    f"The fit that was saved had read {num_batches} batches of a pass over its data, but this one has only "
                    f"{num_read}. Train with the same data, or choose another backup_dir to begin anew."
                )
            return
        if num_batches:
            source.go_to(state, num_batches)
            self.num_batches = num_batches
            self._begin_reading()


def _nodes(roots: Any) -> Iterator[Node]:
    for node in roots:
        yield node
        yield from _nodes(node.inputs)


def run_of(model: Any) -> FitRun | None:
    """The fit that the model is in, if a callback asked for it to be watched."""
    return model.__dict__.get(_RUN)


class FitCallback:
    """Marks callbacks of ours that are called before all others, those of lower rank first, and told when ``fit`` is left."""

    rank = 1

    def on_fit_end(self) -> None:
        """Called when ``fit`` is left, in whatever way."""


class FirstCallback(FitCallback):
    """Marks those whose fit is watched."""


def fit(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Callbacks of ours come first, are told when ``fit`` is left, and may ask for it to be watched."""
    bound = inspect.signature(original).bind(model, *args, **kwargs)
    given = bound.arguments.get("callbacks")
    every = list(keras.tree.flatten(getattr(given, "callbacks", given) or []))
    ours = [callback for callback in every if isinstance(callback, FitCallback)]
    if not ours:
        return original(model, *args, **kwargs)
    every.sort(key=lambda callback: callback.rank if isinstance(callback, FitCallback) else _LAST)
    if isinstance(given, keras.callbacks.CallbackList):
        given.callbacks = every
    else:
        bound.arguments["callbacks"] = every
    is_watched = any(isinstance(callback, FirstCallback) for callback in ours)
    with ExitStack() as stack:
        for callback in reversed(ours):
            stack.callback(callback.on_fit_end)
        if is_watched:
            stack.enter_context(_watching(model, every))
        return original(*bound.args, **bound.kwargs)


@contextmanager
def _watching(model: Any, callbacks: Sequence[Any]) -> Iterator[None]:
    run = model.__dict__[_RUN] = FitRun(model, callbacks)
    token, wanted = _current.set(run), wants_states.set(True)
    try:
        yield
    finally:
        _current.reset(token)
        wants_states.reset(wanted)
        del model.__dict__[_RUN]
        model._initial_epoch = None
        run.close()


def make_epochs(original: Callable[..., Any], epochs: Any, *args: Any, **kwargs: Any) -> None:
    """The fit that is running learns of the epochs that Keras makes."""
    original(epochs, *args, **kwargs)
    run = _current.get()
    if run is not None:
        run.watch(epochs)


def get_iterator(original: Callable[..., Any], epochs: Any) -> Any:
    """A pass over the data of a fit that is watched."""
    run: FitRun | None = epochs.__dict__.get(_RUN)
    return original(epochs) if run is None else run.begin_pass(functools.partial(original, epochs))


def enumerate_steps(original: Callable[..., Any], epochs: Any) -> Any:
    """The steps of a fit that is watched: those that are still to do."""
    run: FitRun | None = epochs.__dict__.get(_RUN)
    return original(epochs) if run is None else run.steps(original(epochs))
