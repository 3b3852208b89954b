"""The attacks by files, and for each a harmless file of the same size.

    python -m benchmarks.hostile.file_attacks NAME FOLDER

reads what an attack's maker left in FOLDER, in a process of its own: it prints "ready" once it has
imported what it needs, and what came of it at the end.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import embedps

# isort: split
from benchmarks.hostile import ids as hostile_ids
from benchmarks.hostile import run as small_run
from benchmarks.hostile.processes import Limits, run_limited
from embedps import constants, kernels
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import FileEntry, Manifest
from embedps.checkpoint.format.rows import RowFile
from embedps.errors import EmbedpsError
from embedps.storage import file_io

_TABLE = "C1"
_HUGE = 2**62
_STEP_IDS = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large the attacks are."""

    base_rows: int = 5000
    counters: int = 60_000
    unit_rows: int = 12_000


QUICK = Sizes(base_rows=200, counters=300, unit_rows=200)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileAttack:
    """An attack by a file.

    Attributes:
      what: is read, in words.
      make: writes the file into a folder, which has the run as `model`: hostile or not; gives its
        bytes.
      read: reads it, in a process of its own; gives what came.
    """

    what: str
    make: Callable[[Path, bool, Sizes], int]
    read: Callable[[Path], str]


def forge_rows(model_dir: Path, change: Callable[[pa.Table], pa.Table]) -> int:
    """Commits a base whose rows are a change of the newest one's; gives its file's bytes.

    Args:
      model_dir: of a run of one shard and one group.
      change: of the row file's records.
    """
    directory = CheckpointDirectory(model_dir)
    manifest = _latest(directory)
    base = manifest.chain[0]
    (old,) = base.files
    with pa.OSFile(str(directory.file(old))) as source:
        records = pa.ipc.open_file(source).read_all()
    changed, number = change(records), manifest.number + 1
    path = directory.shard_path("base", number, old.group, 0, 1)
    with file_io.write_atomically(path) as file:
        with pa.ipc.new_file(file, changed.schema) as writer:
            writer.write_table(changed)
        entry = FileEntry.of(directory.relative(path), file.digest, rows=changed.num_rows)
    save = dataclasses.replace(base, number=number, files=(entry,))
    directory.commit(dataclasses.replace(manifest, number=number, chain=(save,)))
    return entry.bytes


def _latest(directory: CheckpointDirectory) -> Manifest:
    manifest = directory.latest()
    if manifest is None:
        raise EmbedpsError(f"{directory.path} has no checkpoint")
    return manifest


def _rows(count: int, is_hostile: bool) -> hostile_ids.Ids:
    return hostile_ids.inseparable(_TABLE, count) if is_hostile else hostile_ids.random(count)


def _base(folder: Path, is_hostile: bool, sizes: Sizes) -> int:
    ids = _rows(sizes.base_rows, is_hostile)

    def change(records: pa.Table) -> pa.Table:
        of_table = records.filter(pa.compute.equal(records["table"], _TABLE))
        taken = of_table.take(np.arange(len(ids)) % of_table.num_rows)
        return taken.set_column(1, records.schema.field("id"), pa.array(ids))

    return forge_rows(folder / "model", change)


def _claimed_tables(folder: Path, is_hostile: bool, sizes: Sizes) -> int:
    def change(records: pa.Table) -> pa.Table:
        metadata = dict(records.schema.metadata)
        if is_hostile:
            metadata[constants.ROW_FILE_NUM_TABLES_KEY.encode()] = str(2**31).encode()
        return records.slice(0, 10).replace_schema_metadata(metadata)

    return forge_rows(folder / "model", change)


def _claimed_rows(folder: Path, is_hostile: bool, sizes: Sizes) -> int:
    directory = CheckpointDirectory(folder / "model")
    path = directory.manifest_path(_latest(directory).number)
    if is_hostile:  # by docs/checkpoint-format.md: to write it as embedps does would check it
        content = json.loads(path.read_bytes())
        del content["xxh3_64"]
        for file in (content["chain"][0]["files"][0], content["dense"]):
            file |= {"rows": _HUGE, "removed": _HUGE}
        content |= {"num_shards": _HUGE, "step": _HUGE}
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
        content["xxh3_64"] = file_io.checksum_bytes(canonical)
        path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    return path.stat().st_size


def _long_name(folder: Path, is_hostile: bool, sizes: Sizes) -> int:
    directory = CheckpointDirectory(folder / "model")
    number = _latest(directory).number
    manifest = directory.manifest_path(number)
    name = f"{number + 1:09d}.json" if is_hostile else f"{number + 1:08d}.tmp"
    shutil.copy(manifest, manifest.with_name(name))
    return manifest.stat().st_size


def _counters(folder: Path, is_hostile: bool, sizes: Sizes) -> int:
    ids = hostile_ids.random(sizes.counters)
    if is_hostile:
        ids = hostile_ids.colliding(_TABLE, sizes.counters, shared_bits=32)
    np.save(folder / "ids.npy", ids)
    return ids.nbytes


def _unit(folder: Path, is_hostile: bool, sizes: Sizes) -> int:
    ids = _rows(sizes.unit_rows, is_hostile)
    np.save(folder / "ids.npy", ids)
    return ids.nbytes


def _load(folder: Path) -> str:
    embedps.load(folder / "model")
    return "loaded"


def _read_tables(folder: Path) -> str:
    directory = CheckpointDirectory(folder / "model")
    (entry,) = _latest(directory).chain[0].files
    try:
        return f"{len(RowFile(directory.file(entry)).tables)} tables"
    except EmbedpsError as error:
        return _refused(error)


def _read_and_load(folder: Path) -> str:
    return f"{_read_tables(folder)}; {_load(folder)}"


def _read_newest(folder: Path) -> str:
    return f"manifest {_latest(CheckpointDirectory(folder / 'model')).number}"


def _count(folder: Path) -> str:
    from benchmarks.byte_limit import EvictingTable

    ids = np.load(folder / "ids.npy")
    table = EvictingTable(_TABLE, [], small_run.MODEL.embedding_dim, counts=True)
    table.step(ids[:1])  # the first call takes longer
    for part in np.array_split(ids, -(-len(ids) // _STEP_IDS)):
        table.step(part)
    return "counted"


def _train(folder: Path) -> str:
    ids = np.load(folder / "ids.npy")
    small_run.train(folder / "of_ids", [_TABLE], small_run.examples({_TABLE: ids}))
    return "trained"


ATTACKS: dict[str, FileAttack] = {
    "base_rows": FileAttack(
        what="a base of rows chosen against the index, beside random rows", make=_base, read=_load
    ),
    "counters": FileAttack(
        what="counters of ids chosen against their index, beside random ids",
        make=_counters,
        read=_count,
    ),
    "unit_ids": FileAttack(
        what="a Parquet unit of ids chosen against the index, beside random ids",
        make=_unit,
        read=_train,
    ),
    "claimed_tables": FileAttack(
        what="a row file that claims 2^31 tables, beside what it has",
        make=_claimed_tables,
        read=_read_and_load,
    ),
    "claimed_rows": FileAttack(
        what="a manifest that claims 2^62 rows, shards and steps, beside the true one",
        make=_claimed_rows,
        read=_load,
    ),
    "manifest_name": FileAttack(
        what="a manifest's name of nine digits, beside no manifest's name",
        make=_long_name,
        read=_read_newest,
    ),
}


def _refused(error: Exception) -> str:
    return f"refused: {error}"


def measure(name: str, run: Path, limits: Limits, sizes: Sizes, folder: Path) -> dict[str, Any]:
    """Reads the hostile file and its twin, each in a process of its own.

    Args:
      run: the model directory that is copied.
      sizes: of the attack.
      folder: for the copies.
    """
    attack, found = ATTACKS[name], dict[str, Any](what=ATTACKS[name].what)
    for kind in ("harmless", "hostile"):
        place = folder / name / kind
        shutil.copytree(run, place / "model")
        found["sent_bytes"] = attack.make(place, kind == "hostile", sizes)
        command = [sys.executable, "-m", "benchmarks.hostile.file_attacks", name, str(place)]
        found[kind] = run_limited(command, limits)
        found[kind]["said"] = found[kind]["said"].replace(f"{place}/", "")
    return found


def main(arguments: Sequence[str]) -> int:
    """Reads the files of an attack."""
    name, folder = arguments
    kernels.load()  # and TensorFlow: both take seconds
    print("ready", flush=True)
    try:
        print(ATTACKS[name].read(Path(folder)))
    except EmbedpsError as error:
        print(_refused(error))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
