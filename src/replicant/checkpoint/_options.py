"""Options for writing checkpoints."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class CheckpointOptions:
    """Options of ``Checkpoint.save`` and ``write``: the part of tf.train.CheckpointOptions that concerns time.

    Args:
        enable_async: Whether to write in the background. ``save`` returns once the values are on the host, and
            ``Checkpoint.sync()`` waits for the disk. Only one such write runs at a time: the next ``save`` first waits for it, and
            raises its error.
    """

    enable_async: bool = False
