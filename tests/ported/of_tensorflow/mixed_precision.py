"""float16 with a loss scale: policies of layers, `fit`, and a loop that scales the loss itself."""

import numpy as np
import tensorflow as tf

tf.keras.mixed_precision.set_global_policy("mixed_float16")
policy = tf.keras.mixed_precision.global_policy()
print("Compute dtype:", policy.compute_dtype, "variable dtype:", policy.variable_dtype)
tf.random.set_seed(13)
rng = np.random.default_rng(13)
y_train = rng.integers(0, 3, 48)
x_train = (rng.normal(size=(48, 16)) + y_train[:, None]).astype("float32")
strategy = tf.distribute.MirroredStrategy()


def create_model():
    inputs = tf.keras.Input(shape=(16,), name="digits")
    x = tf.keras.layers.Dense(8, activation="relu", name="dense_1")(inputs)
    x = tf.keras.layers.Dense(3, name="dense_logits")(x)
    outputs = tf.keras.layers.Activation("softmax", dtype="float32", name="predictions")(x)
    return tf.keras.Model(inputs=inputs, outputs=outputs)


with strategy.scope():
    model = create_model()
    model.compile(loss="sparse_categorical_crossentropy", optimizer=tf.keras.optimizers.RMSprop(1e-4), metrics=["accuracy"])
history = model.fit(x_train, y_train, batch_size=16, epochs=2, verbose=0)

with strategy.scope():
    loop_model = create_model()
    optimizer = tf.keras.optimizers.RMSprop(1e-4)
    optimizer = tf.keras.mixed_precision.LossScaleOptimizer(optimizer)
loss_object = tf.keras.losses.SparseCategoricalCrossentropy(reduction="none")
train_dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train)).batch(16)


@tf.function
def train_step(inputs):
    def step_fn(x, y):
        with tf.GradientTape() as tape:
            predictions = loop_model(x)
            loss = tf.nn.compute_average_loss(loss_object(y, predictions), global_batch_size=16)
            scaled_loss = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled_loss, loop_model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, loop_model.trainable_variables))
        return loss

    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step_fn, args=inputs), axis=None)


losses = [float(train_step(batch)) for batch in strategy.experimental_distribute_dataset(train_dataset)]
np.savez(
    "numbers.npz",
    fitted=np.array(history.history["loss"]),
    losses=np.array(losses),
    scale=float(optimizer.dynamic_scale),
    weights=loop_model.get_weights()[2],
)
