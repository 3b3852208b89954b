"""A Keras layer that looks embeddings up, in an engine's step or by itself."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record
from tf_keras.src.saving import serialization_lib

from embedps.config_fields import shown
from embedps.errors import UsageError
from embedps.layers import rate_callbacks
from embedps.layers.keras_ids import Padded, as_ids, in_place, refuse_keras_3
from embedps.layers.own_tables import OwnTables, Rate, mistake
from embedps.layers.passed_ids import are_of_column
from embedps.layers.server_tables import ServerTables
from embedps.layers.table_state import TableState
from embedps.tables import activations
from embedps.tables.activations import Activation, Ids
from embedps.tables.optimizers import rate_config, rate_of
from embedps.tables.specs import FeatureSpec, TableSpec, learning_rate_of, tables_of

_DEFAULT_RATE = 0.05


@tf.keras.utils.register_keras_serializable(package="embedps")
class Embeddings(tf.keras.layers.Layer):
    """Looks up the embeddings of a batch's features.

    The rows are in tables, not in Keras variables. An engine looks the rows of a step up before the
    step computes, in one message per server, and hands them to the layer (`providing`).

    In Keras mode, where no engine runs (`model.fit`, a loop with a GradientTape, `model.predict`),
    the layer has tables of its own: in this process, or on the servers of the
    ParameterServerStrategy in whose scope it was made. Its rows are updated when the gradient of a
    step is taken, by the tables' optimizers: the model's optimizer does not see them. So take the
    gradients of a step in one call. Under a GradientTape or with `training=True`, new ids get rows,
    unless `trainable` is false. Other calls leave the tables as they are, and read zeros for ids
    that have no row.

    Attributes:
      features: the columns of ids and the tables they are looked up in.
      tables: the tables.
      table_state: stands for the rows among the weights, in Keras mode.
      is_served: whether an engine hands the rows in, so that the layer has no tables of its own.
    """

    def __init__(
        self,
        features: Sequence[FeatureSpec] | Mapping[str, int],
        *,
        tables: Sequence[TableSpec] = (),
        learning_rate: Rate | None = None,
        padding_id: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Declares features and tables.

        Args:
          features: each names a column of ids and its table: a TableSpec, or the name of one in
            `tables`. Or the floats per row by column, each with a table of its own.
          tables: tables that features name.
          learning_rate: in Keras mode, of the rows of tables whose optimizer brings none, or a
            schedule of it over steps; by default 0.05. An engine has its config's
            `sparse_learning_rate`.
          padding_id: in Keras mode, what stands in a dense list where it has no id; None if all
            are ids. A dataset's lists have no padding.
          kwargs: those of `tf.keras.layers.Layer`.

        Raises:
          UsageError: names are not unique, or a table is not declared.
        """
        super().__init__(autocast=False, **kwargs)
        if isinstance(features, Mapping):
            features = [
                FeatureSpec(name=name, table=TableSpec(name=name, embedding_dim=dim))
                for name, dim in features.items()
            ]
        self.tables = tables_of(features, tables)
        self.features = tuple(dataclasses.replace(f, table=f.table_name) for f in features)
        self.is_served = False
        rate_callbacks.watch()
        own_rate = learning_rate_of(self.tables)
        theirs = {t.name: t.optimizer.learning_rate for t in self.tables}
        theirs = {name: rate for name, rate in theirs.items() if rate is not None}
        if learning_rate is None:
            learning_rate = _DEFAULT_RATE if own_rate is None else own_rate
        elif own_rate not in (None, learning_rate) or (callable(learning_rate) and theirs):
            raise UsageError(
                f"learning_rate is {shown(learning_rate)}, the tables' optimizers have "
                f"{own_rate or theirs}: leave one out"
            )
        self._learning_rate = learning_rate
        if padding_id is not None and not isinstance(padding_id, int):
            raise UsageError(f"padding_id must be an integer or None but got {padding_id!r}")
        self._padding_id = padding_id
        self._own: OwnTables | None = None
        inside = tf.distribute.has_strategy()
        self._strategy: Any = tf.distribute.get_strategy() if inside else None
        self.table_state = TableState(self) if self._may_own_tables() else None
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
                self._own = self._make_own()
        return self._own

    def _may_own_tables(self) -> bool:
        servers = tf.distribute.ParameterServerStrategy
        return self._strategy is None or isinstance(self._strategy, servers)

    def _make_own(self) -> OwnTables:
        declared = (self.tables, self.features, self._learning_rate)
        used = self._strategy
        if tf.distribute.has_strategy():
            used = tf.distribute.get_strategy()
        if used is None:
            return OwnTables(*declared)
        if not isinstance(used, tf.distribute.ParameterServerStrategy):
            raise mistake(
                "embedps.Embeddings keeps its tables in one process in Keras mode, or on the "
                f"servers of a ParameterServerStrategy, but got a {type(used).__name__}: leave it "
                "out, or train by embedps.Trainer, of which --replicas N --mirrored does the same"
            )
        if used is not self._strategy:
            raise mistake(
                "embedps.Embeddings must be made in the scope of the ParameterServerStrategy that "
                "uses it, but was made outside: make it in `with strategy.scope():`"
            )
        # A scope cannot be entered from a replica, which is in it already.
        inside = tf.distribute.has_strategy()
        with nullcontext() if inside else self._strategy.scope():
            return ServerTables(*declared, self._strategy)

    @property
    def trainable_weights(self) -> list[tf.Variable]:
        """In Keras mode one variable without effect, by whose gradient the rows learn."""
        return self._anchors() if self.trainable else []

    @property
    def non_trainable_weights(self) -> list[tf.Variable]:
        """In Keras mode one variable that stands for the rows; see `TableState`."""
        if not self._anchors():
            return []
        states = [] if self.table_state is None else [self.table_state]
        return [*([] if self.trainable else self._anchors()), *states]

    def count_params(self) -> int:
        """Counts the numbers in the rows that the tables have now, for `model.summary()`.

        Keras adds up the totals below it from the other layers' variables alone.
        """
        if self.is_served or self._own is None:
            return 0
        rows = self._own.collection.stats().rows
        return sum(rows[table.name] * table.embedding_dim for table in self._own.collection.tables)

    def _anchors(self) -> list[tf.Variable]:
        return [self.own.anchor] if self.built and not self.is_served else []

    def build(self, input_shape: Any) -> None:
        """Makes nothing: the tables are made where they are used."""
        self.built = True

    def call(self, inputs: Mapping[str, Any], training: bool | None = None) -> dict[str, Any]:
        """Gives the embeddings of the features among the inputs.

        Args:
          inputs: a batch: by feature int64 [batch], or ragged int64 [batch, None] for a ragged
            feature; in Keras mode also what `as_ids` takes. Other entries are ignored. Features
            may be absent.
          training: in Keras mode, True makes rows for new ids even if no GradientTape records.

        Returns:
          By feature what `EmbeddingCollection.combine` gives: float32 [batch, dim], or rows per
          position; and by its `rate_as`, how often the rows are updated. If rows are padded,
          Keras' mask says which positions have an id. A dense list [batch, length] that keeps its
          rows, without a max_length, gives [batch, length, dim]: zeros where the padding id is.

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
            ids, padded = self._ids(inputs)
            made: dict[str, Any] = {}
            for f in self.features:
                made |= self._symbolic(f, ids[f.name]) if f.name in wanted else {}
            return made | self._in_place(made, padded)
        if provided is None:
            ids, padded = self._ids(inputs)
            # As a variable would, the rows learn under any tape. A function that is traced outside
            # of one may still be differentiated.
            records = training is True or record.could_possibly_record()
            found = dict(self.own.look_up(ids, learns=self.trainable and records))
            return found | self._in_place(found, padded)
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
          By feature among the inputs, and by its `rate_as`, bool [batch, max_length], or [batch,
          length] of a dense list with a padding id; None if its rows have no padding. None if no
          feature's rows have.
        """
        masks: dict[str, Any] = {}  # of each output: Keras pairs them in the order of their names
        for f in self.features:
            if f.name not in inputs:
                continue
            has_id = None
            if f.keeps_rows:
                ids, padded = as_ids(f, inputs[f.name], self._padding_id)
                if f.max_length is not None:
                    has_id = activations.mask(f, ids)
                elif padded is not None and self._padding_id is not None:
                    has_id = padded.has_id
            masks |= {name: has_id for name in (f.name, f.rate_as) if name is not None}
        return None if all(mask is None for mask in masks.values()) else masks

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

    def _ids(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Ids], dict[str, Padded]]:
        """Gives the ids to look up, and where those of dense lists that keep their rows are."""
        given = [f for f in self.features if f.name in inputs]
        refuse_keras_3([inputs[f.name] for f in given])
        made = {f.name: as_ids(f, inputs[f.name], self._padding_id) for f in given}
        padded = {name: where for name, (_, where) in made.items() if where is not None}
        return {name: ids for name, (ids, _) in made.items()}, padded

    def _in_place(
        self, found: Mapping[str, Any], padded: Mapping[str, Padded]
    ) -> dict[str, Activation]:
        placed: dict[str, Activation] = {}
        for f in self.features:
            placed |= in_place(found, f, padded[f.name]) if f.name in padded else {}
        return placed

    def _symbolic(self, feature: FeatureSpec, ids: Any) -> dict[str, Any]:
        dim = next(table.embedding_dim for table in self.tables if table.name == feature.table_name)
        made = activations.samples(feature, ids, dim=dim, value=0.0)
        rows = made[feature.name]
        if not isinstance(rows, tf.RaggedTensor):
            made[feature.name] = tf.ensure_shape(rows, [None, *rows.shape[1:-1], dim])
        return made

    def get_config(self) -> dict[str, Any]:
        """Gives what `from_config` takes, as JSON has it.

        Raises:
          UsageError: the learning rate is a function of the caller's own.
        """
        try:
            return {
                **super().get_config(),
                "features": [feature.get_config() for feature in self.features],
                "tables": [table.get_config() for table in self.tables],
                "learning_rate": rate_config(self._learning_rate),
                "padding_id": self._padding_id,
            }
        except UsageError as error:
            raise mistake(f"embedps.Embeddings: {error}") from None

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Embeddings:
        """Makes a layer, without rows, of what `get_config` gave."""
        return cls(
            **config
            | {
                "features": [FeatureSpec.from_config(f) for f in config["features"]],
                "tables": [TableSpec.from_config(t) for t in config["tables"]],
                "learning_rate": rate_of(config["learning_rate"]),
            }
        )

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        if save_type == "savedmodel" and not self.is_served:
            raise mistake(
                "a SavedModel cannot hold the tables of embedps.Embeddings: save checkpoints by "
                "embedps.SaveCheckpoints, of which `embedps export` makes a SavedModel, or use "
                "model.save('model.keras') or save_weights"
            )
        return dict(super()._trackable_children(save_type, **kwargs))


@tf.keras.utils.register_keras_serializable(package="embedps")
class FeatureEmbedding(tf.keras.layers.Layer):
    """Looks up one feature of an Embeddings layer."""

    def __init__(self, embeddings: Embeddings, feature: str, **kwargs: Any) -> None:
        """Takes the layer; see `Embeddings.feature`."""
        super().__init__(autocast=False, **kwargs)
        self.embeddings = embeddings
        self._feature = feature

    def call(self, ids: Any, training: bool | None = None) -> Any:
        """Gives the feature's embeddings, as `Embeddings.call` does."""
        return self.embeddings({self._feature: ids}, training=training)[self._feature]

    def compute_mask(self, ids: Any, mask: Any = None) -> Any:
        """Makes the feature's mask, as `Embeddings.compute_mask` does."""
        masks = self.embeddings.compute_mask({self._feature: ids})
        return None if masks is None else masks[self._feature]

    def get_config(self) -> dict[str, Any]:
        """Gives what `from_config` takes: the Embeddings layer too.

        Raises:
          UsageError: what asks would not keep that several of these share their layer.
        """
        if not getattr(serialization_lib.SHARED_OBJECTS, "enabled", False):
            raise mistake(
                "a config of a model that uses Embeddings.feature cannot be made here, for its "
                "layers would no longer share their tables: use model.save('model.keras'), "
                "save_weights, or call the Embeddings layer with a dict of columns instead"
            )
        layer = tf.keras.saving.serialize_keras_object(self.embeddings)
        layer["shared_object_id"] = id(self.embeddings)  # Keras leaves it out of the first
        return {**super().get_config(), "embeddings": layer, "feature": self._feature}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> FeatureEmbedding:
        """Makes a layer of what `get_config` gave."""
        layer = tf.keras.saving.deserialize_keras_object(config["embeddings"])
        return cls(**config | {"embeddings": layer})


def _is_scratch() -> bool:
    """Tells whether Keras traces the layer only to learn the shapes of its outputs."""
    return str(getattr(tf.compat.v1.get_default_graph(), "name", "")).endswith("_scratch_graph")
