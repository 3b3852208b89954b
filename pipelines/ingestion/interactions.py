"""Reads users and their items in LightGCN's format, and writes them as a retrieval dataset."""

from __future__ import annotations

import dataclasses
import gzip
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from embedps.config_fields import MAX_COUNT, check, option
from embedps.data.dataset import ROW_GROUP_ROWS, Dataset
from embedps.data.dataset_metadata import (
    CategoricalFeature,
    DataFile,
    InputFile,
    InputSummary,
    LabelColumn,
    Split,
)
from embedps.errors import DatasetError, UsageError
from embedps.storage.file_io import checksum_file, replacing

from .lock import locked

SOURCE = "interactions"
LABEL = "label"
_MAX_ID = 2**63 - 1
_LIST = pa.list_(pa.field("element", pa.int64(), nullable=False))
_SCHEMA = pa.schema(
    [
        pa.field(LABEL, pa.float32(), nullable=False),
        pa.field("user", pa.int64(), nullable=False),
        pa.field("item", pa.int64(), nullable=False),
        *(pa.field(name, _LIST, nullable=False) for name in ("history", "held_out", "seen")),
    ]
)
Items = Mapping[int, npt.NDArray[np.int64]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What to read, and where to write."""

    train: tuple[str, ...] = option(
        dataclasses.MISSING, "items to learn", metavar="FILE", several=True
    )
    test: str = option(dataclasses.MISSING, "items to hold out", metavar="FILE")
    output: str = option(dataclasses.MISSING, "the dataset's directory", metavar="DIR")
    max_history: int = option(
        50, "items of a history; 0 leaves histories empty", least=0, most=MAX_COUNT
    )
    num_shards: int = option(4, "files of the training split", least=1, most=MAX_COUNT)
    seed: int = option(0, "of the order of the rows", least=0)

    def __post_init__(self) -> None:
        check(self)


def make_dataset(options: Options) -> tuple[Dataset, bool]:
    """Makes the dataset, or keeps it if it was made of the same files with the same options.

    Returns:
      The dataset, and whether it was there.

    Raises:
      UsageError: a file cannot be read, or the output is something else.
      DatasetError: a line is malformed, or there is nothing to train on or to hold out.
    """
    output = Path(options.output)
    source = _summary(options)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--output {output} cannot be made: {error.strerror}") from error
    with locked(output):
        if (output / "_dataset.json").exists():
            there = Dataset.open(output)
            if there.input == source:
                return there, True
            raise UsageError(
                f"--output {output} has another dataset: give another directory, or remove it"
            )
        train, test = _read_all(options.train), _read_all((options.test,))
        if not train or not test:
            raise DatasetError("there must be items to train on and to hold out, there are none")
        pairs = [(user, item) for user, items in train.items() for item in items]
        order = np.random.default_rng(options.seed).permutation(len(pairs))
        shards = [order[i :: options.num_shards] for i in range(options.num_shards)]
        files = [
            _write(output, f"train/shard-{i:05d}-of-{options.num_shards:05d}.parquet", rows)
            for i, rows in enumerate(_train_rows(pairs, part, train, options) for part in shards)
        ]
        held_out = _write(
            output, "eval/shard-00000-of-00001.parquet", _eval_rows(train, test, options)
        )
        _commit(output, source, train, test, files, held_out)
        return Dataset.open(output), False


def read_items(path: str | Path) -> Items:
    """Reads users and their items, each item once, in the file's order.

    Raises:
      UsageError: the file cannot be read.
      DatasetError: a line has something else than numbers.
    """
    found: dict[int, list[npt.NDArray[np.int64]]] = {}
    for number, line in _lines(path):
        fields = line.split()
        if not fields:
            continue
        try:
            ids = np.array(fields, np.int64)
        except (ValueError, OverflowError):
            bad = next(f for f in fields if not f.isdigit() or int(f) > _MAX_ID)
            raise DatasetError(
                f"{path}:{number}: a line must have a user's number and those of his items, from 0 "
                f"to 2^63 - 1, but has {bad[:40]!r}"
            ) from None
        if ids.min() < 0:
            raise DatasetError(f"{path}:{number}: numbers must be at least 0, got {ids.min()}")
        if len(ids) > 1:
            found.setdefault(int(ids[0]), []).append(ids[1:])
    return {user: _distinct(np.concatenate(parts)) for user, parts in found.items()}


def _distinct(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    _, first = np.unique(ids, return_index=True)
    return ids[np.sort(first)]


def _lines(path: str | Path) -> Iterator[tuple[int, str]]:
    opened = gzip.open if str(path).endswith(".gz") else open
    try:
        with opened(path, "rt", encoding="ascii") as file:
            yield from enumerate(file, 1)
    except (OSError, EOFError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path}: must be a text of numbers: {error}") from error


def _read_all(paths: tuple[str, ...]) -> Items:
    found: dict[int, npt.NDArray[np.int64]] = {}
    for path in paths:
        for user, items in read_items(path).items():
            found[user] = _distinct(
                np.concatenate([found[user], items]) if user in found else items
            )
    return found


def _train_rows(
    pairs: list[tuple[int, int]], part: npt.NDArray[np.int64], train: Items, options: Options
) -> Iterator[pa.Table]:
    none: list[int] = []
    for start in range(0, len(part), ROW_GROUP_ROWS):
        group = [pairs[i] for i in part[start : start + ROW_GROUP_ROWS]]
        yield _table(
            user=[user for user, _ in group],
            item=[item for _, item in group],
            # Without the row's own item, which a model would only have to repeat.
            history=[
                _last(train[user][train[user] != item], options.max_history) for user, item in group
            ],
            held_out=[none] * len(group),
            seen=[none] * len(group),
        )


def _eval_rows(train: Items, test: Items, options: Options) -> Iterator[pa.Table]:
    users, none = list(test), np.zeros(0, np.int64)
    for start in range(0, len(users), ROW_GROUP_ROWS):
        group = users[start : start + ROW_GROUP_ROWS]
        seen = [train.get(user, none) for user in group]
        yield _table(
            user=group,
            item=[test[user][0] for user in group],
            history=[_last(items, options.max_history) for items in seen],
            held_out=[test[user] for user in group],
            seen=seen,
        )


def _last(items: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    return items[max(len(items) - count, 0) :]


def _table(**columns: Any) -> pa.Table:
    rows = len(columns["user"])
    arrays = [pa.array(np.ones(rows, np.float32))]
    arrays += [pa.array(columns[field.name], field.type) for field in list(_SCHEMA)[1:]]
    return pa.table(arrays, schema=_SCHEMA)


def _write(output: Path, name: str, tables: Iterator[pa.Table]) -> DataFile:
    path, groups = output / name, []
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, sync=True) as temporary:
        with pq.ParquetWriter(
            temporary, _SCHEMA, compression="zstd", store_schema=False, write_page_checksum=True
        ) as writer:
            for table in tables:
                writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
                groups.append(table.num_rows)
        size, checksum = checksum_file(temporary)
    return DataFile(
        path=name,
        rows=sum(groups),
        bytes=size,
        xxh3_64=checksum,
        row_groups=tuple(groups),
    )


def _summary(options: Options) -> InputSummary:
    inputs = []
    for path in (*options.train, options.test):
        try:
            size, checksum = checksum_file(Path(path))
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}") from error
        inputs.append(InputFile(path=str(path), bytes=size, xxh3_64=checksum))
    fields = dataclasses.asdict(options)
    kept = {name: fields[name] for name in ("max_history", "num_shards", "seed")}
    return InputSummary(files=tuple(inputs), options=kept)


def _commit(
    output: Path,
    source: InputSummary,
    train: Items,
    test: Items,
    files: list[DataFile],
    held_out: DataFile,
) -> None:
    items = np.concatenate([*train.values(), *test.values()])
    sizes = {"user": len({*train, *test}), "item": len(np.unique(items))}
    rows = sum(file.rows for file in files)
    columns = [CategoricalFeature(name=name, cardinality=n) for name, n in sizes.items()]
    columns += [
        CategoricalFeature(name=name, cardinality=sizes["item"], ragged=True)
        for name in ("history", "held_out", "seen")
    ]
    Dataset(
        directory=output,
        source=SOURCE,
        label=LABEL,
        labels=(LabelColumn(name=LABEL),),
        numeric=(),
        categorical=tuple(columns),
        schema={field.name: str(field.type) for field in _SCHEMA},
        splits={
            "train": Split(rows=rows, positives=rows, files=tuple(files)),
            "eval": Split(rows=held_out.rows, positives=held_out.rows, files=(held_out,)),
        },
        input=source,
    ).save()
