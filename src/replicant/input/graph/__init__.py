"""A dataset as a graph: nodes that describe it, cursors that mark a position in it, and blocks that flow through it.

Every other package of `input` builds on this one. Start with `_graph` (nodes and cursors) and `_blocks` (rows, column by column).
"""
