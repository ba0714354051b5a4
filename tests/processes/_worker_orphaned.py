"""One of two workers. Worker KILLED is killed while the other one is in the middle of what WHERE names."""

import os
import time

import replicant
from replicant.cluster.jax import _bootstrap, _devices

WHERE = os.environ["WHERE"]
rank, killed = int(os.environ["JAX_PROCESS_ID"]), int(os.environ["KILLED"])


def wait_to_be_killed(*_args, **_kwargs):
    if WHERE in ("connect", "devices"):
        time.sleep(2.0)  # until the other one is there, too
        print("now", flush=True)
    time.sleep(600)


if WHERE == "connect" and rank == killed:
    setattr(_bootstrap._Private, "client", wait_to_be_killed)  # noqa: B010 - of another type
if WHERE == "devices" and rank == killed:
    _devices.start = wait_to_be_killed

strategy = replicant.MultiWorkerMirroredStrategy()

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

with strategy.scope():
    total = replicant.Variable(jnp.zeros(2))


def step(x):
    context = replicant.get_replica_context()
    assert context is not None
    total.assign_add(jnp.broadcast_to(context.all_reduce("SUM", x), total.shape))


ones = strategy.experimental_distribute_values_from_function(lambda context: np.float32(1))
for _ in range(3):
    strategy.run(step, args=(ones,))
float(total.value()[0])
print("now", flush=True)
if WHERE == "steps":
    while True:
        strategy.run(step, args=(ones,))
if rank == killed or WHERE == "between steps":
    wait_to_be_killed()
elif WHERE == "step":
    strategy.run(step, args=(ones,))
    float(total.value()[0])
elif WHERE == "python":
    while True:
        sum(range(1000))
elif WHERE == "exchange":
    world = _bootstrap.world()
    assert world is not None
    world.exchange("news", "from worker 1")
elif WHERE == "save":
    replicant.Checkpoint(total=total).save(os.environ["FOLDER"] + "/ckpt")
