"""Eight virtual CPU devices and Keras on JAX, for tests and doctests alike; must run before JAX starts."""

import os

os.environ["KERAS_BACKEND"] = "jax"

import replicant

NUM_DEVICES = 8

replicant.set_virtual_devices(NUM_DEVICES)
