"""Functions that numba compiles and XLA calls."""
