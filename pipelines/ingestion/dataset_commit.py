"""Commits a dataset: checks that no row is lost, then writes `_dataset.json`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from embedps.data.dataset import Dataset
from embedps.data.dataset_metadata import (
    CategoricalFeature,
    InputFile,
    InputSummary,
    KeptTexts,
    LabelColumn,
    NumericFeature,
    Split,
)
from embedps.data.transforms_digest import learned_features
from embedps.errors import DatasetError
from embedps.features.table_schema import Table
from embedps.features.transforms import FILE_NAME as TRANSFORMS_NAME
from embedps.features.transforms import Transforms

from .file_record import FileRecord
from .ingest_job import BAD_LINES_NAME, IngestJob
from .shard_writer import ShardRecord, merged_sketches
from .work_dir import SPLITS


def commit_dataset(
    job: IngestJob,
    files: Sequence[FileRecord],
    drawn: int,
    shards: Sequence[ShardRecord],
    texts: KeptTexts,
) -> None:
    """Writes the transforms and, last, `_dataset.json`.

    Args:
      job: the job.
      files: all input files, in order.
      drawn: rows that were not read but drawn.
      shards: all shards, in any order.
      texts: what was kept of the texts of ids.

    Raises:
      DatasetError: the rows written and set aside are not the rows read.
    """
    transforms = Transforms.load(job.work.path)
    table = transforms.table
    source = _input_summary(job, files)
    _check_row_counts(source, drawn, shards)
    own = {column.weight for column in table.columns}
    names = {column.role: column.name for column in table.columns if column.name not in own}
    labels = tuple(
        LabelColumn(
            name=column.name,
            kind=column.task,
            classes=column.num_classes,
            optional=column.optional,
            soft=column.soft,
            weight=column.weight,
        )
        for column in table.columns
        if column.role == "label"
    )
    missing = {
        feature.name: sum(shard.missing[feature.name] for shard in shards)
        for feature in table.features
    }
    categorical = _categorical_features(job, transforms, shards, missing)
    transforms.save(Path(job.output))
    Dataset(
        directory=Path(job.output),
        source=table.name,
        label=labels[0].name if labels else "",
        labels=labels,
        float_lists=tuple(c.name for c in table.columns if c.role == "float_list"),
        keys=tuple(c.name for c in table.columns if c.keep),
        weight=names.get("weight", ""),
        timestamp=names.get("timestamp", ""),
        transforms=TRANSFORMS_NAME,
        transforms_digest=transforms.digest,
        learned=learned_features(table.to_json()),
        numeric=_numeric_features(table, missing),
        categorical=categorical,
        schema={field.name: str(field.type) for field in table.output_schema},
        texts=texts,
        splits={name: _split(name, shards) for name in SPLITS},
        input=source,
        bad_lines=BAD_LINES_NAME,
    ).save()


def _input_summary(job: IngestJob, files: Sequence[FileRecord]) -> InputSummary:
    return InputSummary(
        files=tuple(
            InputFile(
                path=file.name,
                bytes=file.bytes,
                xxh3_64=file.xxh3_64,
                lines=file.lines,
                lines_bad=file.lines_bad,
            )
            for file in files
        ),
        lines_read=sum(file.lines for file in files),
        lines_bad=sum(file.lines_bad for file in files),
        options=job.to_json(),
        joins=tuple(
            replace(side, unmatched=sum(file.unmatched[place] for file in files if file.unmatched))
            for place, side in enumerate(job.sides)
        ),
    )


def _check_row_counts(source: InputSummary, drawn: int, shards: Sequence[ShardRecord]) -> None:
    """Raises DatasetError unless every row that was read is in a shard or set aside."""
    written = sum(shard.file.rows for shard in shards) - drawn
    if source.lines_read != written + source.lines_bad:
        raise DatasetError(
            f"rows read must be written or set aside, but {source.lines_read:,} were read, "
            f"{written:,} written and {source.lines_bad:,} set aside: this is a fault of the "
            "pipeline, or the input changed"
        )


def _numeric_features(table: Table, missing: dict[str, int]) -> tuple[NumericFeature, ...]:
    return tuple(
        NumericFeature(
            name=feature.name,
            transform=", ".join(step.op for step in feature.steps) or "raw",
            missing=missing[feature.name],
        )
        for feature in table.features
        if feature.kind == "numeric"
    )


def _categorical_features(
    job: IngestJob,
    transforms: Transforms,
    shards: Sequence[ShardRecord],
    missing: dict[str, int],
) -> tuple[CategoricalFeature, ...]:
    """Describes the id features: those with one id per row first, then the lists."""
    sketches = merged_sketches(job.work, transforms, [shard.task for shard in shards])
    return tuple(
        CategoricalFeature(
            name=feature.name,
            cardinality=sketches[feature.name].count,
            cardinality_exact=sketches[feature.name].exact,
            missing=missing[feature.name],
            ragged=feature.kind == "list",
        )
        for kind in ("categorical", "list")
        for feature in transforms.table.features
        if feature.kind == kind
    )


def _split(name: str, shards: Sequence[ShardRecord]) -> Split:
    mine = sorted((s for s in shards if s.task.split == name), key=lambda s: s.task.index)
    return Split(
        rows=sum(shard.file.rows for shard in mine),
        positives=sum(shard.positives for shard in mine),
        files=tuple(shard.file for shard in mine),
    )
