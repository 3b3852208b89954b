"""A run's model in stock ops of TensorFlow: what an export saves."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.trackable.resource import TrackableResource

from embedps.console.lines import say
from embedps.engine.row_padding import pad, padded_rows, repeated
from embedps.engine.step_model import StepModel
from embedps.errors import UsageError
from embedps.features.table_schema import Table
from embedps.layers import stock_ops
from embedps.serving import unknown_queries
from embedps.serving.inputs import Inputs, common_rows, tensor_name
from embedps.serving.stock_index import StockIndex
from embedps.serving.stock_lookup import StockTables
from embedps.serving.stock_transforms import StockTransforms
from embedps.serving.unknown_queries import NOT_POPULAR, UNKNOWN, UnknownQuery, own_table
from embedps.serving.warm_up import WarmUpRequest
from embedps.tables.activations import samples
from embedps.tables.specs import FeatureSpec, TableSpec

WARM_UP_ROWS = (1, 100)
QUERY = "query"  # the prediction that is a query's vector, and the signature that gives it
RAW = "raw"  # the signature that takes what the dataset was made of
TOP_K = "top_k"  # the signature that gives the best candidates
SEEN = "seen"  # its input of candidates to leave out
_EXAMPLES = {"examples": tf.TensorSpec([None], tf.string, name="examples")}
_PYTHON_OPS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


class _Predictions(NamedTuple):
    """Predictions, and what they depend on.

    Attributes:
      names: of the predictions; none means all.
      used: the columns, features and rates that they depend on.
      inputs: the columns of a request.
    """

    names: tuple[str, ...]
    used: set[str]
    inputs: Inputs


class StockModel(tf.Module):
    """Computes a model's predictions for requests of tensors, and ranks its candidates."""

    def __init__(
        self,
        model: StepModel,
        table: Table | None = None,
        *,
        unknown_query: UnknownQuery = unknown_queries.DEFAULT,
    ) -> None:
        """Finds out what the predictions depend on.

        Args:
          unknown_query: what a query gets none of whose ids has been trained.
          table: of the dataset's `embedps.Transforms`, to take raw values too.

        Raises:
          UsageError: the model has no call, its predictions need what a request has not, or a
            transform has no twin in TensorFlow.
        """
        super().__init__(name="model")
        self._model = model
        self._all = self._predictions()
        is_retrieval = len(model.candidates) == 1 and QUERY in model.prediction_names
        self._query = self._predictions(QUERY) if is_retrieval else None
        self._unknown_query = unknown_query
        self._raw: StockTransforms | None = None
        if table is not None:
            missing_id = model.recommender.missing_id
            columns = self._all.inputs.columns
            self._raw = StockTransforms(table, columns, missing_id=missing_id)
        self._tables: StockTables | None = None
        self._index: StockIndex | None = None
        self._captured: list[Any] = []

    @property
    def looked_up(self) -> tuple[FeatureSpec, ...]:
        """The features that predictions and candidates depend on."""
        used = self._all.used
        if self._query is not None:
            used = used | set(self._model.candidates[0].columns)
        return tuple(f for f in self._model.features if f.name in used)

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """Their tables."""
        names = {f.table_name for f in self.looked_up}
        return tuple(table for table in self._model.tables if table.name in names)

    @property
    def ranks_items(self) -> bool:
        """Whether the model ranks candidates; then the tables need their rows' updates."""
        return self._query is not None

    @property
    def num_items(self) -> int:
        """The candidates that are ranked; 0 if the model ranks none."""
        return 0 if self._index is None else self._index.num_items

    def take(self, tables: StockTables, *, top_k: int) -> None:
        """Takes the rows of `tables`, and encodes the candidates with them.

        Args:
          top_k: how many of the candidates a request gets.
        """
        self._tables = tables
        if self._query is not None:
            (candidates,) = self._model.candidates
            encoded = candidates.encoded(self._encode)
            rates = None
            if self._unknown_query == "popular":
                rates = self._rates(tables, encoded[1])
            self._index = StockIndex(encoded, k=top_k, rates=rates)

    def signatures(self) -> dict[str, Any]:
        """Makes the functions that are served, by name.

        Raises:
          UsageError: a prediction is no tensor, needs an op that is not TensorFlow's own, or is no
            query for the candidates.
        """

        def of_tensors(**given: tf.Tensor) -> dict[str, tf.Tensor]:
            return self._predict(self._all, self._all.inputs.batch(given))

        def of_examples(examples: tf.Tensor) -> dict[str, tf.Tensor]:
            return self._predict(self._all, self._all.inputs.parse(examples))

        made = {
            "serving_default": trace(of_tensors, self._all.inputs.specs()),
            "examples": trace(of_examples, _EXAMPLES),
        }
        if self._raw is not None:
            made[RAW] = self._raw_signature(self._raw)
        if self._query is not None and self._index is not None:
            made |= self._retrieval_signatures(self._query, self._index)
        self._captured = _captured(self._model.model, made.values())
        return made

    def warm_up_requests(self) -> Iterator[WarmUpRequest]:
        """Makes requests of each signature, of zeros and empty lists."""
        of_signatures = {"serving_default": self._all.inputs, "examples": self._all.inputs}
        if self._query is not None and self._index is not None:
            ranked = self._ranked_inputs(self._query, self._index)
            of_signatures |= {QUERY: self._query.inputs}
            if self._unknown_query != "error":  # zeros are no ids that are known
                of_signatures |= {TOP_K: ranked, f"{TOP_K}_examples": ranked}
        for rows in WARM_UP_ROWS:
            for name, inputs in of_signatures.items():
                if name.endswith("examples"):
                    yield WarmUpRequest(name, {"examples": inputs.examples(rows)})
                else:
                    yield WarmUpRequest(name, inputs.zeros(rows))
            if self._raw is not None:
                yield WarmUpRequest(RAW, self._raw.zeros(rows))

    def _predictions(self, *names: str) -> _Predictions:
        model = self._model
        used = model.output_inputs(*names)
        rates = [f.rate_as for f in model.features if f.rate_as is not None]
        if rate := next((name for name in rates if name in used), None):
            raise UsageError(
                f"{type(model.model).__name__}'s predictions must not depend on {rate!r}: an "
                "export has no rates of updates"
            )
        inputs = Inputs(model.columns_of(used), missing_id=model.recommender.missing_id)
        return _Predictions(names, used, inputs)

    def _raw_signature(self, raw: StockTransforms) -> Any:
        def of_raw(**given: tf.Tensor) -> dict[str, tf.Tensor]:
            return self._predict(self._all, raw.batch(given))

        return trace(of_raw, raw.specs())

    def _retrieval_signatures(self, query: _Predictions, index: StockIndex) -> dict[str, Any]:
        ranked = self._ranked_inputs(query, index)

        def of_query(**given: tf.Tensor) -> dict[str, tf.Tensor]:
            return self._predict(query, query.inputs.batch(given))

        def top_k(batch: dict[str, Any]) -> dict[str, tf.Tensor]:
            rows = common_rows([*batch.values()])
            seen = batch.pop(SEEN, None)
            queries = self._predict(query, batch, rows)[QUERY]
            unknown = self._unknown(query, batch, rows)
            seen = None if seen is None else repeated(seen, rows)
            return index.top_k(queries, seen, unknown) | {UNKNOWN: unknown}

        def of_tensors(**given: tf.Tensor) -> dict[str, tf.Tensor]:
            return top_k(ranked.batch(given))

        def of_examples(examples: tf.Tensor) -> dict[str, tf.Tensor]:
            return top_k(ranked.parse(examples))

        made = {QUERY: trace(of_query, query.inputs.specs())}
        vectors = made[QUERY].structured_outputs[QUERY]
        if vectors.shape.rank != 2 or vectors.shape[1] != index.dim:
            raise UsageError(
                f"the prediction {QUERY!r} of {type(self._model.model).__name__} must be a vector "
                f"of {index.dim} floats, as the candidates' are, but has shape {vectors.shape}"
            )
        made[TOP_K] = trace(of_tensors, ranked.specs())
        made[f"{TOP_K}_examples"] = trace(of_examples, _EXAMPLES)
        return made

    def _ranked_inputs(self, query: _Predictions, index: StockIndex) -> Inputs:
        """Gives the columns of a request for the best candidates: also those that are seen."""
        columns = query.inputs.columns
        if index.excludes:
            columns = dataclasses.replace(columns, id_lists=(*columns.id_lists, SEEN))
        return Inputs(columns, missing_id=self._model.recommender.missing_id)

    def _unknown(self, query: _Predictions, batch: dict[str, Any], rows: tf.Tensor) -> tf.Tensor:
        """Tells which queries have ids but none that is known, bool [rows], as a server does."""
        tables = self._tables
        features = [f for f in self._model.features if f.name in query.used]
        if tables is None or not features:
            return tf.fill([rows], False)
        if any(f.name not in batch for f in features):  # the model computes ids
            batch = {name: repeated(value, rows) for name, value in batch.items()}
            batch = self._model.fill(query.inputs.with_numerics(batch, rows))
            batch = self._model.prepare(batch, training=False)
        known = tf.fill([rows], False)
        for f in features:
            ids = batch[f.name]
            if isinstance(ids, tf.RaggedTensor) and f.max_length is not None:
                ids = ids[:, -f.max_length :]
            values = ids.values if isinstance(ids, tf.RaggedTensor) else ids
            is_known = tables.updates(f.table_name, values) > 0
            is_known &= values != self._model.recommender.missing_id
            if isinstance(ids, tf.RaggedTensor):
                is_known = tf.reduce_any(ids.with_values(is_known), axis=1)
            known |= repeated(is_known, rows)
        if self._unknown_query != "error":
            return ~known
        names = ", ".join(f.name for f in features)
        refusal = (
            f"a record is of an unknown query: none of its ids in {names} has been trained: ask "
            "for another, or export with --unknown-query popular"
        )
        with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(known), [refusal])]):
            return tf.identity(~known)

    def _rates(self, tables: StockTables, ids: tf.Tensor) -> tf.Tensor | None:
        """Gives the share of steps that update each candidate's own row, as a server does.

        If candidates have none, unknown queries get an error.
        """
        (candidates,) = self._model.candidates
        table = own_table(candidates, self._model.features)
        if table is None:
            self._unknown_query = "error"
            say(NOT_POPULAR)
            return None
        steps = tf.constant(tables.steps(table), tf.float32)
        return (tf.minimum(tables.updates(table, ids), steps) + 1) / (steps + 2)

    @functools.cached_property
    def _encode(self) -> Callable[[Any], tf.Tensor]:
        """A function that encodes a batch of candidates."""
        (candidates,) = self._model.candidates

        @tf.function(reduce_retracing=True)
        def encode(batch: Any) -> tf.Tensor:
            features = [f for f in self.looked_up if f.name in batch]
            found = self._lookup(features, batch)
            found |= {f.rate_as: tf.zeros([0]) for f in features if f.rate_as is not None}
            with self._model.embeddings.providing(found, batch):
                return candidates.tower(batch)

        return encode  # type: ignore[no-any-return]

    def _predict(
        self, predictions: _Predictions, batch: dict[str, Any], rows: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        """Computes predictions, [rows, ...] each, of columns of as many rows, or of one."""
        rows = common_rows([*batch.values()]) if rows is None else rows
        used = [f for f in self._model.features if f.name in predictions.used]
        made = [f for f in used if f.name in self._model.prepared_features]
        found = self._lookup([f for f in used if f not in made], batch)
        found = {name: pad(value, rows) for name, value in found.items()}
        batch = {name: pad(value, rows) for name, value in batch.items()}
        batch = predictions.inputs.with_numerics(batch, padded_rows(rows))
        predictions.inputs.refuse_infinite(batch)
        batch = self._model.fill(batch)
        if made:
            batch = self._model.prepare(batch, training=False)
            found |= self._lookup(made, batch)
        for f in self._model.features:  # the others have no effect, but must be there
            if f not in used:
                ids = batch.get(f.name, tf.zeros([0], tf.int64))
                dims = {table.name: table.embedding_dim for table in self._model.tables}
                found |= samples(f, ids, dim=dims[f.table_name], value=0.0)
            elif f.rate_as is not None:
                found[f.rate_as] = tf.zeros([0])
        predicted = self._model.outputs(batch, found)
        for name, value in predicted.items():
            if not isinstance(value, tf.Tensor):
                raise UsageError(
                    f"a prediction must be a tensor, but {name!r} of "
                    f"{type(self._model.model).__name__} is a {type(value).__name__}"
                )
        names = predictions.names or predicted
        return {tensor_name(name): predicted[name][:rows] for name in names}

    def _lookup(self, features: list[FeatureSpec], batch: Mapping[str, Any]) -> dict[str, Any]:
        if self._tables is None:
            raise RuntimeError("take() the tables first")
        return self._tables.lookup(features, batch) if features else {}


def _captured(model: tf.keras.Model, functions: Iterable[Any]) -> list[Any]:
    """Lists a model's variables and tables that functions use, which an export must hold."""
    used = {id(tensor) for function in functions for tensor in function.captured_inputs}
    parts = tf.train.TrackableView(model).descendants()
    variables = [v for v in parts if isinstance(v, tf.Variable) and id(v.handle) in used]
    resources = [r for r in parts if isinstance(r, TrackableResource)]
    return [*variables, *(r for r in resources if id(r.resource_handle) in used)]


def trace(function: Callable[..., Any], specs: Mapping[str, tf.TensorSpec]) -> Any:
    """Traces a function in stock ops.

    Args:
      function: of tensors by name.

    Raises:
      UsageError: it needs an op that is not TensorFlow's own.
    """
    with stock_ops.stock_ops(), tf.device("/device:CPU:0"):
        concrete = tf.function(function, autograph=False).get_concrete_function(**specs)
    graph = concrete.graph.as_graph_def()
    nodes = [*graph.node, *(node for each in graph.library.function for node in each.node_def)]
    for node in nodes:
        if not hasattr(tf.raw_ops, node.op) or node.op in _PYTHON_OPS:
            raise UsageError(
                f"the model must compute by TensorFlow's own ops to be exported, but "
                f"{node.name.rsplit('/', 1)[0]!r} needs {node.op}, which "
                + (
                    "calls Python: write it with TensorFlow"
                    if node.op in _PYTHON_OPS
                    else "has no twin among them: serve it with embedps.load"
                )
            )
    return concrete
