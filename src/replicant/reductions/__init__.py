"""Sums of gradients that would be several times those of one device: found in the trace, and told before anything is computed.

Called once per compiled step. Nothing here changes a program.
"""
