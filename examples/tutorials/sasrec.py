"""SASRec (Kang and McAuley 2018), as in keras-rs' examples: self-attention over a history.

At each position of a user's history it ranks the next item above one that was drawn at random.
Lines that differ from a model over tf.keras.layers.Embedding end with `# changed`.
"""

import dataclasses

import embedps
import tensorflow as tf
import tensorflow_recommenders as tfrs

ITEMS = ("history", "next_items", "other_items")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    max_length: int = dataclasses.field(default=50, metadata={"help": "items of a history"})
    hidden: int = dataclasses.field(default=32, metadata={"help": "floats per item"})
    num_layers: int = dataclasses.field(default=2, metadata={"help": "attention blocks"})
    num_heads: int = dataclasses.field(default=1, metadata={"help": "attention heads per block"})
    dropout: float = dataclasses.field(default=0.2, metadata={"help": "share of dropped units"})


class Block(tf.keras.layers.Layer):
    def __init__(self, config: Config) -> None:
        super().__init__()
        layers = tf.keras.layers
        self.attention = layers.MultiHeadAttention(
            config.num_heads, config.hidden // config.num_heads, dropout=config.dropout
        )
        self.first_norm, self.second_norm = layers.LayerNormalization(), layers.LayerNormalization()
        self.widen = layers.Dense(config.hidden, activation="relu")
        self.narrow = layers.Dense(config.hidden)
        self.dropout = layers.Dropout(config.dropout)

    def call(self, x, padding_mask, training=False):
        mask = padding_mask[:, None, :]
        found = self.attention(
            self.first_norm(x), x, attention_mask=mask, use_causal_mask=True, training=training
        )
        x = x + self.dropout(found, training=training)
        y = self.narrow(self.widen(self.second_norm(x)))
        return x + self.dropout(y, training=training)


class SasRec(tfrs.Model):
    def __init__(self, config: Config) -> None:
        super().__init__()
        items = embedps.TableSpec(name="items", embedding_dim=config.hidden)  # changed
        kept = {"ragged": True, "combiner": "none", "max_length": config.max_length}
        specs = [embedps.FeatureSpec(name=n, table=items, **kept) for n in ITEMS]  # changed
        self.item_embeddings = embedps.Embeddings(specs)  # changed
        self.position_embedding = tf.keras.layers.Embedding(config.max_length, config.hidden)
        self.dropout = tf.keras.layers.Dropout(config.dropout)
        self.blocks = [Block(config) for _ in range(config.num_layers)]
        self.norm = tf.keras.layers.LayerNormalization()
        self._max_length = config.max_length

    def call(self, features, training=False):
        found = self.item_embeddings(features)  # changed
        mask = self.item_embeddings.compute_mask(features)["history"]  # changed
        positions = self.position_embedding(tf.range(self._max_length))
        x = self.dropout(found["history"] + positions, training=training)
        for block in self.blocks:
            x = block(x, mask, training=training)
        x = self.norm(x)
        scores = {n: tf.reduce_sum(x * found[n], axis=-1) for n in ITEMS[1:]}
        return {**scores, "mask": tf.cast(mask, tf.float32)}

    def compute_loss(self, features, training=False):
        scores = self(features, training=training)
        losses = tf.nn.softplus(-scores["next_items"]) + tf.nn.softplus(scores["other_items"])
        return tf.reduce_sum(losses * scores["mask"]) / tf.reduce_sum(scores["mask"])


def make(config: Config, dataset: embedps.Dataset) -> embedps.Recommender:
    return embedps.Recommender(build=lambda: SasRec(config), model=__name__, config=config)
