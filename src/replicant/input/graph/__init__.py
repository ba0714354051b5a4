"""A dataset as a graph: nodes that describe it, cursors that stand at a position in it, and the blocks that flow through it.

Every other room of `input` builds on this one. Start with `_graph` (nodes and cursors) and `_blocks` (rows, column by column).
"""
