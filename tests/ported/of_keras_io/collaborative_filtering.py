"""A recommender: embeddings of users and films in a subclass of Model, validation data, and predictions for one user."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(23)
rng = np.random.default_rng(0)
user_ids, movie_ids = [f"u{i}" for i in range(9)], [100 + 7 * i for i in range(14)]
user2user_encoded = {x: i for i, x in enumerate(user_ids)}
movie2movie_encoded = {x: i for i, x in enumerate(movie_ids)}
movie_encoded2movie = dict(enumerate(movie_ids))
users = np.array([user2user_encoded[x] for x in rng.choice(user_ids, 90)])
movies = np.array([movie2movie_encoded[x] for x in rng.choice(movie_ids, 90)])
ratings = rng.integers(1, 11, 90) / 2
x = np.stack([users, movies], axis=1)
y = (ratings - min(ratings)) / (max(ratings) - min(ratings))
train_indices = int(0.9 * len(x))
x_train, x_val, y_train, y_val = x[:train_indices], x[train_indices:], y[:train_indices], y[train_indices:]


class RecommenderNet(keras.Model):
    def __init__(self, num_users, num_movies, embedding_size, **kwargs):
        super().__init__(**kwargs)
        self.num_users, self.num_movies, self.embedding_size = num_users, num_movies, embedding_size
        self.user_embedding = layers.Embedding(
            num_users, embedding_size, embeddings_initializer="he_normal", embeddings_regularizer=keras.regularizers.l2(1e-6)
        )
        self.user_bias = layers.Embedding(num_users, 1)
        self.movie_embedding = layers.Embedding(
            num_movies, embedding_size, embeddings_initializer="he_normal", embeddings_regularizer=keras.regularizers.l2(1e-6)
        )
        self.movie_bias = layers.Embedding(num_movies, 1)

    def call(self, inputs):
        user_vector = self.user_embedding(inputs[:, 0])
        user_bias = self.user_bias(inputs[:, 0])
        movie_vector = self.movie_embedding(inputs[:, 1])
        movie_bias = self.movie_bias(inputs[:, 1])
        dot_user_movie = ops.tensordot(user_vector, movie_vector, 2)  # over the whole batch, as the page has it
        x = dot_user_movie + user_bias + movie_bias
        return ops.nn.sigmoid(x)


model = RecommenderNet(len(user_ids), len(movie_ids), 5)
model.compile(loss=keras.losses.BinaryCrossentropy(), optimizer=keras.optimizers.Adam(learning_rate=0.001))
history = model.fit(x=x_train, y=y_train, batch_size=16, epochs=3, verbose=1, validation_data=(x_val, y_val)).history

watched = set(movies[users == 0])
not_watched = [[movie] for movie in range(len(movie_ids)) if movie not in watched]
user_movie_array = np.hstack(([[0]] * len(not_watched), not_watched))
predicted = model.predict(user_movie_array).flatten()
top = [movie_encoded2movie[not_watched[i][0]] for i in predicted.argsort()[-3:][::-1]]
print("Recommended:", top)
np.savez("numbers.npz", loss=history["loss"], val_loss=history["val_loss"], predicted=predicted)
