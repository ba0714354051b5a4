"""Input: a graph of dataset nodes, cursors over it, and its distribution; the public names are in `replicant.data`."""
