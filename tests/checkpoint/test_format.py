"""Stored chains are read by docs/checkpoint-format.md alone, and by embedps, with the same rows.

The reader below knows nothing of embedps: JSON, Arrow IPC, XXH3 and the page. The chains were
written once by `store_chain`, and later versions must read them as they are.
"""

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from embedps.checkpoint import Rows, follow
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.tools.verify import verify
from embedps.tables.row_files import StoredFile
from tests.checkpoint import store_chain
from tests.checkpoint.readers import newest_of, read_table
from tests.tables.builders import make_collection, rows_of

STORED = Path(__file__).parent / "stored" / "manifest-2"
CHAINS = {
    "float32": (store_chain.TABLES, 5),
    "int8": (store_chain.QUANTIZED, 3),
    "int4": (store_chain.QUANTIZED, 3),
}
Found = dict[tuple[str, int], dict[str, Any]]


# ---- a reader, by the page ---------------------------------------------------------------------


def read_manifest(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_bytes())
    assert content["format"] == "embedps.manifest"
    assert content["version"] <= 2
    stored = content.pop("xxh3_64")
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    assert stored == f"{xxhash.xxh3_64_intdigest(canonical):016x}"
    return content


def check_file(path: Path, entry: dict[str, Any]) -> None:
    data = path.read_bytes()
    assert len(data) == entry["bytes"]
    assert f"{xxhash.xxh3_64_intdigest(data):016x}" == entry["xxh3_64"]
    size = 65536
    while size * 32 < len(data):
        size *= 2
    blocks = ""
    for start in range(0, len(data), size):
        block = data[start : start + size]
        pieces = (block[i : i + 65536] for i in range(0, len(block), 65536))
        sums = b"".join(struct.pack("<Q", xxhash.xxh3_64_intdigest(piece)) for piece in pieces)
        blocks += f"{xxhash.xxh3_64_intdigest(sums):016x}"
    assert blocks == entry["blocks"]


def embedding_of(record: dict[str, Any], rows: str, dim: int) -> list[float]:
    if rows == "float32":
        return record["embedding"]
    codes = record["embedding"]
    if rows == "int4":
        codes = [code for byte in codes for code in (byte & 15, byte >> 4)][:dim]
    offset, scale = np.float32(record["embedding_offset"]), np.float32(record["embedding_scale"])
    return [float(offset + scale * np.float32(code)) for code in codes]


def read_records(path: Path) -> list[dict[str, Any]]:
    table = pa.ipc.open_file(path.read_bytes()).read_all()
    metadata = {k.decode(): v.decode() for k, v in table.schema.metadata.items()}
    version = metadata["embedps.row_file"]
    assert version in ("1", "2")
    rows = metadata["embedps.rows"] if version == "2" else "float32"
    slots = metadata["embedps.slots"] if version == "2" else "float32"
    dim = int(metadata["embedps.dim"]) if version == "2" else 0
    beside = ["embedding_scale", "embedding_offset"] if rows != "float32" else []
    names = table.column_names
    first, last = ["table", "id", "embedding", *beside], ["last_step", "frequency", "removed"]
    assert names[: len(first)] == first
    assert names[-3:] == last
    tables = [metadata[f"embedps.table.{i}"] for i in range(int(metadata["embedps.num_tables"]))]
    records = []
    for found in table.to_pylist():
        assert found["table"] in tables
        record = {name: found[name] for name in ("table", "id", *last)}
        record["embedding"] = embedding_of(found, rows, dim)
        for name in names[len(first) : -3]:
            value = found[name]
            if slots == "bfloat16":
                value = np.array(value, np.uint32).__lshift__(16).view(np.float32).tolist()
            record[name] = value
        records.append(record)
    return records


def replay(directory: Path, manifest: dict[str, Any]) -> Found:
    rows: Found = {}
    assert manifest["chain"][0]["kind"] == "base"
    for save in manifest["chain"]:
        for entry in save["files"]:
            check_file(directory / entry["path"], entry)
            records = read_records(directory / entry["path"])
            assert sum(not r["removed"] for r in records) == entry["rows"]
            assert sum(r["removed"] for r in records) == entry["removed"]
            for record in records:
                rows.pop((record["table"], record["id"]), None)
                if not record["removed"]:
                    rows[record["table"], record["id"]] = record
    return rows


def numbers_of(directory: Path) -> list[int]:
    return sorted(int(path.stem) for path in (directory / "manifests").glob("*.json"))


# ---- what it finds ------------------------------------------------------------------------------


def tolerance(encoding: str, values: np.ndarray) -> float:
    """Of an embedding: a rounding, and half a code's step."""
    levels = {"int8": 255, "int4": 15}.get(encoding)
    return 1e-6 if levels is None else 0.51 * float(np.ptp(values)) / levels + 1e-5


@pytest.mark.parametrize("encoding", CHAINS)
def test_page_alone_reads_what_the_formulas_say(encoding):
    tables, num_steps = CHAINS[encoding]
    directory = STORED / encoding
    manifests = [
        read_manifest(directory / f"manifests/{n:08d}.json") for n in numbers_of(directory)
    ]
    assert [manifest["step"] for manifest in manifests] == list(range(1, num_steps + 1))
    assert [manifest["final"] for manifest in manifests] == [False] * (num_steps - 1) + [True]
    assert len({manifest["history"] for manifest in manifests}) == 1
    for manifest in manifests:
        step = manifest["step"]
        assert manifest["ledger"] == {"doing": [], "é": step}
        check_file(directory / manifest["dense"]["path"], manifest["dense"])
        found = replay(directory, manifest)
        expected = store_chain.expected_rows(tables, step)
        assert found.keys() == expected.keys()
        for (name, id_), row in expected.items():
            record = found[name, id_]
            atol = tolerance(encoding, row.w)
            np.testing.assert_allclose(record["embedding"], row.w, rtol=1e-5, atol=atol)
            assert record["last_step"] == store_chain.last_step(step, id_)
            assert record["frequency"] == row.updates
            slots = row.optimizer.optimizer_slot_widths(store_chain.DIM)
            for slot, values in zip(slots, row.slots, strict=True):
                rtol = 2.0**-8 if encoding == "int8" else 1e-5
                np.testing.assert_allclose(record[slot], values, rtol=rtol, atol=1e-6)


def test_stored_chain_has_what_a_chain_may_have():
    """A base, deltas, removals, an id that came back, a base with a delta since the old chain."""
    newest = read_manifest(STORED / "float32" / "manifests/00000006.json")
    saves = [(save["kind"], save["number"], save["since"]) for save in newest["chain"]]
    assert saves == [("base", 4, None), ("delta", 5, 3), ("delta", 6, 5)]
    assert sum(file["removed"] for file in newest["chain"][1]["files"]) > 0
    assert {table["optimizer"]["kind"] for table in newest["tables"]} == {
        "sgd",
        "adagrad",
        "rowwise_adagrad",
        "lazy_adam",
        "ftrl",
    }


def test_position_of_the_old_chain_goes_on_by_the_delta_since_it():
    """By the page's words: from the first delta with since <= N < its number."""
    directory = STORED / "float32"
    at_three = replay(directory, read_manifest(directory / "manifests/00000003.json"))
    newest = read_manifest(directory / "manifests/00000006.json")
    after = [s for s in newest["chain"] if s["since"] is not None and s["number"] > 3]
    assert after[0]["since"] <= 3 < after[0]["number"]
    rows = dict(at_three)
    for save in after:
        for entry in save["files"]:
            for record in read_records(directory / entry["path"]):
                rows.pop((record["table"], record["id"]), None)
                if not record["removed"]:
                    rows[record["table"], record["id"]] = record
    assert rows == replay(directory, newest)


@pytest.mark.parametrize("encoding", CHAINS)
def test_embedps_reads_the_same(encoding, tmp_path):
    shutil.copytree(STORED / encoding, tmp_path / "chain")  # a lease is written
    directory = CheckpointDirectory(tmp_path / "chain")
    problems = [str(each) for each in verify(directory, directory.numbers()).problems]
    # Their ledger is no run's; all else is as written.
    assert [each for each in problems if "field 'ledger.dataset'" not in each] == []
    assert len(problems) == len(directory.numbers())
    tables, _ = CHAINS[encoding]
    for number in directory.numbers():
        manifest = directory.read(number)
        expected = replay(directory.path, read_manifest(directory.manifest_path(number)))
        for table in tables:
            rows = read_table(directory, manifest, table.name).to_pylist()
            wanted = {i: r for (name, i), r in expected.items() if name == table.name}
            assert [row["id"] for row in rows] == sorted(wanted)
            assert all(row == {k: wanted[row["id"]][k] for k in row} for row in rows)
    newest = newest_of(directory)
    changes = [c.batch for c in follow(directory, idle_secs=0) if isinstance(c, Rows)]
    assert sum(b.num_rows for b in changes) == sum(s.rows + s.removed for s in newest.chain)


def test_kernels_load_the_stored_chain_onto_other_shards(tmp_path):
    directory = CheckpointDirectory(STORED / "float32")
    newest = newest_of(directory)
    collection = make_collection(store_chain.TABLES, num_shards=3)
    for save in newest.chain:
        files: dict[str, list[StoredFile]] = {}
        for entry in save.files:
            file = StoredFile(str(directory.file(entry)), entry.bytes, entry.xxh3_64)
            files.setdefault(entry.group, []).append(file)
        collection.files.load(files)
    loaded = rows_of(collection, tmp_path)
    expected = replay(directory.path, read_manifest(directory.manifest_path(newest.number)))
    assert loaded.keys() == expected.keys()
    assert all(list(row.embedding) == expected[key]["embedding"] for key, row in loaded.items())
    collection.drop()
