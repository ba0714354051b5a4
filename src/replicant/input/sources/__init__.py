"""Where rows come from: arrays in memory, ranges, generators, and readers of other libraries.

`Dataset` makes these nodes. A source knows its length where it can, and how to go on from a position.
"""
