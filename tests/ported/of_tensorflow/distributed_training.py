"""Several strategies, `fit` with a dataset and with arrays, and a loop over an iterator with one replica or more."""

import numpy as np
import tensorflow as tf

tf.random.set_seed(4)
inputs, targets = np.ones((50, 1), "float32"), np.ones((50, 1), "float32")
global_batch_size = 10

mirrored_strategy = tf.distribute.MirroredStrategy(cross_device_ops=tf.distribute.HierarchicalCopyAllReduce())
print("Replicas:", mirrored_strategy.num_replicas_in_sync)
with mirrored_strategy.scope():
    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(1, input_shape=(1,), kernel_regularizer=tf.keras.regularizers.L2(1e-4))],
    )
    model.compile(loss="mse", optimizer="sgd")
dataset = tf.data.Dataset.from_tensors(([1.0], [1.0])).repeat(100).batch(global_batch_size)
first = model.fit(dataset, epochs=2, verbose=0).history["loss"]
evaluated = model.evaluate(dataset, verbose=0)
second = model.fit(inputs, targets, epochs=2, batch_size=global_batch_size, verbose=0).history["loss"]


def train(strategy):
    tf.random.set_seed(4)
    with strategy.scope():
        model = tf.keras.Sequential(
            [tf.keras.layers.Dense(1, input_shape=(1,), kernel_regularizer=tf.keras.regularizers.L2(1e-4))],
        )
        optimizer = tf.keras.optimizers.SGD(learning_rate=0.05)
    dataset = tf.data.Dataset.from_tensors(([1.0], [1.0])).repeat(45).batch(global_batch_size)
    dist_dataset = strategy.experimental_distribute_dataset(dataset)
    loss_object = tf.keras.losses.BinaryCrossentropy(from_logits=True, reduction=tf.keras.losses.Reduction.NONE)

    def train_step(inputs):
        features, labels = inputs
        with tf.GradientTape() as tape:
            predictions = model(features, training=True)
            per_example_loss = loss_object(labels, predictions)
            loss = tf.nn.compute_average_loss(per_example_loss, global_batch_size=global_batch_size)
            loss += tf.nn.scale_regularization_loss(sum(model.losses))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    @tf.function
    def distributed_train_step(dist_inputs):
        per_replica_losses = strategy.run(train_step, args=(dist_inputs,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_losses, axis=None)

    losses = [distributed_train_step(dist_inputs).numpy() for dist_inputs in dist_dataset]
    iterator = iter(dist_dataset)
    for _ in range(3):
        losses.append(distributed_train_step(next(iterator)).numpy())
    return losses, model.layers[0].kernel.numpy()


mirrored, kernel = train(mirrored_strategy)
default, default_kernel = train(tf.distribute.get_strategy())
one_device, _ = train(tf.distribute.OneDeviceStrategy(device="/cpu:0"))
np.savez(
    "numbers.npz",
    fit=np.array([*first, *second, evaluated]),
    losses=np.array([mirrored, default, one_device]),
    kernels=np.array([kernel, default_kernel]),
)
