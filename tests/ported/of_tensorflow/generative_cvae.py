"""A variational autoencoder with a loss of its own, which draws noise in its step, under a strategy's scope."""

import numpy as np
import tensorflow as tf

tf.random.set_seed(16)
rng = np.random.default_rng(16)
train_images = np.where(rng.normal(size=(24, 8, 8, 1)) > 0.5, 1.0, 0.0).astype("float32")
train_dataset = tf.data.Dataset.from_tensor_slices(train_images[:16]).shuffle(16, seed=16).batch(8)
test_dataset = tf.data.Dataset.from_tensor_slices(train_images[16:]).batch(8)


class CVAE(tf.keras.Model):
    def __init__(self, latent_dim):
        super().__init__()
        self.latent_dim = latent_dim
        self.encoder = tf.keras.Sequential(
            [
                tf.keras.layers.InputLayer(input_shape=(8, 8, 1)),
                tf.keras.layers.Conv2D(filters=4, kernel_size=3, strides=(2, 2), activation="relu"),
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(latent_dim + latent_dim),
            ]
        )
        self.decoder = tf.keras.Sequential(
            [
                tf.keras.layers.InputLayer(input_shape=(latent_dim,)),
                tf.keras.layers.Dense(units=4 * 4 * 2, activation=tf.nn.relu),
                tf.keras.layers.Reshape(target_shape=(4, 4, 2)),
                tf.keras.layers.Conv2DTranspose(filters=1, kernel_size=3, strides=2, padding="same"),
            ]
        )

    @tf.function
    def sample(self, eps=None):
        if eps is None:
            eps = tf.random.normal(shape=(10, self.latent_dim))
        return self.decode(eps, apply_sigmoid=True)

    def encode(self, x):
        mean, logvar = tf.split(self.encoder(x), num_or_size_splits=2, axis=1)
        return mean, logvar

    def reparameterize(self, mean, logvar):
        eps = tf.random.normal(shape=mean.shape)
        return eps * tf.exp(logvar * 0.5) + mean

    def decode(self, z, apply_sigmoid=False):
        logits = self.decoder(z)
        if apply_sigmoid:
            return tf.sigmoid(logits)
        return logits


def log_normal_pdf(sample, mean, logvar, raxis=1):
    log2pi = tf.math.log(2.0 * np.pi)
    return tf.reduce_sum(-0.5 * ((sample - mean) ** 2.0 * tf.exp(-logvar) + logvar + log2pi), axis=raxis)


def compute_loss(model, x):
    mean, logvar = model.encode(x)
    z = model.reparameterize(mean, logvar)
    x_logit = model.decode(z)
    cross_ent = tf.nn.sigmoid_cross_entropy_with_logits(logits=x_logit, labels=x)
    logpx_z = -tf.reduce_sum(cross_ent, axis=[1, 2, 3])
    logpz = log_normal_pdf(z, 0.0, 0.0)
    logqz_x = log_normal_pdf(z, mean, logvar)
    return -tf.reduce_mean(logpx_z + logpz - logqz_x)


@tf.function
def train_step(model, x, optimizer):
    with tf.GradientTape() as tape:
        loss = compute_loss(model, x)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))


with tf.distribute.MirroredStrategy().scope():
    model = CVAE(2)
    optimizer = tf.keras.optimizers.Adam(1e-3)
random_vector_for_generation = tf.random.normal(shape=[3, 2])

elbos = []
for epoch in range(1, 3):
    for train_x in train_dataset:
        train_step(model, train_x, optimizer)
    loss = tf.keras.metrics.Mean()
    for test_x in test_dataset:
        loss(compute_loss(model, test_x))
    elbos.append(float(-loss.result()))
predictions = model.sample(random_vector_for_generation)
np.savez(
    "numbers.npz",
    elbos=np.array(elbos),
    predictions=predictions.numpy(),
    drawn=model.sample().numpy(),
    weights=model.encoder.get_weights()[0],
)
