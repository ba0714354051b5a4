"""One step of a model, compiled for all devices of a strategy."""
