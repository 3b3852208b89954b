"""The checkpoint options of a run: when one is saved, in what encoding, and which ones stay."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from embedps.checkpoint.format.quantize import Encoding, OptimizerSlotEncoding
from embedps.checkpoint.policies import REBASE_KINDS, RebasePolicy, SavePolicy, make_rebase
from embedps.config_fields import MAX_COUNT, MAX_SECS, check, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When checkpoints are saved, in what encoding, and which ones stay.

    A base has all rows. A delta has the rows that changed. A chain is a base and its deltas.
    """

    delta_secs: float = option(
        15.0, "seconds from one checkpoint delta to the next", above=0, most=MAX_SECS
    )
    delta_steps: int = option(
        0,
        "save after this many steps if that is sooner than --delta-secs; 0 goes by seconds only",
        least=0,
        most=MAX_COUNT,
    )
    rebase: str = option(
        "consecutive",
        "when a new base is written. consecutive: before a restore would read more than "
        "--max-read-cost bases; one-shot: never, and a delta has all changes since the base; "
        "intermittent: deltas have all changes since the base, and a new base comes when "
        "Check-N-Run's prediction says so",
        choices=REBASE_KINDS,
    )
    max_read_cost: float = option(
        2.0,
        "the most that a restore may read, its deltas included, in sizes of the base",
        above=1,
        most=math.inf,
    )
    row_encoding: Literal["float32", "int8", "int4"] = option(
        "float32",
        "encoding of embeddings in checkpoints. float32: as in memory, bit for bit; int8 and int4 "
        "store each value to within half of its row's scale",
        flag="checkpoint_row_encoding",
    )
    slot_encoding: OptimizerSlotEncoding = option(
        "float32",
        "encoding of optimizer slots in checkpoints. float32: as in memory, bit for bit",
        flag="checkpoint_slot_encoding",
    )
    keep_chains: int = option(
        2, "newest base checkpoints to keep, each with its deltas", least=1, most=MAX_COUNT
    )
    keep_secs: float = option(
        0.0,
        "also keep the checkpoints of the last this many seconds",
        least=0,
        most=MAX_SECS,
    )
    keep_every_hours: float = option(
        0.0,
        "also keep the first checkpoint of each period of this many hours",
        least=0,
        most=MAX_SECS,
    )
    keep_best: int = option(
        0,
        "also keep this many checkpoints with the best held-out scores",
        least=0,
        most=MAX_COUNT,
    )
    max_secs_without_checkpoint: float = option(
        1800.0,
        "end the run with code 74 if no checkpoint could be written for this many seconds",
        above=0,
        most=MAX_SECS,
    )

    def __post_init__(self) -> None:
        check(self)

    def save_policy(self) -> SavePolicy:
        """Makes the policy that says when a checkpoint is due."""
        return SavePolicy(secs=self.delta_secs, steps=self.delta_steps or math.inf)

    def rebase_policy(self) -> RebasePolicy:
        """Makes the policy that says when a new base is written."""
        return make_rebase(self.rebase, max_read_cost=self.max_read_cost)

    def encoding(self) -> Encoding:
        """Gives the encoding of rows in checkpoints."""
        return Encoding(rows=self.row_encoding, optimizer_slots=self.slot_encoding)
