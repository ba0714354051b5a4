"""What stands for an Estimator on several machines: `fit` and `evaluate` with parameter servers and with mirrored workers."""

import numpy as np
import tensorflow as tf

features = [[1.0, 1.5], [2.0, 2.5], [3.0, 3.5]]
labels = [[0.3], [0.5], [0.7]]
eval_features = [[4.0, 4.5], [5.0, 5.5], [6.0, 6.5]]
eval_labels = [[0.8], [0.9], [1.0]]
tf.keras.utils.set_random_seed(14)
num_workers = len(tf.config.list_physical_devices("CPU"))

cluster_spec = tf.train.ClusterSpec(
    {"worker": [f"localhost:{24100 + i}" for i in range(num_workers)], "ps": ["localhost:24200"]},
)
cluster_resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster_spec, rpc_layer="grpc")
strategy = tf.distribute.ParameterServerStrategy(cluster_resolver)
dataset = tf.data.Dataset.from_tensor_slices((features, labels)).repeat().batch(3)
eval_dataset = tf.data.Dataset.from_tensor_slices((eval_features, eval_labels)).repeat().batch(1)

with strategy.scope():
    model = tf.keras.models.Sequential([tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.Adagrad(learning_rate=0.05)
    model.compile(optimizer, "mse")
asynchronous = model.fit(dataset, epochs=3, steps_per_epoch=10, verbose=0).history["loss"]
evaluated = model.evaluate(eval_dataset, steps=3, return_dict=True, verbose=0)
print("Parameter servers:", asynchronous, evaluated)

tf.keras.utils.set_random_seed(14)
mirrored = tf.distribute.MirroredStrategy()
with mirrored.scope():
    model = tf.keras.models.Sequential([tf.keras.layers.Dense(1)])
    model.compile(tf.keras.optimizers.Adagrad(learning_rate=0.05), "mse", metrics=[tf.keras.metrics.MeanAbsoluteError()])
synchronous = model.fit(dataset, epochs=3, steps_per_epoch=10, verbose=0)
evaluated_again = model.evaluate(eval_dataset, steps=3, return_dict=True, verbose=0)
np.savez(
    "numbers.npz",
    asynchronous=int(asynchronous[-1] < asynchronous[0]),
    loss=np.array(synchronous.history["loss"]),
    evaluated=np.array(list(evaluated_again.values())),
    weights=model.get_weights()[0],
)
