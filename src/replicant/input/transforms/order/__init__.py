"""Shuffles, with and without a buffer."""
