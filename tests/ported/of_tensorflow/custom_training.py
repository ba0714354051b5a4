"""A training loop with a distributed dataset, `run` and `reduce`; a checkpoint that is restored without the strategy."""

import numpy as np
import tensorflow as tf

EPOCHS = 2
GLOBAL_BATCH_SIZE = 16

tf.random.set_seed(1)
rng = np.random.default_rng(1)
labels = rng.integers(0, 4, 44)
images = rng.normal(size=(44, 8, 8, 1)).astype("float32") + labels[:, None, None, None]
train_images, train_labels, test_images, test_labels = images[:36], labels[:36], images[36:], labels[36:]

strategy = tf.distribute.MirroredStrategy()
print("Number of devices:", strategy.num_replicas_in_sync)
train_dataset = tf.data.Dataset.from_tensor_slices((train_images, train_labels)).shuffle(36, seed=1).batch(GLOBAL_BATCH_SIZE)
test_dataset = tf.data.Dataset.from_tensor_slices((test_images, test_labels)).batch(GLOBAL_BATCH_SIZE)
train_dist_dataset = strategy.experimental_distribute_dataset(train_dataset)
test_dist_dataset = strategy.experimental_distribute_dataset(test_dataset)


def create_model():
    return tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(4, 3, activation="relu", kernel_regularizer=tf.keras.regularizers.L2(1e-3)),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(4),
        ]
    )


with strategy.scope():
    loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=tf.keras.losses.Reduction.NONE)

    def compute_loss(labels, predictions, model_losses):
        per_example_loss = loss_object(labels, predictions)
        loss = tf.nn.compute_average_loss(per_example_loss, global_batch_size=GLOBAL_BATCH_SIZE)
        if model_losses:
            loss += tf.nn.scale_regularization_loss(tf.add_n(model_losses))
        return loss

    test_loss = tf.keras.metrics.Mean(name="test_loss")
    train_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")
    test_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="test_accuracy")
    model = create_model()
    optimizer = tf.keras.optimizers.Adam(learning_rate=0.01)
    checkpoint = tf.train.Checkpoint(optimizer=optimizer, model=model)


def train_step(inputs):
    images, labels = inputs
    with tf.GradientTape() as tape:
        predictions = model(images, training=True)
        loss = compute_loss(labels, predictions, model.losses)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    train_accuracy.update_state(labels, predictions)
    return loss


def test_step(inputs):
    images, labels = inputs
    predictions = model(images, training=False)
    test_loss.update_state(loss_object(labels, predictions))
    test_accuracy.update_state(labels, predictions)


@tf.function
def distributed_train_step(dataset_inputs):
    per_replica_losses = strategy.run(train_step, args=(dataset_inputs,))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_losses, axis=None)


@tf.function
def distributed_test_step(dataset_inputs):
    return strategy.run(test_step, args=(dataset_inputs,))


history = []
for epoch in range(EPOCHS):
    total_loss, num_batches = 0.0, 0
    for batch in train_dist_dataset:
        total_loss += distributed_train_step(batch)
        num_batches += 1
    for batch in test_dist_dataset:
        distributed_test_step(batch)
    saved = checkpoint.save("checkpoints/ckpt")
    history.append([total_loss / num_batches, train_accuracy.result(), test_loss.result(), test_accuracy.result()])
    print(f"Epoch {epoch + 1}: {history[-1]}")
    for metric in (test_loss, train_accuracy, test_accuracy):
        metric.reset_state()

new_model = create_model()
new_model.build((None, 8, 8, 1))
restored = tf.train.Checkpoint(optimizer=tf.keras.optimizers.Adam(learning_rate=0.01), model=new_model)
restored.restore(tf.train.latest_checkpoint("checkpoints"))
eval_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="eval_accuracy")


@tf.function
def eval_step(images, labels):
    eval_accuracy(labels, new_model(images, training=False))


for images, labels in test_dataset:
    eval_step(images, labels)


@tf.function
def distributed_train_epoch(dataset):
    total_loss = 0.0
    num_batches = 0
    for x in dataset:
        per_replica_losses = strategy.run(train_step, args=(x,))
        total_loss += strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_losses, axis=None)
        num_batches += 1
    return total_loss / tf.cast(num_batches, dtype=tf.float32)


epoch_loss = distributed_train_epoch(train_dist_dataset)
np.savez(
    "numbers.npz",
    history=np.array(history, "float32"),
    restored=eval_accuracy.result(),
    epoch_loss=epoch_loss,
    kernel=model.layers[0].kernel,
    weights=model.layers[-1].kernel,
)
