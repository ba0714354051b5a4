"""One worker of a job in which the last worker, or worker WRONG, does what MODE says. If LARGE is set, it sums so many elements."""

import os
import signal
import sys

import replicant

MODE, LARGE = os.environ["MODE"], int(os.environ.get("LARGE", "0"))
rank, count = int(os.environ["JAX_PROCESS_ID"]), int(os.environ["JAX_NUM_PROCESSES"])
strategy = replicant.MultiWorkerMirroredStrategy()

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

wrong = rank == int(os.environ.get("WRONG", count - 1))
with strategy.scope():
    total = replicant.Variable(jnp.zeros(3 if MODE == "variables" and wrong else 2))
step_size = 2.0 if MODE == "program" and wrong else 1.0
extra = MODE == "program" and wrong


def step(x):
    context = replicant.get_replica_context()
    y = x * step_size + x if extra else x * step_size
    y = context.all_reduce("SUM", jnp.broadcast_to(y, (LARGE,)))[-1] if LARGE else context.all_reduce("SUM", y)
    total.assign_add(jnp.broadcast_to(y, total.shape))


ones = strategy.experimental_distribute_values_from_function(lambda context: np.float32(1))
for number in range(10_000):
    strategy.run(step, args=(ones,))
    if number == 3:
        print("three steps", flush=True)
    if number == 5 and wrong:
        if MODE == "raise":
            raise ValueError("the file of this worker is broken")
        if MODE == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if MODE == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if MODE == "leave":
            sys.exit(0)
        if MODE == "uneven":  # in the middle of a step that the others never begin
            strategy.run(step, args=(ones,))
            sys.exit(0)
    if number == 5 and MODE == "uneven":
        replicant.Checkpoint(total=total).save(os.environ["FOLDER"])
    if number == 20 and MODE in ("ok", "late"):
        break
print(float(total.value()[0]))
