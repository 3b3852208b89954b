"""The texts of ids that side tables have, where a dataset keeps them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from embedps.features.table_columns import Column
from embedps.features.table_schema import Table
from embedps.storage.id_texts import MAX_CHARACTERS

from .work_dir import WorkDir

_SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.large_string())])


class SideTexts:
    """Gathers the texts of a side table's columns as it is read, and writes them by id."""

    def __init__(self, columns: Sequence[Column], keep: Sequence[str]) -> None:
        self._files = {c.name: c.path for c in columns if c.name in keep}
        self._places = {c.name: at for at, c in enumerate(columns)}
        self._seen: dict[str, dict[tuple[int, str], None]] = {name: {} for name in self._files}

    def watched(self, table: Table) -> Table:
        """Returns the table to read the files by, so that texts are seen."""
        if not self._files:
            return table
        by_file = {
            ".".join(path) if path and table.format == "csv" else name: name
            for name, path in self._files.items()
        }
        columns = (
            replace(c, on_text=partial(self._see, by_file[c.name])) if c.name in by_file else c
            for c in table.columns
        )
        return replace(table, columns=tuple(columns))

    def _see(self, name: str, text: str, number: int) -> None:
        # One character more than is kept tells that the text is longer.
        self._seen[name][number, text[: MAX_CHARACTERS + 1]] = None

    def write(self, work: WorkDir, join: int) -> None:
        """Writes the texts of each kept column, ascending by id."""
        for name, seen in self._seen.items():
            pairs = sorted(seen)
            data = [[number for number, _ in pairs], [text for _, text in pairs]]
            path = work.side_texts(join, self._places[name])
            with pa.ipc.new_file(str(path), _SCHEMA) as writer:
                writer.write_batch(pa.record_batch(data, schema=_SCHEMA))


class MappedTexts:
    """Finds the texts of ids in the file that `SideTexts` wrote."""

    def __init__(self, work: WorkDir, join: int, at: int) -> None:
        with pa.memory_map(str(work.side_texts(join, at))) as source:
            batch = pa.ipc.open_file(source).get_batch(0)
        self._ids, self._texts = batch.column(0).to_numpy(), batch.column(1)

    def tell(self, ids: pa.Array, on_text: Callable[[str, int], None]) -> None:
        """Calls `on_text` with each text of each distinct id."""
        for number in np.unique(ids.to_numpy()).tolist():
            first, last = np.searchsorted(self._ids, [number, number + 1])
            for text in self._texts.slice(first, last - first).to_pylist():
                on_text(text, number)
