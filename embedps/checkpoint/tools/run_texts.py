"""The texts of ids that the datasets of a run have beside them (embedps/storage/id_texts.py)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import Manifest
from embedps.config_fields import option
from embedps.console.lines import say
from embedps.errors import CheckpointError, DatasetError, UsageError
from embedps.storage.id_texts import TextFolder, has_texts, remove_texts
from embedps.storage.object_store import as_path

TEXT = "text"
"""The column of an export that has the texts."""
_LOOKED_UP_ROWS, _LOOKED_UP_BYTES = 1 << 18, 1 << 26


def texts_option() -> Any:
    """Declares the option of commands that look for texts."""
    return option(
        (),
        "datasets that have texts of ids, beside those that the run was trained on",
        metavar="DATASET",
        several=True,
    )


class RunTexts:
    """Finds texts in several datasets.

    Attributes:
      folders: the texts of the datasets that have some, of the newest one first.
      absent: the directories of datasets that are not there.
      unread: lines about what cannot be read.
    """

    def __init__(self, manifests: Iterable[Manifest], given: Sequence[str] = ()) -> None:
        """Looks which datasets have texts.

        Args:
          manifests: name the datasets, the newest one last.
          given: directories of more datasets.

        Raises:
          UsageError: one of `given` has no texts.
        """
        self.absent: list[Path] = []
        self.unread: list[str] = []
        self.folders = [TextFolder(each) for each in given]
        if none := [each for each in self.folders if not each.parts]:
            raise UsageError(
                f"--texts must name datasets with texts of ids, but {none[0].dataset} has none: "
                "embedps.pipelines.ingest --keep-texts writes them"
            )
        named = {name: None for manifest in manifests for name in _datasets_of(manifest.ledger)}
        for name in reversed(named):
            if any(str(folder.dataset.absolute()) == name for folder in self.folders):
                continue
            try:
                if not as_path(name).is_dir():
                    self.absent.append(as_path(name))
                elif (folder := TextFolder(name)).parts or folder.others:
                    self.folders.append(folder)
            except (DatasetError, UsageError, OSError) as error:
                self.unread.append(f"{name}: texts of ids cannot be read: {error}")

    @classmethod
    def of_all(cls, directory: CheckpointDirectory, given: Sequence[str] = ()) -> RunTexts:
        """Finds those of all manifests."""
        manifests, unread = [], []
        for number in directory.numbers():
            try:
                manifests.append(directory.read(number))
            except CheckpointError as error:
                unread.append(f"a manifest may name more datasets: {error}")
        found = cls(manifests, given)
        found.unread += unread
        return found

    def of(self, ids: Sequence[int] | np.ndarray) -> dict[int, str]:
        """Finds the texts of ids, as they came: who shows them escapes what no line can show.

        Of an id that several texts have, they stand between bars.
        """
        wanted = np.unique(np.asarray(ids, np.int64))
        found: dict[int, str] = {}
        for folder in [*self.folders]:
            try:
                texts = folder.find(wanted[[i not in found for i in wanted.tolist()]])
            except DatasetError as error:
                self.folders.remove(folder)
                self.unread.append(str(error))
            else:
                found |= {number: " | ".join(several) for number, several in texts.items()}
        while self.unread:
            say(self.unread.pop(0), file=sys.stderr)
        return found

    def beside(
        self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Adds the column `text` to a table's rows: null where there is none."""

        def added() -> Iterator[pa.RecordBatch]:
            for several in _grouped(batches):
                texts = self.of(np.concatenate([batch["id"].to_numpy() for batch in several]))
                for batch in several:
                    found = [texts.get(i) for i in batch["id"].to_pylist()]
                    columns = [*batch.columns, pa.array(found, pa.string())]
                    yield pa.record_batch(columns, schema=longer)

        longer = schema.append(pa.field(TEXT, pa.string()))
        return longer, added()

    def forget(self, ids: np.ndarray) -> tuple[int, list[str]]:
        """Removes the texts of ids; returns how many, and lines about what may still have some."""
        gone, left = 0, []
        for path in self._paths():
            try:
                gone += remove_texts(path, ids) if has_texts(path, ids) else 0
            except (DatasetError, CheckpointError) as error:
                left.append(f"{path} may still have texts of them: {error}")
        return gone, [*left, *self._not_read()]

    def traces(self, ids: np.ndarray) -> Iterator[str]:
        """Reads all texts, and yields a line for each file that has an id."""
        yield from self._not_read()
        for path in self._paths():
            try:
                if has_texts(path, ids):
                    yield f"{path}: has texts of ids"
            except DatasetError as error:
                yield str(error)

    def _not_read(self) -> Iterator[str]:
        """Yields lines about what may have texts, and no reader of texts reads."""
        yield from self.unread
        for folder in self.folders:
            for path in (each for each in folder.others if each.exists()):
                yield f"{path}: is no file of texts, such as a write that was cut short: remove it"

    def _paths(self) -> list[Path]:
        return [path for folder in self.folders for path, _, _ in folder.parts]


def _grouped(batches: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Groups batches: looked up one by one, each would read nearly all texts."""
    group: list[pa.RecordBatch] = []
    for batch in batches:
        group.append(batch)
        rows, size = (sum(getattr(b, name) for b in group) for name in ("num_rows", "nbytes"))
        if rows >= _LOOKED_UP_ROWS or size >= _LOOKED_UP_BYTES:
            yield group
            group = []
    if group:
        yield group


def _datasets_of(ledger: Mapping[str, Any]) -> list[str]:
    """Lists the datasets that a ledger's stages were trained on."""
    stage = ledger.get("stage")
    history = stage.get("history") if isinstance(stage, Mapping) else None
    entries = [*(history if isinstance(history, list) else ()), ledger]
    names = [entry.get("data") for entry in entries if isinstance(entry, Mapping)]
    return [name for name in names if isinstance(name, str) and name]
