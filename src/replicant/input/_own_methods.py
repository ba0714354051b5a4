"""Methods of `Dataset` that tf.data does not have. Each checks its arguments and adds a node."""

from typing import Self

from ._methods import Methods, chosen_seed
from .transforms._global_shuffle import globally_shuffled


class OwnMethods(Methods):
    """Methods that `Dataset` inherits."""

    def global_shuffle(self, seed: int | None = None, reshuffle_each_iteration: bool = True) -> Self:
        """Shuffle all elements, without a buffer: every order of all elements is about equally likely.

        Nothing is read ahead and nothing is held: which element comes next is computed from its place in the pass and the seed.
        So a position is one number, and going there takes no time. The elements must be readable by their numbers, as those of
        `range` and `from_tensor_slices` are (also of arrays on a disk, as ``np.load(path, mmap_mode="r")`` returns them), behind
        any of `map`, `take`, `skip`, `shard`, `enumerate`, `zip` and `concatenate`. Other datasets have `shuffle`.

        Args:
            seed: A seed, as in `shuffle`: one seed gives one sequence of orders. Without one, it is drawn from Python's `random`.
            reshuffle_each_iteration: Whether every iteration, and every pass of a later `repeat`, has another order.

        Raises:
            DatasetError: If the elements cannot be read by their numbers.

        >>> from replicant.data import Dataset
        >>> dataset = Dataset.range(1_000_000).global_shuffle(seed=1)
        >>> list(dataset.take(3)) == list(Dataset.range(3))
        False
        >>> sorted(Dataset.range(5).global_shuffle()) == list(range(5))
        True
        """
        checked, entropy = chosen_seed("global_shuffle", seed)
        return self._then(globally_shuffled(self._node, checked, entropy, bool(reshuffle_each_iteration)))
