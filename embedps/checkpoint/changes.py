"""Changes of a run's tables, which a reader applies in order, and messages of them.

A message is the length of its head (4 bytes, little-endian), the head, a JSON object, and a body:
the JSON of a manifest, or an Arrow IPC stream of one record batch.

    {"kind": "manifest"}                                    what the next changes lead to
    {"kind": "reset", "lost": [history, number] or null}
    {"kind": "rows", "group": name, "save": number}
    {"kind": "reached", "save": number, "complete": bool}
    {"kind": "waiting"}                                     nothing is newer now
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from embedps.checkpoint.chain import Position
from embedps.checkpoint.format import lengths
from embedps.checkpoint.format.manifest import Manifest, SaveSet
from embedps.checkpoint.format.manifest_json import from_json, to_json
from embedps.errors import CheckpointError, CorruptCheckpointError

_BATCH_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reset:
    """Announces a whole chain: the reader must drop the rows that it holds.

    Attributes:
      lost: the position from which no saves lead on; None if the reader started without one.
    """

    lost: Position | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    """Holds records to apply in order: each sets or removes the row of its table and id.

    Attributes:
      group: the tables' group.
      save: the save that holds the records.
      batch: the columns of a row file, including `removed`.
    """

    group: str
    save: SaveSet
    batch: pa.RecordBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reached:
    """Says that the rows are now those of a save; where a new base was read, they may be newer.

    Attributes:
      position: where to continue from.
      step: training steps done.
      manifest: the manifest that is read.
      complete: whether this is the manifest's last save; then the rows are the manifest's.
    """

    position: Position
    step: int
    manifest: Manifest
    complete: bool


Change = Reset | Rows | Reached


def messages_of(manifest: Manifest, changes: Iterable[Change]) -> Iterator[bytes]:
    """Makes the messages of the changes that lead to a manifest; those of rows have some 1 MiB."""
    yield _message({"kind": "manifest"}, to_json(manifest))
    for change in changes:
        match change:
            case Reset(lost=lost):
                at = None if lost is None else [lost.history, lost.number]
                yield _message({"kind": "reset", "lost": at})
            case Rows(group=group, save=save, batch=batch):
                head = {"kind": "rows", "group": group, "save": save.number}
                rows = max(1, _BATCH_BYTES * batch.num_rows // max(1, batch.nbytes))
                for first in range(0, batch.num_rows, rows):
                    yield _message(head, _ipc(batch.slice(first, rows)))
            case Reached(position=position, complete=complete):
                head = {"kind": "reached", "save": position.number, "complete": complete}
                yield _message(head)


def waiting_message() -> bytes:
    """Makes the message that nothing is newer now."""
    return _message({"kind": "waiting"})


def changes_of(messages: Iterable[bytes], source: str) -> Iterator[Change | None]:
    """Reads what `messages_of` made; gives None for `waiting_message`.

    Args:
      messages: of one manifest after the other.
      source: where they come from, for errors.

    Raises:
      CorruptCheckpointError: a message is not of these.
    """
    manifest: Manifest | None = None
    for message in messages:
        try:
            head, body = _read(message)
            if head["kind"] == "manifest":
                manifest = from_json(body, Path(source))
            elif head["kind"] == "waiting":
                yield None
            elif head["kind"] == "reset":
                lost = head["lost"]
                yield Reset(lost=lost and Position(history=lost[0], number=lost[1]))
            elif manifest is None:
                raise ValueError("no manifest was sent before it")
            else:
                yield _change(head, body, manifest)
        except (CheckpointError, pa.ArrowException, OSError) as error:
            raise CorruptCheckpointError(f"{source}: a change cannot be read: {error}") from error
        except (ValueError, TypeError, KeyError, IndexError, *lengths.MALFORMED) as error:
            raise CorruptCheckpointError(f"{source} sent what is no change: {error}") from error


def _change(head: dict[str, Any], body: bytes, manifest: Manifest) -> Change:
    (save,) = (each for each in manifest.chain if each.number == head["save"])
    if head["kind"] == "rows":
        (batch,) = pa.ipc.open_stream(body)
        batch.validate(full=True)
        return Rows(group=head["group"], save=save, batch=batch)
    return Reached(
        position=Position(history=manifest.history, number=save.number),
        step=save.step,
        manifest=manifest,
        complete=bool(head["complete"]),
    )


def _message(head: dict[str, Any], body: bytes = b"") -> bytes:
    text = json.dumps(head).encode()
    return len(text).to_bytes(4, "little") + text + body


def _read(message: bytes) -> tuple[dict[str, Any], bytes]:
    end = 4 + int.from_bytes(message[:4], "little")
    return json.loads(message[4:end]), message[end:]


def _ipc(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())
