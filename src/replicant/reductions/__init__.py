"""Finds sums of gradients that would be several times those of one device, and reports them before anything is computed.

This runs once per compiled step, on its trace. Nothing here changes a program.
"""
