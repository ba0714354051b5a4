"""State in JAX's control flow: what branches and loops assign to variables becomes operands and results of their primitives."""
