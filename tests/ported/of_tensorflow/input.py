"""The ways to feed a strategy: distributed datasets, dataset functions, values, optionals, and element specs."""

import numpy as np
import tensorflow as tf

global_batch_size = 16
tf.random.set_seed(7)
rng = np.random.default_rng(7)
x = rng.normal(size=(40, 3)).astype("float32")
y = x.sum(axis=1, keepdims=True)
strategy = tf.distribute.MirroredStrategy()
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(global_batch_size)

options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
dist_dataset = strategy.experimental_distribute_dataset(dataset.with_options(options))

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,))])
    optimizer = tf.keras.optimizers.SGD(0.05)


@tf.function(input_signature=[dist_dataset.element_spec])
def train_step(per_replica_inputs):
    def step_fn(inputs):
        features, labels = inputs
        with tf.GradientTape() as tape:
            squares = tf.math.square(model(features) - labels)
            loss = tf.nn.compute_average_loss(tf.reduce_mean(squares, axis=-1), global_batch_size=global_batch_size)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return strategy.reduce("SUM", strategy.run(step_fn, args=(per_replica_inputs,)), axis=None)


losses = [float(train_step(inputs)) for inputs in dist_dataset]

iterator = iter(dist_dataset)
for _ in range(2):
    losses.append(float(train_step(next(iterator))))
optional = iterator.get_next_as_optional()
while optional.has_value():
    losses.append(float(train_step(optional.get_value())))
    optional = iterator.get_next_as_optional()
try:
    next(iterator)
except StopIteration:
    print("The end")


def dataset_fn(input_context):
    batch_size = input_context.get_per_replica_batch_size(global_batch_size)
    d = tf.data.Dataset.from_tensors([[1.0, 2.0, 3.0]]).repeat(64).unbatch().batch(batch_size)
    d = d.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    return d.prefetch(2)


input_options = tf.distribute.InputOptions(experimental_fetch_to_device=True, experimental_per_replica_buffer_size=1)
from_function = strategy.distribute_datasets_from_function(dataset_fn, input_options)


@tf.function
def total(inputs):
    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(lambda x: tf.reduce_sum(x), args=(inputs,)), axis=None)


totals = [float(total(inputs)) for inputs in from_function]


def value_fn(ctx):
    return tf.constant(float(ctx.replica_id_in_sync_group + 1) / ctx.num_replicas_in_sync)


distributed_values = strategy.experimental_distribute_values_from_function(value_fn)
local = strategy.experimental_local_results(distributed_values)
print(len(local), strategy.run(lambda value: value * 2.0, args=(distributed_values,)))

generated = tf.data.Dataset.from_generator(
    lambda: ([float(i)] * 3 for i in range(10)), output_signature=tf.TensorSpec(shape=(3,), dtype=tf.float32)
).batch(4)


@tf.function
def sum_all(dataset):
    result = tf.constant(0.0)
    for element in dataset:
        result += strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(lambda x: tf.reduce_sum(x), args=(element,)), axis=None)
    return result


np.savez(
    "numbers.npz",
    losses=np.array(losses),
    total=sum(totals),
    generated=sum_all(strategy.experimental_distribute_dataset(generated)).numpy(),
    weights=model.get_weights()[0],
)
