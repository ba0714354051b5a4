"""A TPU where there is one, and all devices where there is none: `run` on tensors, `fit`, and several steps in one function."""

import numpy as np
import tensorflow as tf

tf.random.set_seed(12)
try:
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="")
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    strategy = tf.distribute.TPUStrategy(resolver)
except ValueError as error:
    print("No TPU:", error)
    strategy = tf.distribute.MirroredStrategy()
print("All devices:", tf.config.list_logical_devices("TPU"), strategy.num_replicas_in_sync)

a = tf.constant([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
b = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])


@tf.function
def matmul_fn(x, y):
    return tf.matmul(x, y)


product = strategy.experimental_local_results(strategy.run(matmul_fn, args=(a, b)))[0]

rng = np.random.default_rng(12)
labels = rng.integers(0, 3, 48)
images = (rng.normal(size=(48, 6, 6, 1)) + labels[:, None, None, None]).astype("float32")
batch_size = 16
steps_per_epoch = 48 // batch_size


def create_model():
    regularizer = tf.keras.regularizers.L2(1e-5)
    return tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(4, 3, input_shape=(6, 6, 1), activation="relu", kernel_regularizer=regularizer),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(3, kernel_regularizer=regularizer),
        ]
    )


def get_dataset(batch_size, is_training=True):
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    if is_training:
        dataset = dataset.shuffle(48, seed=12).repeat()
    return dataset.batch(batch_size)


with strategy.scope():
    model = create_model()
    model.compile(
        optimizer="adam",
        steps_per_execution=3,
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["sparse_categorical_accuracy"],
    )
fitted = model.fit(
    get_dataset(batch_size), epochs=2, steps_per_epoch=steps_per_epoch, validation_data=get_dataset(batch_size, False), verbose=0
)

with strategy.scope():
    loop_model = create_model()
    optimizer = tf.keras.optimizers.Adam()
    training_loss = tf.keras.metrics.Mean("training_loss", dtype=tf.float32)
    training_accuracy = tf.keras.metrics.SparseCategoricalAccuracy("training_accuracy", dtype=tf.float32)
train_dataset = strategy.experimental_distribute_dataset(get_dataset(batch_size))


@tf.function
def train_multiple_steps(iterator, steps):
    def step_fn(inputs):
        images, labels = inputs
        with tf.GradientTape() as tape:
            logits = loop_model(images, training=True)
            per_example_loss = tf.keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            loss = tf.nn.compute_average_loss(per_example_loss, global_batch_size=batch_size)
            loss += tf.nn.scale_regularization_loss(sum(loop_model.losses))
        grads = tape.gradient(loss, loop_model.trainable_variables)
        optimizer.apply_gradients(list(zip(grads, loop_model.trainable_variables)))
        training_loss.update_state(loss * strategy.num_replicas_in_sync)
        training_accuracy.update_state(labels, logits)

    for _ in tf.range(steps):
        strategy.run(step_fn, args=(next(iterator),))


train_iterator = iter(train_dataset)
train_multiple_steps(train_iterator, tf.convert_to_tensor(steps_per_epoch))
print("Current step:", optimizer.iterations.numpy(), "training loss:", float(training_loss.result()))
np.savez(
    "numbers.npz",
    product=product.numpy(),
    fitted=np.array([fitted.history["loss"], fitted.history["val_loss"]]),
    loop=np.array([training_loss.result(), training_accuracy.result()]),
    steps=optimizer.iterations.numpy(),
    weights=loop_model.get_weights()[2],
)
