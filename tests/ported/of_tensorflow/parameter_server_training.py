"""Parameter servers: `fit` with a function that makes the dataset, and closures that a coordinator schedules."""

import numpy as np
import tensorflow as tf

tf.random.set_seed(11)
NUM_WORKERS = len(tf.config.list_logical_devices("CPU"))
NUM_PS = 2
cluster_spec = tf.train.ClusterSpec(
    {
        "worker": [f"localhost:{23400 + i}" for i in range(NUM_WORKERS)],
        "ps": [f"localhost:{23500 + i}" for i in range(NUM_PS)],
    }
)
cluster_resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster_spec, rpc_layer="grpc")
variable_partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(min_shard_bytes=8, max_shards=NUM_PS)
strategy = tf.distribute.ParameterServerStrategy(cluster_resolver, variable_partitioner=variable_partitioner)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

rng = np.random.default_rng(11)
x = rng.integers(0, 6, (32, 2))
y = (x.sum(axis=1, keepdims=True) > 5).astype("float32")


def dataset_fn(input_context=None):
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat()
    if input_context is not None:
        dataset = dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    return dataset.batch(32).prefetch(2)


def create_model():
    return tf.keras.Sequential(
        [
            tf.keras.layers.Input(shape=(2,), dtype=tf.int64),
            tf.keras.layers.Embedding(input_dim=6, output_dim=4),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(1, activation="sigmoid"),
        ]
    )


with strategy.scope():
    model = create_model()
    optimizer = tf.keras.optimizers.SGD(learning_rate=0.5)
    accuracy = tf.keras.metrics.BinaryAccuracy()


@tf.function
def step_fn(iterator):
    def replica_fn(batch_data, labels):
        with tf.GradientTape() as tape:
            pred = model(batch_data, training=True)
            per_example_loss = tf.keras.losses.BinaryCrossentropy(reduction=tf.keras.losses.Reduction.NONE)(labels, pred)
            loss = tf.nn.compute_average_loss(per_example_loss)
            gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        accuracy.update_state(labels, pred)
        return loss

    batch_data, labels = next(iterator)
    losses = strategy.run(replica_fn, args=(batch_data, labels))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


per_worker_dataset = coordinator.create_per_worker_dataset(dataset_fn)
per_worker_iterator = iter(per_worker_dataset)
history = []
for _ in range(6):
    loss = coordinator.schedule(step_fn, args=(per_worker_iterator,))
    coordinator.join()
    history.append(float(loss.fetch()))
weights = model.get_weights()

for _ in range(8):
    loss = coordinator.schedule(step_fn, args=(per_worker_iterator,))
while not coordinator.done():
    pass
print("Final loss is", loss.fetch(), "accuracy", float(accuracy.result()))

with strategy.scope():
    fitted = create_model()
    fitted.compile(tf.keras.optimizers.SGD(0.5), loss="mse", steps_per_execution=2)
creator = tf.keras.utils.experimental.DatasetCreator(dataset_fn)
losses = fitted.fit(creator, epochs=2, steps_per_epoch=4, verbose=0).history["loss"]
np.savez("numbers.npz", history=np.array(history), embedding=weights[0], kernel=weights[1], asynchronous=np.array(losses))
