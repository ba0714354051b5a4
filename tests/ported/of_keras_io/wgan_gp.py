"""A GAN with gradient penalty: a tape within a tape, several steps of the critic for one of the generator, a monitor."""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(7)
SHAPE, NOISE, BATCH = (8, 8, 1), 5, 8


def conv_block(x, filters, strides=(1, 1), use_bn=False, drop_value=0.0):
    x = layers.Conv2D(filters, (3, 3), strides=strides, padding="same", use_bias=not use_bn)(x)
    if use_bn:
        x = layers.BatchNormalization()(x)
    x = layers.LeakyReLU(0.2)(x)
    return layers.Dropout(drop_value, seed=2)(x) if drop_value else x


def make_discriminator():
    image = layers.Input(shape=SHAPE)
    x = layers.ZeroPadding2D((1, 1))(image)
    x = conv_block(x, 4, strides=(2, 2), drop_value=0.3)
    x = conv_block(x, 6, strides=(2, 2))
    return keras.models.Model(image, layers.Dense(1)(layers.Flatten()(x)), name="discriminator")


def make_generator():
    noise = layers.Input(shape=(NOISE,))
    x = layers.Dense(4 * 4 * 4, use_bias=False)(noise)
    x = layers.Reshape((4, 4, 4))(layers.LeakyReLU(0.2)(layers.BatchNormalization()(x)))
    x = conv_block(layers.UpSampling2D((2, 2))(x), 4, use_bn=True)
    x = layers.Activation("tanh")(layers.Conv2D(1, (3, 3), padding="same")(layers.ZeroPadding2D((1, 1))(x)))
    return keras.models.Model(noise, layers.Cropping2D((1, 1))(x), name="generator")


class WGAN(keras.Model):
    def __init__(self, discriminator, generator, latent_dim, discriminator_extra_steps=2, gp_weight=10.0):
        super().__init__()
        self.discriminator, self.generator, self.latent_dim = discriminator, generator, latent_dim
        self.d_steps, self.gp_weight = discriminator_extra_steps, gp_weight

    def compile(self, d_optimizer, g_optimizer, d_loss_fn, g_loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer
        self.d_loss_fn, self.g_loss_fn = d_loss_fn, g_loss_fn

    def gradient_penalty(self, batch_size, real_images, fake_images):
        alpha = tf.random.uniform([batch_size, 1, 1, 1], 0.0, 1.0)
        interpolated = real_images + alpha * (fake_images - real_images)
        with tf.GradientTape() as gp_tape:
            gp_tape.watch(interpolated)
            pred = self.discriminator(interpolated, training=True)
        grads = gp_tape.gradient(pred, [interpolated])[0]
        norm = tf.sqrt(tf.reduce_sum(tf.square(grads), axis=[1, 2, 3]))
        return tf.reduce_mean((norm - 1.0) ** 2)

    def train_step(self, real_images):
        if isinstance(real_images, tuple):
            real_images = real_images[0]
        batch_size = tf.shape(real_images)[0]
        for _ in range(self.d_steps):
            noise = tf.random.normal(shape=(batch_size, self.latent_dim))
            with tf.GradientTape() as tape:
                fake_images = self.generator(noise, training=True)
                fake_logits = self.discriminator(fake_images, training=True)
                real_logits = self.discriminator(real_images, training=True)
                d_cost = self.d_loss_fn(real_img=real_logits, fake_img=fake_logits)
                gp = self.gradient_penalty(batch_size, real_images, fake_images)
                d_loss = d_cost + gp * self.gp_weight
            d_gradient = tape.gradient(d_loss, self.discriminator.trainable_variables)
            self.d_optimizer.apply_gradients(zip(d_gradient, self.discriminator.trainable_variables))
        noise = tf.random.normal(shape=(batch_size, self.latent_dim))
        with tf.GradientTape() as tape:
            generated = self.generator(noise, training=True)
            g_loss = self.g_loss_fn(self.discriminator(generated, training=True))
        gen_gradient = tape.gradient(g_loss, self.generator.trainable_variables)
        self.g_optimizer.apply_gradients(zip(gen_gradient, self.generator.trainable_variables))
        return {"d_loss": d_loss, "g_loss": g_loss}


class GANMonitor(keras.callbacks.Callback):
    def __init__(self, num_img=3, latent_dim=NOISE):
        super().__init__()
        self.num_img, self.latent_dim = num_img, latent_dim

    def on_epoch_end(self, epoch, logs=None):
        images = self.model.generator(tf.random.normal(shape=(self.num_img, self.latent_dim)))
        images = (images * 127.5) + 127.5
        for i in range(self.num_img):
            img = keras.utils.array_to_img(images[i].numpy())
            img.save(f"generated_img_{i}_{epoch}.png")


def discriminator_loss(real_img, fake_img):
    return tf.reduce_mean(fake_img) - tf.reduce_mean(real_img)


def generator_loss(fake_img):
    return -tf.reduce_mean(fake_img)


wgan = WGAN(make_discriminator(), make_generator(), latent_dim=NOISE)
wgan.compile(
    d_optimizer=keras.optimizers.Adam(learning_rate=0.0002, beta_1=0.5, beta_2=0.9),
    g_optimizer=keras.optimizers.Adam(learning_rate=0.0002, beta_1=0.5, beta_2=0.9),
    g_loss_fn=generator_loss,
    d_loss_fn=discriminator_loss,
)
images = np.random.default_rng(0).uniform(-1, 1, (21, *SHAPE)).astype("float32")
history = wgan.fit(images, batch_size=BATCH, epochs=2, callbacks=[GANMonitor()], verbose=2).history
np.savez("numbers.npz", d_loss=history["d_loss"], g_loss=history["g_loss"], critic=wgan.discriminator.get_weights()[0])
