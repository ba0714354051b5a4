"""The training step of ``fit`` in micro-batches, with the numbers of the whole batch."""
