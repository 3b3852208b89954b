"""DLRM (Naumov et al. 2019, arXiv:1906.00091): bottom MLP, dot interaction, top MLP.

The bottom MLP maps the numeric features to a vector of the embeddings' dim. The top MLP takes that
vector and the dot products of all vectors, and returns the logit.

A dataset without numeric columns gets no bottom MLP: the top MLP takes the embeddings themselves
instead of its output. (Two epochs of MovieLens 100K then reach a held-out AUC of 0.78, and 0.66
with the dot products alone.) A single vector has no dot products.

Copy this module to write a model of your own: it needs a `Config`, whose fields become flags, and
`make`. `models/networks/dlrm.py` has the Keras model.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.tables import FeatureSpec

from ._columns import (
    NetworkConfig,
    click_recommender,
    crossed_columns,
    crosses,
    declare,
    list_combiner,
    make_numerics,
    numeric_bins,
    numeric_waves,
    widths,
)

if TYPE_CHECKING:  # imports TensorFlow, which `--help` does not need
    from .networks.dlrm import DLRM
    from .networks.parts import Numerics


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(NetworkConfig):
    """DLRM's options; the defaults are those of facebookresearch/dlrm for Criteo Kaggle."""

    bottom_mlp: tuple[int, ...] = widths(
        (512, 256, 64),
        "widths of the layers over the numeric features; a last layer of --embedding-dim is added",
    )
    top_mlp: tuple[int, ...] = widths(
        (512, 256),
        "widths of the layers over the interactions; a last layer of one logit is added",
    )
    numeric_bins: int = numeric_bins()
    numeric_waves: int = numeric_waves()
    cross: tuple[str, ...] = crosses()
    list_combiner: str = list_combiner()


def build(
    config: Config,
    features: Sequence[FeatureSpec],
    *,
    label: str = "label",
    has_numerics: bool = True,
    numerics: "Numerics | None" = None,
) -> "DLRM":
    """Builds the model over declared features."""
    from embedps.layers.embeddings import Embeddings

    from .networks.dlrm import DLRM

    return DLRM(
        Embeddings(features),
        label=label,
        embedding_dim=config.embedding_dim,
        bottom_mlp=config.bottom_mlp if has_numerics else None,
        top_mlp=config.top_mlp,
        compute_dtype=config.compute_dtype,
        numerics=numerics,
    )


def make(config: Config, dataset: Dataset) -> Recommender:
    """Makes a DLRM over a dataset's columns.

    Raises:
      UsageError: the dataset has no categorical column, so there is no table to train.
    """
    features = declare(
        config,
        dataset.categorical,
        crosses=crossed_columns(config, dataset),
        combiner=config.list_combiner,
    )
    has_numerics = bool(dataset.numeric)

    def made() -> "DLRM":
        numerics = make_numerics(dataset, config.numeric_bins, config.numeric_waves)
        encoded = numerics if has_numerics and config.numeric_bins else None
        return build(
            config, features, label=dataset.label, has_numerics=has_numerics, numerics=encoded
        )

    return click_recommender("dlrm", config, dataset, made)
