"""Parses records that are `tf.Example` or `tf.SequenceExample` messages into rows."""

from __future__ import annotations

from functools import cache
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from embedps.features.table_schema import Table

from .bad_lines import BadLine
from .json_lines import decode_columns
from .line_parser import drop_rows
from .path_columns import given_columns
from .record_blocks import RecordBlock

_PACKAGE = "embedps.input"
_SHOWN_BYTES = 4096
_LISTS = ("list", "float_list")
_FIELDS = descriptor_pb2.FieldDescriptorProto
_KINDS = (
    ("bytes_list", "BytesList", _FIELDS.TYPE_BYTES),
    ("float_list", "FloatList", _FIELDS.TYPE_FLOAT),
    ("int64_list", "Int64List", _FIELDS.TYPE_INT64),
)


@cache
def _record_class() -> Any:
    """Makes the class of both messages, which are alike on the wire; TensorFlow is not needed."""
    file = descriptor_pb2.FileDescriptorProto(
        name="embedps/input_example.proto", package=_PACKAGE, syntax="proto3"
    )
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, of, _) in enumerate(_KINDS, 1):
        _field(feature, name, number, of, _FIELDS.LABEL_OPTIONAL).oneof_index = 0
    for number, (_, of, kind) in enumerate(_KINDS):
        lists = file.message_type.add(name=of)
        field = lists.field.add(name="value", number=1, type=kind, label=_FIELDS.LABEL_REPEATED)
        if number:
            field.options.packed = True
    steps = file.message_type.add(name="FeatureList")
    _field(steps, "feature", 1, "Feature", _FIELDS.LABEL_REPEATED)
    _map(file.message_type.add(name="Features"), "feature", "Feature")
    _map(file.message_type.add(name="FeatureLists"), "feature_list", "FeatureList")
    record = file.message_type.add(name="Record")
    _field(record, "features", 1, "Features", _FIELDS.LABEL_OPTIONAL)
    _field(record, "feature_lists", 2, "FeatureLists", _FIELDS.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Record"))


def _field(message: Any, name: str, number: int, of: str, label: Any) -> Any:
    kind = f".{_PACKAGE}.{of}"
    return message.field.add(
        name=name, number=number, type=_FIELDS.TYPE_MESSAGE, type_name=kind, label=label
    )


def _map(message: Any, name: str, of: str) -> None:
    words = (word.capitalize() for word in name.split("_"))
    entry = message.nested_type.add(name=f"{''.join(words)}Entry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=_FIELDS.TYPE_STRING, label=_FIELDS.LABEL_OPTIONAL)
    _field(entry, "value", 2, of, _FIELDS.LABEL_OPTIONAL)
    _field(message, name, 1, f"{message.name}.{entry.name}", _FIELDS.LABEL_REPEATED)


class ExampleParser:
    """Parses the blocks of one file in order, as `JsonLineParser` does those of JSON.

    A column is the feature of its name (or `path`). A feature list is the list of its steps'
    values, if each has one, else a list of lists.
    """

    num_header_lines = 0
    undeclared: tuple[str, ...] = ()

    def __init__(self, table: Table, file_name: str = "") -> None:
        self._table = table
        columns = table.read_columns
        self._columns = [(c.name, c.keys[0], c.role in _LISTS) for c in columns]
        self._in_path = given_columns(table, file_name)
        self.absent = {column.name for column in columns} - self._in_path.keys()
        self._messages: list[Any] = []

    def parse(self, block: RecordBlock) -> tuple[pa.RecordBatch, list[BadLine]]:
        """Parses a block's records, in order.

        Returns:
          rows of the table's `row_schema`, and the bad records.
        """
        parse = _record_class().FromString
        bad: list[BadLine] = []
        places: list[int] = []
        messages: list[Any] = []
        found: list[list[Any]] = []
        for place, record in enumerate(block.records):
            try:
                message = parse(record)
            except DecodeError as error:
                reason = f"must be a tf.Example or tf.SequenceExample: {error}"
                bad.append(_bad(block, place, reason))
                continue
            found.append(self._values(message))
            places.append(place)
            messages.append(message)
        by_column = zip(*found, strict=True) if found else [()] * len(self._columns)
        names = [name for name, _, _ in self._columns]
        rows, reasons = decode_columns(self._table, dict(zip(names, by_column, strict=True)))
        bad += [_bad(block, places[row], reason) for row, reason in reasons.items()]
        self._messages = [each for row, each in enumerate(messages) if row not in reasons]
        rows = drop_rows(rows, reasons) if reasons else rows
        return rows, sorted(bad, key=lambda line: line.line)

    def records(self) -> list[bytes]:
        """Returns the last block's records that are rows, their features in one order."""
        return [each.SerializeToString(deterministic=True) for each in self._messages]

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


def _bad(block: RecordBlock, place: int, reason: str) -> BadLine:
    raw = block.records[place][:_SHOWN_BYTES]
    return BadLine(line=block.first + place, reason=reason, raw=raw)
