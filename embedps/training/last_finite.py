"""Finds the newest checkpoint that training may have left good: all of its values are finite."""

from __future__ import annotations

import shlex

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.dense import read_dense
from embedps.checkpoint.format.manifest import Manifest, SaveSet
from embedps.checkpoint.format.rows import RowFile
from embedps.errors import EmbedpsError


def last_finite(directory: CheckpointDirectory) -> Manifest | None:
    """Gives the newest readable manifest without NaN and infinity in rows, slots and network.

    It reads checkpoints until it finds one.
    """
    finite_saves: dict[int, bool] = {}

    def is_finite(save: SaveSet) -> bool:
        if save.number not in finite_saves:
            finite_saves[save.number] = _has_finite_rows(directory, save)
        return finite_saves[save.number]

    for number in sorted(directory.numbers(), reverse=True):
        try:
            manifest = directory.read(number)
            if _has_finite_network(directory, manifest) and all(map(is_finite, manifest.chain)):
                return manifest
        except EmbedpsError:  # it is damaged, or went meanwhile: an older one may be there
            continue
    return None


def _has_finite_network(directory: CheckpointDirectory, manifest: Manifest) -> bool:
    if manifest.dense is None:
        return True
    values = read_dense(directory.file(manifest.dense)).values()
    # bfloat16 is no inexact dtype for NumPy, so it is cast too.
    return all(
        np.isfinite(v if v.dtype.kind in "fc" else v.astype(np.float32)).all()
        for v in values
        if v.dtype.kind in "fcV"
    )


def _has_finite_rows(directory: CheckpointDirectory, save: SaveSet) -> bool:
    for entry in save.files:
        for batch in RowFile(directory.file(entry)).batches():
            for column in batch.columns:
                if not pa.types.is_nested(column.type):
                    continue
                values = pc.list_flatten(column)
                if pa.types.is_floating(values.type) and not np.isfinite(values.to_numpy()).all():
                    return False
    return True


def way_back(directory: CheckpointDirectory) -> str:
    """Says from which checkpoint training can go on, and how."""
    manifest = last_finite(directory)
    if manifest is None:
        return "start a new model directory: no checkpoint has only finite values"
    which = f"checkpoint {manifest.number}, step {manifest.step}"
    if manifest.number == directory.numbers()[-1]:
        return f"run again: {which}, the newest, has only finite values"
    command = f"embedps checkpoint rollback {shlex.quote(str(directory.path))} --to"
    return (
        f"go back to {which}, the last one with only finite values, by "
        f"`{command} {manifest.number}`, then run again"
    )
