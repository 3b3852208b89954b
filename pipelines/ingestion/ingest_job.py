"""The job of one ingestion: what decides the dataset's bytes, and where the dataset goes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from embedps.data.dataset_metadata import SideTable
from embedps.features.table_schema import Table
from embedps.storage.id_texts import FOLDER_NAME, part_name

from .lake_files import LakeTable
from .negatives import NegativeRule
from .shard_writer import ShardTask
from .splits import SplitRule
from .work_dir import SPLITS, WorkDir

BAD_LINES_NAME = "_bad_lines.jsonl"
WORK_NAME = "_work"


@dataclass(frozen=True, kw_only=True)
class IngestJob:
    """The options of one ingestion; with the input files, they decide the dataset's bytes."""

    output: str
    table: Table
    num_shards: int
    row_group_rows: int
    max_bad_fraction: float
    allow_damaged_files: bool = False
    split: SplitRule = field(default_factory=SplitRule)
    eval_files: tuple[str, ...] = ()
    """Names of the files whose rows are held out, where the file decides the split."""
    transforms_digest: str = ""
    """Of the transforms that the work directory has from the start; empty if the job fits them."""

    negatives: NegativeRule | None = None
    keep_texts: tuple[str, ...] = ()
    """The columns whose ids' texts are kept."""
    max_texts: int = 0
    sides: tuple[SideTable, ...] = ()
    """The side tables of the table's joins, once they are in the work directory."""

    tables: tuple[LakeTable, ...] = ()
    """The versions of tables of Delta Lake or Iceberg that are read."""

    @property
    def by(self) -> str:
        """The column by which rows must come together before they are divided; empty if none."""
        return self.split.by or self.table.histories_by

    @property
    def work(self) -> WorkDir:
        return WorkDir(path=Path(self.output) / WORK_NAME)

    def texts_path(self, part: int) -> Path:
        """Names the file of a part of the texts of ids; there are as many parts as shards."""
        return Path(self.output) / FOLDER_NAME / part_name(part, self.num_shards)

    @property
    def shard_tasks(self) -> list[ShardTask]:
        """The shards to write; there are no eval shards if no rows are held out."""
        splits = SPLITS if self.split.holds_out else SPLITS[:1]
        return [
            ShardTask(split=split, index=i, count=self.num_shards)
            for split in splits
            for i in range(self.num_shards)
        ]

    def to_json(self) -> dict[str, Any]:
        """Returns the options that decide a dataset's bytes, as `_dataset.json` stores them."""
        return {
            "num_shards": self.num_shards,
            "row_group_rows": self.row_group_rows,
            **self.split.to_json(),
            "eval_files": list(self.eval_files),
            "table": self.table.to_json(),
            **({"negatives": asdict(self.negatives)} if self.negatives is not None else {}),
            **({"transforms_of": self.transforms_digest} if self.transforms_digest else {}),
            **(
                {"keep_texts": list(self.keep_texts), "max_texts": self.max_texts}
                if self.keep_texts
                else {}
            ),
            **({"tables": [each.to_json() for each in self.tables]} if self.tables else {}),
        }
