"""Eight virtual CPU devices and Keras on JAX, for tests and doctests alike; must run before JAX starts."""

import os
import signal

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("REPLICANT_COMPILATION_CACHE", "0")  # compile what is tested
# Replicas on devices of their own, as on GPUs and TPUs. Tests marked `both_ways` also run them fused, as users' CPUs do.
os.environ.setdefault("REPLICANT_FUSE_REPLICAS", "0")

import replicant

NUM_DEVICES = 8

replicant.set_virtual_devices(NUM_DEVICES)

# A shell's background jobs ignore these, and so would the processes that tests interrupt.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, handler)
