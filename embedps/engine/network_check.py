"""Checks a network before training, and refuses what would fail or train wrongly without an error.

A training step is traced, not run. The checks read its graph, so they hold for any kind of layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.framework.auto_control_deps_utils import get_read_write_resource_inputs

from embedps.data.dataset import Dataset
from embedps.engine.random_numbers import unseeded
from embedps.engine.step_model import StepModel
from embedps.engine.variable_stand_ins import standing_in
from embedps.errors import UsageError
from embedps.tables import optimizers

# TensorFlow does not tell which ops of lookup tables write.
_TABLE_READS = {"LookupTableFindV2", "LookupTableSizeV2", "LookupTableExportV2"}
LARGE_BYTES = 2**28
"""The size from which a variable is told where each step sends it."""

_GENERATORS = ("Rng", "Stateful")  # ops that advance the state of a tf.random.Generator


def large_variables(named: Mapping[str, tf.Variable]) -> list[str]:
    """Says, a line each, which variables of a network on parameter servers should be tables."""
    sizes = {name: v.shape.num_elements() * v.dtype.size for name, v in named.items()}
    return [
        f"variable {name!r} of the network has {size / 2**20:,.0f} MiB on one parameter server, "
        "and each worker gets all of it in each step: as a table of embedps.Embeddings it would be "
        "divided among the servers, and a step would get the rows of its batch"
        for name, size in sizes.items()
        if size >= LARGE_BYTES
    ]


def check_step(
    model: StepModel,
    strategy: tf.distribute.Strategy,
    *,
    on_servers: bool,
) -> frozenset[str]:
    """Traces a training step and checks its graph; call it in the strategy's scope.

    Args:
      model: built.
      on_servers: whether the network's variables are on parameter servers, or updated as there.

    Returns:
      The tables without a gradient: their rows stay as they are.

    Raises:
      UsageError: a variable has no gradient, or is not among the network's variables; the network
        updates state itself, which a unit's second attempt would repeat; it would draw the same
        random numbers in each step or worker; or it needs what parameter servers do not support.
    """
    network = model.model
    _check_variables(network, on_servers=on_servers)
    trace = _trace(model, strategy)
    graph = trace.graph
    for variable in trace.without_gradient:
        raise UsageError(
            f"{_describe(network, variable)} has no gradient: the loss does not depend on it; "
            "remove it, or make it trainable=False"
        )
    unchanged = _tables_without_gradient(model, trace)
    known = {id(v.handle) for v in network.variables}
    for variable in graph.variables:
        if variable.trainable and id(variable.handle) not in known:
            raise UsageError(
                f"the network uses {_describe(network, variable)}, which is not among its "
                "variables, so it is neither trained nor saved: keep its layer in an attribute, or "
                "make it trainable=False"
            )
    _check_state(model, trace)
    handles = {id(inside): outside for outside, inside in graph.captures}
    for op, resources in _operations(graph, handles):
        _check_writes(op, resources, network, graph.variables)
        _check_randomness(op, on_servers=on_servers)
    _check_mode(model, trace, strategy)
    return unchanged


def check_missing(model: StepModel, dataset: Dataset) -> bool:
    """Tells whether the loss is finite if all numeric columns are missing.

    Raises:
      UsageError: it is not finite, and the dataset has missing values in such a column.
    """
    if model.is_finite_where_missing():
        return True
    for feature in dataset.numeric:
        if feature.missing and feature.name in model.columns.numerics:
            raise UsageError(
                f"the network gives NaN where a numeric column is missing, as {feature.name!r} is "
                f"in {feature.missing} rows: have its call replace NaN, such as by "
                "tf.where(tf.math.is_nan(numerics), 0.0, numerics)"
            )
    return False


def _check_variables(network: tf.keras.Model, *, on_servers: bool) -> None:
    for variable in network.trainable_variables:
        if variable.dtype != tf.float32:
            raise UsageError(
                f"{_describe(network, variable)} must be float32 but is {variable.dtype.name}: "
                "compute in another dtype if you need to, but keep the variables in float32"
            )
        if on_servers and getattr(variable, "constraint", None) is not None:
            raise UsageError(
                f"{_describe(network, variable)} has a constraint, which parameter servers and "
                "--replicas do not apply: remove it, or train in one process"
            )


class _Trace(NamedTuple):
    """A traced step."""

    graph: Any
    without_gradient: list[tf.Variable]
    differentiated: set[str]
    """The features whose rows have a gradient."""
    state: list[tuple[tf.Variable, tf.Tensor, tf.Tensor, bool]]
    """Of each variable of the model's state: before, after, and whether it was assigned."""


def _trace(model: StepModel, strategy: tf.distribute.Strategy, *, training: bool = True) -> _Trace:
    variables = model.model.trainable_variables
    without_gradient: list[tf.Variable] = []
    differentiated: set[str] = set()
    state: list[tuple[tf.Variable, tf.Tensor, tf.Tensor, bool]] = []

    def step(columns: dict[str, Any], activations: dict[str, Any]) -> None:
        before = [tf.zeros(v.shape, v.dtype) for v in model.state]
        with (
            unseeded(),
            tf.GradientTape() as tape,
            model.metrics.collecting(),
            standing_in(model.state, before) as stand_ins,
        ):
            floats = {
                name: [t for t in tf.nest.flatten(value, True) if t.dtype.is_floating]
                for name, value in activations.items()
            }
            tape.watch(floats)
            columns = model.prepare(columns, training=training)
            loss = model.loss(columns, activations, training=training)
        each = zip(model.state, before, stand_ins.values, strict=True)
        state[:] = [(*parts, i in stand_ins.assigned) for i, parts in enumerate(each)]
        gradients, of_rows = tape.gradient(loss, (variables, floats))
        differentiated.update(
            name for name, each in of_rows.items() if any(g is not None for g in each)
        )
        without_gradient[:] = [v for v, g in zip(variables, gradients, strict=True) if g is None]

    specs = (model.column_specs(), model.activation_specs())

    @tf.function
    def traced(*arguments: Any) -> None:
        strategy.run(step, args=arguments)

    try:
        graph = traced.get_concrete_function(*specs).graph
    except LookupError as error:
        raise UsageError(f"the network cannot be trained: {error}") from error
    return _Trace(graph, without_gradient, differentiated, state)


def _tables_without_gradient(model: StepModel, trace: _Trace) -> frozenset[str]:
    """Names them; refuses a table with a gradient by some features only, if others' rows move."""
    learning = {f.table_name: f.name for f in model.features if f.name in trace.differentiated}
    by_table = {table.name: table.optimizer for table in model.tables}
    still = [cls.__name__ for cls in optimizers.BY_KIND.values() if not cls.moves_by_zero]
    for feature in model.features if model.rows_learn else ():
        name, table = feature.name, feature.table_name
        optimizer = by_table[table]
        moves = optimizer.moves_by_zero or optimizer.weight_decay or optimizer.lazy_decay
        if moves and name not in trace.differentiated and table in learning:
            raise UsageError(
                f"feature {name!r} gets no gradient: the loss does not depend on its rows, or only "
                f"by tf.stop_gradient; but {learning[table]!r} trains the same table {table!r}, "
                f"and {optimizer} would change rows that only {name!r} shows: give the table "
                f"{', '.join(still[:-1])} or {still[-1]} without decay, or {name!r} a table "
                "of its own"
            )
    return frozenset(by_table) - learning.keys()


def _check_state(model: StepModel, trace: _Trace) -> None:
    """Checks that what the model adds to its state can travel as a number to add."""
    for variable, before, after, was_assigned in trace.state:
        if after is before:
            continue
        what = f"{_describe(model.model, variable)} is updated by the model"
        if after.graph is not before.graph:
            raise UsageError(
                f"{what} in a loop, a branch or a function of its own, which is not supported: "
                "update it in the call itself"
            )
        if not variable.dtype.is_floating and (was_assigned or not variable.dtype.is_integer):
            raise UsageError(
                f"{what} by assigning a {variable.dtype.name}, which cannot be added over workers: "
                "use assign_add, or a float"
            )


def _check_mode(model: StepModel, trace: _Trace, strategy: tf.distribute.Strategy) -> None:
    """Checks that layers which act otherwise in training learn of it."""
    layers = [layer for layer in model.model.submodules if _needs_mode(layer)]
    if not layers:
        return
    other = _trace(model, strategy, training=False).graph
    if [op.type for op, _ in _operations(trace.graph, {})] == [
        op.type for op, _ in _operations(other, {})
    ]:
        raise UsageError(
            f"the model ignores `training`, which layer {layers[0].name!r} "
            f"({type(layers[0]).__name__}) needs: pass training=training to what it calls"
        )


def _needs_mode(layer: Any) -> bool:
    layers = tf.keras.layers
    if isinstance(layer, layers.BatchNormalization):
        return bool(layer.trainable)
    if isinstance(layer, layers.GaussianNoise):
        return bool(layer.stddev)
    dropouts = (layers.Dropout, layers.GaussianDropout, layers.AlphaDropout)
    return isinstance(layer, dropouts) and bool(layer.rate)


def _check_writes(
    op: tf.Operation,
    resources: Mapping[int, Any],
    network: tf.keras.Model,
    variables: Sequence[tf.Variable],
) -> None:
    if op.type.startswith(_GENERATORS) or op.type in _TABLE_READS or any(_functions(op)):
        return
    _, written = get_read_write_resource_inputs(op)
    for handle in (resources.get(id(tensor)) for tensor in written):
        if handle is None:  # the step made it
            continue
        what = [_describe(network, v) for v in variables if v.handle is handle]
        raise UsageError(
            f"the network's training updates {what[0] if what else 'what it reads'} by itself (op "
            f"{op.name!r}), which is not supported yet: a second attempt at a unit would update it "
            "twice; remove that layer"
        )


def _check_randomness(op: tf.Operation, *, on_servers: bool) -> None:
    if op.type.startswith("Stateless") and op.inputs and not any(_functions(op)):
        shape, *seed = op.inputs
        # A constant of a fixed shape may be intended; a constant mask over the batch is not.
        if seed and all(map(_is_constant, seed)) and not _is_constant(shape):
            raise UsageError(
                f"the network's op {op.name!r} draws the same random numbers in every step: give "
                'it no fixed seed (for a layer, rng_type must not be "stateless")'
            )
    attributes = op.node_def.attr
    if not on_servers or not {"seed", "seed2"} <= set(attributes) or not op.op_def.is_stateful:
        return
    if attributes["seed"].i or attributes["seed2"].i:
        raise UsageError(
            f"the network's op {op.name!r} has a fixed seed, so every worker would draw the same "
            "random numbers: remove the seed"
        )


def _is_constant(tensor: tf.Tensor) -> bool:
    op = tensor.op
    if op.type == "Const":
        return True
    return bool(op.inputs) and not op.op_def.is_stateful and all(map(_is_constant, op.inputs))


def _operations(
    graph: Any, resources: Mapping[int, Any]
) -> Iterator[tuple[tf.Operation, Mapping[int, Any]]]:
    """Yields each op of a graph and of the functions it calls, with the resources of its graph."""
    for op in graph.get_operations():
        yield op, resources
        for name in _functions(op):
            inner = graph._get_function(name).graph
            given = op.inputs[len(op.inputs) - len(inner.inputs) :]
            inside = {id(i): resources.get(id(g)) for i, g in zip(inner.inputs, given, strict=True)}
            yield from _operations(inner, inside)


def _functions(op: tf.Operation) -> Iterator[str]:
    """Yields the names of the functions that an op calls."""
    for value in op.node_def.attr.values():
        if value.HasField("func"):
            yield value.func.name
        yield from (each.name for each in value.list.func)


def _describe(network: tf.keras.Model, variable: Any) -> str:
    """Describes a variable: its name, and the layer that has it."""
    for layer in (network, *network.submodules):
        if isinstance(layer, tf.keras.layers.Layer) and any(
            v.handle is variable.handle
            for v in (*layer._trainable_weights, *layer._non_trainable_weights)
        ):
            return f"variable {variable.name!r} of layer {layer.name!r} ({type(layer).__name__})"
    return f"variable {variable.name!r}"
