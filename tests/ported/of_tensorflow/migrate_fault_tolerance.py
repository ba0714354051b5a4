"""Training that fails half way and goes on: `BackupAndRestore` in `fit`, and a checkpoint manager in a loop."""

import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(6)
rng = np.random.default_rng(6)
y_train = rng.integers(0, 3, 40)
x_train = (rng.normal(size=(40, 4, 4)) + y_train[:, None, None]).astype("float32")
strategy = tf.distribute.MirroredStrategy()


class InterruptAtEpoch(tf.keras.callbacks.Callback):
    def __init__(self, interrupting_epoch):
        super().__init__()
        self.interrupting_epoch = interrupting_epoch

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.interrupting_epoch:
            raise RuntimeError("Interruption")


def create_model():
    return tf.keras.models.Sequential(
        [
            tf.keras.layers.Flatten(input_shape=(4, 4)),
            tf.keras.layers.Dense(8, activation="relu"),
            tf.keras.layers.Dense(3),
        ]
    )


with strategy.scope():
    model = create_model()
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, metrics=["accuracy"], steps_per_execution=2)

backup = tf.keras.callbacks.BackupAndRestore(backup_dir="backup", save_freq=2)
losses = []
keep = tf.keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: losses.append(logs["loss"]))
try:
    model.fit(x_train, y_train, batch_size=16, epochs=4, verbose=0, callbacks=[backup, keep, InterruptAtEpoch(1)])
except RuntimeError as error:
    print(error)
model.fit(x_train, y_train, batch_size=16, epochs=4, verbose=0, callbacks=[backup, keep])

with strategy.scope():
    step, loop_model, optimizer = tf.Variable(0, dtype=tf.int64), create_model(), tf.keras.optimizers.SGD(0.1)
loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
checkpoint = tf.train.Checkpoint(step=step, model=loop_model, optimizer=optimizer)
manager = tf.train.CheckpointManager(checkpoint, "loop", max_to_keep=2, step_counter=step, checkpoint_interval=2)
dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train)).batch(16).repeat()


@tf.function
def train_step(inputs):
    def step_fn(images, labels):
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(loss_object(labels, loop_model(images, training=True)), global_batch_size=16)
        gradients = tape.gradient(loss, loop_model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, loop_model.trainable_variables))
        return loss

    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step_fn, args=inputs), axis=None)


loop_losses = []
for fails_at in (3, None):
    if manager.restore_or_initialize():
        print("Restored from", manager.latest_checkpoint)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    while step.numpy() < 6 and step.numpy() != fails_at:
        loop_losses.append(float(train_step(next(iterator))))
        step.assign_add(1)
        manager.save(checkpoint_number=step, check_interval=True)

np.savez(
    "numbers.npz",
    losses=np.array(losses),
    loop=np.array(loop_losses),
    weights=model.get_weights()[0],
    loop_weights=loop_model.get_weights()[2],
    kept=len(manager.checkpoints),
)
