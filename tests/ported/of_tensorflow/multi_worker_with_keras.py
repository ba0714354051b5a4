"""Several workers in `fit`, with a backup; each saves the model, and the copies of all but the chief are removed."""

import json
import os

import numpy as np
import tensorflow as tf

tf_config = json.loads(os.environ["TF_CONFIG"])
num_workers = len(tf_config["cluster"]["worker"])
per_worker_batch_size = 12 // num_workers
global_batch_size = per_worker_batch_size * num_workers
tf.random.set_seed(10)

strategy = tf.distribute.MultiWorkerMirroredStrategy()
rng = np.random.default_rng(10)
y_train = rng.integers(0, 3, 40)
x_train = (rng.normal(size=(40, 5, 5)) + y_train[:, None, None]).astype("float32")
multi_worker_dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(40, seed=10).repeat().batch(global_batch_size)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
multi_worker_dataset = multi_worker_dataset.with_options(options)

with strategy.scope():
    multi_worker_model = tf.keras.Sequential(
        [
            tf.keras.layers.InputLayer(input_shape=(5, 5)),
            tf.keras.layers.Reshape(target_shape=(5, 5, 1)),
            tf.keras.layers.Conv2D(4, 3, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(3),
        ]
    )
    multi_worker_model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(learning_rate=0.01),
        metrics=["accuracy"],
    )

callbacks = [tf.keras.callbacks.BackupAndRestore(backup_dir=os.path.join(os.getcwd(), "backup"))]
history = multi_worker_model.fit(multi_worker_dataset, epochs=3, steps_per_epoch=4, callbacks=callbacks, verbose=0)


def is_chief(task_type, task_id):
    return task_type is None or task_type == "chief" or (task_type == "worker" and task_id == 0)


task_type, task_id = strategy.cluster_resolver.task_type, strategy.cluster_resolver.task_id
write_model_path = os.path.join(os.getcwd(), "model.keras")
if not is_chief(task_type, task_id):
    write_model_path = os.path.join(os.getcwd(), f"workertemp_{task_id}.keras")
multi_worker_model.save(write_model_path)
loaded_model = tf.keras.models.load_model(write_model_path)
evaluated = loaded_model.evaluate(x_train, y_train, verbose=0)
if not is_chief(task_type, task_id):
    tf.io.gfile.remove(write_model_path)

np.savez(
    f"numbers-{task_id}.npz",
    loss=history.history["loss"],
    accuracy=history.history["accuracy"],
    evaluated=np.array(evaluated),
    weights=multi_worker_model.get_weights()[2],
)
