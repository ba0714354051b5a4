"""Connects processes through JAX's distributed runtime, and makes up for what that lacks."""
