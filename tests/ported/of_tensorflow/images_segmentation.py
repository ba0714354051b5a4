"""A U-Net on a frozen base: random flips as a layer in `map`, sample weights, and masks that are predicted."""

import numpy as np
import tensorflow as tf

BATCH_SIZE = 8
OUTPUT_CLASSES = 3
tf.random.set_seed(18)
rng = np.random.default_rng(18)
images = rng.uniform(0, 255, (20, 8, 8, 3)).astype("float32")
masks = (images.mean(axis=-1, keepdims=True) // 86).astype("int32") + 1


def normalize(input_image, input_mask):
    input_image = tf.cast(input_image, tf.float32) / 255.0
    input_mask -= 1
    return input_image, input_mask


class Augment(tf.keras.layers.Layer):
    def __init__(self, seed=42):
        super().__init__()
        self.augment_inputs = tf.keras.layers.RandomFlip(mode="horizontal", seed=seed)
        self.augment_labels = tf.keras.layers.RandomFlip(mode="horizontal", seed=seed)

    def call(self, inputs, labels):
        inputs = self.augment_inputs(inputs)
        labels = self.augment_labels(labels)
        return inputs, labels


def add_sample_weights(image, label):
    class_weights = tf.constant([2.0, 2.0, 1.0])
    class_weights = class_weights / tf.reduce_sum(class_weights)
    sample_weights = tf.gather(class_weights, indices=tf.cast(label, tf.int32))
    return image, label, sample_weights


dataset = tf.data.Dataset.from_tensor_slices((images, masks)).map(normalize, num_parallel_calls=tf.data.AUTOTUNE)
train_batches = dataset.take(16).cache().shuffle(16, seed=18).batch(BATCH_SIZE).repeat().map(Augment()).prefetch(tf.data.AUTOTUNE)
test_batches = dataset.skip(16).batch(BATCH_SIZE)

inputs = tf.keras.layers.Input(shape=[8, 8, 3])
strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    base = tf.keras.Sequential([inputs])
    for number, filters in enumerate((4, 8)):
        base.add(tf.keras.layers.Conv2D(filters, 3, strides=2, padding="same", activation="relu", name=f"block_{number}"))
    base_model_outputs = [base.get_layer(name).output for name in ("block_0", "block_1")]
    down_stack = tf.keras.Model(inputs=base.inputs, outputs=base_model_outputs)
    down_stack.trainable = False

    def unet_model(output_channels):
        inputs = tf.keras.layers.Input(shape=[8, 8, 3])
        *skips, x = down_stack(inputs)
        for skip in reversed(skips):
            x = tf.keras.layers.Conv2DTranspose(4, 3, strides=2, padding="same", use_bias=False)(x)
            x = tf.keras.layers.BatchNormalization()(x)
            x = tf.keras.layers.ReLU()(x)
            x = tf.keras.layers.Concatenate()([x, skip])
        last = tf.keras.layers.Conv2DTranspose(filters=output_channels, kernel_size=3, strides=2, padding="same")
        return tf.keras.Model(inputs=inputs, outputs=last(x))

    model = unet_model(output_channels=OUTPUT_CLASSES)
    model.compile(optimizer="adam", loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])


def create_mask(pred_mask):
    pred_mask = tf.math.argmax(pred_mask, axis=-1)
    pred_mask = pred_mask[..., tf.newaxis]
    return pred_mask[0]


class DisplayCallback(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("A mask after epoch", epoch + 1, np.bincount(np.ravel(create_mask(model.predict(images[:1] / 255, verbose=0)))))


model_history = model.fit(
    train_batches,
    epochs=2,
    steps_per_epoch=2,
    validation_steps=1,
    validation_data=test_batches,
    callbacks=[DisplayCallback()],
    verbose=0,
)
weighted = model.fit(train_batches.map(add_sample_weights), epochs=1, steps_per_epoch=2, verbose=0)
np.savez(
    "numbers.npz",
    loss=np.array(model_history.history["loss"] + weighted.history["loss"]),
    val_loss=np.array(model_history.history["val_loss"]),
    predicted=model.predict(test_batches, verbose=0),
    weights=model.get_weights()[-2],
)
