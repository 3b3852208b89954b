"""Basic ranking, as in TensorFlow Recommenders' tutorial: predicts a user's rating of a movie.

Lines that differ from a model over tf.keras.layers.Embedding end with `# changed`.
"""

import dataclasses

import embedps
import tensorflow as tf
import tensorflow_recommenders as tfrs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    embedding_dimension: int = dataclasses.field(default=32, metadata={"help": "floats per row"})


class RankingModel(tf.keras.Model):
    def __init__(self, embedding_dimension: int) -> None:
        super().__init__()
        dims = {"user_id": embedding_dimension, "movie_title": embedding_dimension}  # changed
        embeddings = embedps.Embeddings(dims)  # changed
        self.user_embeddings = embeddings.feature("user_id")  # changed
        self.movie_embeddings = embeddings.feature("movie_title")  # changed
        self.ratings = tf.keras.Sequential(
            [
                tf.keras.layers.Dense(256, activation="relu"),
                tf.keras.layers.Dense(64, activation="relu"),
                tf.keras.layers.Dense(1),
            ]
        )

    def call(self, inputs):
        user_id, movie_title = inputs
        user_embedding = self.user_embeddings(user_id)
        movie_embedding = self.movie_embeddings(movie_title)
        return self.ratings(tf.concat([user_embedding, movie_embedding], axis=1))


class MovielensModel(tfrs.Model):
    def __init__(self, embedding_dimension: int) -> None:
        super().__init__()
        self.ranking_model = RankingModel(embedding_dimension)
        self.task = tfrs.tasks.Ranking(
            loss=tf.keras.losses.MeanSquaredError(),
            metrics=[tf.keras.metrics.RootMeanSquaredError()],
        )

    def call(self, features):
        return self.ranking_model((features["user_id"], features["movie_title"]))

    def compute_loss(self, features, training=False):
        labels = features.pop("user_rating")
        return self.task(labels=labels, predictions=self(features))


def make(config: Config, dataset: embedps.Dataset) -> embedps.Recommender:
    return embedps.Recommender(
        build=lambda: MovielensModel(config.embedding_dimension), model=__name__, config=config
    )
