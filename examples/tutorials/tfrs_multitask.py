"""Multitask, as in TensorFlow Recommenders' tutorial: ratings and retrieval, shared embeddings.

Lines that differ from a model over tf.keras.layers.Embedding end with `# changed`.
"""

import dataclasses

import embedps
import tensorflow as tf
import tensorflow_recommenders as tfrs

from examples.tutorials.movies import movies_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    embedding_dimension: int = dataclasses.field(default=32, metadata={"help": "floats per row"})
    rating_weight: float = dataclasses.field(default=1.0, metadata={"help": "of the rating's loss"})
    retrieval_weight: float = dataclasses.field(
        default=1.0, metadata={"help": "of the retrieval's loss"}
    )


class MovielensModel(tfrs.Model):
    def __init__(self, config: Config, movies: tf.data.Dataset) -> None:
        super().__init__()
        dim = config.embedding_dimension
        embeddings = embedps.Embeddings({"user_id": dim, "movie_title": dim})  # changed
        self.movie_model = embeddings.feature("movie_title")  # changed
        self.user_model = embeddings.feature("user_id")  # changed
        self.rating_model = tf.keras.Sequential(
            [
                tf.keras.layers.Dense(256, activation="relu"),
                tf.keras.layers.Dense(128, activation="relu"),
                tf.keras.layers.Dense(1),
            ]
        )
        self.rating_task = tfrs.tasks.Ranking(
            loss=tf.keras.losses.MeanSquaredError(),
            metrics=[tf.keras.metrics.RootMeanSquaredError()],
        )
        self.retrieval_task = tfrs.tasks.Retrieval(
            metrics=tfrs.metrics.FactorizedTopK(
                candidates=embedps.Candidates(movies.batch(128), self._encode)  # changed
            )
        )
        self.rating_weight = config.rating_weight
        self.retrieval_weight = config.retrieval_weight

    def _encode(self, batch):
        return self.movie_model(batch["movie_title"])

    def call(self, features):
        user_embeddings = self.user_model(features["user_id"])
        movie_embeddings = self.movie_model(features["movie_title"])
        both = tf.concat([user_embeddings, movie_embeddings], axis=1)
        return user_embeddings, movie_embeddings, self.rating_model(both)

    def compute_loss(self, features, training=False):
        ratings = features.pop("user_rating")
        user_embeddings, movie_embeddings, rating_predictions = self(features)
        rating_loss = self.rating_task(labels=ratings, predictions=rating_predictions)
        retrieval_loss = self.retrieval_task(user_embeddings, movie_embeddings)
        return self.rating_weight * rating_loss + self.retrieval_weight * retrieval_loss


def make(config: Config, dataset: embedps.Dataset) -> embedps.Recommender:
    movies = movies_of(dataset)  # changed
    return embedps.Recommender(
        build=lambda: MovielensModel(config, movies), model=__name__, config=config
    )
