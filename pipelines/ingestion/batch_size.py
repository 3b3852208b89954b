"""How many rows of a file of columns are read at once."""

from __future__ import annotations

import pyarrow.parquet as pq

ROWS = 65536
BYTES = 64 << 20
"""Of a batch with its undeclared columns, before Parquet's encodings."""


def batch_rows(file: pq.FileMetaData, *, is_wide: bool) -> int:
    """Returns how many rows to read at once: fewer where a column that is not declared is large.

    Args:
      is_wide: whether such columns are read.
    """
    if not is_wide:
        return ROWS
    groups = (file.row_group(i) for i in range(file.num_row_groups))
    row_bytes = max((g.total_byte_size / g.num_rows for g in groups if g.num_rows), default=0.0)
    return max(1, min(ROWS, int(BYTES / max(1.0, row_bytes))))
