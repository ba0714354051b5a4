"""The sizes of the trainings of `_store_chaos_program.py`, which the test needs before JAX starts."""

NUM_EPOCHS, NUM_ROWS, NUM_COLUMNS = 2, 76, 12
