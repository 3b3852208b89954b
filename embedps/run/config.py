"""What a training run is told; each field is a flag of `embedps.train` and a key of its file."""

import dataclasses
import functools
import math
from typing import Literal, TypeAlias, cast, get_args

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.quantize import Encoding, RowEncoding, SlotEncoding
from embedps.checkpoint.policies import REBASE_KINDS, RebasePolicy, SavePolicy, make_rebase
from embedps.checkpoint.retention import (
    KeepBest,
    KeepChains,
    KeepEvery,
    KeepNewest,
    KeepPolicy,
    KeepRecent,
)
from embedps.config_fields import MAX_COUNT, MAX_SECS, check, option
from embedps.errors import UsageError
from embedps.run.summary import read_evaluations

EVAL_KINDS = ("sidecar", "inline", "none")
DEFAULT_MODEL = "dlrm"
"""The model of a run that names none and is given no recommender."""

MAX_LOCAL_TASKS = 256
"""Parameter servers, and workers, of a local cluster; each is a process."""

MAX_SHARDS = 1024
"""Of a table; each is a part of every step's graph."""

MAX_RATE = 1e30
"""A learning rate, which is a float32."""

Metric: TypeAlias = Literal["auc", "logloss", "normalized_entropy"]
"""Of an evaluation, to be improved: the AUC upwards, the others downwards."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A training run."""

    model: str | None = option(
        None, f"a module of models/, or your own as package.module (default: {DEFAULT_MODEL})"
    )
    data: str = option(
        dataclasses.MISSING, "the dataset's directory, as Beam wrote it", metavar="DIR"
    )
    model_dir: str = option(
        dataclasses.MISSING, "checkpoints, summaries and scores; run again to resume", metavar="DIR"
    )
    epochs: int = option(1, "passes over the training split", least=1, most=MAX_COUNT)
    batch_size: int = option(2048, "examples a step", least=1, most=MAX_COUNT)
    unit_rows: int = option(
        32768, "examples a unit: what is scheduled, retried and recorded", least=1, most=MAX_COUNT
    )
    shuffle: bool = option(True, "shuffle the units, and the examples within each")
    seed: int = option(
        0, "of the shuffles and the network's initial values", least=0, most=2**32 - 1
    )
    sparse_learning_rate: float = option(0.05, "of the embedding tables", above=0, most=MAX_RATE)
    dense_learning_rate: float = option(0.001, "of the network", above=0, most=MAX_RATE)
    dense_optimizer: str = option("adam", "of the network", choices=("sgd", "adagrad", "adam"))
    num_ps: int = option(
        0,
        "parameter servers of a local cluster; 0 trains in this process",
        least=0,
        most=MAX_LOCAL_TASKS,
    )
    num_workers: int = option(
        1,
        "workers of a local cluster, or units at once in this process",
        least=1,
        most=MAX_LOCAL_TASKS,
    )
    overlap: bool = option(
        False,
        "on a cluster, ask for a step's rows and variables while the step before it computes; they "
        "lack the gradients of that step",
    )
    num_shards: int = option(
        0, "shards of a table; 0 is one a parameter server", least=0, most=MAX_SHARDS
    )
    delta_secs: float = option(
        15.0, "seconds from one checkpoint delta to the next", above=0, most=MAX_SECS
    )
    delta_steps: int = option(
        0, "or steps, if they are done sooner; 0 is seconds alone", least=0, most=MAX_COUNT
    )
    rebase: str = option(
        "consecutive",
        "when a new base is written. consecutive: before a restore would read --max-read-cost "
        "bases; one-shot: never, and a delta holds all since the base; intermittent: such deltas, "
        "and a base when Check-N-Run's prediction says so",
        choices=REBASE_KINDS,
    )
    max_read_cost: float = option(
        2.0, "bases that a restore may read, deltas included", above=1, most=math.inf
    )
    checkpoint_rows: str = option(
        "float32",
        "embeddings in checkpoints; int8 and int4 are within half a row's scale",
        choices=("float32", "int8", "int4"),
    )
    checkpoint_slots: str = option(
        "float32", "optimizer slots in checkpoints", choices=("float32", "bfloat16")
    )
    keep_chains: int = option(
        2, "base checkpoints kept, with their deltas", least=1, most=MAX_COUNT
    )
    keep_secs: float = option(
        0.0, "also keep the checkpoints of so many seconds", least=0, most=MAX_SECS
    )
    keep_every_hours: float = option(
        0.0, "also keep the first checkpoint of every so many hours", least=0, most=MAX_SECS
    )
    keep_best: int = option(
        0, "also keep so many checkpoints with the best held-out scores", least=0, most=MAX_COUNT
    )
    max_secs_without_checkpoint: float = option(
        1800.0,
        "end with code 74 when no checkpoint could be written for so long",
        above=0,
        most=MAX_SECS,
    )
    eval: str = option(
        "sidecar",
        "sidecar: score checkpoints in a process beside the training (with TF_CONFIG, start "
        "embedps.evaluate yourself); inline: on the workers, while training pauses",
        choices=EVAL_KINDS,
    )
    eval_units: int = option(
        0,
        "inline: score every so many units, besides at the end of each epoch; 0 is not",
        least=0,
        most=MAX_COUNT,
    )
    metric: str = option(
        "auc", "that --keep-best and the options below go by", choices=get_args(Metric)
    )
    stop_patience: int = option(
        0,
        "stop after so many scorings in a row that were no better; 0 is never",
        least=0,
        most=MAX_COUNT,
    )
    reduce_patience: int = option(
        0,
        "scale the learning rates after so many in a row that were no better; 0 is never",
        least=0,
        most=MAX_COUNT,
    )
    reduce_factor: float = option(0.5, "what they are scaled by", above=0, below=1)
    min_delta: float = option(0.0, "a score is better by more than this", least=0)
    log_secs: float = option(
        5.0, "seconds from one plain progress line to the next", above=0, most=MAX_SECS
    )
    grace_secs: float = option(
        30.0,
        "seconds from SIGTERM or Ctrl-C to the end: units finish in half of it, then a save",
        above=0,
        most=MAX_SECS,
    )
    server_timeout_secs: float = option(
        15.0,
        "a worker or parameter server that does not answer for so long is taken as dead",
        least=1,
        most=MAX_SECS,
    )
    wait_secs: float = option(
        600.0,
        "longest wait for servers to come up, for any unit to end, for the last scores",
        above=0,
        most=MAX_SECS,
    )

    def __post_init__(self) -> None:
        check(self)
        if self.eval_units and self.eval != "inline":
            raise UsageError("eval_units is of --eval inline: a sidecar scores every checkpoint")
        if self.eval == "none" and (self.stop_patience or self.reduce_patience):
            raise UsageError("stop_patience and reduce_patience need --eval sidecar or inline")
        if self.unit_rows < self.batch_size:
            raise UsageError(
                f"unit_rows must be at least the batch size {self.batch_size} "
                f"but got {self.unit_rows}"
            )

    def save_policy(self) -> SavePolicy:
        """When a checkpoint is due."""
        return SavePolicy(secs=self.delta_secs, steps=self.delta_steps or math.inf)

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
        """Makes the policies that keep checkpoints; the newest two manifests always stay."""
        policies: list[KeepPolicy] = [KeepNewest(2), KeepChains(self.keep_chains)]
        policies += [KeepRecent(self.keep_secs)] if self.keep_secs else []
        policies += [KeepEvery(self.keep_every_hours)] if self.keep_every_hours else []
        if self.keep_best:
            model_dir = CheckpointDirectory(self.model_dir).path
            scores = functools.partial(read_evaluations, model_dir)
            policies.append(KeepBest(self.keep_best, scores, self.metric))
        return tuple(policies)
