"""Sets up eight virtual CPU devices and Keras on JAX for tests and doctests, before JAX starts."""

import gc
import importlib.metadata
import os
import signal

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("REPLICANT_COMPILATION_CACHE", "0")  # so that tests compile their programs
# Replicas compute on devices of their own, as on GPUs and TPUs. Tests marked `both_ways` also fuse them, as on users' CPUs.
os.environ.setdefault("REPLICANT_FUSE_REPLICAS", "0")

# Compile in a quarter of the time, to slower programs. REPLICANT_TEST_FULL=1 and REPLICANT_TEST_AGAIN=1 compile as users do. XLA
# ends the process for an option that it does not know, so this one is set only for versions with which it was tried.
QUICK = "1" not in (os.environ.get("REPLICANT_TEST_FULL"), os.environ.get("REPLICANT_TEST_AGAIN"))
if QUICK and importlib.metadata.version("jaxlib").startswith("0.10."):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false".strip()

# The kernel "memory" makes steps that need many fresh pages quicker and compiling slower, because all threads then share one heap.
# These tests compile much and compute little. Processes that they start, such as those of the kernel's own tests, have it.
WITHOUT_MEMORY = QUICK and "REPLICANT_KERNELS" not in os.environ
if WITHOUT_MEMORY:
    os.environ["REPLICANT_KERNELS"] = "argmax,conv,max_pool,avg_pool,direct_conv,strided_conv,lstm,flat_update,dot,attention,inline"

import jax  # noqa: E402

import replicant  # noqa: E402

if WITHOUT_MEMORY:
    del os.environ["REPLICANT_KERNELS"]

if QUICK:  # only in this process: programs that tests start, such as the examples, compile as users do by default
    jax.config.update("jax_disable_most_optimizations", True)

# The collector need not look at what was imported, nor run after every 700 new objects of a traced program.
gc.freeze()
gc.set_threshold(5_000, 10, 10)

NUM_DEVICES = 8

replicant.set_virtual_devices(NUM_DEVICES)

# In a shell's background jobs these signals are ignored, and the processes that tests interrupt would inherit that.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, handler)
