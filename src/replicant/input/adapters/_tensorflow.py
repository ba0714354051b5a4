"""tf.data.Dataset, through TensorFlow's public API. TensorFlow is imported only when it is needed."""

import base64
import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...errors import DatasetError
from ..graph._graph import Cursor, State
from ..graph._structure import STRING, TensorSpec
from ._batches import Batches, BatchesCursor, Passes

_FILE = 1  # tf.data.experimental.AutoShardPolicy.FILE


@dataclasses.dataclass(frozen=True, eq=False)
class TensorFlowDataset(Batches):
    """The elements of a tf.data.Dataset as NumPy.

    A position is TensorFlow's own checkpoint of the beginning of a pass, which holds its random state, and a number of elements;
    to get there, they are read again.
    """

    dataset: Any = None

    @classmethod
    def of(cls, iterable: Any) -> "TensorFlowDataset":
        """Return the elements of this dataset."""
        return cls(passes=Passes(_AsNumpy(iterable), "tf.data.Dataset"), dataset=iterable)

    @property
    def same_everywhere(self) -> bool:
        return True

    @property
    def spec(self) -> Any:
        import tensorflow as tf  # pyright: ignore[reportMissingModuleSource] - its user has it

        return tf.nest.map_structure(_spec_of, self.dataset.element_spec)

    @property
    def cardinality(self) -> int:
        return int(self.dataset.cardinality())  # INFINITE and UNKNOWN are the same numbers

    def of_worker(self, num_workers: int, worker_index: int) -> "TensorFlowDataset":
        """Return a dataset that reads this worker's files.

        Raises:
            DatasetError: If TensorFlow finds no files, or too few.
        """
        import tensorflow as tf  # pyright: ignore[reportMissingModuleSource] - its user has it

        specs = tf.nest.flatten(self.dataset.element_spec)
        try:
            variant = tf.raw_ops.AutoShardDataset(
                input_dataset=tf.data.experimental.to_variant(self.dataset),
                num_workers=num_workers,
                index=worker_index,
                output_types=[spec.dtype for spec in specs],
                output_shapes=[spec.shape for spec in specs],
                auto_shard_policy=_FILE,
            )
            own = tf.data.experimental.from_variant(variant, self.dataset.element_spec)
            next(iter(own), None)  # TensorFlow notices only now that there are too few files
        except tf.errors.OpError as error:
            raise DatasetError(
                f"AutoShardPolicy.FILE cannot share this tf.data.Dataset among {num_workers} workers. Set its option "
                "`experimental_distribute.auto_shard_policy` to DATA, so that every worker reads everything and keeps its share of "
                f"each batch. TensorFlow says: {error.message}"
            ) from error
        return TensorFlowDataset.of(own)

    def open(self, state: State | None = None) -> Cursor:
        return TensorFlowCursor(self, state["next"] if state else 0, state["start"] if state else None)


class TensorFlowCursor(BatchesCursor):
    """A cursor that begins its pass when the first element is asked for, with the random state of the pass that it continues."""

    def __init__(self, node: TensorFlowDataset, position: int, start: dict[str, str] | None) -> None:
        super().__init__(node, position)
        self.start = start

    def begin(self) -> Iterator[Any]:
        iterator = super().begin()
        if self.start is None:
            self.start = _checkpoint(iterator)
        elif self.start:
            _restore(iterator, self.start)
        return iterator

    def fix(self) -> None:
        self.begun()

    def reset(self) -> None:
        super().reset()
        self.start = None

    def state(self) -> State:
        return {**super().state(), "start": self.start}


def _checkpoint(iterator: Any) -> dict[str, str]:
    """The files of TensorFlow's checkpoint of an iterator; none if it cannot make one (of a generator, for example)."""
    import tensorflow as tf  # pyright: ignore[reportMissingModuleSource] - its user has it

    with tempfile.TemporaryDirectory(prefix="replicant-") as folder:
        try:
            tf.train.Checkpoint(iterator=iterator).write(f"{folder}/it")
        except tf.errors.OpError:
            return {}
        return {path.name: base64.b64encode(path.read_bytes()).decode() for path in sorted(Path(folder).iterdir())}


def _restore(iterator: Any, files: dict[str, str]) -> None:
    import tensorflow as tf  # pyright: ignore[reportMissingModuleSource] - its user has it

    with tempfile.TemporaryDirectory(prefix="replicant-") as folder:
        try:
            for name, data in files.items():
                (Path(folder) / Path(name).name).write_bytes(base64.b64decode(data, validate=True))
            tf.train.Checkpoint(iterator=iterator).read(f"{folder}/it").assert_consumed()
        except (tf.errors.OpError, ValueError, AssertionError) as error:
            raise DatasetError(
                f"The position of a tf.data.Dataset is damaged: {error}. Start a new pass, or use an older position."
            ) from error


class _AsNumpy:
    """Iterates over a tf.data.Dataset as NumPy."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return iter(self.dataset.as_numpy_iterator())


def _spec_of(spec: Any) -> TensorSpec:
    """Convert a tf.TensorSpec to a `TensorSpec`.

    Raises:
        DatasetError: If the tensor is ragged or sparse.
    """
    if type(spec).__name__ != "TensorSpec" or spec.shape.rank is None:
        raise DatasetError(
            f"Only dense tensors of known rank can be distributed. This tf.data.Dataset has {spec}. "
            "Call `.map(lambda x: x.to_tensor())` on it, or set shapes in `map`."
        )
    return TensorSpec(tuple(spec.shape.as_list()), STRING if spec.dtype.name == "string" else spec.dtype.as_numpy_dtype)
