"""What a training run is told; each field is a flag of `embedps.train` and a key of its file."""

import dataclasses
from typing import Any

from embedps.errors import UsageError


def _option(default: Any, text: str, **metadata: Any) -> Any:
    return dataclasses.field(default=default, metadata={"help": text, **metadata})


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A training run."""

    model: str = _option("dlrm", "a module of models/, or your own as package.module")
    data: str = dataclasses.field(metadata={"help": "the dataset's directory, as Beam wrote it"})
    model_dir: str = dataclasses.field(
        metadata={"help": "checkpoints, summaries and scores; run again to resume"}
    )
    epochs: int = _option(1, "passes over the training split")
    batch_size: int = _option(2048, "examples a step")
    unit_rows: int = _option(32768, "examples a unit: what is scheduled, retried and recorded")
    shuffle: bool = _option(True, "shuffle the units, and the examples within each")
    seed: int = _option(0, "of the shuffles and the network's initial values")
    sparse_learning_rate: float = _option(0.05, "of the embedding tables")
    dense_learning_rate: float = _option(0.001, "of the network")
    dense_optimizer: str = _option("adam", "of the network", choices=("sgd", "adagrad", "adam"))
    num_ps: int = _option(0, "parameter servers of a local cluster; 0 trains in this process")
    num_workers: int = _option(1, "workers of a local cluster, or units at once in this process")
    num_shards: int = _option(0, "shards of a table; 0 is one a parameter server")
    delta_secs: float = _option(15.0, "seconds from one checkpoint delta to the next")
    checkpoint_rows: str = _option(
        "float32",
        "embeddings in checkpoints; int8 and int4 are within half a row's scale",
        choices=("float32", "int8", "int4"),
    )
    checkpoint_slots: str = _option(
        "float32", "optimizer slots in checkpoints", choices=("float32", "bfloat16")
    )
    keep_chains: int = _option(2, "base checkpoints kept, with their deltas")
    eval: str = _option(
        "sidecar",
        "score checkpoints in a process beside the training; with TF_CONFIG, start "
        "embedps.evaluate yourself",
        choices=("sidecar", "none"),
    )
    log_secs: float = _option(5.0, "seconds from one plain progress line to the next")

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "unit_rows", "num_workers", "keep_chains"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1 but got {getattr(self, name)}")
        for name in ("num_ps", "num_shards", "seed"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} must be at least 0 but got {getattr(self, name)}")
        for name in ("sparse_learning_rate", "dense_learning_rate", "delta_secs", "log_secs"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UsageError(f"{name} must be above 0 but got {getattr(self, name)}")
        if self.unit_rows < self.batch_size:
            raise UsageError(
                f"unit_rows must be at least the batch size {self.batch_size} "
                f"but got {self.unit_rows}"
            )
        for name, allowed in (
            ("dense_optimizer", ("sgd", "adagrad", "adam")),
            ("eval", ("sidecar", "none")),
            ("checkpoint_rows", ("float32", "int8", "int4")),
            ("checkpoint_slots", ("float32", "bfloat16")),
        ):
            if getattr(self, name) not in allowed:
                raise UsageError(
                    f"{name} must be one of {', '.join(allowed)} but got {getattr(self, name)!r}"
                )
