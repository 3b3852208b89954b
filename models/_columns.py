"""What the models of the zoo share: options of their tables, and features of a dataset."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from embedps.config_fields import MAX_INT64, check, option
from embedps.constants import MAX_MIN_COUNT, MAX_ROW_FILE_WIDTH
from embedps.data.arrow_errors import naming
from embedps.data.dataset import Dataset
from embedps.data.dataset_metadata import CategoricalFeature
from embedps.dtypes import COMPUTE_DTYPES
from embedps.engine.recommender import Recommender
from embedps.errors import UsageError
from embedps.tables import FeatureSpec, Initializer, MinNorm, SizeLimit, TableSpec, TimeToLive
from embedps.tables.admission import Admission, Chance, MinCount
from embedps.tables.eviction import EvictionPolicy, Order
from embedps.tables.optimizers import BY_KIND, Optimizer
from embedps.tables.optimizers import make as make_optimizer
from embedps.tables.specs import RowDtype, SlotDtype

MAX_LAYER_WIDTH = 65536
_MAX_GROUPS = 8


def widths(default: tuple[int, ...], text: str) -> Any:
    """Declares an option of layers' widths."""
    return option(default, text, least=1, most=MAX_LAYER_WIDTH)


def dropout() -> Any:
    """Declares the option of a dropout rate."""
    return option(0.0, "share of hidden units that a training step drops", least=0, below=1)


def numeric_bins() -> Any:
    """Declares the option of the bins of a number."""
    return option(
        0,
        "bins of equal counts that encode each number; 0 gives the number itself",
        least=0,
        most=1000,
    )


def edges(dataset: Dataset, bins: int) -> npt.NDArray[np.float32] | None:
    """Finds the edges of bins that have equally many of the training rows.

    It reads up to _MAX_GROUPS row groups, spread over the split. A run that goes on from a
    checkpoint has the edges of that instead.

    Returns:
      Ascending, float32 [numeric columns, bins + 1]; zeros if there is no number. None if bins is
      0.
    """
    if not bins:
        return None
    names = [column.name for column in dataset.numeric]
    found = np.zeros([len(names), bins + 1], np.float32)
    if "train" not in dataset.splits or not names:
        return found
    groups = [
        (dataset.absolute_path(file), i)
        for file in dataset.split("train").files
        for i in range(len(file.row_groups))
    ]
    chosen = [groups[i * len(groups) // _MAX_GROUPS] for i in range(_MAX_GROUPS)] if groups else []
    tables = []
    for path, i in dict.fromkeys(chosen):
        with naming(path):
            tables.append(pq.ParquetFile(path).read_row_group(i, columns=names))
    for row, name in zip(found, names, strict=True):
        numbers = np.concatenate([table[name].to_numpy() for table in tables] or [row[:0]])
        numbers = numbers[np.isfinite(numbers)]
        if len(numbers):
            row[:] = np.quantile(numbers, np.linspace(0, 1, bins + 1))
    return found


def small() -> Initializer:
    """Makes the initializer of rows whose products are added to a logit: they start near 0."""
    return Initializer.normal(0.01)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdmissionConfig:
    """The options that say which ids of a model's tables get a row; each holds for every table."""

    min_count: int = option(
        1,
        "an id gets a row by so many examples that show it; until then it reads as zeros",
        least=1,
        most=MAX_MIN_COUNT,
    )
    min_count_expire_steps: int = option(
        0,
        "an id without a row is counted anew if no example has shown it for this many steps; "
        "0: counts stay",
        least=0,
        most=2**32 - 1,
    )
    admit_probability: float = option(
        1.0,
        "instead, each example that shows an id gives it a row with this probability",
        least=2**-32,
        most=1,
    )

    def admission(self) -> Admission | None:
        """Makes the tables' policy of admission.

        Raises:
          UsageError: two are given, or counters that there are not expire.
        """
        if self.min_count > 1 and self.admit_probability < 1:
            raise UsageError(
                "a table admits ids by min_count or by admit_probability, but got "
                f"{self.min_count} and {self.admit_probability}: leave one out"
            )
        if self.min_count > 1:
            return MinCount(count=self.min_count, expire_steps=self.min_count_expire_steps)
        if self.min_count_expire_steps:
            raise UsageError(
                "min_count_expire_steps is of the counters of min_count, which must be above 1 but "
                f"is {self.min_count}"
            )
        return Chance(probability=self.admit_probability) if self.admit_probability < 1 else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvictionConfig:
    """The options that say which rows of a model's tables go; each holds for every table."""

    row_ttl_steps: int = option(
        0, "a row goes this many steps after its last update; 0: never", least=0, most=2**32 - 1
    )
    row_ttl_hours: int = option(
        0,
        "a row goes when the dataset's timestamps have advanced by this since its last update; "
        "0: never",
        least=0,
        most=10**6,
    )
    max_table_rows: int = option(
        0,
        "at this many rows of a table, new ones displace others; 0: no limit",
        least=0,
        most=MAX_INT64,
    )
    max_table_bytes: int = option(
        0,
        "at this many bytes of a table, new rows displace others; at least 73,728 and 1,024 rows "
        "of it per parameter server; 0: no limit",
        least=0,
        most=MAX_INT64,
    )
    eviction_order: Order = option(
        "least_recent",
        "which rows are displaced at a limit: the least recently or least frequently updated",
    )
    min_row_norm: float = option(
        0.0, "a row goes when an update leaves its L2 norm below this; 0: never", least=0, most=1e30
    )

    def eviction(self) -> tuple[EvictionPolicy, ...]:
        """Makes the tables' policies of eviction."""
        policies: list[EvictionPolicy] = []
        if self.row_ttl_steps or self.row_ttl_hours:
            policies.append(
                TimeToLive(steps=self.row_ttl_steps, event_secs=3600 * self.row_ttl_hours)
            )
        if self.max_table_rows or self.max_table_bytes:
            policies.append(
                SizeLimit(
                    max_rows=self.max_table_rows,
                    max_bytes=self.max_table_bytes,
                    order=self.eviction_order,
                )
            )
        if self.min_row_norm:
            policies.append(MinNorm(norm=self.min_row_norm))
        return tuple(policies)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyConfig(AdmissionConfig, EvictionConfig):
    """The options that say which rows a model's tables have."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableConfig(PolicyConfig):
    """The options of a model's tables."""

    embedding_dim: int = option(16, "floats per embedding", least=1, most=MAX_ROW_FILE_WIDTH)
    sparse_optimizer: str = option(
        "rowwise_adagrad", "optimizer of the tables' rows", choices=tuple(BY_KIND)
    )
    row_weight_decay: float = option(
        0.0,
        "a step takes this share of the rows that it updates, times their learning rate",
        least=0,
        most=1e30,
    )
    row_dtype: RowDtype = option(
        "float32", "dtype of embeddings in memory; updates round at random if it is not float32"
    )
    slot_dtype: SlotDtype = option("float32", "dtype of the tables' optimizer slots in memory")

    def __post_init__(self) -> None:
        check(self)
        self.optimizer()
        self.admission()

    def table(
        self, name: str, *, dim: int | None = None, initializer: Initializer | None = None
    ) -> TableSpec:
        """Declares a table with these options."""
        return TableSpec(
            name=name,
            dim=self.embedding_dim if dim is None else dim,
            optimizer=self.optimizer(),
            initializer=initializer,
            admission=self.admission(),
            eviction=self.eviction(),
            row_dtype=self.row_dtype,
            slot_dtype=self.slot_dtype,
        )

    def counts(self, name: str) -> TableSpec:
        """Declares a table whose rows do not change: only their updates are counted.

        Its rows live as long as those of the other tables, but no norm evicts them.
        """
        policies = tuple(p for p in self.eviction() if not isinstance(p, MinNorm))
        return TableSpec(
            name=name,
            dim=1,
            optimizer=make_optimizer("sgd"),
            initializer=Initializer(),
            eviction=policies,
        )

    def optimizer(self) -> Optimizer:
        """Makes the tables' optimizer."""
        return make_optimizer(self.sparse_optimizer, weight_decay=self.row_weight_decay)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkConfig(TableConfig):
    """The options of a model's tables and of its network's dtypes."""

    compute_dtype: str = option(
        "float32",
        "dtype of the dense network's products; weights and rows stay float32",
        choices=COMPUTE_DTYPES,
    )
    wire_dtype: str = option(
        "compute",
        "dtype of rows, matrices and their gradients between workers and parameter servers; "
        "compute: the compute dtype",
        choices=("compute", *COMPUTE_DTYPES),
    )

    @property
    def resolved_wire_dtype(self) -> str:
        """`wire_dtype`, with "compute" replaced by the compute dtype."""
        return self.compute_dtype if self.wire_dtype == "compute" else self.wire_dtype


def declare(
    config: TableConfig,
    columns: Sequence[CategoricalFeature],
    *,
    dim: int | None = None,
    initializer: Initializer | None = None,
) -> tuple[FeatureSpec, ...]:
    """Declares one table per categorical column; a list's rows are averaged.

    Args:
      config: the tables' options.
      columns: the columns.
      dim: floats per row; by default the config's.
      initializer: of new rows; by default that of TableSpec.
    """
    return tuple(
        FeatureSpec(
            name=column.name,
            table=config.table(column.name, dim=dim, initializer=initializer),
            ragged=column.ragged,
            combiner="mean" if column.ragged else "sum",
        )
        for column in columns
    )


def check_categorical(model: str, dataset: Dataset) -> None:
    """Checks that there is a table to train.

    Raises:
      UsageError: the dataset has no categorical column.
    """
    if not dataset.categorical:
        raise UsageError(
            f"{model} must have a categorical column, ragged or not, but the dataset "
            f"{dataset.directory} has none beside {len(dataset.numeric)} numeric ones: declare one "
            "in its schema and make the dataset again"
        )


def find_columns(
    model: str, dataset: Dataset, names: Sequence[str], *, ragged: bool | None = None
) -> tuple[list[str], list[str]]:
    """Finds columns of ids by name.

    Args:
      model: for messages.
      dataset: the dataset.
      names: of the columns.
      ragged: whether they must be lists, or must not; None allows both.

    Returns:
      Those of one id per row, and those of lists.

    Raises:
      UsageError: the dataset has no such column of ids.
    """
    known = {column.name: column.ragged for column in dataset.categorical}
    for name in names:
        if name not in known or ragged not in (None, known[name]):
            kinds = {None: "ids", True: "lists of ids", False: "one id per row"}
            there = [n for n, is_ragged in known.items() if ragged in (None, is_ragged)]
            raise UsageError(
                f"{model}: {name!r} must be a column of {kinds[ragged]} of {dataset.directory}: "
                f"there are {', '.join(there) or 'none'}"
            )
    wanted = dict.fromkeys(names)
    return [n for n in wanted if not known[n]], [n for n in wanted if known[n]]


def weight_columns(dataset: Dataset) -> tuple[str, ...]:
    """Names the column of weights, if there is one."""
    return (dataset.weight,) if dataset.weight else ()


def weighed(build: Callable[[], Any], dataset: Dataset) -> Callable[[], Any]:
    """Makes a model's builder set `weight`, the column whose values multiply examples' losses."""

    def weighed_model() -> Any:
        model = build()
        model.weight = dataset.weight
        return model

    return weighed_model


def click_recommender(
    model: str, config: TableConfig, dataset: Dataset, build: Callable[[], Any]
) -> Recommender:
    """Makes a recommender that reads a dataset's first label, its weight and all its features.

    Raises:
      UsageError: the dataset has no categorical column.
    """
    return _recommender(model, config, dataset, build, (dataset.label,))


def label_recommender(
    model: str,
    config: TableConfig,
    dataset: Dataset,
    build: Callable[[], Any],
    loss_weights: Sequence[float],
) -> Recommender:
    """Makes a recommender that reads all of a dataset's labels, its weight and all its features.

    Raises:
      UsageError: the dataset has no categorical column, or there are not as many weights as labels.
    """
    names = tuple(label.name for label in dataset.labels)
    if loss_weights and len(loss_weights) != len(names):
        raise UsageError(
            f"loss_weights must have a weight for each label of {dataset.directory}, which are "
            f"{', '.join(names)}, but has {len(loss_weights)}"
        )
    return _recommender(model, config, dataset, build, names)


def _recommender(
    model: str,
    config: TableConfig,
    dataset: Dataset,
    build: Callable[[], Any],
    labels: Sequence[str],
) -> Recommender:
    check_categorical(model, dataset)
    if not labels or not dataset.label:
        raise UsageError(
            f"{model} must have a label, but the dataset {dataset.directory} has none: declare one "
            "in its schema and make the dataset again; sasrec and two_tower need none"
        )
    names = (*(f.name for f in dataset.numeric), *(f.name for f in dataset.categorical))
    wire_dtype = config.resolved_wire_dtype if isinstance(config, NetworkConfig) else "float32"
    return Recommender(
        build=weighed(build, dataset),
        columns=(*labels, *names, *weight_columns(dataset)),
        missing_id=dataset.missing_id,
        wire_dtype=wire_dtype,
        model=model,
        config=config,
    )
