"""A residual network in a loop of several steps a call, with a schedule, weight decay and batch normalization.

In `run`, batch normalization takes the rows of each replica by themselves, so both halves of a batch have the same rows here.
"""

import numpy as np
import tensorflow as tf

BATCH_SIZE = 8
STEPS_PER_LOOP = 2
NUM_STEPS = 4
tf.random.set_seed(19)
rng = np.random.default_rng(19)
labels = rng.integers(0, 3, 16)
images = (rng.normal(size=(16, 8, 8, 3)) + labels[:, None, None, None]).astype("float32")
halves = [half for i in range(0, 16, BATCH_SIZE // 2) for half in 2 * [np.arange(i, i + BATCH_SIZE // 2)]]
order = np.concatenate(halves)


class PiecewiseConstantDecayWithWarmup(tf.keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, batch_size, warmup_steps, boundaries, multipliers):
        super().__init__()
        self.rescaled_lr = 0.1 * batch_size / 16
        self.warmup_steps = warmup_steps
        self.step_boundaries = [float(x) for x in boundaries]
        self.lr_values = [self.rescaled_lr * m for m in multipliers]

    def __call__(self, step):
        step = tf.cast(step, tf.float32)
        learning_rate = self.lr_values[0] * tf.ones_like(step)
        for boundary, value in zip(self.step_boundaries, self.lr_values[1:]):
            learning_rate = tf.where(step < boundary, learning_rate, value)
        return tf.where(step < self.warmup_steps, self.rescaled_lr * (step + 1.0) / self.warmup_steps, learning_rate)

    def get_config(self):
        return {"rescaled_lr": self.rescaled_lr, "warmup_steps": self.warmup_steps}


def residual_block(x, filters, stride):
    regularizer = tf.keras.regularizers.L2(1e-4)
    shortcut = tf.keras.layers.Conv2D(filters, 1, strides=stride, use_bias=False, kernel_regularizer=regularizer)(x)
    x = tf.keras.layers.Conv2D(
        filters, 3, strides=stride, padding="same", use_bias=False, kernel_initializer="he_normal", kernel_regularizer=regularizer
    )(x)
    x = tf.keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)
    return tf.keras.layers.Activation("relu")(tf.keras.layers.add([x, shortcut]))


def resnet(num_classes):
    image = tf.keras.layers.Input(shape=(8, 8, 3))
    x = residual_block(residual_block(image, 4, 1), 8, 2)
    x = tf.keras.layers.GlobalAveragePooling2D()(x)
    x = tf.keras.layers.Dense(num_classes, kernel_initializer=tf.keras.initializers.RandomNormal(stddev=0.01))(x)
    return tf.keras.models.Model(image, tf.keras.layers.Activation("softmax", dtype="float32")(x))


def input_fn(ctx=None):
    dataset = tf.data.Dataset.from_tensor_slices((images[order], labels[order]))
    dataset = dataset.repeat().batch(BATCH_SIZE, drop_remainder=True)
    return dataset.prefetch(tf.data.experimental.AUTOTUNE)


strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = resnet(num_classes=3)
    schedule = PiecewiseConstantDecayWithWarmup(BATCH_SIZE, 2, [3], [1.0, 0.1])
    optimizer = tf.keras.optimizers.SGD(learning_rate=schedule, momentum=0.9, nesterov=True)
    train_loss = tf.keras.metrics.Mean("train_loss", dtype=tf.float32)
    train_accuracy = tf.keras.metrics.SparseCategoricalAccuracy("train_accuracy", dtype=tf.float32)
    test_loss = tf.keras.metrics.Mean("test_loss", dtype=tf.float32)


@tf.function
def train_steps(iterator, steps):
    def step_fn(inputs):
        images, labels = inputs
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            prediction_loss = tf.keras.losses.sparse_categorical_crossentropy(labels, logits)
            loss = tf.reduce_sum(prediction_loss) * (1.0 / BATCH_SIZE)
            num_replicas = strategy.num_replicas_in_sync
            l2_loss = tf.reduce_sum(tf.stack(model.losses)) / num_replicas
            loss = loss + l2_loss
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
        train_loss.update_state(loss * num_replicas)
        train_accuracy.update_state(labels, logits)

    for _ in tf.range(steps):
        strategy.run(step_fn, args=(next(iterator),))


@tf.function
def test_step(iterator):
    def step_fn(inputs):
        images, labels = inputs
        logits = model(images, training=False)
        test_loss.update_state(tf.keras.losses.sparse_categorical_crossentropy(labels, logits))

    strategy.run(step_fn, args=(next(iterator),))


train_iter = iter(strategy.experimental_distribute_dataset(input_fn()))
test_iter = iter(strategy.experimental_distribute_dataset(input_fn()))
history, current_step = [], 0
while current_step < NUM_STEPS:
    train_loss.reset_state()
    train_accuracy.reset_state()
    train_steps(train_iter, tf.convert_to_tensor(STEPS_PER_LOOP, dtype=tf.int32))
    current_step += STEPS_PER_LOOP
    history.append([train_loss.result().numpy(), train_accuracy.result().numpy()])
test_step(test_iter)
np.savez(
    "numbers.npz",
    history=np.array(history),
    test_loss=test_loss.result().numpy(),
    weights=model.trainable_variables[0].numpy(),
    moving=model.non_trainable_variables[0].numpy(),
)
