"""Parses records that are `tf.Example` or `tf.SequenceExample` messages into rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from embedps.features.table_schema import Table

from .bad_lines import BadLine
from .example_features import ExampleFeatures
from .example_message import record_class
from .json_lines import decode_columns, decode_groups, several_reason
from .line_parser import drop_rows
from .path_columns import given_columns
from .record_blocks import RecordBlock

_SHOWN_BYTES = 4096
_LISTS = ("list", "float_list")


class ExampleParser:
    """Parses the blocks of one file in order, as `JsonLineParser` does those of JSON.

    A column is the feature of its name (or `path`). A feature list is the list of its steps'
    values, if each has one, else a list of lists. Most examples are read together; a message is
    made only of the others.
    """

    num_header_lines = 0
    undeclared: tuple[str, ...] = ()

    def __init__(self, table: Table, file_name: str = "") -> None:
        self._table = table
        columns = table.read_columns
        self._columns = [(c.name, c.keys[0], c.role in _LISTS) for c in columns]
        self._in_path = given_columns(table, file_name)
        self.absent = {column.name for column in columns} - self._in_path.keys()
        self._records: Callable[[], list[bytes]] = list

    def parse(self, block: RecordBlock) -> tuple[pa.RecordBatch, list[BadLine]]:
        """Parses a block's records, in order.

        Returns:
          rows of the table's `row_schema`, and the bad records.
        """
        features = ExampleFeatures(block.data, block.starts, block.ends)
        together = np.flatnonzero(features.readable)
        rows, reasons = self._read_together(features, together)
        bad = {int(together[row]): reason for row, reason in reasons.items()}
        places, messages, bad_messages = self._messages(block, np.flatnonzero(~features.readable))
        if places:
            more, reasons = self._read_each(messages)
            bad |= {places[row]: reason for row, reason in reasons.items()}
            order = np.argsort(np.concatenate([together, places]))
            both = pa.Table.from_batches([rows, more]).combine_chunks().to_batches()[0]
            rows = both.take(pa.array(order))
        known = sorted({*together.tolist(), *places})
        wrong = {row: bad[place] for row, place in enumerate(known) if place in bad}
        self._records = partial(_canonical, features, dict(zip(places, messages, strict=True)), bad)
        lines = [_bad(block, place, reason) for place, reason in (bad | bad_messages).items()]
        rows = drop_rows(rows, wrong) if wrong else rows
        return rows, sorted(lines, key=lambda line: line.line)

    def records(self) -> list[bytes]:
        """Returns the last block's records that are rows, their features in one order."""
        return self._records()

    def _read_together(
        self, features: ExampleFeatures, places: NDArray[np.int64]
    ) -> tuple[pa.RecordBatch, dict[int, str]]:
        reasons: dict[int, str] = {}
        arrays = []
        row_of = np.cumsum(features.readable) - 1
        for column, (name, key, is_list) in zip(
            self._table.read_columns, self._columns, strict=True
        ):
            there, values = features.values(key)
            if len(there):
                self.absent.discard(name)
            texts = np.full(len(places), self._in_path.get(name), object)
            texts[row_of[there]] = None
            present = texts != None  # noqa: E711 -- of each element
            left = np.ones(len(places), np.bool_)
            bad: dict[int, str] = {}
            groups: list[tuple[NDArray[np.int64], Callable[[], pa.Array]]] = []
            for records, counts, flat in values:
                rows = row_of[records]
                if is_list:
                    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
                    flat = pa.ListArray.from_arrays(offsets, flat)
                else:
                    several = rows[counts > 1], counts[counts > 1]
                    bad |= {int(row): several_reason(n) for row, n in zip(*several, strict=True)}
                    if bad:
                        flat = flat.filter(pa.array(np.repeat(counts == 1, counts)))
                        rows = rows[counts == 1]
                left[rows] = False
                present[rows] = True
                groups.append((rows, partial(_itself, flat)))
            if left.any() or not groups:
                others = pa.array(texts[left].tolist(), pa.string())
                groups.append((np.flatnonzero(left), partial(_itself, others)))
            array, wrong = decode_groups(column, groups, present, self._table.missing, bad)
            arrays.append(array)
            for row, reason in wrong.items():
                reasons.setdefault(row, f"{name} {reason}")
        return pa.record_batch(arrays, schema=self._table.row_schema), reasons

    def _messages(
        self, block: RecordBlock, places: NDArray[np.int64]
    ) -> tuple[list[int], list[Any], dict[int, str]]:
        """Makes messages of records; returns those that are some, and why the others are none."""
        parse = record_class().FromString
        good: list[int] = []
        messages: list[Any] = []
        bad: dict[int, str] = {}
        for place in places.tolist():
            try:
                messages.append(parse(block.record(place)))
                good.append(place)
            except DecodeError as error:
                bad[place] = f"must be a tf.Example or tf.SequenceExample: {error}"
        return good, messages, bad

    def _read_each(self, messages: list[Any]) -> tuple[pa.RecordBatch, dict[int, str]]:
        by_column = zip(*map(self._values, messages), strict=True)
        names = [name for name, _, _ in self._columns]
        return decode_columns(self._table, dict(zip(names, by_column, strict=True)))

    def _values(self, message: Any) -> list[Any]:
        features = message.features.feature
        lists = message.feature_lists.feature_list
        values = []
        for name, key, is_list in self._columns:
            value: Any
            if key in features:
                value = _feature_values(features[key])
                if not is_list and len(value) <= 1:
                    value = value[0] if value else None
            elif key in lists:
                steps = [_feature_values(each) for each in lists[key].feature]
                flat = all(len(each) == 1 for each in steps)
                value = [each[0] for each in steps] if flat else steps
            else:
                values.append(self._in_path.get(name))
                continue
            if name in self.absent:
                self.absent.discard(name)
            values.append(value)
        return values


def _feature_values(feature: Any) -> list[Any]:
    kind = feature.WhichOneof("kind")
    return list(getattr(feature, kind).value) if kind else []


def _itself(array: pa.Array) -> pa.Array:
    return array


def _canonical(
    features: ExampleFeatures, messages: Mapping[int, Any], bad: Mapping[int, str]
) -> list[bytes]:
    """Returns the records that are rows as bytes that do not depend on the features' order."""
    found = dict(zip(np.flatnonzero(features.readable).tolist(), features.records(), strict=True))
    found |= {place: m.SerializeToString(deterministic=True) for place, m in messages.items()}
    return [record for place, record in sorted(found.items()) if place not in bad]


def _bad(block: RecordBlock, place: int, reason: str) -> BadLine:
    raw = block.record(place)[:_SHOWN_BYTES]
    return BadLine(line=block.first + place, reason=reason, raw=raw)
