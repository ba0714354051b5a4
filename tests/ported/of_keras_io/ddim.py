"""A diffusion model: a network and its moving average, an adapted layer, a metric of its own, and a loop in `test_step`."""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import math

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(13)
image_size, batch_size, ema = 8, 6, 0.9
min_signal_rate, max_signal_rate = 0.02, 0.95


def preprocess_image(data):
    height, width = ops.shape(data["image"])[0], ops.shape(data["image"])[1]
    crop = ops.minimum(height, width)
    image = data["image"][:crop, :crop]
    return ops.clip(ops.cast(image, "float32") / 255.0, 0.0, 1.0)


def prepare_dataset(number, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (number, 8, 10, 3)).astype("uint8")
    return (
        tf.data.Dataset.from_tensor_slices({"image": pixels})
        .map(preprocess_image, num_parallel_calls=tf.data.AUTOTUNE)
        .cache()
        .repeat(2)
        .shuffle(10 * batch_size, seed=seed)
        .batch(batch_size, drop_remainder=True)
        .prefetch(buffer_size=tf.data.AUTOTUNE)
    )


class Brightness(keras.metrics.Metric):
    def __init__(self, name, **kwargs):
        super().__init__(name=name, **kwargs)
        self.difference = keras.metrics.Mean(name="difference")
        self.encoder = keras.Sequential([keras.Input((image_size, image_size, 3)), layers.GlobalAveragePooling2D()])

    def update_state(self, real_images, generated_images, sample_weight=None):
        real = self.encoder(real_images, training=False)
        generated = self.encoder(generated_images, training=False)
        self.difference.update_state(ops.abs(ops.mean(real, axis=0) - ops.mean(generated, axis=0)))

    def result(self):
        return self.difference.result()

    def reset_state(self):
        self.difference.reset_state()


@keras.saving.register_keras_serializable()
def sinusoidal_embedding(x):
    frequencies = ops.exp(ops.linspace(ops.log(1.0), ops.log(1000.0), 4))
    angular_speeds = ops.cast(2.0 * math.pi * frequencies, "float32")
    return ops.concatenate([ops.sin(angular_speeds * x), ops.cos(angular_speeds * x)], axis=3)


def get_network():
    noisy_images = keras.Input(shape=(image_size, image_size, 3))
    noise_variances = keras.Input(shape=(1, 1, 1))
    e = layers.Lambda(sinusoidal_embedding, output_shape=(1, 1, 8))(noise_variances)
    e = layers.UpSampling2D(size=image_size, interpolation="nearest")(e)
    x = layers.Concatenate()([layers.Conv2D(6, kernel_size=1)(noisy_images), e])
    x = layers.BatchNormalization(center=False, scale=False)(x)
    skip = layers.Conv2D(6, kernel_size=3, padding="same", activation="swish")(x)
    x = layers.AveragePooling2D(pool_size=2)(skip)
    x = layers.UpSampling2D(size=2, interpolation="bilinear")(x)
    x = layers.Concatenate()([x, skip])
    x = layers.Conv2D(3, kernel_size=1, kernel_initializer="zeros")(x)
    return keras.Model([noisy_images, noise_variances], x, name="residual_unet")


class DiffusionModel(keras.Model):
    def __init__(self):
        super().__init__()
        self.normalizer = layers.Normalization()
        self.network = get_network()
        self.ema_network = keras.models.clone_model(self.network)

    def compile(self, **kwargs):
        super().compile(**kwargs)
        self.noise_loss_tracker = keras.metrics.Mean(name="n_loss")
        self.image_loss_tracker = keras.metrics.Mean(name="i_loss")
        self.kid = Brightness(name="kid")

    @property
    def metrics(self):
        return [self.noise_loss_tracker, self.image_loss_tracker, self.kid]

    def denormalize(self, images):
        return ops.clip(self.normalizer.mean + images * self.normalizer.variance**0.5, 0.0, 1.0)

    def diffusion_schedule(self, diffusion_times):
        start_angle = ops.cast(ops.arccos(max_signal_rate), "float32")
        end_angle = ops.cast(ops.arccos(min_signal_rate), "float32")
        diffusion_angles = start_angle + diffusion_times * (end_angle - start_angle)
        return ops.sin(diffusion_angles), ops.cos(diffusion_angles)

    def denoise(self, noisy_images, noise_rates, signal_rates, training):
        network = self.network if training else self.ema_network
        pred_noises = network([noisy_images, noise_rates**2], training=training)
        return pred_noises, (noisy_images - noise_rates * pred_noises) / signal_rates

    def reverse_diffusion(self, initial_noise, diffusion_steps):
        num_images = initial_noise.shape[0]
        step_size = 1.0 / diffusion_steps
        next_noisy_images = initial_noise
        for step in range(diffusion_steps):
            noisy_images = next_noisy_images
            diffusion_times = ops.ones((num_images, 1, 1, 1)) - step * step_size
            noise_rates, signal_rates = self.diffusion_schedule(diffusion_times)
            pred_noises, pred_images = self.denoise(noisy_images, noise_rates, signal_rates, training=False)
            next_noise_rates, next_signal_rates = self.diffusion_schedule(diffusion_times - step_size)
            next_noisy_images = next_signal_rates * pred_images + next_noise_rates * pred_noises
        return pred_images

    def generate(self, num_images, diffusion_steps):
        initial_noise = keras.random.normal(shape=(num_images, image_size, image_size, 3))
        return self.denormalize(self.reverse_diffusion(initial_noise, diffusion_steps))

    def noised(self, images):
        images = self.normalizer(images, training=True)
        noises = keras.random.normal(shape=(batch_size, image_size, image_size, 3))
        diffusion_times = keras.random.uniform(shape=(batch_size, 1, 1, 1), minval=0.0, maxval=1.0)
        noise_rates, signal_rates = self.diffusion_schedule(diffusion_times)
        return images, noises, signal_rates * images + noise_rates * noises, noise_rates, signal_rates

    def train_step(self, images):
        images, noises, noisy_images, noise_rates, signal_rates = self.noised(images)
        with tf.GradientTape() as tape:
            pred_noises, pred_images = self.denoise(noisy_images, noise_rates, signal_rates, training=True)
            noise_loss = self.loss(noises, pred_noises)
            image_loss = self.loss(images, pred_images)
        gradients = tape.gradient(noise_loss, self.network.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.network.trainable_weights))
        self.noise_loss_tracker.update_state(noise_loss)
        self.image_loss_tracker.update_state(image_loss)
        for weight, ema_weight in zip(self.network.weights, self.ema_network.weights):
            ema_weight.assign(ema * ema_weight + (1 - ema) * weight)
        return {m.name: m.result() for m in self.metrics[:-1]}

    def test_step(self, images):
        images, noises, noisy_images, noise_rates, signal_rates = self.noised(images)
        pred_noises, pred_images = self.denoise(noisy_images, noise_rates, signal_rates, training=False)
        self.image_loss_tracker.update_state(self.loss(images, pred_images))
        self.noise_loss_tracker.update_state(self.loss(noises, pred_noises))
        generated_images = self.generate(num_images=batch_size, diffusion_steps=3)
        self.kid.update_state(self.denormalize(images), generated_images)
        return {m.name: m.result() for m in self.metrics}

    def plot_images(self, epoch=None, logs=None):
        self.plotted = self.generate(num_images=2, diffusion_steps=2).numpy()


train_dataset, val_dataset = prepare_dataset(14, 1), prepare_dataset(6, 2)
model = DiffusionModel()
model.compile(optimizer=keras.optimizers.AdamW(learning_rate=1e-3, weight_decay=1e-4), loss=keras.losses.mean_absolute_error)
model.normalizer.adapt(train_dataset)
history = model.fit(
    train_dataset,
    epochs=2,
    validation_data=val_dataset,
    callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=model.plot_images)],
).history
model.plot_images()
np.savez(
    "numbers.npz",
    n_loss=history["n_loss"],
    i_loss=history["i_loss"],
    val_kid=history["val_kid"],
    mean=model.normalizer.mean.numpy(),
    average=model.ema_network.get_weights()[0],
)
