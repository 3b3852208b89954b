"""Two towers: a query's and an item's vector, whose dot product is the score."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_recommenders as tfrs

from embedps.data.corpus import Corpus
from embedps.layers import losses
from embedps.layers.candidates import Candidates
from embedps.layers.dense import MLP
from embedps.layers.embeddings import Embeddings
from embedps.layers.retrieval_metrics import RetrievalMetrics

from .names import COUNTED, NEGATIVES, NEGATIVES_COUNTED, NEGATIVES_RATE, RATE
from .parts import HiddenLayers, drawn


class _Tower(tf.keras.layers.Layer):
    """Maps features' vectors to one of some dim; without hidden layers it adds them."""

    def __init__(self, hidden: Sequence[int], dim: int, *, dropout: float) -> None:
        super().__init__(autocast=False)
        self._hidden = HiddenLayers(hidden, dropout=dropout) if hidden else None
        self._out = MLP([dim]) if hidden else None

    def call(self, vectors: list[tf.Tensor], training: bool = False) -> tf.Tensor:
        if self._hidden is None or self._out is None:
            return tf.add_n(vectors)
        return self._out(self._hidden(tf.concat(vectors, axis=1), training=training))


class TwoTower(tfrs.Model):
    """Retrieves items whose vector is close to the query's."""

    def __init__(self, embeddings: Embeddings, corpus: Corpus, config: Any) -> None:
        """Makes the layers.

        Args:
          embeddings: looks up the columns of the config, and NEGATIVES.
          corpus: the items.
          config: an `embedps.models.two_tower.Config`.
        """
        super().__init__()
        dim = config.embedding_dim
        self.embeddings = embeddings
        self.query_tower = _Tower(config.tower_mlp, dim, dropout=config.dropout)
        self.item_tower = _Tower(config.tower_mlp, dim, dropout=config.dropout)
        self._from_history = None
        if config.history is not None:
            # Of the items' own rows, a query begins in the items' space, so that items of the same
            # users approach each other from the first step. A random start would have to be
            # learned away, for which users of few items have too few steps.
            first = "identity" if config.history_table == "item" else "glorot_uniform"
            self._from_history = tf.keras.layers.Dense(
                dim, use_bias=False, kernel_initializer=first
            )
        self._config, self._item, self.weight = config, config.item[0], ""
        self._catalog = tf.constant(corpus.ids)
        looked_up = {feature.name for feature in embeddings.features}
        self._made = looked_up & {NEGATIVES, COUNTED, NEGATIVES_COUNTED}
        self.candidates = Candidates(corpus.batches(), self.encode_items, identifier=self._item)
        self.scores = RetrievalMetrics(self.candidates, at=config.at)

    def prepare(self, features: Mapping[str, Any], *, training: bool) -> dict[str, tf.Tensor]:
        """Draws items from the catalog, all equally probable: the negatives of a step."""
        made = {}
        if NEGATIVES in self._made:
            count = self._config.num_negatives if training else 0
            made[NEGATIVES] = drawn(self._catalog, count)
        if COUNTED in self._made:
            made[COUNTED] = features[self._item]
        if NEGATIVES_COUNTED in self._made:
            made[NEGATIVES_COUNTED] = made[NEGATIVES]
        return made

    def encode_items(self, features: Mapping[str, Any]) -> tf.Tensor:
        """Encodes items from their columns, float32 [batch, dim]."""
        names = self._config.item
        return self._encode(self.embeddings({n: features[n] for n in names}), training=False)

    def call(self, features: Mapping[str, Any], training: bool = False) -> dict[str, tf.Tensor]:
        """Gives the query's vector, the item's, and their score."""
        config, training = self._config, bool(training)
        history = [config.history] if config.history else []
        names = [*config.query, *config.item, *history]
        found = self.embeddings({name: features[name] for name in names})
        query = self._encode_query(found, training=training)
        item = self._encode(found, training=training)
        return {"score": tf.reduce_sum(query * item, axis=1), "query": query, "item": item}

    def compute_loss(self, features: Mapping[str, Any], training: bool = False) -> tf.Tensor:
        """Computes the loss of a batch, and counts ranks when not in training."""
        config = self._config
        if not self._made <= features.keys():
            features = {**features, **self.prepare(features, training=training)}
        found = self.embeddings(features)
        queries = self._encode_query(found, training=training)
        items, ids = self._encode(found, training=training), features[self._item]
        if not training:
            wanted = features[config.held_out or self._item]
            seen = features[config.seen] if config.seen else None
            self.scores.update_state(queries, wanted, seen)
        negatives = self._negatives(features, found, training=training)
        weights = features[self.weight] if self.weight else None
        if config.loss == "ccl" and negatives is not None:
            return losses.cosine_contrastive_loss(
                queries,
                items,
                ids,
                negatives=negatives,
                margin=config.margin,
                negative_weight=config.negative_weight,
                weights=weights,
            )
        if config.loss == "bpr" and negatives is not None:
            return losses.bpr_loss(queries, items, ids, negatives=negatives, weights=weights)
        hard, name = None, config.hard_negatives
        if name is not None:
            lists = features[name].to_tensor()
            # What fills shorter lists is no item: as the row's own id, it is no negative.
            is_there = tf.sequence_mask(features[name].row_lengths(), tf.shape(lists)[1])
            lists = tf.where(is_there, lists, ids[:, None])
            hard = (self._normalized(found[name].to_tensor()), lists)
        loss = losses.in_batch_softmax_loss(
            queries,
            items,
            ids,
            rates=found.get(RATE),
            temperature=config.temperature,
            negatives=negatives,
            hard=hard,
            weights=weights,
        )
        # A gradient of 0 counts an update.
        counted = [found[name] for name in (COUNTED, NEGATIVES_COUNTED) if name in self._made]
        return tf.add_n([loss, *(0.0 * tf.reduce_sum(rows) for rows in counted)])

    def _negatives(
        self, features: Mapping[str, Any], found: Mapping[str, Any], *, training: bool
    ) -> losses.Negatives | None:
        if not self._config.num_negatives:
            return None
        vectors = self.item_tower([found[NEGATIVES]], training=training)
        return losses.Negatives(
            vectors=self._normalized(vectors),
            ids=features[NEGATIVES],
            rates=found.get(NEGATIVES_RATE),
        )

    def _encode_query(self, found: Mapping[str, Any], *, training: bool) -> tf.Tensor:
        query = self.query_tower([found[n] for n in self._config.query], training=training)
        if self._from_history is not None:
            share = self._config.history_weight
            of_history = self._from_history(found[self._config.history])
            query = (1 - share) * query + share * of_history
        return self._normalized(query)

    def _encode(self, found: Mapping[str, Any], *, training: bool) -> tf.Tensor:
        vectors = [found[name] for name in self._config.item]
        return self._normalized(self.item_tower(vectors, training=training))

    def _normalized(self, vectors: tf.Tensor) -> tf.Tensor:
        return tf.nn.l2_normalize(vectors, axis=-1) if self._config.normalize else vectors
