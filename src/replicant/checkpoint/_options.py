"""How a checkpoint is written."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class CheckpointOptions:
    """Options of ``Checkpoint.save`` and ``write``.

    Args:
        enable_async: write in the background. ``save`` returns once the values are on the host, and ``Checkpoint.sync()`` waits for
            the disk. There is at most one such write at a time: the next ``save`` first waits for it, and raises its error.

    Semantics: tf.train.CheckpointOptions, of which this is the part that is about time.
    """

    enable_async: bool = False
