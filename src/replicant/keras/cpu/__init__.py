"""What Keras's layers compute with on CPUs."""
