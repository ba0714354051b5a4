"""Eight virtual CPU devices and Keras on JAX, for tests and doctests alike; must run before JAX starts."""

import gc
import importlib.metadata
import os
import signal

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("REPLICANT_COMPILATION_CACHE", "0")  # compile what is tested
# Replicas on devices of their own, as on GPUs and TPUs. Tests marked `both_ways` also run them fused, as users' CPUs do.
os.environ.setdefault("REPLICANT_FUSE_REPLICAS", "0")

# Compile in a quarter of the time, to slower programs. REPLICANT_TEST_FULL=1 and REPLICANT_TEST_AGAIN=1 compile as users do. XLA
# ends the process when it meets an option that it does not know, so this one is set only where it was tried.
QUICK = "1" not in (os.environ.get("REPLICANT_TEST_FULL"), os.environ.get("REPLICANT_TEST_AGAIN"))
if QUICK and importlib.metadata.version("jaxlib").startswith("0.10."):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false".strip()

import jax  # noqa: E402

import replicant  # noqa: E402

if QUICK:  # in this process: programs that tests start, such as the examples, compile as users do unless they are told
    jax.config.update("jax_disable_most_optimizations", True)

# What was imported stays: the collector need not look at it again and again, nor after each 700 new objects of a traced program.
gc.freeze()
gc.set_threshold(5_000, 10, 10)

NUM_DEVICES = 8

replicant.set_virtual_devices(NUM_DEVICES)

# A shell's background jobs ignore these, and so would the processes that tests interrupt.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, handler)
