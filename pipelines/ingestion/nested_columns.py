"""Finds values inside the structs, lists of structs and maps of a file's columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from embedps.errors import DatasetError
from embedps.features.arrow_kinds import is_list


def at_paths(batch: pa.RecordBatch, keys: Mapping[str, Sequence[str]]) -> pa.RecordBatch:
    """Returns the columns that the keys lead to, by name; those that the batch lacks are skipped.

    Of a list of structs, a column has a list of the values: several are parallel lists.

    Raises:
      DatasetError: keys lead to no value of the file's types.
    """
    found = {name: each for name, each in keys.items() if each[0] in batch.schema.names}
    arrays = []
    for name, each in found.items():
        try:
            arrays.append(at_keys(batch.column(each[0]), each[1:]))
        except DatasetError as error:
            path = ".".join(each)
            raise DatasetError(f"column {name!r}: path {path!r} {error}") from None
    return pa.record_batch(arrays, names=list(found))


def at_keys(array: pa.Array, keys: Sequence[str]) -> pa.Array:
    """Finds the values that keys lead to, as `at_paths` does."""
    if not keys or pa.types.is_null(array.type):
        return array
    if isinstance(array, pa.ExtensionArray):
        return at_keys(array.storage, keys)
    kind = array.type
    if pa.types.is_struct(kind):
        if kind.get_all_field_indices(keys[0]) == [kind.get_field_index(keys[0])]:
            return at_keys(pc.struct_field(array, keys[0]), keys[1:])
        names = ", ".join(kind.field(i).name for i in range(kind.num_fields))
        raise DatasetError(f"must name one field, {keys[0]!r} is absent or twice in {names}")
    if pa.types.is_map(kind):
        try:
            key = pa.scalar(keys[0]).cast(kind.key_type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise DatasetError(f"must have a key of {kind.key_type}, got {keys[0]!r}") from None
        return at_keys(pc.map_lookup(array, key, "first"), keys[1:])
    if is_list(kind):
        inner = at_keys(array.flatten(), keys)
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), inner)
    raise DatasetError(f"must lead into structs, lists or maps, there is {kind} before {keys[0]!r}")
