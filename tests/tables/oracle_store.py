"""The kernels' store of a trace's table on one shard, and what its files hold."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embedps import kernels
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.admission import AdmissionFile
from embedps.checkpoint.format.manifest import FileEntry, Manifest
from embedps.checkpoint.format.quantize import decode
from embedps.constants import ADMISSION_FILE_PREFIX
from embedps.storage.file_io import format_checksum
from embedps.tables import TableSpec, new_store
from embedps.tables.byte_limits import ServerLimit
from embedps.tables.tiered import Tiered
from tests.tables.admission_twin import Counter
from tests.tables.stripe_twin import LEARNING_RATE, Floats
from tests.tables.table_twin import Record, TwinEvicted

GROUP, CONTAINER = "g", "oracle"
_stores = itertools.count()


class Store:
    """A store without its own thread."""

    def __init__(
        self,
        spec: TableSpec,
        num_shards: int,
        server: ServerLimit | None,
        *,
        tier: tuple[Tiered, int] | None,
        memory: str,
        keeps_evicted: bool,
    ) -> None:
        """Makes an empty store.

        Args:
          spec: the table.
          num_shards: that it has.
          server: the limit of the server.
          tier: the disk of the server's coldest rows, and how many rows a chunk of its memory has.
          memory: names the memory that the server's stores share.
          keeps_evicted: whether evicted rows can be written to files.
        """
        tiered, chunk_slots = tier or (None, 0)
        self._ops = kernels.load()
        self._dim = spec.embedding_dim
        self._before = [0] * 8  # what was counted before the store was cleared
        self._resource = self._ops.embedps_row_store(
            container=CONTAINER,
            shared_name=f"oracle/{next(_stores)}",
            group=GROUP,
            **new_store.attributes(
                [spec], num_shards=num_shards, server_limit=server, memory=tiered
            ),
            tier_chunk_slots=chunk_slots,
            sweeps_itself=False,
            server_memory=memory,
            keeps_evicted=keeps_evicted,
        )

    # ---- in a step ---------------------------------------------------------------------------

    def lookup(self, ids: Sequence[int], *, insert: bool) -> list[tuple[float, ...]]:
        rows = self._ops.embedps_lookup(
            self._resource, _int64(ids), _splits(ids), dim=self._dim, insert=insert
        )
        return list(map(tuple, rows.numpy().tolist()))

    def lookup_shown(
        self, examples: Mapping[int, int], step: int
    ) -> tuple[list[tuple[float, ...]], list[bool]]:
        out = self._ops.embedps_lookup_shown(
            self._resource, *_shown(examples), np.int64(step), dim=self._dim
        )
        return list(map(tuple, out.rows.numpy().tolist())), (out.absent.numpy() == 1).tolist()

    def admit(
        self, examples: Mapping[int, int], absent: Sequence[bool], step: int, *, is_new: bool
    ) -> None:
        self._ops.embedps_admit(
            self._resource,
            *_shown(examples),
            np.array(absent, np.uint8),
            np.int64(step),
            np.bool_(is_new),
        )

    def update(self, ids: Sequence[int], gradients: np.ndarray, step: int, *, is_new: bool) -> None:
        self._ops.embedps_update(
            self._resource,
            _int64(ids),
            _splits(ids),
            gradients.reshape(len(ids), self._dim),
            np.float32(LEARNING_RATE),
            np.int64(step),
            np.bool_(is_new),
        )

    def read_ahead(self, ids: Sequence[int]) -> None:
        self._ops.embedps_read_ahead(self._resource, _int64(ids), _splits(ids))

    # ---- outside steps -----------------------------------------------------------------------

    def sweep(self) -> None:
        self._ops.embedps_sweep(self._resource)

    def set_oldest_step(self, step: int) -> None:
        self._ops.embedps_set_oldest_step(self._resource, np.int64(step), table=0)

    def remove(self, ids: Sequence[int]) -> None:
        self._ops.embedps_remove(self._resource, _int64(ids), table=0)

    def evict(self, before_step: int, max_frequency: int) -> None:
        self._ops.embedps_evict(self._resource, before_step, max_frequency, table=0)

    def clear(self) -> None:
        """Removes all rows; what was counted before does not count any more."""
        self._ops.embedps_clear(self._resource)
        self._before = self._counted()

    @property
    def num_rows(self) -> int:
        return int(self._ops.embedps_stats(self._resource).rows.numpy().item())

    def counts(self) -> list[int]:
        """Counts what the store did: ids rejected, updates skipped, rows evicted by cause, ids
        admitted and refused."""
        return [now - old for now, old in zip(self._counted(), self._before, strict=True)]

    def _counted(self) -> list[int]:
        _, rejected, skipped = self._ops.embedps_stats(self._resource).counters.numpy().tolist()
        evicted = self._ops.embedps_eviction_stats(self._resource).numpy()[0].tolist()
        admission = self._ops.embedps_admission_stats(self._resource).numpy()[0].tolist()
        return [rejected, skipped, *evicted, *admission[2:4]]

    def on_disk(self) -> dict[str, int]:
        """Counts what the disk was used for; no row may be lost by it."""
        stats = self._ops.embedps_tier_stats(self._resource)
        _, written, moved, read, disk_reads, _, lost = stats.counts.numpy().tolist()
        assert (lost, stats.error.numpy()) == (0, b"")
        return {
            "spilled": written - moved,
            "compacted": moved,
            "brought_back": read,
            "disk_reads": disk_reads,
        }

    # ---- files -------------------------------------------------------------------------------

    def write(
        self, kind: str, directory: CheckpointDirectory, path: Path, since: int
    ) -> tuple[int, list[FileEntry]]:
        """Writes a file; returns the cut and the entries: of the rows, and of the counters."""
        made = self._ops.embedps_write_rows(self._resource, str(path), since, 0.0, kind=kind)
        infos = [(path, made.info)]
        if made.admission_info.shape[0]:
            name = path.name.replace("shard-", ADMISSION_FILE_PREFIX)
            infos.append((path.with_name(name), made.admission_info))
        entries = []
        for each, info in infos:
            cut, size, rows, removed, checksum, *blocks = info.numpy().tolist()
            entries.append(
                FileEntry(
                    path=directory.relative(each),
                    bytes=size,
                    rows=rows,
                    removed=removed,
                    xxh3_64=format_checksum(checksum),
                    blocks="".join(map(format_checksum, blocks)),
                )
            )
        return cut, entries

    def next_evicted_file(self, path: Path) -> int:
        """Finishes the file of evicted rows and begins the next; returns the rows in it."""
        made = self._ops.embedps_next_evicted_file(self._resource, str(path))
        rows, lost, _ = made.info.numpy().tolist()
        assert not lost, made.error
        return int(rows)

    def load(
        self, directory: CheckpointDirectory, manifest: Manifest, shard: int, num_shards: int
    ) -> int:
        """Loads this shard's part of a chain; returns the cut that the next delta is since."""
        where = {"shard": shard, "num_shards": num_shards}
        for save in manifest.chain:
            self._ops.embedps_load_rows(self._resource, *_stored(directory, save.files), **where)
        cut = int(self._ops.embedps_mark_clean(self._resource))
        counters = [entry for save in manifest.chain for entry in save.admission]
        if counters:
            self._ops.embedps_load_admission(self._resource, *_stored(directory, counters), **where)
        return cut


def read_records(path: Path, spec: TableSpec) -> list[Record]:
    """Reads a row file's records in order; what a removal holds besides its id does not matter."""
    with pa.OSFile(str(path)) as file:
        table = decode(path, pa.ipc.open_file(file).read_all())
    columns = (table[name].to_pylist() for name in ("id", "removed", "last_step", "frequency"))
    return [
        (id_, None if removed else (w, slots, last_step, frequency))
        for id_, removed, last_step, frequency, w, slots in zip(
            *columns, *_read_floats(table, spec), strict=True
        )
    ]


def read_evicted(path: Path, spec: TableSpec) -> list[TwinEvicted]:
    """Reads a file of evicted rows in order."""
    table = pq.read_table(path, partitioning=None)
    assert set(table["table"].to_pylist()) == {spec.name}
    columns = ("id", "reason", "evicted_step", "last_step", "frequency")
    lists = (table[name].to_pylist() for name in columns)
    return [TwinEvicted(*row) for row in zip(*lists, *_read_floats(table, spec), strict=True)]


def _read_floats(table: pa.Table, spec: TableSpec) -> tuple[list[Floats], list[Floats]]:
    """Gives each record's embedding and its optimizer slots, one after the other."""

    def read(names: Iterable[str]) -> list[Floats]:
        parts = [_matrix(table[name]) for name in names]
        whole = np.concatenate([np.zeros((table.num_rows, 0)), *parts], axis=1)
        return list(map(tuple, whole.tolist()))

    return read(["embedding"]), read(spec.optimizer.optimizer_slot_widths(spec.embedding_dim))


def _matrix(column: pa.ChunkedArray) -> np.ndarray:
    return np.stack([*column.to_numpy(), np.zeros(column.type.list_size)])[:-1]


def read_counters(path: Path) -> dict[int, Counter | None]:
    """Reads an admission file: by id the count and the tick of the last example."""
    records = [r for batch in AdmissionFile(path).batches() for r in batch.to_pylist()]
    return {
        r["id"]: None if r["removed"] else (r["count"], r["last_step"] // 1024) for r in records
    }


def drop_stores() -> None:
    kernels.load().embedps_drop_stores(container=CONTAINER)


def _stored(
    directory: CheckpointDirectory, entries: Sequence[FileEntry]
) -> tuple[list[str], np.ndarray, np.ndarray]:
    sums = [int.from_bytes(bytes.fromhex(entry.xxh3_64), signed=True) for entry in entries]
    paths = [str(directory.file(entry)) for entry in entries]
    return paths, _int64([entry.bytes for entry in entries]), _int64(sums)


def _shown(examples: Mapping[int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return _int64([*examples]), _splits([*examples]), np.array([*examples.values()], np.int32)


def _int64(numbers: Sequence[int]) -> np.ndarray:
    return np.array(numbers, np.int64)


def _splits(ids: Sequence[int]) -> np.ndarray:
    return np.array([0, len(ids)], np.int32)
