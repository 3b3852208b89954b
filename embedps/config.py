"""What a training run is told; each field is a flag of `embedps.train` and a key of its file."""

import dataclasses
import math
from typing import Any, Literal, TypeAlias, cast, get_args

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.policies import REBASE_KINDS, CutPolicy, RebasePolicy, make_rebase
from embedps.checkpoint.quantize import Encoding, RowEncoding, SlotEncoding
from embedps.checkpoint.retention import KeepPolicy, make_keep
from embedps.errors import UsageError

EVAL_KINDS = ("sidecar", "inline", "none")
DEFAULT_MODEL = "dlrm"
"""The model of a run that names none and is given no recommender."""

Metric: TypeAlias = Literal["auc", "logloss", "normalized_entropy"]
"""Of an evaluation, to be improved: the AUC upwards, the others downwards."""


def _option(default: Any, text: str, **metadata: Any) -> Any:
    return dataclasses.field(default=default, metadata={"help": text, **metadata})


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A training run."""

    model: str | None = _option(
        None, f"a module of models/, or your own as package.module (default: {DEFAULT_MODEL})"
    )
    data: str = _option(
        dataclasses.MISSING, "the dataset's directory, as Beam wrote it", metavar="DIR"
    )
    model_dir: str = _option(
        dataclasses.MISSING, "checkpoints, summaries and scores; run again to resume", metavar="DIR"
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
    overlap: bool = _option(
        False,
        "on a cluster, ask for a step's rows and variables while the step before it computes; they "
        "lack the gradients of that step",
    )
    num_shards: int = _option(0, "shards of a table; 0 is one a parameter server")
    delta_secs: float = _option(15.0, "seconds from one checkpoint delta to the next")
    delta_steps: int = _option(0, "or steps, if they are done sooner; 0 is seconds alone")
    rebase: str = _option(
        "consecutive",
        "when a new base is written. consecutive: before a restore would read --max-read-cost "
        "bases; one-shot: never, and a delta holds all since the base; intermittent: such deltas, "
        "and a base when Check-N-Run's prediction says so",
        choices=REBASE_KINDS,
    )
    max_read_cost: float = _option(2.0, "bases that a restore may read, deltas included")
    checkpoint_rows: str = _option(
        "float32",
        "embeddings in checkpoints; int8 and int4 are within half a row's scale",
        choices=("float32", "int8", "int4"),
    )
    checkpoint_slots: str = _option(
        "float32", "optimizer slots in checkpoints", choices=("float32", "bfloat16")
    )
    keep_chains: int = _option(2, "base checkpoints kept, with their deltas")
    keep_secs: float = _option(0.0, "also keep the checkpoints of so many seconds")
    keep_every_hours: float = _option(0.0, "also keep the first checkpoint of every so many hours")
    keep_best: int = _option(0, "also keep so many checkpoints with the best held-out scores")
    max_secs_without_checkpoint: float = _option(
        1800.0, "end with code 74 when no checkpoint could be written for so long"
    )
    eval: str = _option(
        "sidecar",
        "sidecar: score checkpoints in a process beside the training (with TF_CONFIG, start "
        "embedps.evaluate yourself); inline: on the workers, while training pauses",
        choices=EVAL_KINDS,
    )
    eval_units: int = _option(
        0, "inline: score every so many units, besides at the end of each epoch; 0 is not"
    )
    metric: str = _option(
        "auc", "that --keep-best and the options below go by", choices=get_args(Metric)
    )
    stop_patience: int = _option(
        0, "stop after so many scorings in a row that were no better; 0 is never"
    )
    reduce_patience: int = _option(
        0, "scale the learning rates after so many in a row that were no better; 0 is never"
    )
    reduce_factor: float = _option(0.5, "what they are scaled by")
    min_delta: float = _option(0.0, "a score is better by more than this")
    log_secs: float = _option(5.0, "seconds from one plain progress line to the next")
    grace_secs: float = _option(
        30.0, "seconds from SIGTERM or Ctrl-C to the end: units finish in half of it, then a save"
    )
    server_timeout_secs: float = _option(
        15.0, "a worker or parameter server that does not answer for so long is taken as dead"
    )
    wait_secs: float = _option(
        600.0, "longest wait for servers to come up, for any unit to end, for the last scores"
    )

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "unit_rows", "num_workers", "keep_chains"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1 but got {getattr(self, name)}")
        for name in (
            "num_ps",
            "num_shards",
            "seed",
            "delta_steps",
            "keep_best",
            "eval_units",
            "stop_patience",
            "reduce_patience",
        ):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} must be at least 0 but got {getattr(self, name)}")
        for name in (
            "sparse_learning_rate",
            "dense_learning_rate",
            "delta_secs",
            "log_secs",
            "grace_secs",
            "server_timeout_secs",
            "wait_secs",
            "max_secs_without_checkpoint",
        ):
            if not 0 < getattr(self, name) < float("inf"):
                raise UsageError(f"{name} must be above 0 but got {getattr(self, name)}")
        for name in ("keep_secs", "keep_every_hours"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise UsageError(f"{name} must be at least 0 but got {getattr(self, name)}")
        if not 0 < self.reduce_factor < 1:
            raise UsageError(f"reduce_factor must be in (0, 1) but got {self.reduce_factor}")
        if not 0 <= self.min_delta < float("inf"):
            raise UsageError(f"min_delta must be at least 0 but got {self.min_delta}")
        if self.eval_units and self.eval != "inline":
            raise UsageError("eval_units is of --eval inline: a sidecar scores every checkpoint")
        if self.eval == "none" and (self.stop_patience or self.reduce_patience):
            raise UsageError("stop_patience and reduce_patience need --eval sidecar or inline")
        if self.unit_rows < self.batch_size:
            raise UsageError(
                f"unit_rows must be at least the batch size {self.batch_size} "
                f"but got {self.unit_rows}"
            )
        for name, allowed in (
            ("dense_optimizer", ("sgd", "adagrad", "adam")),
            ("eval", EVAL_KINDS),
            ("metric", get_args(Metric)),
            ("rebase", REBASE_KINDS),
            ("checkpoint_rows", ("float32", "int8", "int4")),
            ("checkpoint_slots", ("float32", "bfloat16")),
        ):
            if getattr(self, name) not in allowed:
                raise UsageError(
                    f"{name} must be one of {', '.join(allowed)} but got {getattr(self, name)!r}"
                )
        self.rebase_policy()  # checks max_read_cost

    def cut_policy(self) -> CutPolicy:
        """When a checkpoint is due."""
        return CutPolicy(secs=self.delta_secs, steps=self.delta_steps or math.inf)

    def rebase_policy(self) -> RebasePolicy:
        """When one begins with a new base."""
        return make_rebase(self.rebase, max_read_cost=self.max_read_cost)

    def encoding(self) -> Encoding:
        """Of the rows in checkpoints."""
        return Encoding(
            rows=cast(RowEncoding, self.checkpoint_rows),
            slots=cast(SlotEncoding, self.checkpoint_slots),
        )

    def keep_policies(self) -> tuple[KeepPolicy, ...]:
        """Which checkpoints stay."""
        return make_keep(
            CheckpointDirectory(self.model_dir),
            chains=self.keep_chains,
            secs=self.keep_secs,
            every_hours=self.keep_every_hours,
            best=self.keep_best,
            metric=self.metric,
        )
