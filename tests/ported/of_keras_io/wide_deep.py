"""Wide, deep and cross models of a table: CSV files, dicts of features, words looked up as numbers or as embeddings."""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import math

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(19)
NUMERIC_FEATURE_NAMES = ["height", "slope", "shade"]
CATEGORICAL_FEATURES_WITH_VOCABULARY = {"area": ["north", "south", "west"], "soil": ["s1", "s2", "s3", "s4"]}
CATEGORICAL_FEATURE_NAMES = list(CATEGORICAL_FEATURES_WITH_VOCABULARY)
FEATURE_NAMES = NUMERIC_FEATURE_NAMES + CATEGORICAL_FEATURE_NAMES
CSV_HEADER = [*FEATURE_NAMES, "cover"]
COLUMN_DEFAULTS = [[0] if name in [*NUMERIC_FEATURE_NAMES, "cover"] else ["NA"] for name in CSV_HEADER]
batch_size = 8


def write_csv(path, number, seed):
    rng = np.random.default_rng(seed)
    with open(path, "w") as file:
        print(*CSV_HEADER, sep=",", file=file)
        for _ in range(number):
            chosen = [rng.choice(words) for words in CATEGORICAL_FEATURES_WITH_VOCABULARY.values()]
            print(*rng.integers(0, 9, 3), *chosen, rng.integers(0, 4), sep=",", file=file)


def process(features, target):
    return dict(features), target


def get_dataset_from_csv(csv_file_path, batch_size, shuffle=False):
    dataset = tf.data.experimental.make_csv_dataset(
        csv_file_path,
        batch_size=batch_size,
        column_names=CSV_HEADER,
        column_defaults=COLUMN_DEFAULTS,
        label_name="cover",
        num_epochs=1,
        header=True,
        shuffle=shuffle,
        shuffle_seed=1,
    ).map(process)
    return dataset.cache()


def create_model_inputs():
    inputs = {}
    for feature_name in FEATURE_NAMES:
        is_number = feature_name in NUMERIC_FEATURE_NAMES
        inputs[feature_name] = layers.Input(name=feature_name, shape=(), dtype="float32" if is_number else "string")
    return inputs


def encode_inputs(inputs, use_embedding=False):
    encoded_features = []
    for feature_name in inputs:
        if feature_name in CATEGORICAL_FEATURE_NAMES:
            vocabulary = CATEGORICAL_FEATURES_WITH_VOCABULARY[feature_name]
            lookup = layers.StringLookup(
                vocabulary=vocabulary, mask_token=None, num_oov_indices=0, output_mode="int" if use_embedding else "multi_hot"
            )
            if use_embedding:
                encoded_feature = lookup(inputs[feature_name])
                dims = int(math.sqrt(len(vocabulary)))
                encoded_feature = layers.Embedding(input_dim=len(vocabulary), output_dim=dims)(encoded_feature)
            else:
                encoded_feature = lookup(keras.ops.expand_dims(inputs[feature_name], -1))
        else:
            encoded_feature = keras.ops.expand_dims(inputs[feature_name], -1)
        encoded_features.append(encoded_feature)
    return layers.concatenate(encoded_features)


def hidden(x):
    for units in (8, 6):
        x = layers.Dense(units)(x)
        x = layers.BatchNormalization()(x)
        x = layers.ReLU()(x)
        x = layers.Dropout(0.1)(x)
    return x


def create_wide_and_deep_model():
    inputs = create_model_inputs()
    wide = layers.BatchNormalization()(encode_inputs(inputs))
    deep = hidden(encode_inputs(inputs, use_embedding=True))
    return keras.Model(inputs=inputs, outputs=layers.Dense(4, activation="softmax")(layers.concatenate([wide, deep])))


def create_deep_and_cross_model():
    inputs = create_model_inputs()
    x0 = encode_inputs(inputs, use_embedding=True)
    cross = x0
    for _ in range(2):
        cross = x0 * layers.Dense(cross.shape[-1])(cross) + cross
    cross = layers.BatchNormalization()(cross)
    return keras.Model(inputs=inputs, outputs=layers.Dense(4, activation="softmax")(layers.concatenate([cross, hidden(x0)])))


def run_experiment(model):
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate=0.001),
        loss=keras.losses.SparseCategoricalCrossentropy(),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
    )
    train_dataset = get_dataset_from_csv("train.csv", batch_size, shuffle=True)
    test_dataset = get_dataset_from_csv("test.csv", batch_size)
    history = model.fit(train_dataset, epochs=2, verbose=2).history
    _, accuracy = model.evaluate(test_dataset, verbose=0)
    print(f"Test accuracy: {round(accuracy * 100, 2)}%")
    return [*history["loss"], *history["sparse_categorical_accuracy"], accuracy]


write_csv("train.csv", 29, 1)
write_csv("test.csv", 13, 2)
np.savez("numbers.npz", wide=run_experiment(create_wide_and_deep_model()), cross=run_experiment(create_deep_and_cross_model()))
