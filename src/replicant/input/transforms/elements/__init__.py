"""Transforms of one element at a time, and what remembers something from one to the next."""
