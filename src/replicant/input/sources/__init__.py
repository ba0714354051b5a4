"""Where rows come from: arrays in memory, ranges, generators, and readers of other libraries.

`Dataset` makes these nodes. A source knows its length if possible, and how to continue from a position.
"""
