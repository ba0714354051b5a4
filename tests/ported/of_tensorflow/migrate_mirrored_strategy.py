"""What stands for an Estimator with a `RunConfig`: Keras's `fit` and `evaluate` under a strategy."""

import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(5)
features = [[1.0, 1.5], [2.0, 2.5], [3.0, 3.5]]
labels = [[0.3], [0.5], [0.7]]
eval_features = [[4.0, 4.5], [5.0, 5.5], [6.0, 6.5]]
eval_labels = [[0.8], [0.9], [1.0]]

dataset = tf.data.Dataset.from_tensor_slices((features, labels)).batch(2)
eval_dataset = tf.data.Dataset.from_tensor_slices((eval_features, eval_labels)).batch(1)

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = tf.keras.models.Sequential([tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.Adagrad(learning_rate=0.05)
model.compile(optimizer=optimizer, loss="mse")
history = model.fit(dataset, epochs=3, verbose=0)
evaluated = model.evaluate(eval_dataset, return_dict=True, verbose=0)
np.savez("numbers.npz", loss=history.history["loss"], evaluated=evaluated["loss"], weights=model.get_weights()[0])
