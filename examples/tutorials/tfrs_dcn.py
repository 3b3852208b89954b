"""Deep and cross network, as in TensorFlow Recommenders' tutorial (Wang et al. 2021).

Lines that differ from a model over tf.keras.layers.Embedding end with `# changed`.
"""

import dataclasses

import embedps
import tensorflow as tf
import tensorflow_recommenders as tfrs

FEATURES = (
    "movie_id",
    "user_id",
    "user_zip_code",
    "user_occupation_text",
    "user_gender",
    "bucketized_user_age",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    use_cross_layer: bool = dataclasses.field(default=True, metadata={"help": "cross the features"})
    deep_layer_sizes: tuple[int, ...] = dataclasses.field(
        default=(192, 192), metadata={"help": "widths of the deep layers"}
    )


class DCN(tfrs.Model):
    def __init__(self, use_cross_layer, deep_layer_sizes, projection_dim=None) -> None:
        super().__init__()
        self.embedding_dimension = 32
        self._all_features = FEATURES
        dims = dict.fromkeys(FEATURES, self.embedding_dimension)  # changed
        embeddings = embedps.Embeddings(dims)  # changed
        self._embeddings = {}
        for feature_name in self._all_features:
            self._embeddings[feature_name] = embeddings.feature(feature_name)  # changed
        self._cross_layer = None
        if use_cross_layer:
            self._cross_layer = tfrs.layers.dcn.Cross(
                projection_dim=projection_dim, kernel_initializer="glorot_uniform"
            )
        self._deep_layers = [
            tf.keras.layers.Dense(size, activation="relu") for size in deep_layer_sizes
        ]
        self._logit_layer = tf.keras.layers.Dense(1)
        self.task = tfrs.tasks.Ranking(
            loss=tf.keras.losses.MeanSquaredError(),
            metrics=[tf.keras.metrics.RootMeanSquaredError("RMSE")],
        )

    def call(self, features):
        x = tf.concat([self._embeddings[n](features[n]) for n in self._all_features], axis=1)
        if self._cross_layer is not None:
            x = self._cross_layer(x)
        for deep_layer in self._deep_layers:
            x = deep_layer(x)
        return self._logit_layer(x)

    def compute_loss(self, features, training=False):
        labels = features.pop("user_rating")
        return self.task(labels=labels, predictions=self(features))


def make(config: Config, dataset: embedps.Dataset) -> embedps.Recommender:
    return embedps.Recommender(
        build=lambda: DCN(config.use_cross_layer, config.deep_layer_sizes),
        model=__name__,
        config=config,
    )
