"""An encoder and a decoder with attention, which is fed its targets word by word, and a loss that masks the padding."""

import numpy as np
import tensorflow as tf

BATCH_SIZE = 8
VOCABULARY, EMBEDDING_DIM, UNITS = 9, 4, 6
START = 1
tf.random.set_seed(21)
rng = np.random.default_rng(21)
source = rng.integers(2, VOCABULARY, (20, 4))
target = np.concatenate([np.full((20, 1), START), source[:, ::-1][:, :3]], axis=1)
target[rng.random(20) < 0.5, -1] = 0


class Encoder(tf.keras.Model):
    def __init__(self, vocab_size, embedding_dim, enc_units):
        super().__init__()
        self.enc_units = enc_units
        self.embedding = tf.keras.layers.Embedding(vocab_size, embedding_dim)
        self.gru = tf.keras.layers.GRU(
            self.enc_units, return_sequences=True, return_state=True, recurrent_initializer="glorot_uniform"
        )

    def call(self, x, hidden):
        x = self.embedding(x)
        output, state = self.gru(x, initial_state=hidden)
        return output, state

    def initialize_hidden_state(self, batch_size):
        return tf.zeros((batch_size, self.enc_units))


class BahdanauAttention(tf.keras.layers.Layer):
    def __init__(self, units):
        super().__init__()
        self.W1 = tf.keras.layers.Dense(units)
        self.W2 = tf.keras.layers.Dense(units)
        self.V = tf.keras.layers.Dense(1)

    def call(self, query, values):
        hidden_with_time_axis = tf.expand_dims(query, 1)
        score = self.V(tf.nn.tanh(self.W1(values) + self.W2(hidden_with_time_axis)))
        attention_weights = tf.nn.softmax(score, axis=1)
        context_vector = attention_weights * values
        return tf.reduce_sum(context_vector, axis=1), attention_weights


class Decoder(tf.keras.Model):
    def __init__(self, vocab_size, embedding_dim, dec_units):
        super().__init__()
        self.embedding = tf.keras.layers.Embedding(vocab_size, embedding_dim)
        self.gru = tf.keras.layers.GRU(dec_units, return_sequences=True, return_state=True)
        self.fc = tf.keras.layers.Dense(vocab_size)
        self.attention = BahdanauAttention(dec_units)

    def call(self, x, hidden, enc_output):
        context_vector, attention_weights = self.attention(hidden, enc_output)
        x = self.embedding(x)
        x = tf.concat([tf.expand_dims(context_vector, 1), x], axis=-1)
        output, state = self.gru(x)
        output = tf.reshape(output, (-1, output.shape[2]))
        return self.fc(output), state, attention_weights


strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    encoder, decoder = Encoder(VOCABULARY, EMBEDDING_DIM, UNITS), Decoder(VOCABULARY, EMBEDDING_DIM, UNITS)
    optimizer = tf.keras.optimizers.Adam(0.01)
    loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    train_loss = tf.keras.metrics.Mean(name="train_loss")


def loss_function(real, pred):
    mask = tf.math.logical_not(tf.math.equal(real, 0))
    loss_ = loss_object(real, pred)
    mask = tf.cast(mask, dtype=loss_.dtype)
    loss_ *= mask
    return tf.reduce_sum(loss_) * 1.0 / BATCH_SIZE


def train_step(inputs):
    loss = 0
    inp, targ = inputs
    with tf.GradientTape() as tape:
        enc_output, dec_hidden = encoder(inp, encoder.initialize_hidden_state(inp.shape[0]))
        dec_input = tf.expand_dims([START] * inp.shape[0], 1)
        for t in range(1, targ.shape[1]):
            predictions, dec_hidden, _ = decoder(dec_input, dec_hidden, enc_output)
            loss += loss_function(targ[:, t], predictions)
            dec_input = tf.expand_dims(targ[:, t], 1)
    batch_loss = loss / int(targ.shape[1])
    variables = encoder.trainable_variables + decoder.trainable_variables
    gradients = tape.gradient(loss, variables)
    optimizer.apply_gradients(zip(gradients, variables))
    train_loss(batch_loss)
    return batch_loss


@tf.function
def distributed_train_step(inputs):
    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(train_step, args=(inputs,)), axis=None)


dataset = tf.data.Dataset.from_tensor_slices((source, target)).shuffle(20, seed=21).batch(BATCH_SIZE, drop_remainder=True)
train_ds = strategy.experimental_distribute_dataset(dataset)
losses = []
for epoch in range(2):
    for batch in train_ds:
        losses.append(float(distributed_train_step(batch)))
    print(f"Epoch {epoch + 1} Loss {losses[-1]:.4f}")
np.savez(
    "numbers.npz", losses=np.array(losses), weights=decoder.fc.get_weights()[0], attention=decoder.attention.V.get_weights()[0]
)
