"""The config of a training run; each of its options is a flag of `embedps train` and a TOML key."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from embedps import config_fields
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.retention import (
    KeepBest,
    KeepChains,
    KeepEvery,
    KeepNewest,
    KeepPolicy,
    KeepRecent,
)
from embedps.config_fields import MAX_COUNT, MAX_SECS, option, section
from embedps.errors import UsageError
from embedps.run.checkpoint_config import CheckpointConfig
from embedps.run.cluster_config import ClusterConfig
from embedps.run.evaluation_config import EvaluationConfig
from embedps.run.eviction_config import EvictionConfig
from embedps.run.monitoring_config import MonitoringConfig
from embedps.run.optimizer_config import OptimizerConfig
from embedps.run.summary import read_evaluations
from embedps.run.warm_start_config import WarmStartConfig

DEFAULT_MODEL = "dlrm"
"""The model of a run that names none and is given no recommender."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A training run: what it trains on, for how long, and the sections of its other options."""

    model: str | None = option(
        None,
        "the model: dlrm, or a module of your own, as mymodel or package.module "
        f"(default: {DEFAULT_MODEL})",
    )
    data: str = option(
        dataclasses.MISSING, "directory of the dataset, as a pipeline wrote it", metavar="DIR"
    )
    model_dir: str = option(
        dataclasses.MISSING,
        "directory of checkpoints, scores and logs; a run resumes from what is there",
        metavar="DIR",
    )
    epochs: int = option(1, "passes over the training split", least=1, most=MAX_COUNT)
    watch: str | None = option(
        None,
        "a directory or s3:// prefix where Parquet files like the dataset's arrive: after its "
        "epochs, the run scores and trains each once, until told to end",
        metavar="DIR",
    )
    batch_size: int = option(2048, "examples per step", least=1, most=MAX_COUNT)
    unit_rows: int = option(
        32768,
        "examples per unit: a range of rows that is scheduled and repeated as one",
        least=1,
        most=MAX_COUNT,
    )
    max_unit_deaths: int = option(
        2,
        "set a unit or file aside once the process that trained it died this many "
        "times in a row, and go on with the others",
        least=1,
        most=MAX_COUNT,
    )
    shuffle: bool = option(True, "shuffle the units, and the examples within each unit")
    seed: int = option(
        0,
        "seed of the shuffles and of the network's initial values",
        least=0,
        most=2**32 - 1,
    )
    log_secs: float = option(
        5.0,
        "seconds between a log's progress lines",
        above=0,
        most=MAX_SECS,
    )
    stats_secs: float = option(
        60.0,
        "seconds between looks at the tables, for statistics and warnings; 0: at the end",
        least=0,
        most=MAX_SECS,
    )
    grace_secs: float = option(
        30.0,
        "seconds from SIGTERM or Ctrl-C to the end of the run: units get half of them to finish, "
        "then a checkpoint is saved",
        above=0,
        most=MAX_SECS,
    )
    optimizer: OptimizerConfig = section(OptimizerConfig)
    cluster: ClusterConfig = section(ClusterConfig)
    checkpoint: CheckpointConfig = section(CheckpointConfig)
    eviction: EvictionConfig = section(EvictionConfig)
    evaluation: EvaluationConfig = section(EvaluationConfig)
    warm_start: WarmStartConfig = section(WarmStartConfig)
    monitoring: MonitoringConfig = section(MonitoringConfig)

    def __post_init__(self) -> None:
        config_fields.check(self)
        if self.unit_rows < self.batch_size:
            raise UsageError(
                f"unit_rows must be at least the batch size {self.batch_size} "
                f"but got {self.unit_rows}"
            )
        if self.unit_rows < self.step_rows:
            raise UsageError(
                f"unit_rows must be at least the {self.step_rows} rows of a step of "
                f"{self.cluster.replicas} replicas but got {self.unit_rows}"
            )

    @classmethod
    def from_options(cls, **options: Any) -> TrainConfig:
        """Makes a config from options by the names of their flags, such as `num_ps=2`.

        Raises:
          UsageError: a value is of the wrong type or out of range.
          TypeError: there is no such option, or a required one is missing.
        """
        return config_fields.make(cls, options)

    def to_options(self) -> Mapping[str, Any]:
        """Gives all options by the names of their flags, as `from_options` takes them."""
        return config_fields.values_of(self)

    @property
    def step_rows(self) -> int:
        """Examples per step of all replicas."""
        return self.batch_size * self.cluster.replicas

    def dense_rate_scale(self, num_workers: int) -> float:
        """What the network's learning rate is multiplied by for the examples of an update."""
        is_joint = self.cluster.is_in_step
        return self._rate_scale(self.cluster.parts_needed(num_workers) if is_joint else 1)

    def row_rate_scale(self, num_workers: int) -> float:
        """What the tables' learning rate is multiplied by for the examples of an update."""
        is_joint = self.cluster.sync == "full"
        return self._rate_scale(self.cluster.parts_needed(num_workers) if is_joint else 1)

    def _rate_scale(self, num_parts: int) -> float:
        meant = self.optimizer.rates_batch_size
        return num_parts * self.step_rows / meant if meant else 1.0

    def keep_policies(self) -> tuple[KeepPolicy, ...]:
        """Makes the policies that keep checkpoints; the newest two manifests always stay."""
        asked = self.checkpoint
        policies: list[KeepPolicy] = [KeepNewest(2), KeepChains(asked.keep_chains)]
        policies += [KeepRecent(asked.keep_secs)] if asked.keep_secs else []
        policies += [KeepEvery(asked.keep_every_hours)] if asked.keep_every_hours else []
        if best := max(asked.keep_best, int(self.evaluation.end_with == "best")):
            model_dir = CheckpointDirectory(self.model_dir).path
            scores = functools.partial(read_evaluations, model_dir)
            policies.append(KeepBest(best, scores, self.evaluation.metric))
        return tuple(policies)
