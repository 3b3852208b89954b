"""A Keras layer that looks embeddings up, in an engine's step or by itself."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record

from embedps.errors import UsageError
from embedps.layers.own_tables import OwnTables, Rate, mistake
from embedps.layers.passed_ids import are_of_column
from embedps.tables import activations
from embedps.tables.specs import FeatureSpec, TableSpec, tables_of


class Embeddings(tf.keras.layers.Layer):
    """Looks up the embeddings of a batch's features.

    The rows are in tables, not in Keras variables. An engine looks the rows of a step up before the
    step computes, in one message per server, and hands them to the layer (`providing`).

    In Keras mode, where no engine runs (`model.fit`, a loop with a GradientTape, `model.predict`),
    the layer has tables of its own, in this process. Its rows are updated when the gradient of a
    step is taken, by the tables' optimizers: the model's optimizer does not see them. So take the
    gradients of a step in one call. Under a GradientTape or with `training=True`, new ids get rows,
    unless `trainable` is false. Other calls leave the tables as they are, and read zeros for ids
    that have no row.

    Attributes:
      features: the columns of ids and the tables they are looked up in.
      tables: the tables.
      is_served: whether an engine hands the rows in, so that the layer has no tables of its own.
    """

    def __init__(
        self,
        features: Sequence[FeatureSpec] | Mapping[str, int],
        *,
        tables: Sequence[TableSpec] = (),
        learning_rate: Rate = 0.05,
        **kwargs: Any,
    ) -> None:
        """Declares features and tables.

        Args:
          features: each names a column of ids and its table: a TableSpec, or the name of one in
            `tables`. Or the floats per row by column, each with a table of its own.
          tables: tables that features name.
          learning_rate: of the rows in Keras mode, or a schedule of it over steps. An engine has
            its config's `sparse_learning_rate`.
          kwargs: those of `tf.keras.layers.Layer`.

        Raises:
          UsageError: names are not unique, or a table is not declared.
        """
        super().__init__(autocast=False, **kwargs)
        if isinstance(features, Mapping):
            features = [
                FeatureSpec(name=name, table=TableSpec(name=name, dim=dim))
                for name, dim in features.items()
            ]
        self.tables = tables_of(features, tables)
        self.features = tuple(dataclasses.replace(f, table=f.table_name) for f in features)
        self.is_served = False
        self._learning_rate = learning_rate
        self._own: OwnTables | None = None
        self._provided = threading.local()

    @property
    def own(self) -> OwnTables:
        """The layer's tables in Keras mode.

        Raises:
          UsageError: an engine serves the layer, or tf.distribute is in use.
        """
        if self.is_served:
            raise mistake("an engine serves this embedps.Embeddings: it has no tables of its own")
        if self._own is None:
            with tf.init_scope():
                self._own = OwnTables(self.tables, self.features, self._learning_rate)
        return self._own

    @property
    def trainable_weights(self) -> list[tf.Variable]:
        """In Keras mode one variable without effect, by whose gradient the rows learn."""
        is_used = self.built and self.trainable and not self.is_served
        return [self.own.anchor] if is_used and not tf.distribute.has_strategy() else []

    def build(self, input_shape: Any) -> None:
        """Makes nothing: the tables are made where they are used."""
        self.built = True

    def call(self, inputs: Mapping[str, Any], training: bool | None = None) -> dict[str, Any]:
        """Gives the embeddings of the features among the inputs.

        Args:
          inputs: a batch: by feature int64 [batch], or ragged int64 [batch, None] for a ragged
            feature; other entries are ignored. Features may be absent.
          training: in Keras mode, True makes rows for new ids even if no GradientTape records.

        Returns:
          By feature what `EmbeddingCollection.combine` gives: float32 [batch, dim], or rows per
          position; and by its `rate_as`, how often the rows are updated. If rows are padded,
          Keras' mask says which positions have an id.

        Raises:
          UsageError: the inputs are no dict, have none of the features, or a feature is looked up
            twice in a step.
        """
        if not isinstance(inputs, Mapping):
            raise mistake(
                "embedps.Embeddings must be called with a batch's dict of columns but got a "
                f"{type(inputs).__name__}: pass {{'column': ids}}"
            )
        wanted = [f.name for f in self.features if f.name in inputs]
        if not wanted:
            raise mistake(
                f"embedps.Embeddings looks up {[f.name for f in self.features]}, but the batch has "
                f"none of them: {sorted(inputs)}"
            )
        provided = getattr(self._provided, "activations", None)
        if provided is None and _is_scratch():  # a functional model is declared: only shapes count
            made: dict[str, Any] = {}
            for f in self.features:
                made |= self._symbolic(f, inputs[f.name]) if f.name in wanted else {}
            return made
        if provided is None:
            ids = {name: inputs[name] for name in wanted}
            # As a variable would, the rows learn under any tape. A function that is traced outside
            # of one may still be differentiated.
            records = training is True or record.could_possibly_record()
            return dict(self.own.look_up(ids, learns=self.trainable and records))
        for name in wanted:
            if name in self._provided.taken:
                raise mistake(
                    f"feature {name!r} is looked up twice in a step: call the Embeddings layer "
                    "once per feature, and pass on what it returns"
                )
            self._provided.taken.add(name)
            self._check_passed(name, inputs[name])
        rates = [f.rate_as for f in self.features if f.name in wanted and f.rate_as is not None]
        return {name: provided[name] for name in (*wanted, *rates)}

    def feature(self, name: str) -> FeatureEmbedding:
        """Makes a layer that looks one feature up, given its ids alone.

        It takes the place of a `tf.keras.layers.Embedding`: `layer(batch["user_id"])`.

        Raises:
          UsageError: there is no such feature.
        """
        known = [f.name for f in self.features]
        if name not in known:
            raise UsageError(f"there is no feature {name!r}: the features are {known}")
        return FeatureEmbedding(self, name)

    def compute_mask(self, inputs: Mapping[str, Any], mask: Any = None) -> dict[str, Any] | None:
        """Makes the masks of features with a max_length, which Keras gives to the next layers.

        Returns:
          By feature among the inputs bool [batch, max_length], or None if it has no max_length.
          None if no feature has one.
        """
        if all(feature.max_length is None for feature in self.features):
            return None
        return {
            f.name: None if f.max_length is None else activations.mask(f, inputs[f.name])
            for f in self.features
            if f.name in inputs
        }

    @contextmanager
    def providing(
        self, provided: Mapping[str, Any], ids: Mapping[str, Any] | None = None
    ) -> Iterator[None]:
        """Makes calls in this thread return these activations within the block.

        In a graph, calls with other ids are refused.

        Args:
          provided: by feature, as `EmbeddingCollection.combine` returns them.
          ids: by feature, those that were looked up; of other features, any are taken.
        """
        before = vars(self._provided).copy()
        self._provided.activations, self._provided.taken = provided, set()
        self._provided.ids = ids or {}
        try:
            yield
        finally:
            vars(self._provided).clear()
            vars(self._provided).update(before)

    def _check_passed(self, name: str, ids: Any) -> None:
        column = self._provided.ids.get(name)
        if column is not None and not are_of_column(ids, column):
            raise mistake(
                f"feature {name!r} must be looked up by the batch's own column {name!r}, which "
                "embedps looks up before the model runs, but the model passes other ids to "
                "embedps.Embeddings: return them by the feature's name from the model's "
                "prepare(features, training), or train in Keras mode, by fit"
            )

    def _symbolic(self, feature: FeatureSpec, ids: Any) -> dict[str, Any]:
        dim = next(table.dim for table in self.tables if table.name == feature.table_name)
        made = activations.samples(feature, ids, dim=dim, value=0.0)
        rows = made[feature.name]
        if not isinstance(rows, tf.RaggedTensor):
            made[feature.name] = tf.ensure_shape(rows, [None, *rows.shape[1:-1], dim])
        return made

    def get_config(self) -> dict[str, Any]:
        """Returns what `from_config` takes."""
        return {
            **super().get_config(),
            "features": self.features,
            "tables": self.tables,
            "learning_rate": self._learning_rate,
        }


class FeatureEmbedding(tf.keras.layers.Layer):
    """Looks up one feature of an Embeddings layer."""

    def __init__(self, embeddings: Embeddings, name: str, **kwargs: Any) -> None:
        """Takes the layer; see `Embeddings.feature`."""
        super().__init__(autocast=False, **kwargs)
        self.embeddings = embeddings
        self._feature = name

    def call(self, ids: Any, training: bool | None = None) -> Any:
        """Gives the feature's embeddings, as `Embeddings.call` does."""
        return self.embeddings({self._feature: ids}, training=training)[self._feature]

    def compute_mask(self, ids: Any, mask: Any = None) -> Any:
        """Makes the feature's mask, as `Embeddings.compute_mask` does."""
        masks = self.embeddings.compute_mask({self._feature: ids})
        return None if masks is None else masks[self._feature]


def _is_scratch() -> bool:
    """Tells whether Keras traces the layer only to learn the shapes of its outputs."""
    return str(getattr(tf.compat.v1.get_default_graph(), "name", "")).endswith("_scratch_graph")
