"""A recommender's model as a step runs it: built, with its tables, columns, loss and outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from embedps.data.dataset import Dataset
from embedps.data.unit_reader import NUMERICS, Batch, UnitReader
from embedps.engine import model_interface
from embedps.engine.click_model import NetworkModel
from embedps.engine.metric_counts import MetricCounts
from embedps.engine.network_interface import check_logits, check_network
from embedps.engine.recommender import Recommender
from embedps.errors import UsageError
from embedps.layers.embeddings import Embeddings
from embedps.metrics import Accumulator, Counts
from embedps.tables.activations import Activation, sample
from embedps.tables.specs import FeatureSpec, TableSpec

_SAMPLE_ROWS = 2


class StepModel:
    """A model, its variables made, with what a step reads for it.

    Attributes:
      recommender: the declaration.
      model: the Keras model.
      embeddings: its Embeddings layer.
      metrics: its metrics, as counts.
      reader_columns: the arguments of a UnitReader that name columns.
    """

    def __init__(self, recommender: Recommender, dataset: Dataset | None = None) -> None:
        """Makes the model and its variables; call it in the strategy's scope.

        Args:
          recommender: the declaration.
          dataset: whose columns the model gets; not needed if the recommender declares features.

        Raises:
          UsageError: the model is not one that the engine can train, the dataset lacks a column
            that it looks up, or a variable has no values.
        """
        self.recommender = recommender
        if recommender.features:
            self.model: tf.keras.Model = _network_model(recommender)
            self.reader_columns = _declared_columns(recommender)
        else:
            self.model = recommender.build()
            model_interface.check_model(self.model)
            if dataset is None:
                raise UsageError("a model without declared features must be built for a dataset")
            self.reader_columns = columns_of(dataset, recommender.columns)
        self.embeddings: Embeddings = model_interface.find_embeddings(self.model)
        self.embeddings.is_served = True
        self._labels = self.reader_columns["labels"]
        self._weight = self.reader_columns.get("weight") or ""
        self._check_columns()
        self._make_variables()
        if not recommender.features and recommender.columns is None:
            self._drop_unused_columns()

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """The tables of the model's features."""
        return self.embeddings.tables

    @property
    def features(self) -> tuple[FeatureSpec, ...]:
        """The features that the model looks up."""
        return self.embeddings.features

    @property
    def network(self) -> tf.keras.Model:
        """The dense part: what a checkpoint holds besides the tables."""
        return self.model.network if isinstance(self.model, NetworkModel) else self.model

    @property
    def variables(self) -> list[tf.Variable]:
        """The variables that a checkpoint holds: all but those of metrics."""
        counted = {id(v) for v in self.metrics.variables}
        return [v for v in self.model.variables if id(v) not in counted]

    @property
    def optimizer(self) -> Any:
        """A function that makes the model's own optimizer; None if the run's config says which."""
        if self.recommender.optimizer is not None:
            return self.recommender.optimizer
        compiled = getattr(self.model, "optimizer", None)
        return None if compiled is None else lambda: compiled

    @property
    def state(self) -> list[tf.Variable]:
        """The variables that the model itself may update, such as moving averages."""
        counted = {id(v) for v in self.metrics.variables}
        return [v for v in self.model.non_trainable_variables if id(v) not in counted]

    def input(self, *, batch_rows: int, shuffle_rows: int) -> UnitReader:
        """Makes the reader of the model's columns."""
        return UnitReader(
            batch_rows=batch_rows,
            shuffle_rows=shuffle_rows,
            missing_id=self.recommender.missing_id,
            **self.reader_columns,
        )

    def loss(
        self, columns: Mapping[str, Any], activations: Mapping[str, Any], *, training: bool
    ) -> tf.Tensor:
        """Computes what a step minimizes, float32 scalar.

        Args:
          columns: of the batch.
          activations: of its features, as `EmbeddingCollection.combine` returns them.
          training: as Keras has it.
        """
        with self.embeddings.providing(activations):
            return model_interface.step_loss(
                self.model, columns, labels=self._labels, weight=self._weight, training=training
            )

    def count(
        self, batch: Batch, activations: Mapping[str, Any], *, training: bool
    ) -> tuple[tf.Tensor, Counts]:
        """Computes what a step minimizes, and counts the batch; see `loss`.

        Returns:
          The loss, and the counts: "examples", "loss" (the loss times the examples), and what the
          model's metrics counted.
        """
        with self.metrics.collecting() as collected:
            loss = self.loss(batch.columns, activations, training=training)
        rows = tf.cast(batch.num_rows, tf.float64)
        total = tf.cast(loss, tf.float64) * rows
        return loss, {"examples": rows, "loss": total, **collected.counts}

    def zero_counts(self) -> Counts:
        """Returns the counts of no examples."""
        zero = tf.zeros([], tf.float64)
        return {"examples": zero, "loss": zero, **self.metrics.zero()}

    def accumulator(self) -> Accumulator:
        """Makes an accumulator of this model's counts."""
        return Accumulator(self.metrics.scores)

    def outputs(
        self, columns: Mapping[str, Any], activations: Mapping[str, Any]
    ) -> dict[str, tf.Tensor]:
        """Computes predictions by name; see `loss` for the arguments."""
        with self.embeddings.providing(activations):
            return model_interface.outputs(self.model, columns)

    def is_finite_where_missing(self) -> bool:
        """Tells whether the loss is finite if all numeric columns are missing."""
        batch, missing = self._sample(), float("nan")
        for name in self.reader_columns["numerics"]:
            batch[name] = tf.fill([_SAMPLE_ROWS], missing)
        batch[NUMERICS] = tf.fill([_SAMPLE_ROWS, len(self.reader_columns["numerics"])], missing)
        with self.metrics.collecting():
            loss = self.loss(batch, self._sample_activations(), training=False)
        return bool(tf.math.is_finite(loss))

    def column_specs(self) -> dict[str, Any]:
        """Returns the specs of a batch's columns, of any number of rows."""
        return {name: _any_rows(value) for name, value in self._sample().items()}

    def activation_specs(self) -> dict[str, Any]:
        """Returns the specs of a batch's activations."""
        return {name: _any_rows(value) for name, value in self._sample_activations().items()}

    def _check_columns(self) -> None:
        kinds = {"ids": False, "id_lists": True}
        known = {
            name: ragged for kind, ragged in kinds.items() for name in self.reader_columns[kind]
        }
        for feature in self.features:
            if feature.name not in known:
                raise UsageError(
                    f"the model looks up feature {feature.name!r}, but the dataset has no such "
                    f"column of ids: there are {', '.join(known) or 'none'}"
                )
            if known[feature.name] != feature.ragged:
                raise UsageError(
                    f"feature {feature.name!r} must be declared with ragged="
                    f"{known[feature.name]}, as the dataset's column is, but has ragged="
                    f"{feature.ragged}"
                )

    def _sample(self) -> dict[str, Any]:
        """Makes a batch as a reader gives it."""
        rows, columns = _SAMPLE_ROWS, self.reader_columns
        batch: dict[str, Any] = {}
        batch[NUMERICS] = tf.ones([rows, len(columns["numerics"])])
        batch |= {name: tf.ones([rows]) for name in columns["numerics"]}
        batch |= {name: tf.constant([0.0, 1.0]) for name in columns["labels"]}
        batch |= {name: tf.ones([rows], tf.int64) for name in columns["ids"]}
        # No list is empty: Keras' mean over nothing is NaN, and a dataset may have no such list.
        lists = tf.RaggedTensor.from_row_splits(tf.ones([3], tf.int64), [0, 1, 3])
        batch |= {name: lists.with_row_splits_dtype(tf.int64) for name in columns["id_lists"]}
        return batch

    def _sample_activations(self) -> dict[str, Activation]:
        dims, batch = {table.name: table.dim for table in self.tables}, self._sample()
        return {
            f.name: sample(f, batch[f.name], dim=dims[f.table_name], value=0.01)
            for f in self.features
        }

    def _make_variables(self) -> None:
        """Calls the model once, and forgets what its metrics counted."""
        batch, activations = self._sample(), self._sample_activations()
        if isinstance(self.model, NetworkModel):
            with self.embeddings.providing(activations):
                rows = self.model.look_up(batch)
                answer = self.network(batch[NUMERICS], rows, training=False)
            self._check_shapes()
            check_logits(answer, batch_rows=_SAMPLE_ROWS)
        self.loss(batch, activations, training=False)
        self._check_shapes()
        for metric in self.model.metrics:
            metric.reset_state()
        self.metrics = MetricCounts(self.model)
        self.metrics.check(lambda: self.loss(batch, activations, training=False))

    def _check_shapes(self) -> None:
        for variable in self.model.variables:
            # In a graph, TensorFlow's product over nothing ends the process (oneDNN, float32).
            if variable.shape.num_elements() == 0:
                raise UsageError(
                    f"the network's variable {variable.name!r} must have at least 1 value but is "
                    f"of shape {variable.shape.as_list()}: leave a layer out whose inputs have no "
                    f"columns (there are {len(self.reader_columns['numerics'])} numerics)"
                )

    def _drop_unused_columns(self) -> None:
        """Keeps the columns that the model's loss depends on, so that no others are read."""
        used: set[str] = {feature.name for feature in self.features}
        for training in (True, False):
            used |= _used_inputs(
                lambda columns, activations, mode=training: self.loss(
                    columns, activations, training=mode
                ),
                self.column_specs(),
                self.activation_specs(),
            )
        columns = self.reader_columns
        if NUMERICS in used:
            used |= set(columns["numerics"])
        self.reader_columns = {
            kind: tuple(n for n in names if n in used) if isinstance(names, tuple) else names
            for kind, names in columns.items()
        }


def _network_model(recommender: Recommender) -> NetworkModel:
    network = recommender.build()
    check_network(network)
    embeddings = Embeddings(recommender.features, tables=recommender.tables)
    return NetworkModel(network, embeddings, label=recommender.label)


def _declared_columns(recommender: Recommender) -> dict[str, Any]:
    return {
        "labels": (recommender.label,),
        "numerics": recommender.numerics,
        "ids": tuple(f.name for f in recommender.features if not f.ragged),
        "id_lists": tuple(f.name for f in recommender.features if f.ragged),
    }


def columns_of(dataset: Dataset, names: tuple[str, ...] | None) -> dict[str, Any]:
    """Gives a dataset's columns by the reader's kinds: all, or those of some names."""
    kinds = {
        "labels": (dataset.label,),
        "numerics": tuple(f.name for f in dataset.numeric),
        "ids": tuple(f.name for f in dataset.categorical if not f.ragged),
        "id_lists": tuple(f.name for f in dataset.categorical if f.ragged),
    }
    if names is None:
        return kinds
    known = [name for of_kind in kinds.values() for name in of_kind]
    if absent := [name for name in names if name not in known]:
        raise UsageError(
            f"{dataset.directory} has no column {absent[0]!r}, which the model reads: its columns "
            f"are {', '.join(known)}"
        )
    return {kind: tuple(n for n in of_kind if n in names) for kind, of_kind in kinds.items()}


def _any_rows(value: Any) -> Any:
    if isinstance(value, tf.RaggedTensor):
        return tf.RaggedTensorSpec(
            [None, *value.shape[1:]], value.dtype, value.ragged_rank, value.row_splits.dtype
        )
    return tf.TensorSpec([None, *value.shape[1:]], value.dtype)


def _used_inputs(
    compute: Callable[..., tf.Tensor], columns: Mapping[str, Any], activations: Mapping[str, Any]
) -> set[str]:
    """Traces a function of columns; gives those that its result or a written state depends on."""
    given: dict[str, list[tf.Tensor]] = {}

    @tf.function
    def traced(columns: dict[str, Any], activations: dict[str, Any]) -> tf.Tensor:
        given.update(
            {
                name: tf.nest.flatten(value, expand_composites=True)
                for name, value in columns.items()
            }
        )
        return tf.distribute.get_strategy().run(compute, args=(columns, activations))

    graph = traced.get_concrete_function(dict(columns), dict(activations)).graph
    reached: set[str] = set()
    waiting = [t.op for t in graph.outputs] + [
        op for op in graph.get_operations() if op.op_def.is_stateful and op.type != "Placeholder"
    ]
    while waiting:
        op = waiting.pop()
        if op.name not in reached:
            reached.add(op.name)
            waiting += [t.op for t in op.inputs]
    return {name for name, parts in given.items() if any(p.op.name in reached for p in parts)}
