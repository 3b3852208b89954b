"""The schema of an Avro file: which ones are read, and what a value's bytes mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Context, Decimal
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

import fastavro
import pyarrow as pa
from fastavro.schema import SchemaParseException

from embedps.errors import DatasetError

from .json_lines import Makers

_MAX_DEPTH = 64
_MAX_NULLS = 1000  # per record, that cost no byte
_MIN_BYTES = {"null": 0, "float": 4, "double": 8}
_RECORDS = ("record", "error")
_MARKS = ("logicalType", "precision", "scale", "default", "doc", "aliases")
_TIMES = {
    "date": (pa.int32(), pa.date32()),
    **{
        f"{where}timestamp-{name}": (pa.int64(), pa.timestamp(unit, tz="" if where else "UTC"))
        for where in ("", "local-")
        for name, unit in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
    },
}
_DECIMAL_DIGITS = 76  # the most of Arrow
_DIGITS = Context(prec=_DECIMAL_DIGITS + 1)


class _Shape(NamedTuple):
    """What a value of a type has at least: bytes; at most: values inside each other, nulls."""

    min_bytes: int
    depth: int
    nulls: int


class AvroSchema:
    """The schema of a file's records.

    Attributes:
      plain: the schema without logical types, as fastavro reads by it.
    """

    def __init__(self, node: Any) -> None:
        """Checks that time and memory of a record are bounded by its bytes.

        Raises:
          DatasetError: it is no schema of records, holds itself, or has values without bytes.
        """
        try:
            self._node: Any = fastavro.parse_schema(node, _write_hint=False)
            plain = _without_marks(self._node)
            self.plain = fastavro.parse_schema(plain, _write_hint=False)
        except (SchemaParseException, AttributeError, KeyError, TypeError, ValueError) as error:
            raise DatasetError(f"its Avro schema is not valid: {error!r:.200}") from None
        except RecursionError:
            raise DatasetError(f"its Avro schema must be at most {_MAX_DEPTH} deep") from None
        self._named: dict[str, Any] = {}
        if not isinstance(self._node, dict) or self._node.get("type") not in _RECORDS:
            raise DatasetError("an Avro file must have records, its schema is of something else")
        _check(self._node, self._named, {}, ())

    def makers(self, keys: Sequence[str]) -> Makers:
        """Returns what makes arrays of the values that keys lead to, by their types in Python.

        Raises:
          DatasetError: integers there may be of several kinds.
        """
        found: dict[type, Callable[[Sequence[Any]], pa.Array]] = {}
        kinds: dict[type, set[str]] = {}
        for leaf in self._leaves(self._node, keys):
            kind = leaf["type"] if isinstance(leaf, dict) else leaf
            logical = leaf.get("logicalType", "") if isinstance(leaf, dict) else ""
            of: type = int if kind in ("int", "long") else bytes
            make: Callable[[Sequence[Any]], pa.Array] | None = None
            if logical in _TIMES and kind == ("int" if logical == "date" else "long"):
                make = partial(_times, *_TIMES[logical])
            elif logical == "decimal" and kind in ("bytes", "fixed"):
                make = partial(_decimals, int(leaf.get("scale", 0)))
            elif logical == "uuid" and kind == "fixed":
                make = _uuids
            if kind in ("int", "long", "bytes", "fixed"):
                kinds.setdefault(of, set()).add(f"{logical}{leaf.get('scale', '')}" if make else "")
            if make is not None:
                found[of] = make
        if mixed := [sorted(each) for each in kinds.values() if len(each) > 1]:
            shown = ", ".join(each or "plain values" for each in mixed[0])
            raise DatasetError(f"{'.'.join(keys)} must be of one kind, its union has {shown}")
        return found

    def _leaves(self, node: Any, keys: Sequence[str]) -> Iterator[Any]:
        if isinstance(node, str) and node in self._named:
            node = self._named[node]
        if isinstance(node, list):
            for each in node:
                yield from self._leaves(each, keys)
            return
        kind = node["type"] if isinstance(node, dict) else node
        if isinstance(kind, dict | list):
            yield from self._leaves(kind, keys)
        elif kind == "array":
            yield from self._leaves(node["items"], keys)
        elif not keys:
            yield node
        elif kind == "map":
            yield from self._leaves(node["values"], keys[1:])
        elif kind in _RECORDS:
            for field in node["fields"]:
                if field["name"] == keys[0]:
                    yield from self._leaves(field["type"], keys[1:])


def _without_marks(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_marks(each) for each in node]
    if not isinstance(node, dict):
        return node
    kept = {k: v for k, v in node.items() if k not in _MARKS and not k.startswith("__")}
    return {k: v if k in ("name", "symbols") else _without_marks(v) for k, v in kept.items()}


def _check(
    node: Any, named: dict[str, Any], shapes: dict[str, _Shape], within: tuple[str, ...]
) -> _Shape:
    """Tells a type's shape; `named` and `shapes` get the types that have names."""
    if isinstance(node, list):
        of = [_check(each, named, shapes, within) for each in node]
        return _shape(1, of, max((each.nulls for each in of), default=0))
    if isinstance(node, str):
        if node in within:
            raise DatasetError(
                f"its type {node!r} must not hold itself: write it without that field"
            )
        return shapes.get(node) or _shape(_MIN_BYTES.get(node, 1), (), int(node == "null"))
    kind = node["type"]
    if isinstance(kind, dict | list):
        return _check(kind, named, shapes, within)
    if kind in _RECORDS:
        name = node["name"]
        of = [_check(each["type"], named, shapes, (*within, name)) for each in node["fields"]]
        size = sum(each.min_bytes for each in of)
        shape = _shape(size, of, sum(each.nulls for each in of))
        if not size:
            raise DatasetError(f"its record {name!r} must have a field of a byte or more")
    elif kind == "array":
        inner = _check(node["items"], named, shapes, within)
        if not inner.min_bytes:
            raise DatasetError("its arrays must have elements of a byte or more, one has nulls")
        return _shape(1, [inner], 0)
    elif kind == "map":
        return _shape(1, [_check(node["values"], named, shapes, within)], 0)
    elif kind == "fixed":
        if node["size"] < 1:
            raise DatasetError(f"its type {node['name']!r} must have a byte or more")
        shape = _shape(node["size"], (), 0)
    elif kind == "enum":
        shape = _shape(1, (), 0)
    else:
        return _check(kind, named, shapes, within)
    named[node["name"]], shapes[node["name"]] = node, shape
    return shape


def _shape(min_bytes: int, of: Sequence[_Shape], nulls: int) -> _Shape:
    depth = 1 + max((each.depth for each in of), default=0)
    if depth > _MAX_DEPTH or nulls > _MAX_NULLS:
        raise DatasetError(
            f"its Avro schema must be at most {_MAX_DEPTH} deep, with at most {_MAX_NULLS} fields "
            "of type null"
        )
    return _Shape(min_bytes, depth, nulls)


def _times(width: pa.DataType, kind: pa.DataType, values: Sequence[Any]) -> pa.Array:
    return pa.array(values, width).cast(kind)


def _uuids(values: Sequence[Any]) -> pa.Array:
    return pa.array([None if each is None else str(UUID(bytes=each)) for each in values])


def _decimals(scale: int, values: Sequence[Any]) -> pa.Array:
    found = [None if each is None else _decimal(each, scale) for each in values]
    try:
        return pa.array(found, pa.decimal128(38, scale))
    except (pa.ArrowInvalid, ValueError):  # some have more digits: as a text file has them
        return pa.array([None if each is None else str(each) for each in found], pa.string())


def _decimal(value: bytes, scale: int) -> Decimal:
    if len(value) > _DECIMAL_DIGITS // 2:
        return Decimal("1e999")  # which no column takes
    return Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-scale, _DIGITS)
