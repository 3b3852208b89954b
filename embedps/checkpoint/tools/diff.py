"""Finds the rows that differ between two manifests, in bounded memory."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import FileEntry, Manifest
from embedps.checkpoint.tools.replay import Partition, make_partitions, winners_by_bucket
from embedps.errors import CorruptCheckpointError

CHANGES = ("added", "changed", "removed")
_COMPARED_ROWS = 65536  # at once


def diff(
    directory: CheckpointDirectory, before: Manifest, after: Manifest
) -> Iterator[pa.RecordBatch]:
    """Yields the rows that differ, group by group, in no particular order.

    A row differs if any of its bits differs. Columns: `change` (dictionary of "added", "changed",
    "removed"), then those of a row file without `removed`. Values are those after; for a removed
    row, those before.

    Raises:
      CorruptCheckpointError: a file is not what was written.
    """
    for manifest in (before, after):
        directory.check_content(manifest, [f for save in manifest.chain for f in save.files])
    saves = {(s.kind, s.number): s for s in (*before.chain, *after.chain)}
    for part in make_partitions(directory, list(saves.values())):
        sides = [_ManifestRecords(part, directory, manifest) for manifest in (before, after)]
        yield from _changes(sides)


class _ManifestRecords:
    """The records of one manifest in a partition that holds the files of two."""

    def __init__(self, part: Partition, directory: CheckpointDirectory, manifest: Manifest) -> None:
        paths = {directory.file(file) for save in manifest.chain for file in save.files}
        order = {directory.file(f): i for i, f in enumerate(_files(manifest))}
        files = sorted((f for f in part.files if f.path in paths), key=lambda f: order[f.path])
        self.part = part.of(files)
        self.firsts: list[int] = []  # number of each batch's first record
        self._batches: list[tuple[int, int]] = []  # each batch's file, and its index in that file
        self._starts: dict[Path, int] = {}
        number = 0
        for at, file in enumerate(self.part.files):
            self._starts[file.path] = number
            for index in range(file.num_batches):
                num_rows = file.batch(index).num_rows
                if num_rows:
                    self.firsts.append(number)
                    self._batches.append((at, index))
                number += num_rows
        self.num_records = number

    def places(self, numbers: np.ndarray, files: Sequence[Path]) -> np.ndarray:
        """Returns where records are on disk, as file and index: int64 [n, 2].

        Equal places of the two manifests mean the same record.
        """
        starts = np.array([self._starts[f.path] for f in self.part.files] or [0])
        known = np.array([files.index(f.path) for f in self.part.files] or [-1])
        at = np.searchsorted(starts, numbers, side="right") - 1
        # Empty files start at the same number as the file after them; searchsorted takes the last.
        return np.stack([known[at], numbers - starts[at]], axis=1)

    def take(self, numbers: np.ndarray) -> pa.Table:
        """Reads the rows of the given records, in the given order."""
        order = np.argsort(numbers, kind="stable")
        chosen = numbers[order]
        found = []
        first = 0
        while first < len(chosen):
            at = bisect.bisect_right(self.firsts, int(chosen[first])) - 1
            file, index = self._batches[at]
            batch = self.part.files[file].batch(index)
            last = int(np.searchsorted(chosen, self.firsts[at] + batch.num_rows))
            places = pa.array(chosen[first:last] - self.firsts[at])
            found.append(self.part.as_rows(file, batch.take(places)))
            first = last
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return pa.Table.from_batches(found, self.part.schema).take(pa.array(back))


def _files(manifest: Manifest) -> list[FileEntry]:
    return [file for save in manifest.chain for file in save.files]


def _changes(sides: Sequence[_ManifestRecords]) -> Iterator[pa.RecordBatch]:
    old, new = sides
    files = sorted({f.path for side in sides for f in side.part.files})
    parts = [side.part for side in sides]
    for keys, winners, removed in winners_by_bucket(parts, [s.num_records for s in sides]):
        live = [~gone for gone in removed]
        keys = [k[m] for k, m in zip(keys, live, strict=True)]
        numbers = [w[m] for w, m in zip(winners, live, strict=True)]
        in_old, in_new = _matching(keys[0], keys[1])
        places = [
            s.places(n, files)
            for s, n in zip(sides, (numbers[0][in_old], numbers[1][in_new]), strict=True)
        ]
        moved = (places[0] != places[1]).any(axis=1)
        yield from _changed(old, new, numbers[0][in_old[moved]], numbers[1][in_new[moved]])
        for side, name, there, shared in (
            (new, "added", numbers[1], in_new),
            (old, "removed", numbers[0], in_old),
        ):
            alone = np.sort(np.delete(there, shared))
            for first in range(0, len(alone), _COMPARED_ROWS):
                yield _labelled(side.take(alone[first : first + _COMPARED_ROWS]), name)


def _changed(
    old: _ManifestRecords, new: _ManifestRecords, before: np.ndarray, after: np.ndarray
) -> Iterator[pa.RecordBatch]:
    order = np.argsort(after, kind="stable")
    before, after = before[order], after[order]
    for first in range(0, len(after), _COMPARED_ROWS):
        rows = new.take(after[first : first + _COMPARED_ROWS])
        were = old.take(before[first : first + _COMPARED_ROWS])
        differ = _differ(were, rows)
        if differ.any():
            yield _labelled(rows.filter(pa.array(differ)), "changed")


def _matching(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the indices, in each, of keys that both have; keys are int64 [n, 2], none twice."""
    both = np.concatenate([first, second])
    order = np.lexsort((both[:, 1], both[:, 0]))  # stable: `first` comes first
    same = (both[order][1:] == both[order][:-1]).all(axis=1)
    at = np.flatnonzero(same)
    return order[at], order[at + 1] - len(first)


def _differ(before: pa.Table, after: pa.Table) -> np.ndarray:
    """Tells which rows have different bits: bool [num_rows]."""
    if before.schema != after.schema:
        raise CorruptCheckpointError(
            f"rows of {before.schema} cannot be compared with rows of {after.schema}"
        )
    differ = np.zeros(len(after), bool)
    for name in after.column_names[2:]:
        bits = [_bits(table[name]) for table in (before, after)]
        differ |= (bits[0] != bits[1]).reshape(len(after), -1).any(axis=1)
    return differ


def _bits(column: pa.ChunkedArray) -> np.ndarray:
    whole = column.combine_chunks()
    values = whole.flatten() if pa.types.is_fixed_size_list(whole.type) else whole
    bits: np.ndarray = values.to_numpy(zero_copy_only=False).view(np.uint32)
    return bits


def _labelled(rows: pa.Table, change: str) -> pa.RecordBatch:
    codes = pa.array(np.full(len(rows), CHANGES.index(change), np.int8))
    labels = pa.DictionaryArray.from_arrays(codes, pa.array(list(CHANGES)))
    table = rows.add_column(0, pa.field("change", labels.type, nullable=False), labels)
    return next(itertools.islice(table.combine_chunks().to_batches(), 1))
