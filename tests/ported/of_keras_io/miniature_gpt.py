"""A small language model on text files: vectorized text, causal attention, two outputs with one loss, a callback that writes."""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import random
import string

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(17)
vocab_size, maxlen, embed_dim, num_heads, feed_forward_dim, batch_size = 19, 10, 8, 2, 12, 8


def causal_attention_mask(batch_size, n_dest, n_src, dtype):
    i = ops.arange(n_dest)[:, None]
    j = ops.arange(n_src)
    mask = ops.cast(i >= j - n_src + n_dest, dtype)
    mask = ops.reshape(mask, [1, n_dest, n_src])
    return ops.tile(mask, [batch_size, 1, 1])


class TransformerBlock(layers.Layer):
    def __init__(self, embed_dim, num_heads, ff_dim, rate=0.1):
        super().__init__()
        self.att = layers.MultiHeadAttention(num_heads, embed_dim)
        self.ffn = keras.Sequential([layers.Dense(ff_dim, activation="relu"), layers.Dense(embed_dim)])
        self.layernorm1 = layers.LayerNormalization(epsilon=1e-6)
        self.layernorm2 = layers.LayerNormalization(epsilon=1e-6)
        self.dropout1 = layers.Dropout(rate)
        self.dropout2 = layers.Dropout(rate)

    def call(self, inputs):
        input_shape = ops.shape(inputs)
        batch_size = input_shape[0]
        seq_len = input_shape[1]
        causal_mask = causal_attention_mask(batch_size, seq_len, seq_len, "bool")
        attention_output = self.att(inputs, inputs, attention_mask=causal_mask)
        out1 = self.layernorm1(inputs + self.dropout1(attention_output))
        return self.layernorm2(out1 + self.dropout2(self.ffn(out1)))


class TokenAndPositionEmbedding(layers.Layer):
    def __init__(self, maxlen, vocab_size, embed_dim):
        super().__init__()
        self.token_emb = layers.Embedding(input_dim=vocab_size, output_dim=embed_dim)
        self.pos_emb = layers.Embedding(input_dim=maxlen, output_dim=embed_dim)

    def call(self, x):
        maxlen = ops.shape(x)[-1]
        return self.token_emb(x) + self.pos_emb(ops.arange(0, maxlen, 1))


def create_model():
    inputs = layers.Input(shape=(maxlen,), dtype="int32")
    x = TokenAndPositionEmbedding(maxlen, vocab_size, embed_dim)(inputs)
    x = TransformerBlock(embed_dim, num_heads, feed_forward_dim)(x)
    model = keras.Model(inputs=inputs, outputs=[layers.Dense(vocab_size)(x), x])
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss=[loss_fn, None])
    return model


# The text: one file for each review
random.seed(0)
words = ["this", "movie", "was", "really", "good", "bad", "long", "and", "the", "actor", "music", "I", "we", "liked", "it", "much"]
filenames = []
for i in range(20):
    filenames.append(f"review_{i:02}.txt")
    with open(filenames[-1], "w") as file:
        file.write("<br />".join([" ".join(random.choices(words, k=9)) + "!"] * 2) + "\n")
text_ds = tf.data.TextLineDataset(filenames)
text_ds = text_ds.shuffle(buffer_size=256, seed=3)
text_ds = text_ds.batch(batch_size)


def custom_standardization(input_string):
    stripped_html = tf.strings.regex_replace(tf.strings.lower(input_string), "<br />", " ")
    return tf.strings.regex_replace(stripped_html, f"([{string.punctuation}])", r" \1")


vectorize_layer = layers.TextVectorization(
    standardize=custom_standardization, max_tokens=vocab_size, output_mode="int", output_sequence_length=maxlen + 1
)
vectorize_layer.adapt(text_ds)
vocab = vectorize_layer.get_vocabulary()


def prepare_lm_inputs_labels(text):
    text = tf.expand_dims(text, -1)
    tokenized_sentences = vectorize_layer(text)
    return tokenized_sentences[:, :-1], tokenized_sentences[:, 1:]


text_ds = text_ds.map(prepare_lm_inputs_labels, num_parallel_calls=tf.data.AUTOTUNE)
text_ds = text_ds.prefetch(tf.data.AUTOTUNE)


class TextGenerator(keras.callbacks.Callback):
    def __init__(self, max_tokens, start_tokens, index_to_word, top_k=5):
        self.max_tokens, self.start_tokens, self.index_to_word, self.k = max_tokens, start_tokens, index_to_word, top_k

    def sample_from(self, logits):
        logits, indices = ops.top_k(logits, k=self.k, sorted=True)
        indices = np.asarray(indices).astype("int32")
        preds = keras.activations.softmax(ops.expand_dims(logits, 0))[0]
        preds = np.asarray(preds).astype("float32")
        return np.random.choice(indices, p=preds / preds.sum())  # noqa: NPY002

    def on_epoch_end(self, epoch, logs=None):
        tokens = list(self.start_tokens)
        while len(tokens) <= self.max_tokens:
            x = np.array([(tokens + [0] * maxlen)[:maxlen]])
            y, _ = self.model.predict(x, verbose=0)
            tokens.append(self.sample_from(y[0][len(tokens) - 1]))
        print("generated text:", " ".join(self.index_to_word[token] for token in tokens))


model = create_model()
start_tokens = [vocab.index(word) if word in vocab else 1 for word in ("this", "movie", "was")]
history = model.fit(text_ds, verbose=2, epochs=2, callbacks=[TextGenerator(7, start_tokens, vocab)]).history
np.savez("numbers.npz", loss=history["loss"], kernel=model.get_weights()[0])
