"""Optimizers under a strategy: their state in slices, their updates, and what programs do wrong with them."""
