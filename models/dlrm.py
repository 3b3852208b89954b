"""DLRM (Naumov et al. 2019, arXiv:1906.00091): bottom MLP, dot interaction, top MLP."""

import dataclasses
from typing import Any

import tensorflow as tf

from embedps.dataset import Dataset
from embedps.errors import UsageError
from embedps.layers import COMPUTE_DTYPES, MLP, check_compute_dtype, dot_interaction
from embedps.recommender import Recommender, check_wire_dtype
from embedps.tables import FeatureSpec, TableSpec
from embedps.tables.optimizers import make as make_optimizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """DLRM's shape; the defaults are facebookresearch/dlrm's for Criteo Kaggle."""

    embedding_dim: int = dataclasses.field(default=16, metadata={"help": "floats of a row"})
    bottom_mlp: tuple[int, ...] = dataclasses.field(
        default=(512, 256, 64),
        metadata={"help": "layers over the numeric features; one of --embedding-dim is added"},
    )
    top_mlp: tuple[int, ...] = dataclasses.field(
        default=(512, 256),
        metadata={"help": "layers over the interactions; one of a single logit is added"},
    )
    sparse_optimizer: str = dataclasses.field(
        default="rowwise_adagrad",
        metadata={"help": "sgd, adagrad, rowwise_adagrad, lazy_adam or ftrl"},
    )
    compute_dtype: str = dataclasses.field(
        default="float32",
        metadata={
            "help": "of the dense network's products; weights and rows are float32",
            "choices": COMPUTE_DTYPES,
        },
    )
    wire_dtype: str = dataclasses.field(
        default="compute",
        metadata={
            "help": "of rows, matrices and their gradients between workers and parameter servers; "
            "compute: the compute dtype",
            "choices": ("compute", *COMPUTE_DTYPES),
        },
    )

    def __post_init__(self) -> None:
        for name in ("embedding_dim", "bottom_mlp", "top_mlp"):
            value = getattr(self, name)
            if min(value if isinstance(value, tuple) else (value,), default=1) < 1:
                raise UsageError(f"{name} must be at least 1 but got {value}")
        make_optimizer(self.sparse_optimizer)
        check_compute_dtype(self.compute_dtype)
        check_wire_dtype(self.dtype_between_tasks)

    @property
    def dtype_between_tasks(self) -> str:
        """What `wire_dtype` comes to."""
        return self.compute_dtype if self.wire_dtype == "compute" else self.wire_dtype


class DLRM(tf.keras.Model):
    """The dense network: logits from numeric features and embeddings of one dim."""

    def __init__(self, config: Config, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._interaction_dtype = config.compute_dtype
        self._bottom = MLP(
            [*config.bottom_mlp, config.embedding_dim],
            final_activation="relu",
            compute_dtype=config.compute_dtype,
        )
        self._top = MLP(
            [*config.top_mlp, 1], compute_dtype=config.compute_dtype, out_dtype="float32"
        )

    def call(self, numerics: tf.Tensor, embeddings: dict[str, tf.Tensor]) -> tf.Tensor:
        """Scores a batch.

        Args:
          numerics: float32 [batch, n]; NaN, which is missing, counts as 0.
          embeddings: by feature float32 [batch, embedding_dim].

        Returns:
          float32 [batch, 1], logits.
        """
        numerics = tf.where(tf.math.is_nan(numerics), tf.zeros_like(numerics), numerics)
        bottom = self._bottom(numerics)
        interactions = dot_interaction([bottom, *embeddings.values()], self._interaction_dtype)
        return self._top([bottom, interactions])


def make(config: Config, dataset: Dataset) -> Recommender:
    """DLRM over a dataset's columns: a table for each categorical feature."""
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
        build=lambda: DLRM(config),
        missing_id=dataset.missing_id,
        wire_dtype=config.dtype_between_tasks,
        model="dlrm",
        config=config,
    )
