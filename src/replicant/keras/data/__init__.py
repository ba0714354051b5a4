"""The batches that Keras's loops read: where they come from, what they may be, and whether all workers read the same."""
