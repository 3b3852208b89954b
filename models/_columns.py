"""What the models of the zoo share: options of their networks, and features of a dataset."""

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from embedps.config_fields import option
from embedps.data.arrow_errors import naming
from embedps.data.dataset import Dataset
from embedps.data.dataset_metadata import CategoricalFeature
from embedps.dtypes import COMPUTE_DTYPES
from embedps.engine.recommender import Recommender
from embedps.errors import UsageError
from embedps.tables import FeatureSpec, Initializer, TableSpec
from embedps.tables.table_options import PolicyOptions, TableOptions

if TYPE_CHECKING:  # imports TensorFlow, which `--help` does not need
    from embedps.layers.id_hash import Bins

    from .networks.parts import Numerics

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


def numeric_waves() -> Any:
    """Declares the option of the waves of a number."""
    return option(
        0,
        "sines and cosines, of frequencies that are learned, that encode each number's place among "
        "the bins too; they need --numeric-bins",
        least=0,
        most=1000,
    )


def numeric_l2() -> Any:
    """Declares the option of the penalty of the numbers' linear weights."""
    return option(
        0.0,
        "L2 penalty of the numbers' linear weights: half of this times the sum of their squares, "
        "beside the sum of the losses of all training rows",
        least=0,
        most=1e30,
    )


def penalty_per_row(dataset: Dataset, strength: float) -> float:
    """Gives what multiplies half of the sum of squares in a step's loss, which is a mean."""
    rows = dataset.split("train").rows if "train" in dataset.splits else 0
    return strength / rows if rows else 0.0


def row_l2() -> Any:
    """Declares the option of the penalty of the ids' weights."""
    return option(
        0.0,
        "L2 penalty of the ids' rows: half of this times the sum of their squares, beside the sum "
        "of the losses of all training rows: rare ids stay near 0; half the number of columns is "
        "a good start",
        least=0,
        most=1e30,
    )


def check_row_l2(strength: float, sparse_optimizer: str) -> None:
    """Checks that the rows' optimizer can have the penalty.

    Raises:
      UsageError: it cannot.
    """
    if strength and sparse_optimizer == "ftrl":
        raise UsageError("row_l2 must be 0 with ftrl: choose another sparse_optimizer")


def numeric_standard() -> Any:
    """Declares the option of numbers of mean 0 and deviation 1."""
    return option(
        False, "scale numbers to mean 0 and deviation 1, a missing one to 0; needs numeric_bins 0"
    )


def base_rate_logit(dataset: Dataset) -> float:
    """Gives the logit of the share of positives among the training rows; 0 if there are none.

    Labels that may be missing, or are soft, are read, of the row groups that `edges` reads.
    """
    train = dataset.splits.get("train")
    if train is None or not train.rows:
        return 0.0
    share = train.positives / train.rows
    files = [dataset.absolute_path(file) for file in train.files]
    first = dataset.labels[0] if dataset.labels else None
    if first is not None and (first.optional or first.soft) and all(map(os.path.exists, files)):
        (labels,) = _sampled(dataset, [first.name])
        share = float(labels.mean(dtype=np.float64)) if len(labels) else 0.0
    return math.log(share / (1 - share)) if 0 < share < 1 else 0.0


def list_combiner() -> Any:
    """Declares the option of how a list's rows become one."""
    return option("mean", "of the rows of a list's ids", choices=("mean", "sum", "sqrtn"))


def crosses() -> Any:
    """Declares the option of combinations of columns."""
    return option(
        (),
        "combinations of columns of single ids, and of numbers in bins of a width, each with a "
        "table of its own, such as user+item,site+price/0.5; or a number's bins alone: price/0.5",
        metavar="NAME+NAME,…",
    )


def crossed_columns(config: Any, dataset: Dataset) -> dict[str, tuple["str | Bins", ...]]:
    """Gives the columns of each of a config's `cross`, by the feature's name.

    Raises:
      UsageError: a combination is of one column of ids, or of one that the dataset lacks or that
        has lists, or is there already.
    """
    found: dict[str, tuple[str | Bins, ...]] = {}
    for text in getattr(config, "cross", ()):
        columns = tuple(name.strip() for name in text.split("+"))
        bins = {name: made for name in columns if (made := _bins(dataset, name)) is not None}
        if len(set(columns)) < max(1 if bins else 2, len(columns)):
            raise UsageError(
                f"cross must name two or more columns with + between them, each once, such as "
                f"user+item, but got {text!r}"
            )
        find_columns("cross", dataset, [name for name in columns if name not in bins], ragged=False)
        name = "_x_".join(columns).replace("/", "_by_")
        if name in found or any(column.name == name for column in dataset.categorical):
            raise UsageError(f"cross {text!r}: there is a feature {name!r} already: leave it out")
        found[name] = tuple(bins.get(name, name) for name in columns)
    return found


def _bins(dataset: Dataset, text: str) -> "Bins | None":
    """Gives the bins that a number and a width ask for; None if it is no number's name.

    Raises:
      UsageError: the number has no width, or a wrong one.
    """
    if any(column.name == text for column in dataset.categorical):
        return None
    numbers = [column.name for column in dataset.numeric]
    name, _, width = text.rpartition("/")
    if name not in numbers and text not in numbers:
        return None
    try:
        found = float(width) if name in numbers else 0.0
    except ValueError:
        found = 0.0
    if not 1e-30 < found < 1e30:
        raise UsageError(
            f"cross: {text!r} must have the width of the number's bins, such as {name or text}/0.5"
        )
    from embedps.layers.id_hash import Bins

    return Bins(numbers.index(name), found)


def make_numerics(dataset: Dataset, bins: int, waves: int, *, standard: bool = False) -> "Numerics":
    """Makes the layer that encodes a batch's numbers.

    Raises:
      UsageError: there are waves but no bins, or bins although numbers are to be scaled.
    """
    from .networks.parts import Numerics

    if waves and not bins:
        raise UsageError(f"numeric_waves {waves} needs numeric_bins: give it 16, for example")
    if standard and bins:
        raise UsageError(
            f"numeric_standard scales the numbers themselves, but numeric_bins is {bins}: give it 0"
        )
    return Numerics(
        edges(dataset, bins), waves=waves, moments=moments(dataset) if standard else None
    )


def moments(dataset: Dataset) -> npt.NDArray[np.float32]:
    """Finds the mean and the standard deviation of each number of the rows that `edges` reads.

    Returns:
      float32 [2, numeric columns]; 0 and 1 where there is no number, or no two.
    """
    found = np.repeat(np.array([[0], [1]], np.float32), len(dataset.numeric), 1)
    for j, numbers in enumerate(_sampled(dataset, [each.name for each in dataset.numeric])):
        if len(numbers):
            found[:, j] = numbers.mean(dtype=np.float64), numbers.std(dtype=np.float64) or 1
    return found


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
    found = np.zeros([len(dataset.numeric), bins + 1], np.float32)
    names = [column.name for column in dataset.numeric]
    for row, numbers in zip(found, _sampled(dataset, names), strict=True):
        if len(numbers):
            row[:] = np.quantile(numbers, np.linspace(0, 1, bins + 1))
    return found


def _sampled(dataset: Dataset, names: Sequence[str]) -> list[npt.NDArray[Any]]:
    """Reads the finite values of each of these columns, of up to _MAX_GROUPS training row groups.

    Args:
      names: of columns of floats.
    """
    nothing = np.zeros(0, np.float32)
    if "train" not in dataset.splits or not names:
        return [nothing for _ in names]
    groups = [
        (dataset.absolute_path(file), i)
        for file in dataset.split("train").files
        for i in range(len(file.row_groups))
    ]
    chosen = [groups[i * len(groups) // _MAX_GROUPS] for i in range(_MAX_GROUPS)] if groups else []
    tables = []
    for path, i in dict.fromkeys(chosen):
        with naming(path):
            tables.append(pq.ParquetFile(path).read_row_group(i, columns=[*names]))
    columns = (
        np.concatenate([table[name].to_numpy() for table in tables] or [nothing]) for name in names
    )
    return [numbers[np.isfinite(numbers)] for numbers in columns]


def small() -> Initializer:
    """Makes the initializer of rows whose products are added to a logit: they start near 0."""
    return Initializer.normal(0.01)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkConfig(TableOptions):
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
    config: TableOptions,
    columns: Sequence[CategoricalFeature],
    *,
    crosses: Iterable[str] = (),
    embedding_dim: int | None = None,
    initializer: Initializer | None = None,
    lazy_decay: float = 0.0,
    combiner: Any = "mean",
) -> tuple[FeatureSpec, ...]:
    """Declares one table per categorical column and cross.

    Args:
      config: the tables' options.
      crosses: the names of features of single ids that the model makes.
      embedding_dim: floats per row; by default the config's.
      initializer: of new rows; by default that of TableSpec.
      lazy_decay: of the tables' optimizers.
      combiner: of a list's rows.
    """

    def table(name: str) -> TableSpec:
        made = config.table(name, embedding_dim=embedding_dim, initializer=initializer)
        if not lazy_decay:
            return made
        optimizer = dataclasses.replace(made.optimizer, lazy_decay=lazy_decay)
        return dataclasses.replace(made, optimizer=optimizer)

    return tuple(
        FeatureSpec(name=name, table=table(name), ragged=ragged, combiner=combiner)
        for name, ragged in (
            *((column.name, column.ragged) for column in columns),
            *((name, False) for name in crosses),
        )
    )


def check_categorical(model: str, dataset: Dataset, cross: Sequence[str] | None = None) -> None:
    """Checks that there is a table to train.

    Args:
      model: for messages.
      cross: the features that the model makes of others; None if it can make none.

    Raises:
      UsageError: the dataset has no categorical column, and there is no such feature.
    """
    if dataset.categorical or cross:
        return
    bins = (
        f", or give bins of numbers: --cross {dataset.numeric[0].name}/0.5"
        if (cross is not None and dataset.numeric)
        else ""
    )
    raise UsageError(
        f"{model} must have a categorical column, ragged or not, but the dataset "
        f"{dataset.directory} has none beside {len(dataset.numeric)} numeric ones: declare one "
        f"in its schema and make the dataset again{bins}"
    )


def find_columns(
    model: str, dataset: Dataset, names: Sequence[str], *, ragged: bool | None = None
) -> tuple[list[str], list[str]]:
    """Finds columns of ids by name.

    Args:
      model: for messages.
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
    """Names the columns of weights of all labels together."""
    return (dataset.weight,) if dataset.weight else ()


def weighed(
    build: Callable[[], Any],
    dataset: Dataset,
    crosses: Mapping[str, Sequence["str | Bins"]] | None = None,
) -> Callable[[], Any]:
    """Makes a model's builder set `weight`, the column whose values multiply examples' losses.

    Args:
      crosses: those of a click model.
    """

    def weighed_model() -> Any:
        from embedps.engine.click_model import ClickModel

        model = build()
        model.weight = dataset.weight
        if isinstance(model, ClickModel):
            model.declare(dataset.labels[0])
            model.combinations = dict(crosses or {})
        return model

    return weighed_model


def click_recommender(
    model: str, config: PolicyOptions, dataset: Dataset, build: Callable[[], Any]
) -> Recommender:
    """Makes a recommender that reads a dataset's first label, its weight and all its features.

    Raises:
      UsageError: the dataset has no categorical column.
    """
    return _recommender(model, config, dataset, build, (dataset.label,))


def label_recommender(
    model: str,
    config: TableOptions,
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
    config: PolicyOptions,
    dataset: Dataset,
    build: Callable[[], Any],
    labels: Sequence[str],
) -> Recommender:
    made = crossed_columns(config, dataset)
    check_categorical(model, dataset, tuple(made) if hasattr(config, "cross") else None)
    if not labels or not dataset.label:
        raise UsageError(
            f"{model} must have a label, but the dataset {dataset.directory} has none: declare one "
            "in its schema and make the dataset again; sasrec and two_tower need none"
        )
    names = (*(f.name for f in dataset.numeric), *(f.name for f in dataset.categorical))
    own = [label.weight or dataset.weight for label in dataset.labels if label.name in labels]
    weights = dict.fromkeys(name for name in own if name)
    wire_dtype = config.resolved_wire_dtype if isinstance(config, NetworkConfig) else "float32"
    return Recommender(
        build=weighed(build, dataset, made),
        columns=(*labels, *names, *weights),
        missing_id=dataset.missing_id,
        wire_dtype=wire_dtype,
        model=model,
        config=config,
    )
