"""Follows a ``fit`` through its data, and lets another one continue from the same position.

Keras's loop asks an epoch iterator for passes over the data and takes steps from them. A ``FitRun`` counts both. To continue,
another fit begins as many passes as the first one did, goes to its position in the last pass, and skips the steps of the epoch that
are done. Replicant's own datasets go to their position directly. From other data, the earlier batches are read and thrown away,
with the global random generators as they were when the pass began.
"""

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ...errors import CheckpointError
from ...input.graph._graph import Node
from ...input.sources._foreign import Foreign
from ...input.sources._generator import Generator
from ..data._adapter import DatasetAdapter
from ..data._array_batches import Several, several
from ..state._loop_run import current_loop
from ..state._owner import strategy_of
from ._fit_callbacks import Run, followed, run_of
from ._lost_seeds import warn_of_lost_seeds
from ._saved_position import Position, Randomness
from ._table_optimizers import warn_of_unused_optimizers
from ._train_function import Rank, Step, TrainFunction, train_function_of

_signature_of = functools.cache(inspect.signature)  # of one function, Keras's


class FitRun(Run):
    """A call of Keras's own ``fit``."""

    def __init__(self, model: Any, callbacks: Sequence[Any]):
        super().__init__(model, callbacks)
        self._function: TrainFunction | None = None
        self._epochs: Any = None
        self._passes: list[bool] = []
        self._pass: _Pass | None = None
        self._state: Any = None
        self._begin = Randomness.now()

    def watch(self, epochs: Any) -> None:
        """Watch an epoch iterator, if it is the first of this fit: the first one reads the training data."""
        if self._epochs is None:
            self._epochs = epochs
            if isinstance(epochs.data_adapter, DatasetAdapter):
                epochs.data_adapter.keeps_states = True

    def watches(self, epochs: Any) -> bool:
        """Return whether an epoch iterator is the one that reads the training data."""
        return epochs is self._epochs

    def position(self, epoch: int, num_steps: int, *, all_done: bool = False) -> Position:
        """Return the position before step `num_steps` of `epoch`. Unless it is the first step, Keras has announced it already."""
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
        """The position in a Replicant dataset: of this pass or, if nothing was read yet, of the last pass that read something."""
        if self._pass is not None and self._pass.num_batches and self._source is not None:
            self._state = self._source.state_after(self._pass.num_batches)
        return self._state

    @property
    def _source(self) -> Any:
        """The batches of the data, if the data is a Replicant dataset."""
        adapter = self._epochs.data_adapter
        return adapter.batches if isinstance(adapter, DatasetAdapter) else None

    def begin_pass(self, begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """Begin a new pass. If the fit continues another one, bring the first pass to its position."""
        _ = self.state  # keeps that of the previous pass
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
        """Begin the passes that the other fit began: some libraries shuffle each pass by its number."""
        for was_read in passes[len(self._passes) :]:
            if self._is_exact():
                self._passes.append(was_read)
                continue
            dummy = self._begin_pass(begin)
            if was_read:
                next(dummy, None)
        self._pass = None

    def _forward(self, begin: Callable[[], Iterator[Any]]) -> None:
        """Tell the shuffles of a Replicant dataset how many passes there were."""
        if self._state is not None and self._is_exact():
            iter(begin())
            self._source.go_to(self._state, 0)
            self._source.close()

    def steps(self, steps: Iterator[Any]) -> Iterator[Any]:
        """Yield Keras's steps of one epoch. In the first epoch, yield only those that are left."""
        self._note_logs()
        resume = self.resume
        if resume is None:
            yield from steps
            return
        done = -(-resume.num_steps // self._epochs.steps_per_execution)
        if sum(1 for _ in itertools.islice(steps, done)) < done:
            steps = iter(())  # the data have ended, and so ends the epoch
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
        """Return a step that changes nothing and reports the last logs: Keras cannot end an epoch without a step."""
        function, logs = train_function_of(self.model), self.logs

        def nothing(inner: Step, state: Any, iterator: Any) -> tuple[Any, Any]:
            del inner, iterator
            function.remove(nothing)
            return logs, state

        function.add(Rank.SKIP, nothing)
        last = max(0, resume.num_steps - self._epochs.steps_per_execution)
        return last, resume.num_steps - 1, None

    def _note_logs(self) -> None:
        """Keep the logs of the last step. Keras gives them only to callbacks, which would wait for the step."""
        if self.model.train_function is not None:  # Keras looks at the data before it makes its train function
            self._function = train_function_of(self.model)
            self._function.add(Rank.NOTE, self._noting)

    def _noting(self, inner: Step, state: Any, iterator: Any) -> tuple[Any, Any]:
        self.logs, state = inner(state, iterator)
        return self.logs, state

    def close(self) -> None:
        """Put the model's own train function back."""
        if self._function is not None:
            self._function.remove(self._noting)

    def check(self, resume: Position, num_epochs: int) -> None:
        """Raise CheckpointError unless this fit of `num_epochs` epochs has as many batches per epoch as the saved one."""
        found = self._epochs.num_batches
        if None not in (found, resume.size) and found != resume.size:
            raise CheckpointError(
                f"This fit has {found} batches per epoch, but the saved one had {resume.size}, and it cannot continue with other "
                "data. Train with the same data and batch size, or choose another backup_dir to start again."
            )
        if resume.size is not None and resume.num_batches > resume.size * (min(resume.epoch, num_epochs) + 1):
            raise CheckpointError(
                f"The backup says that the saved fit had read {resume.num_batches} batches in {resume.epoch + 1} epochs of "
                f"{resume.size}, which is impossible. Delete the backup to start again."
            )


class _Pass:
    """One pass over the data. It counts the batches that are read and can look one batch ahead."""

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
        """Return the next `num` batches, as `data/_array_batches.several` does."""
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
        """Return whether there is another batch, and read it if so."""
        if not self._ahead:
            try:
                self._ahead.append(self._read())
            except StopIteration:
                return False
        return True

    def go_to(self, num_batches: int, source: Any, state: Any) -> None:
        """Continue after `num_batches` batches: directly if there is a `source` with a state, else by reading them."""
        if source is None or state is None:
            num_read = sum(1 for _ in itertools.islice(self, num_batches))
            if num_read < num_batches:
                raise CheckpointError(
                    f"The saved fit had read {num_batches} batches of a pass over its data, but this pass has only {num_read}. "
                    "Train with the same data, or choose another backup_dir to start again."
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


def fit(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Run ``fit`` with Replicant's callbacks first. Tell them when it ends, and watch it if they ask for that."""
    bound = _signature_of(original).bind(model, *args, **kwargs)
    if strategy_of(model) is not None:
        warn_of_unused_optimizers(model)
        if not _restores(bound.arguments.get("callbacks")):
            warn_of_lost_seeds(model)
    with followed(model, bound.arguments.get("callbacks"), FitRun) as callbacks:
        bound.arguments["callbacks"] = callbacks
        return original(*bound.args, **bound.kwargs)


def _restores(callbacks: Any) -> bool:
    """Whether one of the callbacks brings back a state of its own, with the seeds."""
    listed = getattr(callbacks, "callbacks", callbacks) or ()
    each = listed if isinstance(listed, list | tuple) else [listed]
    return any("BackupAndRestore" in {base.__name__ for base in type(callback).__mro__} for callback in each)


def make_epochs(original: Callable[..., Any], epochs: Any, *args: Any, **kwargs: Any) -> None:
    """Make an epoch iterator, and show it to the fit that is running."""
    original(epochs, *args, **kwargs)
    run = _watched_fit()
    if run is not None:
        run.watch(epochs)


def get_iterator(original: Callable[..., Any], epochs: Any) -> Any:
    """Begin a pass over the data. A watched fit begins it itself."""
    run = _watched_fit(epochs)
    return original(epochs) if run is None else run.begin_pass(functools.partial(original, epochs))


def enumerate_steps(original: Callable[..., Any], epochs: Any) -> Any:
    """Return the steps of an epoch. A watched fit leaves out those that are done."""
    run = _watched_fit(epochs)
    return original(epochs) if run is None else run.steps(original(epochs))


def _watched_fit(epochs: Any = None) -> FitRun | None:
    """Return the watched fit of the model whose loop this thread is in, if its training data are those of `epochs`."""
    loop = current_loop()
    run = None if loop is None else run_of(loop.model)
    return run if isinstance(run, FitRun) and (epochs is None or run.watches(epochs)) else None
