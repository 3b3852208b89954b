"""A recommender's model as a step runs it: built, with its tables, columns, loss and outputs."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from embedps.data.columns import SAMPLE_ROWS, Columns
from embedps.data.dataset import Dataset
from embedps.data.unit_reader import NUMERICS, Batch, UnitReader
from embedps.engine import model_interface
from embedps.engine.click_model import ClickModel
from embedps.engine.corpus_metrics import (
    candidates_of,
    corpus_metrics,
    encoder,
    ranking,
)
from embedps.engine.metric_counts import MetricCounts
from embedps.engine.random_numbers import unseeded
from embedps.engine.recommender import Recommender
from embedps.engine.variable_names import name_variables
from embedps.errors import UsageError
from embedps.layers.candidates import Candidates
from embedps.layers.embeddings import Embeddings
from embedps.metrics import Accumulator, Counts
from embedps.tables.activations import Activation, samples
from embedps.tables.collection import EmbeddingCollection
from embedps.tables.specs import FeatureSpec, TableSpec


class StepModel:
    """A model, its variables made, with what a step reads for it.

    Attributes:
      recommender: the declaration.
      model: the Keras model.
      embeddings: its Embeddings layer.
      metrics: its metrics that a step updates, as counts.
      columns: the columns that a step reads.
    """

    def __init__(self, recommender: Recommender, dataset: Dataset) -> None:
        """Makes the model and its variables; call it in the strategy's scope.

        Args:
          dataset: whose columns the model gets.

        Raises:
          UsageError: the model is not one that the engine can train, the dataset lacks a column
            that it reads, a label is of another task, or a variable has no values.
        """
        self.recommender = recommender
        self.transforms = dataset.transforms_digest
        self.model: tf.keras.Model = recommender.build()
        model_interface.check_model(self.model)
        self.columns = Columns.of(dataset, recommender.columns)
        self.embeddings: Embeddings = model_interface.find_embeddings(self.model)
        self.embeddings.is_served = True
        # All that the model may name; a step reads those that its loss depends on.
        self._offered = self.columns
        if isinstance(self.model, ClickModel):
            _declare_label(self.model, dataset)
        self._candidates = candidates_of(self.model)
        self._check_columns()
        self._make_variables()
        used = self._used_columns()  # traces the model: ids that are not columns are refused
        if recommender.columns is None:
            self.columns = self.columns_of(used)
        self._check_call()

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """The tables of the model's features."""
        return self.embeddings.tables

    @property
    def features(self) -> tuple[FeatureSpec, ...]:
        """The features that the model looks up."""
        return self.embeddings.features

    @property
    def variables(self) -> list[tf.Variable]:
        """The variables that a checkpoint holds: all but those of metrics."""
        counted = {id(v) for v in self._scored.variables}
        return [v for v in self.model.variables if id(v) not in counted]

    @property
    def named_variables(self) -> dict[str, tf.Variable]:
        """Those `variables` by the names that they have in a checkpoint."""
        return name_variables(self.model, self.variables)

    @property
    def has_row_schedule(self) -> bool:
        """Whether the model has a schedule of the tables' learning rate."""
        return self.recommender.row_schedule is not None

    def row_rates(self) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
        """Makes the function of a step's number and its unit's rate that gives the step's rate.

        Without a schedule, that is the unit's rate. With one, the unit's rate is a factor.

        Raises:
          UsageError: the recommender makes something else than a schedule.
        """
        make = self.recommender.row_schedule
        if make is None:
            return lambda number, rate: rate
        schedule = make()
        if not isinstance(schedule, tf.keras.optimizers.schedules.LearningRateSchedule):
            raise UsageError(
                "row_schedule must make a tf.keras.optimizers.schedules.LearningRateSchedule but "
                f"made a {type(schedule).__name__}"
            )
        return lambda number, rate: rate * tf.cast(schedule(number), tf.float32)

    @property
    def embedding_dim(self) -> int | None:
        """What the model's config calls so, if it does: its rows may have more floats."""
        declared = getattr(self.recommender.config, "embedding_dim", None)
        return declared if isinstance(declared, int) else None

    @property
    def rows_learn(self) -> bool:
        """Whether training makes rows and updates them: not if Keras' `trainable` is false."""
        return bool(self.model.trainable and self.embeddings.trainable)

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
        counted = {id(v) for v in self._scored.variables}
        return [v for v in self.model.non_trainable_variables if id(v) not in counted]

    def input(self, *, batch_rows: int, shuffle_rows: int) -> UnitReader:
        """Makes the reader of the model's columns."""
        return self.columns.reader(
            batch_rows=batch_rows,
            shuffle_rows=shuffle_rows,
            missing_id=self.recommender.missing_id,
        )

    def prepare(self, columns: Mapping[str, Any], *, training: bool) -> dict[str, Any]:
        """Adds the columns that the model computes of others, such as ids drawn at random.

        Args:
          columns: of the batch, as they are read.
          training: as Keras has it.
        """
        make = getattr(self.model, "prepare", None)
        if make is None:
            return dict(columns)
        with unseeded():
            return {**columns, **make(self.fill(columns), training=training)}

    @functools.cached_property
    def prepared_features(self) -> frozenset[str]:
        """The features whose ids `prepare` makes when the model predicts."""
        read = self.columns.sample()
        ready = self.prepare(read, training=False)
        names = [feature.name for feature in self.features]
        return frozenset(n for n in names if n in ready and ready[n] is not read.get(n))

    def loss(
        self,
        columns: Mapping[str, Any],
        activations: Mapping[str, Any],
        *,
        training: bool,
        candidates: Sequence[tf.Tensor] = (),
    ) -> tf.Tensor:
        """Computes what a step minimizes, float32 scalar.

        Args:
          columns: of the batch, as `prepare` returns them.
          activations: of its features, as `EmbeddingCollection.combine` returns them.
          training: as Keras has it.
          candidates: those that `encode_candidates` returned, for metrics that rank them; empty in
            training, which leaves these metrics out.
        """
        with (
            self.embeddings.providing(activations, columns),
            ranking(self.model, self._candidates, candidates),
        ):
            return model_interface.step_loss(
                self.model,
                self.fill(columns),
                targets=self._offered,
                training=training,
            )

    def count(
        self,
        batch: Batch,
        activations: Mapping[str, Any],
        *,
        training: bool,
        candidates: Sequence[tf.Tensor] = (),
    ) -> tuple[tf.Tensor, Counts]:
        """Computes what a step minimizes, and counts the batch; see `loss`.

        Returns:
          The loss, and the counts: "examples", "loss" (the loss times the examples), and what the
          model's metrics counted.
        """
        metrics = self.metrics if training else self._scored
        with metrics.collecting() as collected:
            loss = self.loss(batch.columns, activations, training=training, candidates=candidates)
        rows = tf.cast(batch.num_rows, tf.float64)
        total = tf.cast(loss, tf.float64) * rows
        return loss, {"examples": rows, "loss": total, **collected.counts}

    def zero_counts(self, *, training: bool) -> Counts:
        """Returns the counts of no examples."""
        zero = tf.zeros([], tf.float64)
        metrics = self.metrics if training else self._scored
        return {"examples": zero, "loss": zero, **metrics.zero()}

    def accumulator(self, *, training: bool) -> Accumulator:
        """Makes an accumulator of this model's counts."""
        metrics = self.metrics if training else self._scored
        return Accumulator(metrics.scores, metrics.details)

    def candidate_encoders(self, collection: EmbeddingCollection) -> list[Any]:
        """Makes a tf.function for each of `candidates`, which encodes a batch of them."""
        return [encoder(each, self.embeddings, collection) for each in self._candidates]

    def encode_candidates(self, encoders: Sequence[Callable[[Any], tf.Tensor]]) -> list[tf.Tensor]:
        """Encodes the candidates that metrics rank, with the present rows and variables.

        Args:
          encoders: as `candidate_encoders` makes them, perhaps traced.
        """
        pairs = zip(self._candidates, encoders, strict=True)
        return [tensor for each, encode in pairs for tensor in each.encoded(encode)]

    @property
    def candidates(self) -> list[Candidates]:
        """What its metrics rank."""
        return list(self._candidates)

    def outputs(
        self, columns: Mapping[str, Any], activations: Mapping[str, Any]
    ) -> dict[str, tf.Tensor]:
        """Computes predictions by name; see `loss` for the arguments."""
        columns = self.fill(columns)
        with self.embeddings.providing(activations, columns):
            found = model_interface.outputs(self.model, columns, self._offered.targets)
        layer = self.recommender.calibration
        return found if layer is None else layer.of(found)

    @property
    def prediction_names(self) -> tuple[str, ...]:
        """The names of what `outputs` computes."""
        return tuple(self.outputs(self._sample(), self._sample_activations()))

    @functools.cached_property
    def output_columns(self) -> Columns:
        """The columns that `outputs` depends on; `fill` gives the others.

        Raises:
          UsageError: the model has no call.
        """
        return self.columns_of(self.output_inputs())

    def output_inputs(self, *names: str) -> set[str]:
        """Names the columns, features and rates that predictions depend on.

        Args:
          names: of predictions; all by default.

        Raises:
          UsageError: the model has no call.
        """

        def chosen(columns: Mapping[str, Any], activations: Mapping[str, Any]) -> Any:
            found = self.outputs(columns, activations)
            return {name: found[name] for name in names or found}

        try:
            specs = (_specs(self._offered.sample()), self.activation_specs())
            used = _used_inputs(self._with_prepared(chosen, training=False, ids_of=()), *specs)
            if made := self.prepared_features & used:
                predict = self._with_prepared(chosen, training=False, ids_of=made)
                used = _used_inputs(predict, *specs)
            return used
        except NotImplementedError as error:
            raise UsageError(
                f"{type(self.model).__name__} predicts nothing: give it call(self, features)"
            ) from error

    def columns_of(self, inputs: set[str]) -> Columns:
        """Gives the columns of some names; NUMERICS means all numerics."""
        return self._offered.keep(
            inputs | set(self._offered.numerics if NUMERICS in inputs else ())
        )

    def fill(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Adds the columns that a batch lacks, with values that do not matter."""
        return self._offered.fill(columns)

    def is_finite_where_missing(self) -> bool:
        """Tells whether the loss is finite if all numeric columns are missing."""
        batch, missing = self._sample(), float("nan")
        for name in self.columns.numerics:
            batch[name] = tf.fill([SAMPLE_ROWS], missing)
        batch[NUMERICS] = tf.fill([SAMPLE_ROWS, len(self.columns.numerics)], missing)
        with self.metrics.collecting():
            loss = self.loss(batch, self._sample_activations(), training=False)
        return bool(tf.math.is_finite(loss))

    def column_specs(self) -> dict[str, Any]:
        """Returns the specs of a batch's columns, of any number of rows."""
        return _specs(self.columns.sample())

    def activation_specs(self) -> dict[str, Any]:
        """Returns the specs of a batch's activations."""
        return _specs(self._sample_activations())

    def _check_columns(self) -> None:
        known = dict.fromkeys((*self.columns.ids, *self.columns.integers), False)
        known |= dict.fromkeys(self.columns.id_lists, True)
        computed = {n: v for n, v in self._sample().items() if n not in (*known, NUMERICS)}
        known |= {n: hasattr(v, "row_splits") for n, v in computed.items() if v.dtype == tf.int64}
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

    def _with_prepared(
        self, compute: Callable[..., Any], *, training: bool, ids_of: Collection[str] | None = None
    ) -> Callable[[Mapping[str, Any], Mapping[str, Any]], Any]:
        """Makes a function of columns as read; ids made of them, of `ids_of` or all, count too."""

        def prepared(columns: Mapping[str, Any], activations: Mapping[str, Any]) -> Any:
            ready = self.prepare(columns, training=training)
            names = [f.name for f in self.features if ids_of is None or f.name in ids_of]
            made = [ready[n] for n in names if n in ready and ready[n] is not columns.get(n)]
            return compute(ready, activations), made

        return prepared

    def _sample(self) -> dict[str, Any]:
        return self.prepare(self.columns.sample(), training=True)

    def _sample_activations(self) -> dict[str, Activation]:
        dims, batch = {table.name: table.embedding_dim for table in self.tables}, self._sample()
        made: dict[str, Activation] = {}
        for f in self.features:
            made |= samples(f, batch[f.name], dim=dims[f.table_name], value=0.01)
        return made

    def _check_call(self) -> None:
        """Refuses now what would be refused when the model predicts, such as ids that it computes.

        Other failures of its call are left to predicting: training does not need it.
        """
        own_call = getattr(type(self.model), "call", None) is not ClickModel.call
        if not own_call or not model_interface.has_own_loss(self.model):
            return  # the loss is of what the call computes
        try:
            self.output_inputs()
        except Exception as error:
            has_none = isinstance(error.__cause__, NotImplementedError)
            if isinstance(error, UsageError) and not has_none:
                raise

    def _make_variables(self) -> None:
        """Calls the model once, and forgets what its metrics counted."""
        batch, activations = self._sample(), self._sample_activations()
        with self._explaining():
            self.loss(batch, activations, training=False)
        self._check_shapes()
        for metric in self.model.metrics:
            metric.reset_state()
        self._scored = MetricCounts(self.model)
        self.metrics = self._scored
        if self._candidates:
            self.metrics = MetricCounts(self.model, skipped=corpus_metrics(self.model))
        self.metrics.check(lambda: self.loss(batch, activations, training=False))

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Raises a UsageError if the model reads an absent column or refuses a label's class."""
        try:
            yield
        except KeyError as error:
            first: BaseException = error
            while isinstance(first.__context__, KeyError):  # before Keras' account of the call
                first = first.__context__
            key = first.args[0] if first.args else None
            if not isinstance(key, str) or key in (*self.columns.names, NUMERICS):
                raise
            raise UsageError(
                f"the model reads column {key!r}, but the dataset has no such column: there are "
                f"{', '.join(self.columns.names)}"
            ) from error
        except tf.errors.InvalidArgumentError as error:
            found = re.search(
                r"label value of \S+ which is outside the valid range of (\S+ \S+)\.", error.message
            )
            if found is None:
                raise
            classes = {
                label.name: label.classes
                for label in self.columns.labels
                if label.kind == "classes"
            }
            raise UsageError(
                f"the model predicts classes {found[1]}, but the dataset's labels have others: "
                f"their numbers of classes are {classes}"
            ) from error

    def _check_shapes(self) -> None:
        for variable in self.model.variables:
            # In a graph, TensorFlow's product over nothing ends the process (oneDNN, float32).
            if variable.shape.num_elements() == 0:
                raise UsageError(
                    f"the network's variable {variable.name!r} must have at least 1 value but is "
                    f"of shape {variable.shape.as_list()}: leave a layer out whose inputs have no "
                    f"columns (there are {len(self.columns.numerics)} numerics)"
                )

    def _used_columns(self) -> set[str]:
        """Names the columns that the model's loss depends on: no others need be read."""
        used: set[str] = {feature.name for feature in self.features}
        for training in (True, False):
            used |= _used_inputs(
                self._with_prepared(
                    functools.partial(self.loss, training=training), training=training
                ),
                self.column_specs(),
                self.activation_specs(),
            )
        return used


def _declare_label(model: ClickModel, dataset: Dataset) -> None:
    for label in dataset.labels:
        if label.name != model.label:
            continue
        if label.kind != "binary":
            raise UsageError(
                f"the label of a model of clicks must be binary, but {label.name!r} of "
                f"{dataset.directory} is declared as {label.kind}: list a label of 0 and 1 first, "
                "or write a model with a loss for it"
            )
        model.declare(label)


def _specs(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _any_rows(value) for name, value in batch.items()}


def _any_rows(value: Any) -> Any:
    if isinstance(value, tf.RaggedTensor):
        return tf.RaggedTensorSpec(
            [None, *value.shape[1:]], value.dtype, value.ragged_rank, value.row_splits.dtype
        )
    return tf.TensorSpec([None, *value.shape[1:]], value.dtype)


def _used_inputs(
    compute: Callable[..., Any], columns: Mapping[str, Any], activations: Mapping[str, Any]
) -> set[str]:
    """Traces a function of columns and features' activations.

    Returns:
      The names of those that its result or a written state depends on.
    """
    given: dict[str, list[tf.Tensor]] = {}

    @tf.function
    def traced(columns: dict[str, Any], activations: dict[str, Any]) -> Any:
        for name, value in (*columns.items(), *activations.items()):
            given.setdefault(name, []).extend(tf.nest.flatten(value, expand_composites=True))
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
