"""One of two workers, each with one device and a limit on its memory, that make, save and restore a model. KIND is the strategy."""

import gc
import json
import os
import resource
from pathlib import Path

import replicant

strategy = {"sharded": replicant.FullyShardedStrategy, "mirrored": replicant.MultiWorkerMirroredStrategy}[os.environ["KIND"]]()

import keras  # noqa: E402
import numpy as np  # noqa: E402

WIDTH, NUM_LAYERS, MIB = 2048, 8, 1 << 20  # kernels of 16 MiB
WHOLE = 3 * NUM_LAYERS * 4 * WIDTH * WIDTH  # bytes of weights and Adam's state
FOLDER, RANK = os.environ["FOLDER"], int(os.environ["JAX_PROCESS_ID"])


def status(name):
    """Return bytes that the system counts for this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def make(num_layers):
    with strategy.scope():
        layers = [keras.layers.Dense(WIDTH, use_bias=False) for _ in range(num_layers)]
        model = keras.Sequential([keras.Input((WIDTH,)), *layers])
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
    return model, replicant.Checkpoint(model=model, optimizer=model.optimizer)


def first_rows(model):
    """Return sums over the first rows that lie here of each kernel, as a fingerprint."""
    return [float(np.asarray(v.value.addressable_shards[0].data)[:4].sum()) for v in model.weights]


keras.utils.set_random_seed(3)
small = make(1)
small[1].read(small[1].write(f"{FOLDER}/small"))
del small
gc.collect()
began, used = status("VmData"), status("VmRSS")
limit = int(float(os.environ["PART"]) * WHOLE)
resource.setrlimit(resource.RLIMIT_DATA, (began + limit, began + limit))
model, checkpoint = make(NUM_LAYERS)
made = status("VmData") - began
path = checkpoint.save(f"{FOLDER}/ckpt")
print("saved", flush=True)
before = first_rows(model)
del model, checkpoint
gc.collect()
model, checkpoint = make(NUM_LAYERS)  # with other random weights
other = first_rows(model)
checkpoint.restore(path).assert_consumed()
answer = {"whole": WHOLE, "limit": limit, "made": made, "peak": status("VmHWM") - used}
answer |= {"before": before, "other": other, "after": first_rows(model)}
Path(os.environ["ANSWER"]).write_text(json.dumps(answer))
