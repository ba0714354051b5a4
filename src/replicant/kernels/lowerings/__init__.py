"""Other lowerings of JAX's primitives on CPUs."""
