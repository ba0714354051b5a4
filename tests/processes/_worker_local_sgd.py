"""One of two workers that train by examples/local_sgd.py: writes what their weights are after each part."""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from local_sgd import LocalSGD, value_of

training = LocalSGD(3, learning_rate=0.7, momentum=0.9)

import keras  # noqa: E402
import numpy as np  # noqa: E402
from _local_sgd_numpy import BATCHES, X, Y  # noqa: E402

rank = training.workers.topology.worker_index
keras.utils.set_random_seed(rank)  # the chief's weights count
with training.local.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False), keras.layers.BatchNormalization()])
    model.layers[1].trainable = False  # its moving statistics change all the same
    plain = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False)])
    for each in (model, plain):
        each.compile(keras.optimizers.SGD(0.1), "mse")
if rank == 0:
    plain.set_weights([np.ones((4, 1))])
batches = [(X[rows], Y[rows]) for rows in BATCHES[rank]]
rounds = training.train(plain, batches)
first = value_of(plain.weights[0]).tolist()
plain.set_weights([np.zeros((4, 1))])
plain.optimizer.learning_rate = 0.0
training._speed = []
training.train(plain, batches)
answer = {"rounds": rounds, "weight": first, "assigned": value_of(plain.weights[0]).tolist()}
training._speed = []
training.train(model, batches)
answer["all"] = [value_of(w).tolist() for w in model.weights]
Path(os.environ["ANSWER"]).write_text(json.dumps(answer))
