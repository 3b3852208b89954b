"""DLRM (Naumov et al. 2019, arXiv:1906.00091): bottom MLP, dot interaction, top MLP.

The top MLP gets the bottom MLP's output and the dot products of all vectors. Without numeric
columns there is no bottom MLP: the embeddings themselves take the place of its output. (Two epochs
of MovieLens 100K give a held-out AUC of 0.78; of the dot products alone, 0.66.) Fewer than two
vectors have no dot products.
"""

import dataclasses
from typing import TYPE_CHECKING

from embedps.config_fields import check, option
from embedps.data.dataset import Dataset
from embedps.dtypes import COMPUTE_DTYPES
from embedps.engine.recommender import Recommender
from embedps.errors import UsageError
from embedps.tables import FeatureSpec, TableSpec
from embedps.tables.optimizers import make as make_optimizer
from embedps.tables.specs import MAX_DIM

if TYPE_CHECKING:  # it imports TensorFlow, which the flags' help does not wait for
    from .dlrm_network import DLRM

_MAX_WIDTH = 65536  # of a layer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """DLRM's shape; the defaults are facebookresearch/dlrm's for Criteo Kaggle."""

    embedding_dim: int = option(16, "floats of a row", least=1, most=MAX_DIM)
    bottom_mlp: tuple[int, ...] = option(
        (512, 256, 64),
        "layers over the numeric features; one of --embedding-dim is added",
        least=1,
        most=_MAX_WIDTH,
    )
    top_mlp: tuple[int, ...] = option(
        (512, 256),
        "layers over the interactions; one of a single logit is added",
        least=1,
        most=_MAX_WIDTH,
    )
    sparse_optimizer: str = option(
        "rowwise_adagrad", "sgd, adagrad, rowwise_adagrad, lazy_adam or ftrl"
    )
    compute_dtype: str = option(
        "float32",
        "of the dense network's products; weights and rows are float32",
        choices=COMPUTE_DTYPES,
    )
    wire_dtype: str = option(
        "compute",
        "of rows, matrices and their gradients between workers and parameter servers; compute: the "
        "compute dtype",
        choices=("compute", *COMPUTE_DTYPES),
    )

    def __post_init__(self) -> None:
        check(self)
        make_optimizer(self.sparse_optimizer)

    @property
    def dtype_between_tasks(self) -> str:
        """What `wire_dtype` comes to."""
        return self.compute_dtype if self.wire_dtype == "compute" else self.wire_dtype


def build(config: Config, *, has_numerics: bool) -> "DLRM":
    """Makes the dense network."""
    from .dlrm_network import DLRM

    return DLRM(config, has_numerics=has_numerics)


def make(config: Config, dataset: Dataset) -> Recommender:
    """DLRM over a dataset's columns: a table for each categorical feature.

    Raises:
      UsageError: the dataset has no categorical column, so that there is no table to train.
    """
    if not dataset.categorical:
        raise UsageError(
            f"dlrm must have a categorical column, ragged or not, but the dataset "
            f"{dataset.directory} has none beside {len(dataset.numeric)} numeric ones: declare one "
            "in its schema and make it again"
        )
    optimizer = make_optimizer(config.sparse_optimizer)
    names = tuple(f.name for f in dataset.categorical)
    return Recommender(
        tables=tuple(
            TableSpec(name=name, dim=config.embedding_dim, optimizer=optimizer) for name in names
        ),
        features=tuple(
            FeatureSpec(
                name=f.name, table=f.name, ragged=f.ragged, combiner="mean" if f.ragged else "sum"
            )
            for f in dataset.categorical
        ),
        numerics=tuple(f.name for f in dataset.numeric),
        label=dataset.label,
        build=lambda: build(config, has_numerics=bool(dataset.numeric)),
        missing_id=dataset.missing_id,
        wire_dtype=config.dtype_between_tasks,
        model="dlrm",
        config=config,
    )
