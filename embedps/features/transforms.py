"""Fitted transforms: turn a table's rows into features, in the pipeline and in serving.

    DIR/_transforms.json        the table with its fitted features
    DIR/_transforms/NAME.arrow  the ids that NAME's min_count keeps

The pipeline uses the same function as serving, so a model is served the features it was trained
on. It needs pyarrow, NumPy and xxhash, but not Beam or TensorFlow.

    transforms = Transforms.load(DIR)
    features = transforms.apply(batch)   # texts as in the log, or typed columns

Users import it as `embedps.Transforms`.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from embedps.config_fields import shown
from embedps.data.dataset import MISSING_ID, Dataset
from embedps.data.transforms_digest import KEY, declared, digest_of, read_ids
from embedps.errors import DatasetError, UsageError
from embedps.features.decode import decode_batch, decode_column, first_bad_row
from embedps.features.table_columns import LIST_TYPE, Feature
from embedps.features.table_schema import Table
from embedps.features.transform_steps import RareIds, TransformStep
from embedps.splitmix import GOLDEN, mix
from embedps.storage.file_io import replacing

FILE_NAME = "_transforms.json"
FOLDER_NAME = "_transforms"
_FORMAT = "embedps.transforms"
_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Transforms:
    """The fitted features of a table."""

    table: Table

    def __post_init__(self) -> None:
        for feature in self.table.features:
            if (at := feature.first_unfitted) is not None:
                raise UsageError(f"feature {feature.name!r}: {feature.steps[at].op} is not fitted")

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Makes features of rows as the log has them: texts, or typed values.

        Args:
          batch: the table's columns by name. Label, weight and timestamp may be absent; the result
            then lacks them too.

        Returns:
          The columns of the dataset: see `Table.output_schema`.

        Raises:
          DatasetError: a feature's column is absent or a value cannot be read.
        """
        rows, bad = decode_batch(self.table, batch)
        if bad:
            raise DatasetError(f"every row of a batch must be readable, but {first_bad_row(bad)}")
        return self.apply_rows(rows)

    def apply_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Makes features of decoded rows."""
        made = {feature.name: compute_feature(feature, rows) for feature in self.table.features}
        fields, arrays = [], []
        for field in self.table.output_schema:
            if field.name in made:
                array = made[field.name]
            elif (index := rows.schema.get_field_index(field.name)) >= 0:
                array = rows.column(index)
            else:
                continue
            fields.append(field)
            arrays.append(array)
        # Whoever writes the batch as Parquet with pyarrow writes the digest too.
        return pa.record_batch(arrays, schema=pa.schema(fields, {KEY: self.digest.encode()}))

    @functools.cached_property
    def digest(self) -> str:
        """Tells these transforms from others; see embedps/data/transforms_digest.py."""
        steps = [step for feature in self.table.features for step in feature.steps]
        kept = {step.file: step.kept for step in steps if isinstance(step, RareIds)}
        return digest_of(self.table.to_json(), lambda file: np.asarray(kept[file]))

    def with_table(self, table: Table, where: str) -> Transforms:
        """Gives the transforms of a table that declares the same values, with what was learned.

        Args:
          table: as a schema declares it.
          where: the dataset of these transforms, for messages.

        Raises:
          UsageError: the table declares other columns or steps.
        """
        ours, theirs = declared(table.to_json()), declared(self.table.to_json())
        for name in (*ours, *(name for name in theirs if name not in ours)):
            one, other = ours.get(name, "none"), theirs.get(name, "none")
            if one != other:
                raise UsageError(
                    f"--transforms-of {where}: its {name} must be as --schema declares it, but "
                    f"--schema has {_shown(one)} and the dataset {_shown(other)}: give the schema "
                    "that it was made with"
                )
        steps = {feature.name: feature.steps for feature in self.table.features}
        made = tuple(replace(feature, steps=steps[feature.name]) for feature in table.features)
        return Transforms(table=table.with_features(made))

    def decode(self, name: str, texts: Any) -> NDArray[np.int64]:
        """Makes the ids or times of texts, as datasets have them: of ids, XXH3 fingerprints.

        Args:
          name: of a column of ids of texts (`type = "string"`), or of times written as text; if it
            has lists, the texts are their elements.
          texts: strings, bytes or None, which is a missing id.

        Raises:
          DatasetError: a text cannot be read.
        """
        column, missing = self.table.column(name), self.table.missing
        if column.role == "list":  # of one text, so that no separator counts
            column, missing = replace(column, role="categorical"), ()  # as in `decode_batch`
        try:
            array = pa.array([each.decode() if isinstance(each, bytes) else each for each in texts])
        except UnicodeDecodeError:
            raise DatasetError(f"column {name!r} must have texts in UTF-8") from None
        values, bad = decode_column(column, array.cast(pa.string()), missing)
        if bad:
            raise DatasetError(f"column {name!r}: {first_bad_row(bad)}")
        ids: NDArray[np.int64] = values.to_numpy()
        return ids

    def save(self, directory: Path) -> None:
        """Writes `_transforms.json` and the ids that min_count keeps."""
        for feature in self.table.features:
            for step in feature.steps:
                if isinstance(step, RareIds):
                    _save_ids(directory / step.file, step.kept)
        document = {"format": _FORMAT, "version": _VERSION, "table": self.table.to_json()}
        text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
        with replacing(directory / FILE_NAME, sync=True) as path:
            path.write_text(text, encoding="utf-8")

    @classmethod
    def of(cls, dataset: Dataset) -> Transforms:
        """Reads the transforms that made a dataset; raises DatasetError if there are none."""
        transforms = cls.load(dataset.directory)
        if dataset.transforms_digest not in ("", transforms.digest):
            raise DatasetError(
                f"{dataset.directory / FILE_NAME}: its transforms are {transforms.digest}, the "
                f"dataset was made with {dataset.transforms_digest}: restore the file from a copy, "
                "or make the dataset again"
            )
        return transforms

    @classmethod
    def load(cls, directory: Path | str) -> Transforms:
        """Reads the transforms of a dataset; raises DatasetError if there are none."""
        path = Path(directory) / FILE_NAME
        try:
            document = json.loads(path.read_bytes())
            found = (document["format"], document["version"])
        except FileNotFoundError:
            raise DatasetError(f"{path}: absent: give the directory of a dataset") from None
        except (ValueError, RecursionError) as error:
            raise DatasetError(f"{path}: must be a JSON document: {error}") from None
        except (TypeError, KeyError):
            raise DatasetError(f"{path}: must be {_FORMAT}, a JSON object with a format") from None
        if found != (_FORMAT, _VERSION):
            raise DatasetError(
                f"{path}: must be {_FORMAT} of version {_VERSION}, got {shown(found)}"
            )
        try:
            table = Table.parse(document["table"])
        except (UsageError, KeyError, TypeError) as error:
            raise DatasetError(f"{path}: {error}") from None
        features = tuple(_load_ids(feature, Path(directory)) for feature in table.features)
        return cls(table=table.with_features(features))


def _shown(node: Any) -> str:
    return node if isinstance(node, str) else json.dumps(node, ensure_ascii=False)


def compute_feature(
    feature: Feature, rows: pa.RecordBatch, num_steps: int | None = None
) -> pa.Array:
    """Computes a feature of decoded rows after its first `num_steps` steps; None means all."""
    sources = []
    for name in feature.sources:
        index = rows.schema.get_field_index(name)
        if index < 0:
            raise DatasetError(
                f"feature {feature.name!r} needs column {name!r}: {rows.schema.names}"
            )
        sources.append(rows.column(index))
    taken = feature.steps[:num_steps]
    if feature.kind == "list":
        (lists,) = sources
        ids = _apply_steps(taken, lists.flatten().to_numpy())
        offsets = np.frombuffer(lists.buffers()[1], np.int32, len(lists) + 1, lists.offset * 4)
        starts = pa.array(offsets - offsets[0])
        return pa.ListArray.from_arrays(starts, pa.array(ids), type=LIST_TYPE)
    values = _cross(sources) if feature.is_cross else sources[0].to_numpy()
    values = _apply_steps(taken, values)
    if values.dtype != np.int64:
        values = values.astype(np.float32)
    return pa.array(values, from_pandas=False)


def compute_numbers(feature: Feature, rows: pa.RecordBatch, num_steps: int) -> NDArray[np.float64]:
    """Computes a numeric feature after its first `num_steps` steps, in float64."""
    values = rows.column(rows.schema.get_field_index(feature.sources[0])).to_numpy()
    return _apply_steps(feature.steps[:num_steps], values)


def _apply_steps(steps: tuple[TransformStep, ...], values: NDArray[Any]) -> NDArray[Any]:
    for step in steps:
        values = step.apply(values)
    return values


def _cross(columns: list[pa.Array]) -> NDArray[np.int64]:
    """Returns an id per combination of ids; it is missing if any of them is."""
    h = np.zeros(len(columns[0]), np.uint64)
    missing = np.zeros(len(h), np.bool_)
    for column in columns:
        ids = column.to_numpy()
        missing |= ids == MISSING_ID
        h = mix(h * np.uint64(GOLDEN) + ids.view(np.uint64))
    # 63 bits: no combination gets a reserved id, which are negative.
    return np.where(missing, MISSING_ID, (h >> np.uint64(1)).astype(np.int64))


def _save_ids(path: Path, ids: NDArray[np.int64] | None) -> None:
    """Writes the ids that min_count keeps, ascending, as an Arrow file."""
    batch = pa.record_batch({"id": np.empty(0, np.int64) if ids is None else ids})
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        replacing(path, sync=True) as temporary,
        pa.ipc.new_file(str(temporary), batch.schema) as writer,
    ):
        writer.write_batch(batch)


def _load_ids(feature: Feature, directory: Path) -> Feature:
    """Returns the feature with the ids that its min_count steps keep."""
    steps: list[TransformStep] = []
    for step in feature.steps:
        if isinstance(step, RareIds):
            step = replace(step, kept=read_ids(directory / step.file))
        steps.append(step)
    return replace(feature, steps=tuple(steps))
