"""A U-Net and a discriminator of patches, with skip connections and an L1 loss, under a strategy's scope."""

import numpy as np
import tensorflow as tf

LAMBDA = 100
tf.random.set_seed(17)
rng = np.random.default_rng(17)
pictures = rng.uniform(0, 255, (6, 8, 16, 3)).astype("float32")


def load(picture):
    w = tf.shape(picture)[1] // 2
    input_image = picture[:, w:, :] / 127.5 - 1
    real_image = picture[:, :w, :] / 127.5 - 1
    return input_image, real_image


train_dataset = (
    tf.data.Dataset.from_tensor_slices(pictures).map(load, num_parallel_calls=tf.data.AUTOTUNE).shuffle(6, seed=17).batch(2)
)
initializer = tf.random_normal_initializer(0.0, 0.02)


def downsample(filters, size, apply_batchnorm=True):
    result = tf.keras.Sequential()
    result.add(tf.keras.layers.Conv2D(filters, size, strides=2, padding="same", kernel_initializer=initializer, use_bias=False))
    if apply_batchnorm:
        result.add(tf.keras.layers.BatchNormalization())
    result.add(tf.keras.layers.LeakyReLU())
    return result


def upsample(filters, size, apply_dropout=False):
    result = tf.keras.Sequential()
    result.add(
        tf.keras.layers.Conv2DTranspose(filters, size, strides=2, padding="same", kernel_initializer=initializer, use_bias=False)
    )
    result.add(tf.keras.layers.BatchNormalization())
    if apply_dropout:
        result.add(tf.keras.layers.Dropout(0.5))
    result.add(tf.keras.layers.ReLU())
    return result


def Generator():  # noqa: N802 - as Keras names what makes a model
    inputs = tf.keras.layers.Input(shape=[8, 8, 3])
    x, skips = inputs, []
    for down in (downsample(4, 3, apply_batchnorm=False), downsample(8, 3), downsample(8, 3)):
        x = down(x)
        skips.append(x)
    for up, skip in zip((upsample(8, 3, apply_dropout=True), upsample(4, 3)), reversed(skips[:-1])):
        x = up(x)
        x = tf.keras.layers.Concatenate()([x, skip])
    last = tf.keras.layers.Conv2DTranspose(3, 3, strides=2, padding="same", kernel_initializer=initializer, activation="tanh")
    return tf.keras.Model(inputs=inputs, outputs=last(x))


def Discriminator():  # noqa: N802
    inp = tf.keras.layers.Input(shape=[8, 8, 3], name="input_image")
    tar = tf.keras.layers.Input(shape=[8, 8, 3], name="target_image")
    x = tf.keras.layers.concatenate([inp, tar])
    x = downsample(4, 3, False)(x)
    x = tf.keras.layers.ZeroPadding2D()(x)
    return tf.keras.Model(inputs=[inp, tar], outputs=tf.keras.layers.Conv2D(1, 3, kernel_initializer=initializer)(x))


with tf.distribute.MirroredStrategy().scope():
    generator, discriminator = Generator(), Discriminator()
    generator_optimizer = tf.keras.optimizers.Adam(2e-4, beta_1=0.5)
    discriminator_optimizer = tf.keras.optimizers.Adam(2e-4, beta_1=0.5)
loss_object = tf.keras.losses.BinaryCrossentropy(from_logits=True)


def generator_loss(disc_generated_output, gen_output, target):
    gan_loss = loss_object(tf.ones_like(disc_generated_output), disc_generated_output)
    l1_loss = tf.reduce_mean(tf.abs(target - gen_output))
    return gan_loss + LAMBDA * l1_loss, gan_loss, l1_loss


@tf.function
def train_step(input_image, target):
    with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
        gen_output = generator(input_image, training=True)
        disc_real_output = discriminator([input_image, target], training=True)
        disc_generated_output = discriminator([input_image, gen_output], training=True)
        gen_total_loss, gan_loss, l1_loss = generator_loss(disc_generated_output, gen_output, target)
        disc_loss = loss_object(tf.ones_like(disc_real_output), disc_real_output)
        disc_loss += loss_object(tf.zeros_like(disc_generated_output), disc_generated_output)
    generator_gradients = gen_tape.gradient(gen_total_loss, generator.trainable_variables)
    discriminator_gradients = disc_tape.gradient(disc_loss, discriminator.trainable_variables)
    generator_optimizer.apply_gradients(zip(generator_gradients, generator.trainable_variables))
    discriminator_optimizer.apply_gradients(zip(discriminator_gradients, discriminator.trainable_variables))
    return gen_total_loss, gan_loss, l1_loss, disc_loss


history = []
for step, (input_image, target) in train_dataset.repeat().take(4).enumerate():
    history.append([float(value) for value in train_step(input_image, target)])
    if (step + 1) % 2 == 0:
        print(f"Step {step}:", history[-1])
np.savez(
    "numbers.npz",
    history=np.array(history),
    generated=generator(next(iter(train_dataset))[0], training=False).numpy(),
    weights=discriminator.get_weights()[0],
)
