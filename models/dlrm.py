"""DLRM (Naumov et al. 2019, arXiv:1906.00091): bottom MLP, dot interaction, top MLP."""

import dataclasses
from typing import TYPE_CHECKING

from embedps.dataset import Dataset
from embedps.dtypes import COMPUTE_DTYPES, check_compute_dtype
from embedps.errors import UsageError
from embedps.recommender import Recommender, check_wire_dtype
from embedps.tables import FeatureSpec, TableSpec
from embedps.tables.optimizers import make as make_optimizer

if TYPE_CHECKING:  # it imports TensorFlow, which the flags' help does not wait for
    from models.dlrm_network import DLRM


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


def build(config: Config) -> "DLRM":
    """Makes the dense network."""
    from models.dlrm_network import DLRM

    return DLRM(config)


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
        build=lambda: build(config),
        missing_id=dataset.missing_id,
        wire_dtype=config.dtype_between_tasks,
        model="dlrm",
        config=config,
    )
