"""tf.data.Dataset, through TensorFlow's public interface. TensorFlow is imported when the first policy asks for files."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from replicant.errors import DatasetError

from .._structure import STRING, TensorSpec
from ._batches import Batches, Passes

_FILE = 1  # tf.data.experimental.AutoShardPolicy.FILE


@dataclasses.dataclass(frozen=True, eq=False)
class TensorFlowDataset(Batches):
    """The elements of a tf.data.Dataset as NumPy. A position is a number of elements, which are read again to get there."""

    dataset: Any = None

    @classmethod
    def of(cls, iterable: Any) -> "TensorFlowDataset":
        """The elements of this dataset."""
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
        """What reads this worker's files.

        Raises:
            DatasetError: TensorFlow finds no files, or too few.
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
            next(iter(own), None)  # too few files are only found now
        except tf.errors.OpError as error:
            raise DatasetError(
                f"AutoShardPolicy.FILE cannot share this tf.data.Dataset among {num_workers} workers. Set its option "
                "`experimental_distribute.auto_shard_policy` to DATA: every worker reads everything and keeps its share of each "
                f"batch. TensorFlow says: {error.message}"
            ) from error
        return TensorFlowDataset.of(own)


class _AsNumpy:
    """Loops over a tf.data.Dataset as NumPy."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return iter(self.dataset.as_numpy_iterator())


def _spec_of(spec: Any) -> TensorSpec:
    """A tf.TensorSpec in our terms.

    Raises:
        DatasetError: a ragged or sparse tensor.
    """
    if type(spec).__name__ != "TensorSpec" or spec.shape.rank is None:
        raise DatasetError(
            f"Only dense tensors of known rank can be distributed. This tf.data.Dataset has {spec}. "
            "Call `.map(lambda x: x.to_tensor())` on it, or set shapes in `map`."
        )
    return TensorSpec(tuple(spec.shape.as_list()), STRING if spec.dtype.name == "string" else spec.dtype.as_numpy_dtype)
