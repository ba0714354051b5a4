"""Input: a graph of dataset nodes, cursors over it, and its distribution. `replicant.data` has the public names."""
