"""What a dataset does with rows along the way: map, batch, shuffle, repeat, interleave, cache, prefetch. One idea per file.

`Dataset` makes these nodes. Each has a cursor whose state can be saved and restored.
"""
