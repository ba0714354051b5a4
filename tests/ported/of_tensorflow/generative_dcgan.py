"""Two models against each other, with two tapes at once, batch normalization, dropout and noise, under a strategy's scope."""

import numpy as np
import tensorflow as tf

BATCH_SIZE = 8
noise_dim = 6
tf.random.set_seed(15)
rng = np.random.default_rng(15)
train_images = rng.normal(size=(24, 8, 8, 1)).astype("float32")
train_dataset = tf.data.Dataset.from_tensor_slices(train_images).shuffle(24, seed=15).batch(BATCH_SIZE)


def make_generator_model():
    model = tf.keras.Sequential()
    model.add(tf.keras.layers.Dense(2 * 2 * 8, use_bias=False, input_shape=(noise_dim,)))
    model.add(tf.keras.layers.BatchNormalization())
    model.add(tf.keras.layers.LeakyReLU())
    model.add(tf.keras.layers.Reshape((2, 2, 8)))
    assert model.output_shape == (None, 2, 2, 8)
    model.add(tf.keras.layers.Conv2DTranspose(4, (3, 3), strides=(2, 2), padding="same", use_bias=False))
    model.add(tf.keras.layers.BatchNormalization())
    model.add(tf.keras.layers.LeakyReLU())
    model.add(tf.keras.layers.Conv2DTranspose(1, (3, 3), strides=(2, 2), padding="same", activation="tanh"))
    return model


def make_discriminator_model():
    model = tf.keras.Sequential()
    model.add(tf.keras.layers.Conv2D(4, (3, 3), strides=(2, 2), padding="same", input_shape=[8, 8, 1]))
    model.add(tf.keras.layers.LeakyReLU())
    model.add(tf.keras.layers.Dropout(0.3))
    model.add(tf.keras.layers.Flatten())
    model.add(tf.keras.layers.Dense(1))
    return model


strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    generator = make_generator_model()
    discriminator = make_discriminator_model()
    generator_optimizer = tf.keras.optimizers.Adam(1e-3)
    discriminator_optimizer = tf.keras.optimizers.Adam(1e-3)
    checkpoint = tf.train.Checkpoint(
        generator_optimizer=generator_optimizer,
        discriminator_optimizer=discriminator_optimizer,
        generator=generator,
        discriminator=discriminator,
    )
cross_entropy = tf.keras.losses.BinaryCrossentropy(from_logits=True)


def discriminator_loss(real_output, fake_output):
    real_loss = cross_entropy(tf.ones_like(real_output), real_output)
    fake_loss = cross_entropy(tf.zeros_like(fake_output), fake_output)
    return real_loss + fake_loss


def generator_loss(fake_output):
    return cross_entropy(tf.ones_like(fake_output), fake_output)


@tf.function
def train_step(images):
    noise = tf.random.normal([BATCH_SIZE, noise_dim])
    with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
        generated_images = generator(noise, training=True)
        real_output = discriminator(images, training=True)
        fake_output = discriminator(generated_images, training=True)
        gen_loss = generator_loss(fake_output)
        disc_loss = discriminator_loss(real_output, fake_output)
    gradients_of_generator = gen_tape.gradient(gen_loss, generator.trainable_variables)
    gradients_of_discriminator = disc_tape.gradient(disc_loss, discriminator.trainable_variables)
    generator_optimizer.apply_gradients(zip(gradients_of_generator, generator.trainable_variables))
    discriminator_optimizer.apply_gradients(zip(gradients_of_discriminator, discriminator.trainable_variables))
    return gen_loss, disc_loss


seed = tf.random.normal([4, noise_dim])
losses = []
for epoch in range(2):
    for image_batch in train_dataset:
        losses.append(train_step(image_batch))
    checkpoint.save(file_prefix="training_checkpoints/ckpt")

trained = generator(seed, training=False).numpy()
train_step(train_images[:BATCH_SIZE])
checkpoint.restore(tf.train.latest_checkpoint("training_checkpoints"))
np.savez(
    "numbers.npz",
    losses=np.array([[float(g), float(d)] for g, d in losses]),
    trained=trained,
    restored=generator(seed, training=False).numpy(),
    weights=discriminator.get_weights()[-2],
)
