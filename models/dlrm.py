"""DLRM (Naumov et al. 2019, arXiv:1906.00091): bottom MLP, dot interaction, top MLP.

The bottom MLP maps the numeric features to a vector of the embeddings' dim. The top MLP takes that
vector and the dot products of all vectors, and returns the logit.

A dataset without numeric columns gets no bottom MLP: the top MLP takes the embeddings themselves
instead of its output. (Two epochs of MovieLens 100K then reach a held-out AUC of 0.78, and 0.66
with the dot products alone.) A single vector has no dot products.

Copy this module to write a model of your own: it needs a `Config`, whose fields become flags, and
`make`. `models/dlrm_network.py` has the Keras model.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from embedps.config_fields import check, option
from embedps.constants import MAX_ROW_FILE_WIDTH
from embedps.data.dataset import Dataset
from embedps.data.dataset_metadata import CategoricalFeature
from embedps.dtypes import COMPUTE_DTYPES
from embedps.engine.recommender import Recommender
from embedps.errors import UsageError
from embedps.tables import FeatureSpec, TableSpec
from embedps.tables.optimizers import make as make_optimizer

if TYPE_CHECKING:  # imports TensorFlow, which `--help` does not need
    from .dlrm_network import DLRM

_MAX_LAYER_WIDTH = 65536


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """DLRM's options; the defaults are those of facebookresearch/dlrm for Criteo Kaggle."""

    embedding_dim: int = option(16, "floats per embedding", least=1, most=MAX_ROW_FILE_WIDTH)
    bottom_mlp: tuple[int, ...] = option(
        (512, 256, 64),
        "widths of the layers over the numeric features; a last layer of --embedding-dim is added",
        least=1,
        most=_MAX_LAYER_WIDTH,
    )
    top_mlp: tuple[int, ...] = option(
        (512, 256),
        "widths of the layers over the interactions; a last layer of one logit is added",
        least=1,
        most=_MAX_LAYER_WIDTH,
    )
    sparse_optimizer: str = option(
        "rowwise_adagrad", "sgd, adagrad, rowwise_adagrad, lazy_adam or ftrl"
    )
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

    def __post_init__(self) -> None:
        check(self)
        make_optimizer(self.sparse_optimizer)

    @property
    def resolved_wire_dtype(self) -> str:
        """`wire_dtype`, with "compute" replaced by the compute dtype."""
        return self.compute_dtype if self.wire_dtype == "compute" else self.wire_dtype


def build(
    config: Config,
    features: Sequence[FeatureSpec],
    *,
    label: str = "label",
    has_numerics: bool = True,
) -> "DLRM":
    """Builds the model over declared features."""
    from embedps.layers.embeddings import Embeddings

    from .dlrm_network import DLRM

    return DLRM(
        Embeddings(features),
        label=label,
        embedding_dim=config.embedding_dim,
        bottom_mlp=config.bottom_mlp if has_numerics else None,
        top_mlp=config.top_mlp,
        compute_dtype=config.compute_dtype,
    )


def declare(config: Config, columns: Sequence[CategoricalFeature]) -> tuple[FeatureSpec, ...]:
    """Declares one table per categorical column; a list's rows are averaged."""
    optimizer = make_optimizer(config.sparse_optimizer)
    return tuple(
        FeatureSpec(
            name=column.name,
            table=TableSpec(name=column.name, dim=config.embedding_dim, optimizer=optimizer),
            ragged=column.ragged,
            combiner="mean" if column.ragged else "sum",
        )
        for column in columns
    )


def make(config: Config, dataset: Dataset) -> Recommender:
    """Makes a DLRM over a dataset's columns.

    Raises:
      UsageError: the dataset has no categorical column, so there is no table to train.
    """
    if not dataset.categorical:
        raise UsageError(
            f"dlrm must have a categorical column, ragged or not, but the dataset "
            f"{dataset.directory} has none beside {len(dataset.numeric)} numeric ones: declare one "
            "in its schema and make the dataset again"
        )
    features = declare(config, dataset.categorical)
    names = (*(f.name for f in dataset.numeric), *(f.name for f in dataset.categorical))
    return Recommender(
        build=lambda: build(
            config, features, label=dataset.label, has_numerics=bool(dataset.numeric)
        ),
        columns=(dataset.label, *names),
        missing_id=dataset.missing_id,
        wire_dtype=config.resolved_wire_dtype,
        model="dlrm",
        config=config,
    )
