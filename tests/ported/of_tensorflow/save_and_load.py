"""Models that are saved under one strategy and loaded under another, with Keras's files and with checkpoints."""

import numpy as np
import tensorflow as tf

tf.random.set_seed(8)
rng = np.random.default_rng(8)
labels = rng.integers(0, 3, 40)
images = (rng.normal(size=(40, 4, 4, 1)) + labels[:, None, None, None]).astype("float32")
mirrored_strategy = tf.distribute.MirroredStrategy()


def get_data():
    batch_size = 8 * 2

    def scale(image, label):
        image = tf.cast(image, tf.float32)
        image /= 3
        return image, label

    data = tf.data.Dataset.from_tensor_slices((images, labels))
    return data.map(scale).cache().shuffle(40, seed=8).batch(batch_size), data.map(scale).batch(batch_size)


def get_model(strategy):
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Conv2D(4, 2, activation="relu", input_shape=(4, 4, 1)),
                tf.keras.layers.MaxPooling2D(),
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(3),
            ]
        )
        model.compile(
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            optimizer=tf.keras.optimizers.Adam(),
            metrics=[tf.metrics.SparseCategoricalAccuracy()],
        )
        return model


model = get_model(mirrored_strategy)
train_dataset, eval_dataset = get_data()
model.fit(train_dataset, epochs=2, verbose=0)
keras_model_path = "keras_save.keras"
model.save(keras_model_path)
restored_keras_model = tf.keras.models.load_model(keras_model_path)
restored = restored_keras_model.fit(eval_dataset, epochs=2, verbose=0).history["loss"]

another_strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
with another_strategy.scope():
    restored_keras_model_ds = tf.keras.models.load_model(keras_model_path)
    another = restored_keras_model_ds.fit(eval_dataset, epochs=2, verbose=0).history["loss"]

predict_dataset = eval_dataset.map(lambda image, label: image)
with mirrored_strategy.scope():
    loaded = tf.keras.models.load_model(keras_model_path, compile=False)


@tf.function
def inference_func(batch):
    return tf.nn.softmax(loaded(batch, training=False))


results = []
for batch in mirrored_strategy.experimental_distribute_dataset(predict_dataset):
    results.append(mirrored_strategy.gather(mirrored_strategy.run(inference_func, args=(batch,)), axis=0).numpy())

checkpoint = tf.train.Checkpoint(model=model)
path = checkpoint.save("checkpoint/model")
fresh = get_model(another_strategy)
with another_strategy.scope():
    tf.train.Checkpoint(model=fresh).restore(path).assert_existing_objects_matched()
np.savez(
    "numbers.npz",
    losses=np.array([restored, another]),
    predicted=np.concatenate(results),
    evaluated=np.array(fresh.evaluate(eval_dataset, verbose=0)),
    weights=restored_keras_model.get_weights()[-2],
)
