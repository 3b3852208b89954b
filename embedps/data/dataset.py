"""The dataset on disk: Parquet shards of two splits, committed by `_dataset.json`.

    DIR/train/shard-00000-of-00008.parquet, DIR/eval/shard-…, DIR/_bad_lines.jsonl
    DIR/_transforms.json    what makes the features of the input (pipelines/ingestion/transforms.py)
    DIR/_dataset.json       written last: a directory without it is not a dataset

Columns: the label (float32, 0 or 1), the numeric features (float32, NaN is missing), the others
(int64 ids, `missing_id` is missing; ragged ones are lists of them), and where there are any a
weight (float32) and a time (int64, milliseconds since 1970); all are non-nullable.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from embedps.config_fields import check_text
from embedps.errors import DatasetError
from embedps.storage.file_io import write_bytes

FORMAT = "embedps.dataset"
VERSION = 1
FILE_NAME = "_dataset.json"
MISSING_ID = -1
MIN_INT, MAX_INT = -(1 << 63), (1 << 63) - 1
RARE_ID = -2
"""What ids below a frequency threshold become."""
RAGGED_TYPE = "list<element: int64 not null>"
ROW_GROUP_ROWS = 32768

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class NumericFeature:
    """A float32 column; `missing` rows of it are NaN."""

    name: str
    transform: str = "log1p"
    missing: int = 0


@dataclass(frozen=True, kw_only=True)
class CategoricalFeature:
    """A column of ids, or of lists of ids; `cardinality` counts distinct ids but the missing one.

    `missing` counts missing ids, of a ragged feature the empty lists.
    """

    name: str
    cardinality: int
    cardinality_exact: bool = True
    missing: int = 0
    ragged: bool = False


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """One Parquet shard; `path` is relative to the dataset, `row_groups` are their row counts."""

    path: str
    rows: int
    bytes: int
    xxh3_64: str
    row_groups: tuple[int, ...]

    def __post_init__(self) -> None:
        if os.path.isabs(self.path) or ".." in Path(self.path).parts:
            raise DatasetError(f"a shard's path must be inside the dataset, got {self.path!r}")
        if sum(self.row_groups) != self.rows:
            raise DatasetError(
                f"{self.path}: row groups must add up to its {self.rows} rows, "
                f"they give {sum(self.row_groups)}"
            )


@dataclass(frozen=True, kw_only=True)
class Split:
    """The rows of one use (train, eval), in shards of equal rows (within one)."""

    rows: int
    positives: int
    files: tuple[DataFile, ...]

    def __post_init__(self) -> None:
        rows = sum(file.rows for file in self.files)
        if rows != self.rows:
            raise DatasetError(f"a split's files must hold its {self.rows} rows, they hold {rows}")
        if not 0 <= self.positives <= self.rows:
            raise DatasetError(
                f"a split's positives must be within 0..{self.rows}, got {self.positives}"
            )


@dataclass(frozen=True, kw_only=True)
class InputFile:
    """One file that was read: its name, size and the checksum of its bytes."""

    path: str
    bytes: int
    xxh3_64: str
    lines: int = 0
    lines_bad: int = 0


@dataclass(frozen=True, kw_only=True)
class InputSummary:
    """What a dataset was made from, enough to see that a rerun would give the same bytes."""

    files: tuple[InputFile, ...] = ()
    lines_read: int = 0
    lines_bad: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A dataset directory's `_dataset.json`."""

    directory: Path
    numeric: tuple[NumericFeature, ...]
    categorical: tuple[CategoricalFeature, ...]
    schema: Mapping[str, str]
    splits: Mapping[str, Split]
    source: str = "criteo"
    label: str = "label"
    weight: str = ""
    """The column of weights; empty where there is none."""
    timestamp: str = ""
    """The column of times, by which the rows are then sorted; empty where there is none."""
    transforms: str = ""
    """The description that makes the features; empty where there is none."""
    missing_id: int = MISSING_ID
    input: InputSummary = field(default_factory=InputSummary)
    bad_lines: str = "_bad_lines.jsonl"

    def __post_init__(self) -> None:
        expected = dict.fromkeys((f.name for f in self.numeric), "float")
        expected |= {f.name: RAGGED_TYPE if f.ragged else "int64" for f in self.categorical}
        expected[self.label] = "float"
        expected |= {self.weight: "float"} if self.weight else {}
        expected |= {self.timestamp: "int64"} if self.timestamp else {}
        if len(expected) != len(self.columns):
            raise DatasetError(
                "the names of the label and the features must differ from each other"
            )
        for name, arrow_type in expected.items():
            if name not in self.schema:
                raise DatasetError(
                    f"schema must have column {name!r}, it has {', '.join(self.schema) or 'none'}"
                )
            if self.schema[name] != arrow_type:
                raise DatasetError(
                    f"column {name!r} must have Arrow type {arrow_type}, got {self.schema[name]}"
                )

    @property
    def columns(self) -> tuple[str, ...]:
        """The label, the numeric and the categorical columns, the weight and the time."""
        names = (self.label, *(f.name for f in self.numeric), *(f.name for f in self.categorical))
        return (*names, *(name for name in (self.weight, self.timestamp) if name))

    def split(self, name: str) -> Split:
        """Returns a split by name; an unknown one raises DatasetError."""
        if name not in self.splits:
            raise DatasetError(
                f"{self.directory}: no split {name!r}, there is {', '.join(self.splits) or 'none'}"
            )
        return self.splits[name]

    def absolute_path(self, file: DataFile) -> Path:
        """Returns where a shard of this dataset is."""
        return self.directory.absolute() / file.path

    def paths(self, split: str) -> tuple[Path, ...]:
        """Returns the absolute paths of a split's shards, in order."""
        return tuple(self.absolute_path(file) for file in self.split(split).files)

    def save(self, directory: Path | str | None = None) -> Path:
        """Commits the dataset: writes `_dataset.json`, whole or not at all."""
        place = directory if directory is not None else self.directory
        target = Path(check_text("a dataset's directory", place)) / FILE_NAME
        document: dict[str, Any] = {"format": FORMAT, "version": VERSION, **asdict(self)}
        del document["directory"]
        document["schema"] = dict(self.schema)
        write_bytes(target, (json.dumps(document, indent=1) + "\n").encode())
        return target

    @classmethod
    def open(cls, directory: Path | str) -> Dataset:
        """Reads `_dataset.json`; checks it, the files' sizes and the Parquet footers' columns.

        Raises:
          DatasetError: the directory, the JSON or a file is absent, wrong or of another size, or a
            file lacks a column.
          UsageError: the directory's path is blank or has a NUL.
        """
        root = Path(check_text("a dataset's directory", directory))
        path = root / FILE_NAME
        document = _read_json(root, path)
        try:
            dataset = _decode(root, document)
        except DatasetError as error:
            raise DatasetError(f"{path}: {error}") from None
        for split in dataset.splits.values():
            for file in split.files:
                _check_file(dataset, file)
        return dataset

    def verify(self) -> None:
        """Reads every byte of every shard and compares its checksum; raises DatasetError."""
        import xxhash

        for split in self.splits.values():
            for file in split.files:
                digest = xxhash.xxh3_64()
                path = self.absolute_path(file)
                with open(path, "rb") as data:
                    while block := data.read(1 << 22):
                        digest.update(block)
                if digest.hexdigest() != file.xxh3_64:
                    raise DatasetError(
                        f"{path}: its checksum must be {file.xxh3_64}, it is {digest.hexdigest()}: "
                        f"the file is damaged, make the dataset again"
                    )


def _read_json(root: Path, path: Path) -> dict[str, Any]:
    if not root.is_dir():
        raise DatasetError(
            f"{root}: no such dataset directory: make one with python -m pipelines.criteo or "
            "pipelines.ingest"
        )
    try:
        check_regular(path)
        document = json.loads(path.read_bytes())
        json.dumps(document, ensure_ascii=False).encode()  # a half of a surrogate pair is no text
    except FileNotFoundError:
        raise DatasetError(
            f"{path}: absent, so {root} is no finished dataset: run python -m pipelines.criteo or "
            "pipelines.ingest"
        ) from None
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path}: must be a JSON document: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = document.get("format") if isinstance(document, dict) else type(document).__name__
        raise DatasetError(f"{path}: format must be {FORMAT!r}, got {found!r}")
    if document.get("version") != VERSION:
        raise DatasetError(
            f"{path}: version must be {VERSION}, got {document.get('version')!r}: "
            f"make the dataset again with this embedps"
        )
    return document


def check_regular(path: Path) -> int:
    """Returns a file's size; raises DatasetError for what may not end, such as a pipe."""
    attributes = path.stat()
    if not stat.S_ISREG(attributes.st_mode):
        raise DatasetError(f"{path}: must be a regular file")
    return attributes.st_size


def _get(node: Any, key: str, kind: type[_T], where: str) -> _T:
    """Returns node[key] if it has the type `kind`, else raises what must hold."""
    if not isinstance(node, dict) or key not in node:
        raise DatasetError(f"{where}{key} must be there, it is absent")
    value = node[key]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise DatasetError(f"{where}{key} must be {kind.__name__}, got {value!r:.60}")
    if kind is int:
        least = MIN_INT if key == "missing_id" else 0
        if not least <= value <= MAX_INT:  # type: ignore[operator]
            raise DatasetError(
                f"{where}{key} must be within {least}..2**63-1, got {value!r:.60}: "
                "make the dataset again"
            )
    if kind is str and "\0" in value:  # type: ignore[operator]
        raise DatasetError(f"{where}{key} must be text without NUL, got {value!r:.60}")
    return value


def _decode_file(node: Any, where: str) -> DataFile:
    groups = _get(node, "row_groups", list, where)
    for i in range(len(groups)):
        _get({f"row_groups[{i}]": groups[i]}, f"row_groups[{i}]", int, where)
    return DataFile(
        path=_get(node, "path", str, where),
        rows=_get(node, "rows", int, where),
        bytes=_get(node, "bytes", int, where),
        xxh3_64=_get(node, "xxh3_64", str, where),
        row_groups=tuple(groups),
    )


def _decode_split(node: Any, where: str) -> Split:
    files = _get(node, "files", list, where)
    return Split(
        rows=_get(node, "rows", int, where),
        positives=_get(node, "positives", int, where),
        files=tuple(_decode_file(f, f"{where}files[{i}].") for i, f in enumerate(files)),
    )


def _decode_input(node: Any) -> InputSummary:
    where = "input."
    return InputSummary(
        files=tuple(
            InputFile(
                path=_get(f, "path", str, f"{where}files[{i}]."),
                bytes=_get(f, "bytes", int, f"{where}files[{i}]."),
                xxh3_64=_get(f, "xxh3_64", str, f"{where}files[{i}]."),
                lines=_get(f, "lines", int, f"{where}files[{i}]."),
                lines_bad=_get(f, "lines_bad", int, f"{where}files[{i}]."),
            )
            for i, f in enumerate(_get(node, "files", list, where))
        ),
        lines_read=_get(node, "lines_read", int, where),
        lines_bad=_get(node, "lines_bad", int, where),
        options=_get(node, "options", dict, where),
    )


def _decode(root: Path, document: dict[str, Any]) -> Dataset:
    numeric = enumerate(_get(document, "numeric", list, ""))
    categorical = enumerate(_get(document, "categorical", list, ""))
    return Dataset(
        directory=root,
        source=_get(document, "source", str, ""),
        label=_get(document, "label", str, ""),
        weight=_get({"weight": ""} | document, "weight", str, ""),
        timestamp=_get({"timestamp": ""} | document, "timestamp", str, ""),
        transforms=_get({"transforms": ""} | document, "transforms", str, ""),
        missing_id=_get(document, "missing_id", int, ""),
        numeric=tuple(
            NumericFeature(
                name=_get(f, "name", str, f"numeric[{i}]."),
                transform=_get(f, "transform", str, f"numeric[{i}]."),
                missing=_get(f, "missing", int, f"numeric[{i}]."),
            )
            for i, f in numeric
        ),
        categorical=tuple(
            CategoricalFeature(
                name=_get(f, "name", str, f"categorical[{i}]."),
                cardinality=_get(f, "cardinality", int, f"categorical[{i}]."),
                cardinality_exact=_get(f, "cardinality_exact", bool, f"categorical[{i}]."),
                missing=_get(f, "missing", int, f"categorical[{i}]."),
                ragged=_get({"ragged": False} | f, "ragged", bool, f"categorical[{i}]."),
            )
            for i, f in categorical
        ),
        schema=_get(document, "schema", dict, ""),
        splits={
            name: _decode_split(split, f"splits.{name}.")
            for name, split in _get(document, "splits", dict, "").items()
        },
        input=_decode_input(_get(document, "input", dict, "")),
        bad_lines=_get(document, "bad_lines", str, ""),
    )


def _check_file(dataset: Dataset, file: DataFile) -> None:
    """Compares a shard's size, row groups and columns with what `_dataset.json` says."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = dataset.absolute_path(file)
    try:
        size = check_regular(path)
    except FileNotFoundError:
        raise DatasetError(
            f"{path}: listed in {FILE_NAME} but absent: make the dataset again"
        ) from None
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror})") from None
    if size != file.bytes:
        raise DatasetError(
            f"{path}: must have {file.bytes} bytes, has {size}: make the dataset again"
        )
    try:
        with pq.ParquetFile(path) as parquet:
            arrow_schema = parquet.schema_arrow
            metadata = parquet.metadata
            groups = tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(
            f"{path}: must be a Parquet file, make the dataset again: {error}"
        ) from None
    if groups != file.row_groups:
        raise DatasetError(
            f"{path}: row groups must be {file.row_groups}, the footer has {groups}: "
            "make the dataset again"
        )
    for name in dataset.columns:
        index = arrow_schema.get_field_index(name)
        found = str(arrow_schema.field(index).type) if index >= 0 else "none"
        if found != dataset.schema[name]:
            raise DatasetError(
                f"{path}: column {name!r} must have Arrow type {dataset.schema[name]}, it has "
                f"{found}"
            )
