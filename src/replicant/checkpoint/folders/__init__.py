"""Where checkpoints lie, and how a folder appears whole, under a lock, or not at all."""
