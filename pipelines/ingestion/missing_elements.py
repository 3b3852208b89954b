"""Counts the elements of lists of texts that would mean a missing value as a column's only text."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from embedps.features.table_schema import Table
from embedps.features.text_values import fingerprint


class MissingElements:
    """Counts them in the rows of a file.

    Within a list they are ids as any other text: a model has a row for them.

    Attributes:
      counts: by column of lists, of those that have some.
    """

    def __init__(self, table: Table) -> None:
        self.counts: dict[str, int] = {}
        self._names = [c.name for c in table.columns if (c.role, c.type) == ("list", "string")]
        self._ids = np.array([fingerprint(text) for text in table.missing], np.int64)

    def add(self, rows: pa.RecordBatch) -> None:
        """Counts those of decoded rows."""
        for name in self._names:
            column = rows.schema.get_field_index(name)
            if column < 0:  # ingestion makes it of other rows
                continue
            ids = rows.column(column).flatten().to_numpy()
            if found := int(np.isin(ids, self._ids).sum()):
                self.counts[name] = self.counts.get(name, 0) + found
