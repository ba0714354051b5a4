"""Keras's fit under a strategy, with callbacks; weights and a whole model that are loaded with and without a scope."""

import os

import numpy as np
import tensorflow as tf

tf.random.set_seed(2)
rng = np.random.default_rng(2)
train_labels = rng.integers(0, 3, 40).astype("int64")
train_images = (rng.integers(0, 90, (40, 6, 6, 1)) + 80 * train_labels[:, None, None, None]).astype("uint8")

strategy = tf.distribute.MirroredStrategy()
BATCH_SIZE = 16


def scale(image, label):
    image = tf.cast(image, tf.float32)
    image /= 255
    return image, label


train = tf.data.Dataset.from_tensor_slices((train_images, train_labels))
train_dataset = train.map(scale, num_parallel_calls=tf.data.AUTOTUNE).cache().shuffle(40, seed=2).batch(BATCH_SIZE)
eval_dataset = train.map(scale).batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(4, 3, activation="relu", input_shape=(6, 6, 1)),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(8, activation="relu"),
            tf.keras.layers.Dense(3),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.Adam(learning_rate=0.001),
        metrics=["accuracy"],
    )

checkpoint_dir = "./training_checkpoints"
checkpoint_prefix = os.path.join(checkpoint_dir, "ckpt_{epoch}.weights.h5")


def decay(epoch):
    return 1e-2 if epoch < 2 else 1e-3


class PrintLR(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print(f"\nLearning rate for epoch {epoch + 1} is {model.optimizer.learning_rate.numpy()}")


callbacks = [
    tf.keras.callbacks.TensorBoard(log_dir="./logs"),
    tf.keras.callbacks.ModelCheckpoint(filepath=checkpoint_prefix, save_weights_only=True),
    tf.keras.callbacks.LearningRateScheduler(decay),
    PrintLR(),
]
history = model.fit(train_dataset, epochs=4, callbacks=callbacks, verbose=2)

model.load_weights(os.path.join(checkpoint_dir, "ckpt_4.weights.h5"))
eval_loss, eval_acc = model.evaluate(eval_dataset, verbose=0)
model.save("saved_model.keras")

unreplicated_model = tf.keras.models.load_model("saved_model.keras")
unreplicated_model.compile(
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    optimizer=tf.keras.optimizers.Adam(),
    metrics=["accuracy"],
)
unreplicated = unreplicated_model.evaluate(eval_dataset, verbose=0)

with strategy.scope():
    replicated_model = tf.keras.models.load_model("saved_model.keras")
    replicated_model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.Adam(),
        metrics=["accuracy"],
    )
replicated = replicated_model.evaluate(eval_dataset, verbose=0)
print(f"Eval loss: {eval_loss}, Eval accuracy: {eval_acc}")

np.savez(
    "numbers.npz",
    loss=history.history["loss"],
    accuracy=history.history["accuracy"],
    evaluated=np.array([[eval_loss, eval_acc], unreplicated, replicated]),
    weights=model.get_weights()[-2],
)
