"""Arrow alone reads the row files of the ops, and the ops read those of Arrow."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from embedps import kernels
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import FileEntry, Manifest, SaveKind, SaveSet
from embedps.errors import CheckpointError, CorruptCheckpointError, DimMismatchError
from embedps.storage import file_io
from embedps.tables import SGD, Adagrad, Ftrl, LazyAdam, Optimizer, RowwiseAdagrad
from embedps.tables.collection import EmbeddingCollection
from embedps.tables.row_files import StoredFile
from tests.checkpoint.builders import row_schema
from tests.checkpoint.readers import read_chain, read_row_file, read_table
from tests.tables.builders import as_stored, ids, make_collection, make_table, remove, train

DIM = 3
SLOTS: dict[type[Optimizer], dict[str, int]] = {
    SGD: {},
    Adagrad: {"accumulator": DIM},
    RowwiseAdagrad: {"accumulator": 1},
    LazyAdam: {"m": DIM, "v": DIM},
    Ftrl: {"linear": DIM, "accumulator": DIM},
}


def make_tables(optimizer: Optimizer):
    return [make_table(name, DIM, optimizer=optimizer) for name in ("C1", 'naïve, "quoted"')]


def step(collection: EmbeddingCollection, touched: Sequence[int], number: int) -> None:
    """Runs a training step that touches the ids in every table."""
    rng = np.random.default_rng(number)
    names = [table.name for table in collection.tables]
    batch = {name: ids(*touched) for name in names}
    upstream = {name: rng.normal(size=(len(touched), DIM)).astype(np.float32) for name in names}
    train(collection, batch, upstream, step=number)


class Writer:
    """Saves one collection, and lists the saves in a manifest."""

    def __init__(self, path: Path, collection: EmbeddingCollection) -> None:
        self.directory = CheckpointDirectory(path)
        self.collection = collection
        self.cuts: dict[tuple[str, int], int] = {}
        self.chain: list[SaveSet] = []

    def save(self, kind: SaveKind) -> Manifest:
        number = len(self.chain) + 1
        folder = self.directory.path / f"{kind}-{number}"
        written = self.collection.files.write(kind, str(folder), since=self.cuts)
        self.cuts = {(file.group, file.shard): file.cut for file in written}
        files = tuple(
            FileEntry(
                path=self.directory.relative(Path(file.path)),
                bytes=file.bytes,
                rows=file.rows,
                removed=file.removed,
                xxh3_64=file.xxh3_64,
                blocks=file.blocks,
            )
            for file in written
        )
        self.chain.append(
            SaveSet(
                kind=kind,
                number=number,
                step=number,
                since=number - 1 if kind == "delta" else None,
                files=files,
            )
        )
        tables = [
            {**table.to_json(), "group": group.name}
            for group in self.collection.groups
            for table in group.tables
        ]
        return Manifest(
            number=number,
            step=number,
            wall_time=0.0,
            chain=tuple(self.chain),
            dense=None,
            ledger={},
            tables=tuple(tables),
            num_shards=self.collection.num_shards,
        )

    def rows(self, manifest: Manifest) -> pa.Table:
        return read_chain(self.directory, manifest, self.group)

    @property
    def group(self) -> str:
        return self.collection.groups[0].name


def full_rows(path: Path, collection: EmbeddingCollection) -> pa.Table:
    writer = Writer(path, collection)
    return writer.rows(writer.save("base"))


@pytest.mark.parametrize("kind", SLOTS, ids=lambda kind: kind.__name__)
def test_columns_are_those_of_the_format_and_the_entry_is_true(tmp_path, kind):
    collection = make_collection(make_tables(kind()), num_shards=2)
    step(collection, [1, -5, 2**62, 7, -(2**63)], 1)
    writer = Writer(tmp_path, collection)
    manifest = writer.save("base")
    assert sum(save.rows for save in manifest.chain) == 10
    for file in manifest.files:
        path = writer.directory.file(file)
        assert (file.bytes, file.xxh3_64) == file_io.checksum_file(path)
        records = read_row_file(path)
        assert records.num_rows == file.rows
        found = {field.name: field for field in records.schema}
        assert list(found) == [
            *("table", "id", "embedding"),
            *SLOTS[kind],
            *("last_step", "frequency", "removed"),
        ]
        for field in row_schema(DIM):
            if field.name not in SLOTS[kind] and field.name != "accumulator":
                assert found[field.name].equals(field)
        widths = {name: found[name].type.list_size for name in SLOTS[kind]}
        assert widths == SLOTS[kind]
        names = [table.name for table in collection.tables]
        assert records["table"].combine_chunks().dictionary.to_pylist() == names
        assert records.schema.metadata[b"group"].decode() == writer.group


def test_deltas_hold_what_was_touched_and_what_was_removed(tmp_path):
    collection = make_collection(make_tables(RowwiseAdagrad()), num_shards=2)
    step(collection, range(20), 1)
    writer = Writer(tmp_path, collection)
    writer.save("base")
    step(collection, [3, 4, 100], 2)
    assert remove(collection, "C1", [4, 11, 999]) == 2
    delta = writer.save("delta").chain[-1]
    assert (delta.rows, delta.removed) == (5, 2)
    records = pa.concat_tables(
        [read_row_file(writer.directory.file(file)) for file in delta.files]
    ).to_pylist()
    gone = [record for record in records if record["removed"]]
    assert sorted((record["table"], record["id"]) for record in gone) == [("C1", 4), ("C1", 11)]
    assert all(record["embedding"] == [0.0] * DIM for record in gone)
    assert all(record["accumulator"] == [0.0] for record in gone)
    changed = [(record["table"], record["id"]) for record in records if not record["removed"]]
    second = collection.tables[1].name
    expected = [("C1", 3), ("C1", 100), (second, 3), (second, 4), (second, 100)]
    assert sorted(changed) == sorted(expected)
    assert {record["last_step"] for record in records if not record["removed"]} == {2}


def test_quiet_shards_write_files_without_records(tmp_path):
    collection = make_collection(make_tables(SGD()), num_shards=2)
    writer = Writer(tmp_path, collection)
    writer.save("base")
    manifest = writer.save("delta")
    assert all((file.rows, file.removed) == (0, 0) for file in manifest.files)
    rows = writer.rows(manifest)
    assert rows.num_rows == 0
    assert rows.schema.field("embedding").type.list_size == DIM
    assert read_table(writer.directory, manifest, "C1").num_rows == 0
    assert (
        collection.files.load(
            {writer.group: [as_stored(writer.directory.file(f)) for f in manifest.files]}
        )
        == 0
    )


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_compressed_files_hold_the_same_records(tmp_path, compression):
    collection = make_collection(make_tables(RowwiseAdagrad()))
    step(collection, range(5000), 1)
    path = tmp_path / f"{compression}.arrow"
    store = collection._stores[0][0]
    kernels.load().embedps_write_rows(
        store, str(path), -1, 0.0, kind="base", compression=compression
    )
    plain = full_rows(tmp_path / "plain", collection)
    records = read_row_file(path).drop_columns(["removed"]).replace_schema_metadata(None)
    keys = [("table", "ascending"), ("id", "ascending")]
    text = records.set_column(0, "table", records["table"].cast(pa.string())).sort_by(keys)
    assert text.equals(plain.set_column(0, "table", plain["table"].cast(pa.string())).sort_by(keys))

    other = make_collection(make_tables(RowwiseAdagrad()))
    assert other.files.load({collection.groups[0].name: [as_stored(path)]}) == 10_000
    assert full_rows(tmp_path / "other", other).equals(plain)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_files_that_pyarrow_wrote_are_loaded(tmp_path, compression):
    """Files as a compaction writes them: with tables in another order and smaller batches."""
    tables = make_tables(RowwiseAdagrad())
    collection = make_collection(tables)
    step(collection, range(100), 1)
    rows = full_rows(tmp_path / "ours", collection)
    names = [table.name for table in reversed(collection.tables)]
    indices = [names.index(name) for name in rows["table"].to_pylist()]
    column = pa.DictionaryArray.from_arrays(pa.array(indices, pa.int16()), pa.array(names))
    schema = row_schema(DIM, names)
    arrays = [column, *rows.columns[1:], pa.array([False] * len(rows))]
    path = tmp_path / "theirs.arrow"
    with pa.ipc.new_file(
        path, schema, options=pa.ipc.IpcWriteOptions(compression=compression)
    ) as w:
        w.write_table(pa.table(arrays, schema=schema), max_chunksize=33)
    other = make_collection(tables, num_shards=2)
    assert other.files.load({collection.groups[0].name: [as_stored(path)]}) == len(rows)
    assert full_rows(tmp_path / "again", other).equals(rows)


def test_damaged_files_are_refused_with_their_path(tmp_path):
    collection = make_collection(make_tables(RowwiseAdagrad()))
    step(collection, range(100), 1)
    writer = Writer(tmp_path, collection)
    path = writer.directory.file(writer.save("base").files[0])
    whole = path.read_bytes()

    def load() -> int:
        file = as_stored(path) if path.exists() else StoredFile(str(path), 1, "0" * 16)
        return make_collection(make_tables(RowwiseAdagrad())).files.load({writer.group: [file]})

    assert load() == 200
    for damaged in (b"", whole[:-1], whole[: len(whole) // 2], b"x" * 1000):
        path.write_bytes(damaged)
        with pytest.raises(CorruptCheckpointError, match=r"row file '.*shard-0-of-1\.arrow'"):
            load()
    path.unlink()
    with pytest.raises(CorruptCheckpointError, match=r"shard-0-of-1\.arrow.*No such file"):
        load()


def test_files_of_another_shape_are_refused(tmp_path):
    collection = make_collection(make_tables(RowwiseAdagrad()))
    step(collection, [1], 1)
    writer = Writer(tmp_path, collection)
    file = as_stored(writer.directory.file(writer.save("base").files[0]))
    for tables, message in (
        ([make_table("C1", DIM + 1, optimizer=RowwiseAdagrad())], "dim 3.*has dim 4"),
        (make_tables(LazyAdam()), "slots of another optimizer"),
    ):
        other = make_collection(tables)
        with pytest.raises(DimMismatchError, match=f"{message}.*start a new model directory"):
            other.files.load({other.groups[0].name: [file]})
        assert not any(other.stats().rows.values())
    frozen = make_collection(make_tables(LazyAdam()), trainable=False)
    assert frozen.files.load({frozen.groups[0].name: [file]}) == 2


def test_save_that_cannot_be_written_is_an_error_and_the_next_has_its_rows(tmp_path):
    collection = make_collection(make_tables(SGD()))
    writer = Writer(tmp_path, collection)
    writer.save("base")
    step(collection, [5], 1)
    (tmp_path / "delta-2").write_text("a file where the save's directory goes")
    with pytest.raises(CheckpointError, match=r"could not write the delta in .*delta-2"):
        writer.save("delta")
    (tmp_path / "delta-2").unlink()
    assert writer.save("delta").chain[-1].rows == 2


def test_checksums_of_the_op_are_int64_bits(tmp_path):
    """Checksums have 16 hex digits, whatever the sign of the int64."""
    collection = make_collection(make_tables(SGD()))
    store = collection._stores[0][0]
    for i in range(8):
        step(collection, [i], 1)
        path = tmp_path / f"{i}.arrow"
        info, _ = kernels.load().embedps_write_rows(
            store, tf.constant(str(path)), -1, 0.0, kind="base"
        )
        _, size, rows, removed, checksum, *blocks = info.numpy().tolist()
        assert (size, file_io.format_checksum(checksum)) == file_io.checksum_file(path)
        assert "".join(map(file_io.format_checksum, blocks)) == file_io.digest_file(path).blocks
        assert (rows, removed) == (2 * (i + 1), 0)
