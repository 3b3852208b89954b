"""The whole state of a collection as one array of bytes: rows, slots, counters."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from embedps.constants import admission_file_name, shard_file_name
from embedps.errors import CorruptCheckpointError, UsageError
from embedps.tables.collection import EmbeddingCollection
from embedps.tables.row_files import ShardFile, StoredFile
from embedps.tables.stored_tables import check_tables

Image = npt.NDArray[np.uint8]

_CGROUP = Path("/sys/fs/cgroup")
_MAGIC = b"EMBEDPS1"
_HEAD = len(_MAGIC) + 8  # then the length of the JSON that describes the files behind it


def read_image(collection: EmbeddingCollection, *, step: int) -> Image:
    """Reads all rows with their optimizer slots, and the counters of admission.

    The rows pass through files in the temporary folder, whose room must do for them, and which
    servers of another machine must see.

    Args:
      collection: the tables; no step may run.

    Raises:
      CheckpointError: the temporary folder has no room.
      UsageError: the memory that is free has no room.
    """
    collection.hold_sweeps(True)
    try:
        with tempfile.TemporaryDirectory(prefix="embedps-") as folder:
            written = collection.files.write("copy", folder, since={})
            files = [each for file in written for each in (file, file.admission) if each]
            text = json.dumps(
                {
                    "step": step,
                    "tables": [table.to_json() for table in collection.tables],
                    "files": [_describe(file, written) for file in files],
                }
            ).encode()
            size = sum([_HEAD, len(text), *(file.bytes for file in files)])
            if size > (free := _free_memory()):
                raise UsageError(
                    f"a copy of the embedding tables needs {size:,} bytes of memory, of which "
                    f"{free:,} are free: keep copies in files, by embedps.SaveCheckpoints"
                )
            image = np.empty(size, np.uint8)
            head = _MAGIC + len(text).to_bytes(8, "little") + text
            image[: len(head)] = np.frombuffer(head, np.uint8)
            at = len(head)
            for file in files:
                with Path(file.path).open("rb") as stream:
                    stream.readinto(image[at : at + file.bytes].data)
                at += file.bytes
            return image
    finally:
        collection.hold_sweeps(False)


def write_image(collection: EmbeddingCollection, image: Image) -> int:
    """Replaces all rows, slots and counters by an image's.

    Returns:
      The training steps done when it was read.

    Raises:
      CorruptCheckpointError: it is no image, or damaged.
      DimMismatchError: it is of other tables.
    """
    described, at = _head(image)
    check_tables(described["tables"], collection.tables)
    with tempfile.TemporaryDirectory(prefix="embedps-") as folder:
        found: dict[bool, dict[str, list[StoredFile]]] = {False: {}, True: {}}
        for file in described["files"]:
            name = admission_file_name if file["admission"] else shard_file_name
            of_group = found[file["admission"]].setdefault(file["group"], [])
            path = Path(folder) / file["group"] / name(len(of_group), len(described["files"]))
            path.parent.mkdir(exist_ok=True)
            image[at : at + file["bytes"]].tofile(path)
            at += file["bytes"]
            of_group.append(StoredFile(str(path), file["bytes"], file["xxh3_64"]))
        collection.clear()
        collection.files.load(found[False])
        collection.mark_clean()
        if found[True]:
            collection.files.load_admission(found[True])
    return int(described["step"])


def _free_memory() -> int:
    """Reads how many bytes this process may still take of the machine, and of its cgroup."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        return min(free, limit - int((_CGROUP / "memory.current").read_text()))
    except (OSError, ValueError):  # it has no limit
        return free


def _describe(file: ShardFile, rows: Sequence[ShardFile]) -> dict[str, Any]:
    return {
        "group": file.group,
        "admission": file not in rows,
        "bytes": file.bytes,
        "xxh3_64": file.xxh3_64,
    }


def _head(image: Image) -> tuple[Mapping[str, Any], int]:
    """Reads what an image has, and where its files begin."""
    head = image[:_HEAD].tobytes()
    length = int.from_bytes(head[len(_MAGIC) :], "little")
    whole = head.startswith(_MAGIC) and _HEAD + length <= image.size
    described = json.loads(image[_HEAD : _HEAD + length].tobytes()) if whole else {"files": []}
    files = sum(file["bytes"] for file in described["files"])
    if not whole or image.size != _HEAD + length + files:
        raise CorruptCheckpointError(
            f"the rows of embedding tables must be as embedps.Embeddings saved them, but these "
            f"{image.size} bytes are not: load what this model's layers saved"
        )
    return described, _HEAD + length
