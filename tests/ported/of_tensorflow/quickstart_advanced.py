"""A model as a class, and a training loop with metrics, put under a strategy."""

import numpy as np
import tensorflow as tf

BATCH_SIZE = 12
tf.random.set_seed(3)
rng = np.random.default_rng(3)
y_train, y_test = rng.integers(0, 3, 40), rng.integers(0, 3, 10)
x_train, x_test = (rng.normal(size=(len(y), 6, 6)) + y[:, None, None] for y in (y_train, y_test))
x_train = x_train[..., tf.newaxis].astype("float32")
x_test = x_test[..., tf.newaxis].astype("float32")

strategy = tf.distribute.MirroredStrategy()
train_ds = tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(40, seed=3).batch(BATCH_SIZE)
test_ds = tf.data.Dataset.from_tensor_slices((x_test, y_test)).batch(BATCH_SIZE)
train_ds = strategy.experimental_distribute_dataset(train_ds)
test_ds = strategy.experimental_distribute_dataset(test_ds)


class MyModel(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.conv1 = tf.keras.layers.Conv2D(4, 3, activation="relu")
        self.flatten = tf.keras.layers.Flatten()
        self.d1 = tf.keras.layers.Dense(8, activation="relu")
        self.d2 = tf.keras.layers.Dense(3)

    def call(self, x):
        x = self.conv1(x)
        x = self.flatten(x)
        x = self.d1(x)
        return self.d2(x)


with strategy.scope():
    model = MyModel()
    loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=tf.keras.losses.Reduction.NONE)
    optimizer = tf.keras.optimizers.Adam()
    train_loss = tf.keras.metrics.Mean(name="train_loss")
    train_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")
    test_loss = tf.keras.metrics.Mean(name="test_loss")
    test_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="test_accuracy")


@tf.function
def train_step(images, labels):
    with tf.GradientTape() as tape:
        predictions = model(images, training=True)
        losses = loss_object(labels, predictions)
        loss = tf.nn.compute_average_loss(losses, global_batch_size=BATCH_SIZE)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    train_loss(losses)
    train_accuracy(labels, predictions)


@tf.function
def test_step(images, labels):
    predictions = model(images, training=False)
    test_loss(loss_object(labels, predictions))
    test_accuracy(labels, predictions)


history = []
for epoch in range(3):
    train_loss.reset_state()
    train_accuracy.reset_state()
    test_loss.reset_state()
    test_accuracy.reset_state()
    for images, labels in train_ds:
        strategy.run(train_step, args=(images, labels))
    for test_images, test_labels in test_ds:
        strategy.run(test_step, args=(test_images, test_labels))
    history.append([float(m.result()) for m in (train_loss, train_accuracy, test_loss, test_accuracy)])
    print(f"Epoch {epoch + 1}, Loss: {train_loss.result():0.2f}, Accuracy: {train_accuracy.result() * 100:0.2f}")

np.savez("numbers.npz", history=np.array(history), kernel=model.conv1.kernel.numpy(), weights=model.d2.kernel.numpy())
