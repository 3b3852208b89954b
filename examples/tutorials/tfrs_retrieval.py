"""Basic retrieval, as in TensorFlow Recommenders' tutorial: two towers, in-batch negatives.

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


class MovielensModel(tfrs.Model):
    def __init__(self, user_model, movie_model, task) -> None:
        super().__init__()
        self.movie_model = movie_model
        self.user_model = user_model
        self.task = task

    def compute_loss(self, features, training=False):
        user_embeddings = self.user_model(features["user_id"])
        positive_movie_embeddings = self.movie_model(features["movie_title"])
        return self.task(user_embeddings, positive_movie_embeddings)


def build(dim: int, movies: tf.data.Dataset) -> MovielensModel:
    embeddings = embedps.Embeddings(dict.fromkeys(("user_id", "movie_title"), dim))  # changed
    user_model = embeddings.feature("user_id")  # changed
    movie_model = embeddings.feature("movie_title")  # changed
    tower = lambda batch: movie_model(batch["movie_title"])  # noqa: E731
    candidates = embedps.Candidates(movies.batch(128), tower)  # changed
    metrics = tfrs.metrics.FactorizedTopK(candidates=candidates)
    task = tfrs.tasks.Retrieval(metrics=metrics)
    return MovielensModel(user_model, movie_model, task)


def make(config: Config, dataset: embedps.Dataset) -> embedps.Recommender:
    movies = movies_of(dataset)  # changed
    return embedps.Recommender(
        build=lambda: build(config.embedding_dimension, movies), model=__name__, config=config
    )
