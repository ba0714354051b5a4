"""A siamese network on triplets of images from files: a layer of distances, frozen layers, `train_step` and `test_step`."""

import os
from pathlib import Path

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf
from keras import Model, layers, metrics, ops, optimizers

keras.utils.set_random_seed(1)
target_shape = (12, 12)

# The images: triplets of files
rng = np.random.default_rng(0)
for folder in ("left", "right"):
    Path(folder).mkdir()
    for i in range(22):
        pixels = np.clip(rng.normal(100 + 5 * i, 30, (10, 10, 3)), 0, 255)
        keras.utils.save_img(f"{folder}/{i:02}.png", pixels, scale=False)


def preprocess_image(filename):
    image = tf.image.convert_image_dtype(tf.image.decode_png(tf.io.read_file(filename), channels=3), tf.float32)
    return tf.image.resize(image, target_shape)


def preprocess_triplets(anchor, positive, negative):
    return preprocess_image(anchor), preprocess_image(positive), preprocess_image(negative)


anchor_images = sorted(str(Path("left") / f) for f in os.listdir("left"))
positive_images = sorted(str(Path("right") / f) for f in os.listdir("right"))
negative_images = anchor_images + positive_images
np.random.RandomState(seed=32).shuffle(negative_images)
anchor_dataset = tf.data.Dataset.from_tensor_slices(anchor_images)
positive_dataset = tf.data.Dataset.from_tensor_slices(positive_images)
negative_dataset = tf.data.Dataset.from_tensor_slices(negative_images).shuffle(buffer_size=4096, seed=4)
dataset = tf.data.Dataset.zip((anchor_dataset, positive_dataset, negative_dataset))
dataset = dataset.shuffle(buffer_size=1024, seed=4, reshuffle_each_iteration=False).map(preprocess_triplets)
train_dataset = dataset.take(17).batch(8, drop_remainder=False).prefetch(tf.data.AUTOTUNE)
val_dataset = dataset.skip(17).batch(8, drop_remainder=False).prefetch(8)

image = layers.Input((*target_shape, 3))
x = layers.Conv2D(4, 3, strides=2, activation="relu", name="frozen")(image)
base = Model(image, layers.Conv2D(6, 3, activation="relu")(x))
flatten = layers.Flatten()(base.output)
dense = layers.BatchNormalization()(layers.Dense(16, activation="relu")(flatten))
embedding = Model(base.input, layers.Dense(8)(dense), name="Embedding")
for layer in base.layers:
    layer.trainable = layer.name != "frozen"


class DistanceLayer(layers.Layer):
    def call(self, anchor, positive, negative):
        ap_distance = ops.sum(tf.square(anchor - positive), -1)
        an_distance = ops.sum(tf.square(anchor - negative), -1)
        return (ap_distance, an_distance)


anchor_input = layers.Input(name="anchor", shape=(*target_shape, 3))
positive_input = layers.Input(name="positive", shape=(*target_shape, 3))
negative_input = layers.Input(name="negative", shape=(*target_shape, 3))
distances = DistanceLayer()(embedding(anchor_input), embedding(positive_input), embedding(negative_input))
siamese_network = Model(inputs=[anchor_input, positive_input, negative_input], outputs=distances)


class SiameseModel(Model):
    def __init__(self, siamese_network, margin=0.5):
        super().__init__()
        self.siamese_network = siamese_network
        self.margin = margin
        self.loss_tracker = metrics.Mean(name="loss")

    def call(self, inputs):
        return self.siamese_network(inputs)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self._compute_loss(data)
        gradients = tape.gradient(loss, self.siamese_network.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.siamese_network.trainable_weights))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def test_step(self, data):
        loss = self._compute_loss(data)
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def _compute_loss(self, data):
        ap_distance, an_distance = self.siamese_network(data)
        loss = ap_distance - an_distance
        return tf.maximum(loss + self.margin, 0.0)

    @property
    def metrics(self):
        return [self.loss_tracker]


siamese_model = SiameseModel(siamese_network)
siamese_model.compile(optimizer=optimizers.Adam(0.001), weighted_metrics=["accuracy"])
history = siamese_model.fit(train_dataset, epochs=2, validation_data=val_dataset).history

anchor, positive, negative = next(iter(train_dataset))
anchor_embedding, positive_embedding = embedding(anchor), embedding(positive)
cosine_similarity = metrics.CosineSimilarity()
positive_similarity = cosine_similarity(anchor_embedding, positive_embedding)
print("Positive similarity:", positive_similarity.numpy())
np.savez(
    "numbers.npz",
    loss=history["loss"],
    val_loss=history["val_loss"],
    similarity=positive_similarity.numpy(),
    embedding=anchor_embedding.numpy(),
)
