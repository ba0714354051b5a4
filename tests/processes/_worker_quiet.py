"""A worker that prints a line after each program in which devices meet that have not met before."""

import json
import os
from pathlib import Path

import keras
import numpy as np

import replicant

replicant.set_virtual_devices(3)
strategy = replicant.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x = np.eye(4, dtype=np.float32).repeat(5, 0)
model.fit(x, x[:, :1], batch_size=12, verbose=0)
print("fit: batches of 12 and 8")
model.fit(x, x[:, :1], batch_size=7, verbose=0)
print("fit: batches of 7, 7 and 6")


@replicant.function
def total(batch):
    return strategy.reduce("SUM", strategy.run(lambda x: x.sum(), args=(batch,)), axis=None)


options = replicant.data.Options()
options.experimental_distribute.auto_shard_policy = replicant.data.AutoShardPolicy.DATA
batches = replicant.data.Dataset.from_tensor_slices(x).batch(7).with_options(options)
for batch in strategy.experimental_distribute_dataset(batches):
    print("loop:", float(total(batch)))
Path(os.environ["ANSWER"]).write_text(json.dumps("done"))
