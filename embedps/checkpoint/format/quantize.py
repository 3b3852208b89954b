"""Encodings of floats in row files, in NumPy; row_encoding.cc does the same.

A quantized embedding is `offset + scale * code`, with one scale and one offset per row. Both are
chosen so that float32 computes this exactly: every reader gets the same bits. A decoded value
differs from the original by at most scale / 2.

Tables whose rows are bfloat16 or float16 in memory are stored as such, bit for bit.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa

from embedps import constants
from embedps.errors import CorruptCheckpointError, UsageError

RowEncoding: TypeAlias = Literal["float32", "int8", "int4", "bfloat16", "float16"]
OptimizerSlotEncoding: TypeAlias = Literal["float32", "bfloat16"]

_GREATEST: Final = {"bfloat16": np.float32(3.3895314e38), "float16": np.float32(65504)}
_SCALE, _OFFSET = "embedding_scale", "embedding_offset"
_MAX_MAGNITUDE = 2.0**125
_VERSION_KEY = constants.ROW_FILE_VERSION_KEY
_VERSION = constants.ROW_FILE_VERSION
_ENCODED_VERSION = constants.ROW_FILE_ENCODED_VERSION
_ROWS_KEY = constants.ROW_FILE_EMBEDDING_ENCODING_KEY
_SLOTS_KEY = constants.ROW_FILE_OPTIMIZER_SLOT_ENCODING_KEY
_DIM_KEY = constants.ROW_FILE_DIM_KEY


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoding:
    """Says how a save's files store floats.

    Attributes:
      rows: the encoding of embeddings; int8 and int4 have a scale and an offset per row. What a run
        asks for is float32, int8 or int4; of these, float32 stores what memory holds, in its dtype.
      optimizer_slots: the encoding of optimizer slots.
    """

    rows: RowEncoding = "float32"
    optimizer_slots: OptimizerSlotEncoding = "float32"

    def __post_init__(self) -> None:
        for name, kind in (("rows", RowEncoding), ("optimizer_slots", OptimizerSlotEncoding)):
            if getattr(self, name) not in get_args(kind):
                raise UsageError(
                    f"{name} must be one of {', '.join(get_args(kind))} "
                    f"but got {getattr(self, name)!r}"
                )

    @property
    def exact(self) -> bool:
        """Tells whether a restore gives the same bits that were saved."""
        return self == FLOAT32

    @property
    def columns(self) -> list[str]:
        """Lists the columns that follow the embedding's codes."""
        return [_SCALE, _OFFSET] if self.rows in constants.QUANTIZED_LEVELS else []


FLOAT32: Final = Encoding()


def quantize(values: np.ndarray, rows: RowEncoding) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Quantizes embeddings row by row.

    Args:
      values: float32 [n, dim].
      rows: int8 or int4.

    Returns:
      The codes, uint8 [n, dim] in [0, 255] or [0, 15]; the scales and the offsets, float32 [n]. If
      a row has a value that is not finite, or of magnitude 2^125 or more, its scale and offset are
      NaN.
    """
    levels = constants.QUANTIZED_LEVELS[rows]
    wide = values.astype(np.float64)
    finite = (np.abs(wide) < _MAX_MAGNITUDE).all(axis=1)
    wide[~finite] = 0
    low, high = wide.min(axis=1), wide.max(axis=1)
    same = low == high
    exponents = np.frexp(np.maximum(-low, high))[1] - 1
    unit = np.ldexp(1.0, np.maximum(exponents - 21, -126))
    offset = np.where(same, low, np.floor(low / unit) * unit)
    scale = np.where(same, 0.0, np.ceil((high - offset) / (levels * unit)) * unit)
    step = np.where(same, 1.0, scale)[:, None]
    below = np.trunc((wide - offset[:, None]) / step)
    codes = below + (wide > offset[:, None] + step * (below + 0.5))
    scale[~finite] = offset[~finite] = np.nan
    return codes.astype(np.uint8), scale.astype(np.float32), offset.astype(np.float32)


def dequantize(codes: np.ndarray, scale: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """Decodes what `quantize` encoded, within scale / 2: float32 [n, dim]."""
    values: np.ndarray = offset[:, None] + scale[:, None] * codes.astype(np.float32)
    return values


def pack(codes: np.ndarray) -> np.ndarray:
    """Packs two 4-bit codes per byte, the first in the low half: uint8 [n, (dim + 1) // 2]."""
    even = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
    packed: np.ndarray = even[:, ::2] | even[:, 1::2] << 4
    return packed


def unpack(packed: np.ndarray, dim: int) -> np.ndarray:
    """Unpacks the codes that `pack` packed: uint8 [n, dim]."""
    both = np.stack([packed & 15, packed >> 4], axis=2)
    return both.reshape(len(packed), 2 * packed.shape[1])[:, :dim]


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Rounds float32 to bfloat16, to nearest even: uint16 bits of the same shape."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16
    halves: np.ndarray = np.where(np.isnan(values), bits >> 16 | 0x40, rounded).astype(np.uint16)
    return halves


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """Converts bfloat16 bits to float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_nearest(values: np.ndarray, dtype: str) -> np.ndarray:
    """Rounds float32 to the nearest that a row dtype has, as tables do when they load rows.

    A finite value never becomes infinite.

    Args:
      values: float32 of any shape.
      dtype: float32, bfloat16 or float16.

    Returns:
      float32 of the same shape.
    """
    if dtype == "float32":
        return values
    greatest = _GREATEST[dtype]
    bounded = np.where(np.isfinite(values), np.clip(values, -greatest, greatest), values)
    if dtype == "bfloat16":
        return from_bfloat16(to_bfloat16(bounded))
    rounded: np.ndarray = bounded.astype(np.float16).astype(np.float32)
    return rounded


def encoding_of(path: Path | str, schema: pa.Schema) -> tuple[Encoding, int]:
    """Reads the encoding and the dim from a row file's schema metadata.

    Returns:
      The encoding, and the dim; the dim is 0 in version 1, where the column's type has it.

    Raises:
      CorruptCheckpointError: a value is unknown.
    """
    found = schema.metadata or {}
    metadata = {k.decode(errors="replace"): v.decode(errors="replace") for k, v in found.items()}
    version = metadata.get(_VERSION_KEY, "none")
    if version == _VERSION:
        return FLOAT32, 0
    if version != _ENCODED_VERSION:
        raise CorruptCheckpointError(
            f"{path}: schema metadata {_VERSION_KEY!r}: expected {_VERSION!r} or "
            f"{_ENCODED_VERSION!r}, found {version!r}"
        )
    rows, slots = metadata.get(_ROWS_KEY), metadata.get(_SLOTS_KEY)
    dim = metadata.get(_DIM_KEY, "")
    if rows not in get_args(RowEncoding) or slots not in get_args(OptimizerSlotEncoding):
        raise CorruptCheckpointError(
            f"{path}: schema metadata {_ROWS_KEY!r} and {_SLOTS_KEY!r}: expected one of "
            f"{get_args(RowEncoding)} and of {get_args(OptimizerSlotEncoding)}, "
            f"found {rows!r} and {slots!r}"
        )
    if not re.fullmatch("[0-9]{1,9}", dim) or not 1 <= int(dim) <= constants.MAX_ROW_FILE_WIDTH:
        raise CorruptCheckpointError(
            f"{path}: schema metadata {_DIM_KEY!r}: expected a number in "
            f"1..{constants.MAX_ROW_FILE_WIDTH}, found {dim!r}"
        )
    return Encoding(rows=rows, optimizer_slots=slots), int(dim)  # type: ignore[arg-type]


def stored_type(encoding: Encoding, name: str, width: int) -> pa.DataType:
    """Returns the column type of the embedding, or of an optimizer slot, with `width` floats."""
    stored = encoding.rows if name == "embedding" else encoding.optimizer_slots
    if stored in constants.QUANTIZED_LEVELS:
        return _list_of(pa.uint8(), (width + 1) // 2 if stored == "int4" else width)
    halves = {"bfloat16": pa.uint16(), "float16": pa.float16()}
    return _list_of(halves.get(stored, pa.float32()), width)


def decode(path: Path | str, records: pa.Table) -> pa.Table:
    """Decodes a row file's records to float32, with the columns and metadata of version 1.

    Args:
      path: for messages.
      records: as stored, with a checked schema.
    """
    encoding, dim = encoding_of(path, records.schema)
    if encoding.exact and dim == 0:
        return records
    fields, columns = [], []
    for field, column in zip(records.schema, records.columns, strict=True):
        if field.name in encoding.columns:
            continue
        if field.name == "embedding" and encoding.rows in constants.QUANTIZED_LEVELS:
            scale, offset = (records[name].to_numpy() for name in encoding.columns)
            codes = _matrix(column)
            if encoding.rows == "int4":
                codes = unpack(codes, dim)
            column = _lists(dequantize(codes, scale, offset))
        elif _is_list_of(field.type, pa.uint16()):
            column = _lists(from_bfloat16(_matrix(column)))
        elif _is_list_of(field.type, pa.float16()):
            column = _lists(_matrix(column).astype(np.float32))
        columns.append(column)
        fields.append(field.with_type(column.type))
    own = (_ROWS_KEY.encode(), _SLOTS_KEY.encode(), _DIM_KEY.encode())
    metadata = {k: v for k, v in records.schema.metadata.items() if k not in own}
    return pa.table(columns, pa.schema(fields, metadata | {_VERSION_KEY.encode(): _VERSION}))


def encode(records: pa.Table, encoding: Encoding) -> pa.Table:
    """Encodes records of version 1 as a file of an encoding stores them."""
    if encoding.exact:
        return records
    dim = records.schema.field("embedding").type.list_size
    fields: list[pa.Field] = []
    columns: list[pa.Array | pa.ChunkedArray] = []
    for field, column in zip(records.schema, records.columns, strict=True):
        if field.name == "embedding" and encoding.rows in constants.QUANTIZED_LEVELS:
            codes, scale, offset = quantize(_matrix(column), encoding.rows)
            packed = pack(codes) if encoding.rows == "int4" else codes
            columns += [_lists(packed), pa.array(scale), pa.array(offset)]
            fields.append(field.with_type(columns[-3].type))
            fields += [pa.field(name, pa.float32(), nullable=False) for name in encoding.columns]
            continue
        if _is_list_of(field.type, pa.float32()):
            stored = encoding.rows if field.name == "embedding" else encoding.optimizer_slots
            if stored == "bfloat16":
                column = _lists(to_bfloat16(_matrix(column)))
            elif stored == "float16":
                column = _lists(_matrix(column).astype(np.float16))
        columns.append(column)
        fields.append(field.with_type(column.type))
    metadata = {
        **records.schema.metadata,
        _VERSION_KEY.encode(): _ENCODED_VERSION,
        _ROWS_KEY.encode(): encoding.rows,
        _SLOTS_KEY.encode(): encoding.optimizer_slots,
        _DIM_KEY.encode(): str(dim),
    }
    return pa.table(columns, pa.schema(fields, metadata))


def _list_of(item: pa.DataType, width: int) -> pa.DataType:
    return pa.list_(pa.field("item", item, nullable=False), width)


def _is_list_of(kind: pa.DataType, item: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(kind) and kind.value_type == item)


def _matrix(column: pa.ChunkedArray) -> np.ndarray:
    """Returns the numbers of a column of fixed-size lists: [n, width]."""
    lists = column.combine_chunks()
    values: np.ndarray = lists.flatten().to_numpy(zero_copy_only=False)
    return values.reshape(len(lists), column.type.list_size)


def _lists(values: np.ndarray) -> pa.Array:
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    kind = _list_of(flat.type, values.shape[1])
    return pa.FixedSizeListArray.from_arrays(flat, type=kind)
