"""Eight virtual CPU devices and Keras on JAX, for tests and doctests alike; must run before JAX starts."""

import os

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("REPLICANT_COMPILATION_CACHE", "0")  # compile what is tested
# Replicas on devices of their own, as on GPUs and TPUs. Tests marked `both_ways` also run them fused, as users' CPUs do.
os.environ.setdefault("REPLICANT_FUSE_REPLICAS", "0")

import replicant

NUM_DEVICES = 8

replicant.set_virtual_devices(NUM_DEVICES)
