"""A run's model in stock ops of TensorFlow: what an export saves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.trackable.resource import TrackableResource

from embedps.engine.row_padding import pad, padded_rows
from embedps.engine.step_model import StepModel
from embedps.errors import UsageError
from embedps.layers import stock_ops
from embedps.serving.inputs import Inputs, common_rows, tensor_name
from embedps.serving.stock_lookup import StockTables
from embedps.serving.warm_up import Request
from embedps.tables.activations import samples
from embedps.tables.specs import FeatureSpec, TableSpec

WARM_UP_ROWS = (1, 100)
_PYTHON_OPS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


class StockModel(tf.Module):
    """Computes a model's predictions for requests of tensors."""

    def __init__(self, model: StepModel) -> None:
        """Finds out what the predictions depend on.

        Raises:
          UsageError: the model has no call, or its predictions need what a request has not.
        """
        super().__init__(name="model")
        self._model = model
        self._used = model.output_inputs()
        rates = [f.rate_as for f in model.features if f.rate_as is not None]
        if rate := next((name for name in rates if name in self._used), None):
            raise UsageError(
                f"{type(model.model).__name__}'s predictions must not depend on {rate!r}: an "
                "export has no rates of updates"
            )
        self.inputs = Inputs(model.columns_of(self._used), missing_id=model.recommender.missing_id)
        self._tables: StockTables | None = None
        self._captured: list[Any] = []

    @property
    def looked_up(self) -> tuple[FeatureSpec, ...]:
        """The features that predictions depend on."""
        return tuple(f for f in self._model.features if f.name in self._used)

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """Their tables."""
        names = {f.table_name for f in self.looked_up}
        return tuple(table for table in self._model.tables if table.name in names)

    def take(self, tables: StockTables) -> None:
        """Takes the rows of `tables`."""
        self._tables = tables

    def signatures(self) -> dict[str, Any]:
        """Makes the functions that are served, by name.

        Raises:
          UsageError: a prediction is no tensor, or needs an op that is not TensorFlow's own.
        """
        specs = self.inputs.specs()

        def of_tensors(**given: tf.Tensor) -> dict[str, tf.Tensor]:
            return self._predict(self.inputs.batch(given))

        def of_examples(examples: tf.Tensor) -> dict[str, tf.Tensor]:
            return self._predict(self.inputs.parse(examples))

        examples = {"examples": tf.TensorSpec([None], tf.string, name="examples")}
        made = {
            "serving_default": trace(of_tensors, specs),
            "examples": trace(of_examples, examples),
        }
        self._captured = _captured(self._model.model, made.values())
        return made

    def warm_up_requests(self) -> Iterator[Request]:
        """Makes requests of each signature, of zeros and empty lists."""
        for rows in WARM_UP_ROWS:
            tensors = self.inputs.zeros(rows)
            yield Request("serving_default", tensors)
            yield Request("examples", {"examples": self.inputs.examples(rows)})

    def _predict(self, batch: dict[str, Any]) -> dict[str, tf.Tensor]:
        """Computes predictions, [rows, ...] each, of columns of as many rows, or of one."""
        rows = common_rows([*batch.values()])
        looked_up = [f for f in self.looked_up if f.name in batch]
        found = self._lookup(looked_up, batch)
        found = {name: pad(value, rows) for name, value in found.items()}
        batch = {name: pad(value, rows) for name, value in batch.items()}
        batch = self._model.fill(self.inputs.with_numerics(batch, padded_rows(rows)))
        if made := [f for f in self.looked_up if f not in looked_up]:  # of ids that are computed
            batch = self._model.prepare(batch, training=False)
            found |= self._lookup(made, batch)
        for f in self._model.features:  # the others have no effect, but must be there
            if f not in self.looked_up:
                ids = batch.get(f.name, tf.zeros([0], tf.int64))
                dims = {table.name: table.dim for table in self._model.tables}
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
        return {tensor_name(name): value[:rows] for name, value in predicted.items()}

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
      specs: of the tensors.

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
