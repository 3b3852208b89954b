"""The dataset on disk: Parquet shards of two splits, committed by `_dataset.json`.

    DIR/train/shard-00000-of-00008.parquet, DIR/eval/shard-…, DIR/_bad_lines.jsonl
    DIR/_texts/part-…       the texts of ids, if they were kept (embedps/storage/id_texts.py)
    DIR/_transforms.json    how input becomes features (embedps/features/transforms.py)
    DIR/_dataset.json       written last: a directory without it is not a dataset

Columns, all non-nullable: labels (float32, or int64 classes); numeric features (float32, NaN is
missing); categorical features (int64 ids, `missing_id` is missing; lists of ids if ragged);
optionally lists of numbers (float32), keys (int64, as they came), a weight (float32) and a time
(int64, milliseconds since 1970).
"""

from __future__ import annotations

import importlib
import json
import logging
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from embedps.config_fields import check_text
from embedps.data.dataset_metadata import (
    CategoricalFeature,
    DataFile,
    InputSummary,
    KeptTexts,
    LabelColumn,
    NumericFeature,
    Split,
    read_fields,
)
from embedps.data.transforms_digest import difference, read_digest, stored_digest
from embedps.errors import DatasetError, UsageError
from embedps.storage.file_io import checksum_file, write_bytes

_T = TypeVar("_T")

FORMAT = "embedps.dataset"
VERSION = 1
FILE_NAME = "_dataset.json"
MAX_ROWS_PER_BYTE = 1 << 16
"""Of a shard. Far above what any writer reaches: units are made of a footer's claim."""
MISSING_ID = -1
RARE_ID = -2
"""Replaces ids below a frequency threshold."""
RAGGED_TYPE = "list<element: int64 not null>"
FLOAT_LIST_TYPE = "list<element: float not null>"
ROW_GROUP_ROWS = 32768


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Describes a dataset directory: the content of `_dataset.json`."""

    may_lack: ClassVar[tuple[str, ...]] = (
        *("labels", "float_lists", "keys", "weight", "timestamp"),
        *("transforms", "transforms_digest", "learned", "texts"),
    )
    directory: Path
    numeric: tuple[NumericFeature, ...]
    categorical: tuple[CategoricalFeature, ...]
    schema: Mapping[str, str]
    splits: Mapping[str, Split]
    source: str = "criteo"
    label: str = "label"
    """The first label; empty if there is none, as models of sequences need none."""
    labels: tuple[LabelColumn, ...] = ()
    """All labels; without them, `label`, if it is not empty, is binary and the only one."""
    float_lists: tuple[str, ...] = ()
    """The columns of lists of numbers."""
    keys: tuple[str, ...] = ()
    """The columns of integers that came with the rows, such as the user's: no feature, but a model
    or a join of its scores can read them."""
    weight: str = ""
    """The column of weights; empty if there is none."""
    timestamp: str = ""
    """The column of times, by which rows are sorted; empty if there is none."""
    transforms: str = ""
    """The file that describes the transforms; empty if there is none."""
    transforms_digest: str = ""
    """Tells these transforms from others (transforms_digest.py); empty if there are none."""
    learned: tuple[str, ...] = ()
    """The features whose transforms learned from the rows to train on, such as a mean."""
    texts: KeptTexts = field(default_factory=KeptTexts)
    """The texts of ids beside the dataset; no columns if there are none."""
    missing_id: int = MISSING_ID
    input: InputSummary = field(default_factory=InputSummary)
    bad_lines: str = "_bad_lines.jsonl"

    def __post_init__(self) -> None:
        if self.label and not self.labels:
            object.__setattr__(self, "labels", (LabelColumn(name=self.label),))
        first = self.labels[0].name if self.labels else ""
        if first != self.label:
            raise DatasetError(f"label must be the first of labels, {first!r}, got {self.label!r}")
        expected = dict.fromkeys((f.name for f in self.numeric), "float")
        expected |= {f.name: RAGGED_TYPE if f.ragged else "int64" for f in self.categorical}
        expected |= {label.name: label.arrow_type for label in self.labels}
        expected |= dict.fromkeys(self.float_lists, FLOAT_LIST_TYPE)
        expected |= dict.fromkeys(self.keys, "int64")
        expected |= dict.fromkeys(self.weights, "float")
        expected |= {self.timestamp: "int64"} if self.timestamp else {}
        if len(expected) != len(self.columns):
            raise DatasetError(
                "the names of the labels, the features and the other columns must differ from "
                "each other"
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
    def weights(self) -> tuple[str, ...]:
        """Lists the columns of weights: the dataset's, then those of single labels."""
        found = (self.weight, *(label.weight for label in self.labels))
        return tuple(dict.fromkeys(name for name in found if name))

    @property
    def columns(self) -> tuple[str, ...]:
        """Lists the columns: labels, numeric, categorical, then the others."""
        features = (*(f.name for f in self.numeric), *(f.name for f in self.categorical))
        others = (*self.float_lists, *self.keys, *self.weights, self.timestamp)
        return (
            *(label.name for label in self.labels),
            *features,
            *(name for name in others if name),
        )

    def typed_columns(self) -> list[list[str]]:
        """Lists the columns, each with its Arrow type."""
        return [[name, self.schema[name]] for name in self.columns]

    def as_before(self, columns: Sequence[Sequence[str]]) -> Dataset:
        """Leaves out the features that a dataset of before did not have.

        Args:
          columns: what `typed_columns` gave of that dataset. Features keep its order.

        Raises:
          UsageError: a column of before is absent now, or has another type.
        """
        for name, kind in columns:
            if (found := self.schema.get(name) if name in self.columns else "none") != kind:
                raise UsageError(
                    f"{self.directory}: column {name!r} has type {found}, the checkpoint was "
                    f"trained on {kind}: give data with the same columns or more, or start a new "
                    "model directory"
                )
        order = {name: i for i, (name, _) in enumerate(columns)}
        if list(self.columns) == list(order):
            return self
        features = (*(f.name for f in self.numeric), *(f.name for f in self.categorical))
        digest, learned = self.transforms_digest, self.learned
        if self.transforms and (new := set(features) - set(order)):
            digest, learned = read_digest(self.directory / self.transforms, without=new)
        return replace(
            self,
            numeric=_in_order(self.numeric, order, lambda feature: feature.name),
            categorical=_in_order(self.categorical, order, lambda feature: feature.name),
            float_lists=_in_order(self.float_lists, order, str),
            keys=_in_order(self.keys, order, str),
            transforms_digest=digest,
            learned=learned,
        )

    def split(self, name: str) -> Split:
        """Returns a split by name; raises DatasetError if there is none."""
        if name not in self.splits:
            raise DatasetError(
                f"{self.directory}: no split {name!r}, there is {', '.join(self.splits) or 'none'}"
            )
        return self.splits[name]

    def absolute_path(self, file: DataFile) -> Path:
        """Returns the absolute path of a shard."""
        return self.directory.absolute() / file.path

    def paths(self, split: str) -> tuple[Path, ...]:
        """Returns the absolute paths of a split's shards, in order."""
        return tuple(self.absolute_path(file) for file in self.split(split).files)

    def save(self, directory: Path | str | None = None) -> Path:
        """Commits the dataset: writes `_dataset.json` atomically."""
        place = directory if directory is not None else self.directory
        target = Path(check_text("a dataset's directory", place)) / FILE_NAME
        document: dict[str, Any] = {"format": FORMAT, "version": VERSION, **asdict(self)}
        del document["directory"]
        # Of a dataset without these, readers of before read the same document.
        if self.labels == (LabelColumn(name=self.label),):
            del document["labels"]
        for label in document.get("labels", ()):
            for name in LabelColumn.may_lack:
                if not label[name]:
                    del label[name]
        for name in ("float_lists", "keys", "transforms_digest", "learned"):
            if not document[name]:
                del document[name]
        if not self.texts.columns:
            del document["texts"]
        document["schema"] = dict(self.schema)
        write_bytes(target, (json.dumps(document, indent=1) + "\n").encode())
        return target

    @classmethod
    def open(cls, directory: Path | str) -> Dataset:
        """Reads `_dataset.json`; checks it, and each file's size, row groups and columns.

        Raises:
          DatasetError: the directory, the JSON or a file is absent or wrong: a file has another
            size, or lacks a column.
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

    @classmethod
    def from_arrow(
        cls,
        rows: Any,
        directory: Path | str,
        schema: Mapping[str, Any] | Path | str | None = None,
        **options: Any,
    ) -> Dataset:
        """Makes a dataset of an Arrow table: as ingestion of a Parquet file of it.

        A finished dataset of the same rows and options is kept.

        Args:
          rows: a pyarrow.Table or RecordBatch, or what gives Arrow's stream, such as a DataFrame of
            Polars; columns of the types that ingestion reads of Parquet.
          directory: where the dataset is to be.
          schema: a TOML file, the name of a shipped schema, or what such a file holds as a dict;
            its format does not count. None: as `embedps.pipelines.infer` proposes of the rows.
          options: those of `embedps.pipelines.ingest`, such as `num_shards=2`, `eval_fraction=0.2`
            or `split_key=("user",)`; without a schema also `label="clicked"`.

        Raises:
          UsageError: the schema or an option is not valid, or the directory has another dataset.
          DatasetError: a column has a type that the schema cannot hold, or too many rows are bad.
        """
        made: Dataset = _from_memory().from_arrow(rows, directory, schema, options)
        return made

    @classmethod
    def from_pandas(
        cls,
        rows: Any,
        directory: Path | str,
        schema: Mapping[str, Any] | Path | str | None = None,
        **options: Any,
    ) -> Dataset:
        """Makes a dataset of a pandas.DataFrame, without its index; else as `from_arrow`.

        Intervals become texts, and periods the times at which they begin.
        """
        made: Dataset = _from_memory().from_pandas(rows, directory, schema, options)
        return made

    @classmethod
    def from_tf_data(
        cls,
        rows: Any,
        directory: Path | str,
        schema: Mapping[str, Any] | Path | str | None = None,
        **options: Any,
    ) -> Dataset:
        """Makes a dataset of a tf.data.Dataset that ends, batched or not; else as `from_arrow`.

        Args:
          rows: elements are dicts by column, or (dict, label) or (dict, label, weight), where the
            label and the weight become columns of these names unless they are dicts too. Each
            column is dense or ragged. If all have a rank of 1 or more, elements are batches.
        """
        made: Dataset = _from_memory().from_tf_data(rows, directory, schema, options)
        return made

    def verify(self) -> None:
        """Reads every shard and compares its checksum; raises DatasetError if one differs."""
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


def _from_memory() -> Any:
    # Ingestion is a room above, and imports Beam, which warns of clouds that are not used, and for
    # that gives the user's logging a handler.
    logger = logging.getLogger()
    before, disabled = [*logger.handlers], logger.manager.disable
    logging.disable(logging.WARNING)
    try:
        return importlib.import_module("embedps.pipelines.ingestion.from_memory")
    finally:
        logging.disable(disabled)
        logger.handlers[:] = before


def describe_file(directory: Path, path: Path) -> DataFile:
    """Reads a Parquet file of a dataset's directory once, for its entry in `_dataset.json`."""
    import pyarrow.parquet as pq

    size, checksum = checksum_file(path)
    metadata = pq.read_metadata(path)
    return DataFile(
        path=str(path.relative_to(directory)),
        rows=metadata.num_rows,
        bytes=size,
        xxh3_64=checksum,
        row_groups=tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)),
    )


def _read_json(root: Path, path: Path) -> dict[str, Any]:
    if not root.is_dir():
        raise DatasetError(
            f"{root}: no such dataset directory: make one with python -m embedps.pipelines.criteo "
            "or embedps.pipelines.ingest"
        )
    try:
        check_regular(path)
        document = json.loads(path.read_bytes())
        json.dumps(document, ensure_ascii=False).encode()  # raises for half of a surrogate pair
    except FileNotFoundError:
        raise DatasetError(
            f"{path}: absent, so {root} is no finished dataset: run python -m "
            "embedps.pipelines.criteo or embedps.pipelines.ingest"
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
    """Returns a file's size; raises DatasetError for a pipe or such, which may not end."""
    attributes = path.stat()
    if not stat.S_ISREG(attributes.st_mode):
        raise DatasetError(f"{path}: must be a regular file")
    return attributes.st_size


def _decode(root: Path, document: dict[str, Any]) -> Dataset:
    fields = read_fields(Dataset, document)
    if fields.get("transforms") and not fields.get(
        "transforms_digest"
    ):  # before there were digests
        digest, learned = read_digest(root / fields["transforms"])
        fields |= {"transforms_digest": digest, "learned": learned}
    return Dataset(directory=root, **fields)


def _check_file(dataset: Dataset, file: DataFile) -> None:
    """Compares a shard's size, row groups and columns with `_dataset.json`."""
    import pyarrow.parquet as pq

    from embedps.data.arrow_errors import UNREADABLE

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
    except UNREADABLE as error:
        raise DatasetError(
            f"{path}: must be a Parquet file, make the dataset again: {error}"
        ) from None
    if min(groups, default=0) < 0 or sum(groups) > MAX_ROWS_PER_BYTE * size:
        raise DatasetError(
            f"{path}: its footer claims {sum(groups):,} rows, which it cannot hold: make the "
            "dataset again"
        )
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
    found = stored_digest(metadata.metadata)
    if other := difference(found, dataset.transforms_digest, made_of=str(dataset.directory)):
        raise DatasetError(f"{path}: {other}")


def _in_order(
    found: tuple[_T, ...], order: Mapping[str, int], name_of: Callable[[_T], str]
) -> tuple[_T, ...]:
    """Gives those of some names, in their order."""
    kept = [each for each in found if name_of(each) in order]
    return tuple(sorted(kept, key=lambda each: order[name_of(each)]))
