"""Any tf.data.Dataset as what a run trains on: the function that makes it, divided into units.

A function of a tf.distribute.InputContext makes one dataset per input pipeline. An epoch is a
number of batches of each pipeline. A unit is a range of a pipeline's batches.

If the datasets are deterministic, a unit skips the batches before it and takes its own. So a unit
is the same wherever and whenever it is read, and every batch is visited at least once per epoch
whoever dies, as it is with a dataset of files. Otherwise each worker reads on where its last unit
of that pipeline ended, from the start again at the end: then the number of steps holds, but batches
can be missed and visited twice.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.python.data.util import structure
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import gen_dataset_ops

from embedps import config_fields
from embedps.data.columns import Columns
from embedps.data.dataset import FILE_NAME, FLOAT_LIST_TYPE, RAGGED_TYPE, Dataset
from embedps.data.dataset_metadata import (
    CategoricalFeature,
    DataFile,
    LabelColumn,
    NumericFeature,
    Split,
)
from embedps.data.unit_reader import NUMERICS, Batch
from embedps.errors import UsageError

_PYTHON_OPS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
_SHUFFLE_OPS = ("ShuffleDataset", "ShuffleDatasetV3", "ShuffleAndRepeatDatasetV2")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetFunction:
    """Makes the tf.data.Datasets that a run trains on.

        def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
            return tf.data.Dataset.from_tensor_slices(columns).batch(256)

        dataset = embedps.describe_dataset("COLUMNS", make(tf.distribute.InputContext()))
        config = embedps.TrainConfig(data="COLUMNS", model_dir="RUN", batch_size=256, ...)
        embedps.Trainer(recommender, dataset, config, dataset_fn=make).fit()

    Attributes:
      function: takes a tf.distribute.InputContext, whose `input_pipeline_id` is in [0, pipelines),
        and makes a dataset of batches: a dict of columns by name; or a tuple of one and the label;
        or of both and the examples' weights. A batch has the run's `batch_size` rows; the last one
        of an epoch may have fewer.
      batches: how many each pipeline gives per epoch; by default the cardinality of its dataset.
      pipelines: how many datasets there are. A unit of a resumable one reads past the batches
        before it in its pipeline, so more pipelines read less.
      resumable: whether each dataset gives the same batches each time it is read. Then a run
        visits each batch at least once per epoch, whoever dies. A shuffle without a seed is
        refused.
    """

    function: Callable[[tf.distribute.InputContext], tf.data.Dataset]
    batches: int | None = None
    pipelines: int = 1
    resumable: bool = True

    def __post_init__(self) -> None:
        for name, value in (("batches", self.batches), ("pipelines", self.pipelines)):
            if value is not None and not 1 <= value <= config_fields.MAX_COUNT:
                raise UsageError(f"{name} must be at least 1 but got {value}")

    def dataset(self, pipeline: int) -> tf.data.Dataset:
        """Calls the function for a pipeline.

        Raises:
          UsageError: it gives something else than a dataset.
        """
        context = tf.distribute.InputContext(
            num_input_pipelines=self.pipelines,
            input_pipeline_id=pipeline,
            num_replicas_in_sync=1,
        )
        # A resumed run has another global seed, which would change the order of each shuffle.
        graph = tf.compat.v1.get_default_graph()
        before, graph.seed = graph.seed, None
        try:
            made = self.function(context)
        finally:
            graph.seed = before
        if not isinstance(made, tf.data.Dataset):
            raise UsageError(
                f"dataset_fn must give a tf.data.Dataset but gave a {type(made).__name__}"
            )
        return made

    def divide(self, dataset: Dataset, *, batch_rows: int, unit_rows: int) -> Dataset:
        """Makes the dataset whose files are the pipelines, and whose row groups are the units.

        Args:
          dataset: with the columns.
          batch_rows: rows per batch.
          unit_rows: rows per unit; rounded down to whole batches.

        Raises:
          UsageError: the cardinality of a pipeline's dataset is unknown or infinite.
        """
        files = []
        per_unit = max(1, unit_rows // batch_rows)
        for pipeline in range(self.pipelines):
            left = self.batches or self._cardinality(pipeline)
            rows = batch_rows * left
            units = []
            while left > 0:
                units.append(batch_rows * min(left, per_unit))
                left -= per_unit
            files.append(
                DataFile(
                    path=f"pipeline-{pipeline}",
                    rows=rows,
                    bytes=0,
                    xxh3_64="",
                    row_groups=tuple(units),
                )
            )
        train = Split(rows=sum(file.rows for file in files), positives=0, files=tuple(files))
        return dataclasses.replace(dataset, splits={**dataset.splits, "train": train})

    def _cardinality(self, pipeline: int) -> int:
        found = int(self.dataset(pipeline).cardinality())
        if found < 1:
            kind = {tf.data.INFINITE_CARDINALITY: "infinite", 0: "0"}.get(found, "unknown")
            raise UsageError(
                f"the number of batches that dataset_fn gives for pipeline {pipeline} must be "
                f"known but is {kind}: use embedps.DatasetFunction(function=..., batches=N)"
            )
        return found


DatasetSource: TypeAlias = DatasetFunction | Callable[[tf.distribute.InputContext], tf.data.Dataset]


def as_dataset_function(source: DatasetSource | None) -> DatasetFunction | None:
    """Gives a DatasetFunction of what a user gives; None stays None.

    Raises:
      UsageError: it is no function.
    """
    if source is None or isinstance(source, DatasetFunction):
        return source
    if not callable(source) or isinstance(source, tf.data.Dataset):
        raise UsageError(
            "dataset_fn must be a function that makes a tf.data.Dataset, or an "
            f"embedps.DatasetFunction, but is a {type(source).__name__}"
        )
    return DatasetFunction(function=source)


class DatasetReader:
    """Reads the batches of units on a worker from a DatasetFunction, as UnitReader does from files.

    Attributes:
      batch_rows: rows per batch.
    """

    def __init__(
        self,
        source: DatasetFunction,
        columns: Columns,
        *,
        batch_rows: int,
        label: str,
        weight: str,
        remote: bool,
    ) -> None:
        """Checks what the function gives.

        Args:
          source: makes the datasets.
          columns: that a step reads.
          batch_rows: rows per batch.
          label: the column that a batch's second part is, if that is no dict.
          weight: the column that its third part is.
          remote: whether the workers are other processes than the one that declares the function.

        Raises:
          UsageError: a column is absent, or of another dtype or shape than the model's; or the
            dataset is resumable and has another order each time it is read; or it calls Python,
            and the workers are other processes.
        """
        self.batch_rows = batch_rows
        self._source, self._columns = source, columns
        self._names = (label, weight)
        self._shared_name = f"embedps-input-{uuid.uuid4().hex}"
        graph = func_graph.FuncGraph("dataset_fn")
        with graph.as_default():
            made = source.dataset(0)
            graph.capture(made._variant_tensor)
        self._spec = made.element_spec
        self._dtypes = _dtypes(columns)
        self._lists = {*columns.id_lists, *columns.float_lists}
        given = _by_name(self._spec, *self._names)
        for name, dtype in self._dtypes.items():
            _check(name, given, dtype, is_list=name in self._lists, batch_rows=batch_rows)
        if source.resumable and _is_in_any_order(made, graph):
            raise UsageError(
                "dataset_fn must give the same batches each time it is read, but has "
                "deterministic=False: leave that out, or use "
                "embedps.DatasetFunction(function=..., resumable=False)"
            )
        if source.resumable and _shuffles_anew(made, graph):
            raise UsageError(
                "dataset_fn must give the same batches each time it is read, but shuffles without "
                "a seed, or outside of the function: give each shuffle and list_files a seed, or "
                "use embedps.DatasetFunction(function=..., resumable=False)"
            )
        if not remote:
            return
        if any(outer.dtype == tf.variant for outer, _ in graph.captures):
            raise UsageError(
                "dataset_fn must make its dataset within the function, for each worker of a "
                "cluster, but uses one that was made before"
            )
        functions = graph.as_graph_def().library.function
        if any(node.op in _PYTHON_OPS for f in functions for node in f.node_def):
            raise UsageError(
                "dataset_fn makes a dataset that calls Python, such as by from_generator or "
                "py_function, which the workers of a cluster cannot: train in one process, or "
                "write the rows to files and read these"
            )

    def open(self, path: Any, first_row: Any, num_rows: Any, seed: Any = 0) -> tf.Tensor:
        """Opens a unit; see UnitReader. The datasets have their own order: `seed` has no effect."""
        pipelines = range(self._source.pipelines)
        number = tf.strings.to_number(tf.strings.regex_replace(path, ".*-", ""), tf.int32)
        first, count = first_row // self.batch_rows, -(-num_rows // self.batch_rows)
        open_one = self._part if self._source.resumable else self._endless
        with tf.device("/device:CPU:0"):
            if len(pipelines) == 1:
                return open_one(0, first, count)
            each = [functools.partial(open_one, index, first, count) for index in pipelines]
            return tf.switch_case(number, each)

    def next(self, reader: tf.Tensor) -> Batch:
        """Returns the next batch of a reader that `open` returned.

        Raises:
          tf.errors.OutOfRangeError: the dataset has ended.
          tf.errors.InvalidArgumentError: the batch has too many rows.
        """
        with tf.device("/device:CPU:0"):
            flat = gen_dataset_ops.iterator_get_next(reader, **self._types)
        element = structure.from_compatible_tensor_list(self._spec, flat)
        given = _by_name(element, *self._names)
        columns: dict[str, Any] = {}
        for name, dtype in self._dtypes.items():
            value = given[name]
            if name in self._lists and not isinstance(value, tf.RaggedTensor):
                value = tf.RaggedTensor.from_tensor(value)
            if isinstance(value, tf.RaggedTensor):
                value = value.with_row_splits_dtype(tf.int64)
            columns[name] = tf.cast(value, dtype)
        first = next(iter(columns.values()))
        rows = first.nrows() if isinstance(first, tf.RaggedTensor) else tf.shape(first, tf.int64)[0]
        said = f"a batch of dataset_fn must have batch_size={self.batch_rows} rows at most"
        with tf.control_dependencies([tf.debugging.Assert(rows <= self.batch_rows, [said])]):
            rows = tf.identity(rows)
        numbers = [columns[name] for name in self._columns.numerics]
        columns[NUMERICS] = tf.stack(numbers, axis=1) if numbers else tf.zeros([rows, 0])
        return Batch(rows, columns)

    @property
    def _types(self) -> dict[str, Any]:
        return {
            "output_types": structure.get_flat_tensor_types(self._spec),
            "output_shapes": structure.get_flat_tensor_shapes(self._spec),
        }

    def _part(self, pipeline: int, first: Any, count: Any) -> tf.Tensor:
        """Makes an iterator over a unit's batches."""
        reader = gen_dataset_ops.anonymous_iterator_v3(**self._types)
        data = self._source.dataset(pipeline).skip(first).take(count)
        gen_dataset_ops.make_iterator(data._variant_tensor, reader)
        return reader

    def _endless(self, pipeline: int, first: Any, count: Any) -> tf.Tensor:
        """Gives the worker's own iterator over a pipeline, which lives as long as the worker."""
        name = f"{self._shared_name}-{pipeline}"
        reader = gen_dataset_ops.iterator_v2(shared_name=name, container="", **self._types)
        made = tf.raw_ops.VarHandleOp(dtype=tf.bool, shape=[], shared_name=f"{name}-made")

        def make() -> tf.Tensor:
            data = self._source.dataset(pipeline).repeat()
            gen_dataset_ops.make_iterator(data._variant_tensor, reader)
            tf.raw_ops.AssignVariableOp(resource=made, value=tf.constant(True))
            return tf.constant(True)

        tf.cond(tf.raw_ops.VarIsInitializedOp(resource=made), lambda: tf.constant(True), make)
        return reader


def describe_dataset(
    directory: Path | str,
    data: tf.data.Dataset,
    *,
    labels: Sequence[str | LabelColumn] = ("label",),
    weight: str = "",
) -> Dataset:
    """Describes the columns of batches for models and commands: writes DIR/_dataset.json.

    Floats are numeric columns, integers are ids, and ragged integers lists of ids.

    Args:
      directory: for `config.data`; it gets no rows.
      data: gives dicts of columns by name, or tuples as a DatasetFunction does.
      labels: the columns that are labels, of 0 and 1 if only named.
      weight: the column of the examples' weights; empty if there is none.

    Raises:
      UsageError: the directory has a dataset with rows, or a column is of another dtype or shape.
    """
    root = Path(directory)
    if (root / FILE_NAME).exists() and any(s.files for s in Dataset.open(root).splits.values()):
        raise UsageError(f"{root} has a dataset with rows: give another directory")
    declared = tuple(LabelColumn(name=x) if isinstance(x, str) else x for x in labels)
    weights = [name for name in (weight, *(label.weight for label in declared)) if name]
    others = {label.name: label.arrow_type for label in declared} | dict.fromkeys(weights, "float")
    schema, numeric, categorical, float_lists = dict(others), [], [], []
    for name, spec in _by_name(data.element_spec, declared[0].name, weight).items():
        if name in others:
            continue
        is_list = isinstance(spec, tf.RaggedTensorSpec) or len(spec.shape) == 2
        is_float, is_integer = spec.dtype.is_floating, spec.dtype.is_integer
        if not (is_float or is_integer):
            raise UsageError(
                f"column {name!r} must be of floats or integers but is {spec.dtype.name}: make ids "
                "of it in a map of the dataset, or leave it out"
            )
        if is_integer:
            schema[name] = RAGGED_TYPE if is_list else "int64"
            categorical.append(CategoricalFeature(name=name, cardinality=0, ragged=is_list))
        elif is_list:
            schema[name] = FLOAT_LIST_TYPE
            float_lists.append(name)
        else:
            schema[name] = "float"
            numeric.append(NumericFeature(name=name, transform=""))
    none = Split(rows=0, positives=0, files=())
    root.mkdir(parents=True, exist_ok=True)
    Dataset(
        directory=root,
        source="tf.data",
        numeric=tuple(numeric),
        categorical=tuple(categorical),
        float_lists=tuple(float_lists),
        label=declared[0].name,
        labels=declared,
        weight=weight,
        schema=schema,
        splits={"train": none, "eval": none},
    ).save()
    return Dataset.open(root)


def _is_in_any_order(made: tf.data.Dataset, graph: Any) -> bool:
    """Tells whether a dataset, made in a graph, gives elements as soon as they are ready."""
    nodes = itertools.chain(*_nodes_of(graph))
    is_declared = any(node.attr["deterministic"].s == b"false" for node in nodes)
    return is_declared or made._options_attr.deterministic is False


def _nodes_of(graph: Any) -> list[Any]:
    """Lists the nodes of a graph and of each of its functions."""
    graph_def = graph.as_graph_def()
    return [graph_def.node, *(each.node_def for each in graph_def.library.function)]


def _shuffles_anew(made: tf.data.Dataset, graph: Any) -> bool:
    """Tells whether a dataset, made in a graph, has another order each time it is read."""
    for nodes in _nodes_of(graph):
        constants = {node.name: node.attr["value"].tensor for node in nodes if node.op == "Const"}
        for node in nodes:
            if node.op not in _SHUFFLE_OPS:
                continue
            seeds = [constants.get(name.partition(":")[0]) for name in node.input[2:4]]
            if all(seed is not None and not tf.make_ndarray(seed) for seed in seeds):
                return True
    # One that was made before goes on with its random numbers, also if they have a seed.
    left = [made]
    while left:
        each = left.pop()
        if isinstance(each._variant_tensor, tf.__internal__.EagerTensor):
            fixed = not getattr(each, "_reshuffle_each_iteration", False)
            if hasattr(each, "_seed2") and not (fixed and (each._seed or each._seed2)):
                return True
        left += each._inputs()
    return False


def _by_name(element: Any, label: str, weight: str) -> dict[str, Any]:
    """Gives the columns of an element, or their specs, by name."""
    parts = element if isinstance(element, tuple) else (element,)
    if not isinstance(parts[0], Mapping) or len(parts) > 3:
        raise UsageError(
            "a batch of dataset_fn must be a dict of columns by name, or a tuple of one, the label "
            f"and perhaps the weights, but is {element!r:.200}"
        )
    found = dict(parts[0])
    for name, part in zip((label, weight), parts[1:], strict=False):
        found |= part if isinstance(part, Mapping) else {name: part}
    return found


def _dtypes(columns: Columns) -> dict[str, tf.DType]:
    """Gives the dtypes that a model gets its columns in."""
    classes = [label.name for label in columns.labels if label.kind == "classes"]
    integers = {*classes, *columns.integers, *columns.ids, *columns.id_lists}
    return {name: tf.int64 if name in integers else tf.float32 for name in columns.names}


def _check(
    name: str, given: Mapping[str, Any], dtype: tf.DType, *, is_list: bool, batch_rows: int
) -> None:
    """Refuses a column that is absent, or that cannot be what the model gets."""
    if name not in given:
        raise UsageError(
            f"the model reads column {name!r}, but dataset_fn has none of that name: it gives "
            f"{', '.join(given)}"
        )
    spec = given[name]
    is_ragged = isinstance(spec, tf.RaggedTensorSpec)
    known = isinstance(spec, tf.TensorSpec) or is_ragged
    is_number = known and (spec.dtype.is_integer or spec.dtype.is_floating)
    if not is_number or (dtype.is_integer and not spec.dtype.is_integer):
        raise UsageError(
            f"column {name!r} of dataset_fn must be of "
            f"{'integers' if dtype.is_integer else 'numbers'}, which become {dtype.name}, but is "
            f"{spec.dtype.name if known else spec}: map it in the dataset"
        )
    if spec.shape.rank != (2 if is_list else 1):
        raise UsageError(
            f"column {name!r} of dataset_fn must have shape "
            f"{'[rows, None]' if is_list else '[rows]'} but has {spec.shape}"
        )
    if spec.shape[0] not in (None, batch_rows):
        raise UsageError(
            f"a batch of dataset_fn must have batch_size={batch_rows} rows but column {name!r} has "
            f"shape {spec.shape}"
        )
