"""`embedps table`: single rows; imports from each kind of file, that verify and train on."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from embedps.checkpoint import Reached, Reset, Rows, follow
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.quantize import Encoding
from embedps.checkpoint.tools import import_rows as importing
from embedps.checkpoint.tools import replay
from embedps.checkpoint.tools.compact import compact
from embedps.checkpoint.tools.replay import stream_table
from embedps.checkpoint.tools.verify import verify
from embedps.features.text_values import fingerprint
from embedps.run.run_lock import RunLock
from embedps.tables import RowwiseAdagrad
from embedps.training.checkpoint_writer import CheckpointWriter
from tests.builders import TINY_DLRM, latest, make_trainer
from tests.checkpoint.builders import GROUP, CheckpointRun, Record
from tests.checkpoint.readers import newest_of, read_chain
from tests.commands import table_command as main
from tests.tables.builders import make_collection, make_table, rows_of

NEW_IDS = np.array([100, 101, 102, -5, 2**62], np.int64)
FLOATS = np.arange(2 * len(NEW_IDS), dtype=np.float32).reshape(-1, 2) + 0.5


def lists(floats: np.ndarray) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(floats.reshape(-1)), floats.shape[1])


def columns(ids: np.ndarray | list[str], floats: np.ndarray) -> pa.Table:
    return pa.table({"id": pa.array(ids), "embedding": lists(floats)})


def write_parquet(path: Path) -> list[object]:
    pq.write_table(columns(NEW_IDS, FLOATS), path / "a.parquet")
    return [path / "a.parquet"]


def write_variable_lists(path: Path) -> list[object]:
    floats = pa.array(FLOATS.tolist(), pa.list_(pa.float64()))
    pq.write_table(
        pa.table({"id": NEW_IDS.view(np.uint64), "embedding": floats}), path / "v.parquet"
    )
    return [path / "v.parquet"]


def write_arrow(path: Path) -> list[object]:
    given = columns(NEW_IDS, FLOATS)
    with pa.ipc.new_file(path / "a.arrow", given.schema) as writer:
        writer.write_table(given, max_chunksize=2)
    return [path / "a.arrow"]


def write_csv(path: Path) -> list[object]:
    given = {"id": NEW_IDS, "e0": FLOATS[:, 0], "e1": FLOATS[:, 1]}
    pa_csv.write_csv(pa.table(given), path / "a.csv")
    return [path / "a.csv"]


def write_numpy(path: Path) -> list[object]:
    np.save(path / "a.npy", FLOATS)
    np.save(path / "ids.npy", NEW_IDS)
    return [path / "a.npy", "--ids", path / "ids.npy"]


def rows_by_id(directory: CheckpointDirectory, name: str = "C1") -> dict[int, dict]:
    rows = read_chain(directory, newest_of(directory), GROUP, table=name).to_pylist()
    return {row["id"]: row for row in rows}


def make_directory(path: Path) -> CheckpointDirectory:
    """Has one shard: with several, `CheckpointRun` decides an id's by another hash than runs."""
    run = CheckpointRun(path, num_shards=1)
    run.base([Record("C1", i, float(i)) for i in range(8)] + [Record("C2", 5, 0.5)])
    run.delta([Record("C1", 3, None), Record("C1", 4, 40.0)])
    return run.directory


@pytest.mark.parametrize(
    "write", [write_parquet, write_variable_lists, write_arrow, write_csv, write_numpy]
)
def test_each_kind_of_file_is_imported(tmp_path, capsys, write):
    directory = make_directory(tmp_path / "m")
    before, others = rows_by_id(directory), rows_by_id(directory, "C2")
    given = write(tmp_path)
    assert main("import", directory.path, "--table", "C1", "--input", *given) == 0
    out = capsys.readouterr().out
    assert "manifest 3 with delta-3: 5 rows of C1 from" in out
    assert "without optimizer slots; 0 ids had a row" in out
    found = rows_by_id(directory)
    assert {i: found[i] for i in before} == before
    assert rows_by_id(directory, "C2") == others
    for i, floats in zip(NEW_IDS.tolist(), FLOATS.tolist(), strict=True):
        assert found[i]["embedding"] == floats
        assert found[i]["last_step"] == newest_of(directory).step
    assert len(found) == len(before) + len(NEW_IDS)
    assert verify(directory, directory.numbers()).problems == ()


@pytest.mark.parametrize("rows", ["bfloat16", "int8", "int4"])
def test_vectors_keep_their_bits_beside_encoded_rows(tmp_path, capsys, rows):
    run = CheckpointRun(tmp_path / "m", Encoding(rows=rows), num_shards=1)
    run.base([Record("C1", i, float(i)) for i in range(8)])
    directory, given = run.directory, write_parquet(tmp_path)
    assert main("import", directory.path, "--table", "C1", "--input", *given) == 0
    for _ in range(2):  # as a delta, and in a base
        found = rows_by_id(directory)
        assert [found[i]["embedding"] for i in NEW_IDS.tolist()] == FLOATS.tolist()
        assert len(found) == 8 + len(NEW_IDS)
        assert verify(directory, directory.numbers()).problems == ()
        compact(directory)


def test_followers_get_an_import_as_a_delta(tmp_path):
    directory = make_directory(tmp_path / "m")
    *_, reached = follow(directory, idle_secs=0)
    assert isinstance(reached, Reached)
    given = write_parquet(tmp_path)
    assert main("import", directory.path, "--table", "C1", "--input", *given) == 0
    changes = list(follow(directory, reached.position, idle_secs=0))
    assert not any(isinstance(change, Reset) for change in changes)
    ids = [i for c in changes if isinstance(c, Rows) for i in c.batch["id"].to_pylist()]
    assert sorted(ids) == sorted(NEW_IDS.tolist())


@pytest.mark.parametrize("bucket_keys", [4, 1 << 21])
def test_ids_that_are_there_are_refused_kept_or_replaced(
    tmp_path, capsys, monkeypatch, bucket_keys
):
    monkeypatch.setattr(replay, "MAX_KEYS", bucket_keys)
    directory = make_directory(tmp_path / "m")
    before = rows_by_id(directory)
    # 3 was removed, so it has no row.
    pq.write_table(columns(np.array([3, 4, 50]), FLOATS[:3]), tmp_path / "a.parquet")
    command = ["import", directory.path, "--table", "C1", "--input", tmp_path / "a.parquet"]
    assert main(*command) == 2
    error = capsys.readouterr().err
    assert "ids must not have a row in table 'C1' but 4 has one" in error
    assert error.count("\n") == 1
    assert directory.numbers() == [1, 2]
    assert not (directory.path / importing.WORK_NAME).exists()
    assert main(*command, "--present", "keep") == 0
    assert "2 rows of C1" in capsys.readouterr().out
    found = rows_by_id(directory)
    assert found[4] == before[4]
    assert (found[3]["embedding"], found[50]["embedding"]) == (FLOATS[0].tolist(), [4.5, 5.5])
    assert main(*command, "--present", "replace") == 0
    assert "3 rows of C1" in capsys.readouterr().out
    assert rows_by_id(directory)[4]["embedding"] == FLOATS[1].tolist()
    assert main(*command, "--present", "keep") == 0
    assert "no row of C1 is new: 3 ids had a row" in capsys.readouterr().out


def read_file(path: Path) -> dict[str, list]:
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pydict()
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return {name: arrays[name].tolist() for name in arrays}
    content = path.read_bytes()
    first = 8 + int.from_bytes(content[:8], "little")
    found = {}
    for name, entry in json.loads(content[8:first]).items():
        begin, end = entry["data_offsets"]
        kind = {"I64": np.int64, "F32": np.float32, "U32": np.uint32}[entry["dtype"]]
        values = np.frombuffer(content[first + begin : first + end], kind)
        found[name] = values.reshape(entry["shape"]).tolist()
    return found


@pytest.mark.parametrize("kind", ["parquet", "npz", "safetensors"])
def test_an_export_comes_back_with_its_slots_or_without(tmp_path, capsys, kind):
    directory = make_directory(tmp_path / "m")
    file, bare = tmp_path / f"rows.{kind}", tmp_path / f"bare.{kind}"
    export = ["export", directory.path, "--table", "C1", "--output"]
    assert main(*export, file) == 0
    assert "7 rows of C1 from manifest 2, step 200" in capsys.readouterr().out
    rows = [row | {"table": None} for row in rows_by_id(directory).values()]
    found = read_file(file)
    order = np.argsort(found["id"])
    for name in ("id", "embedding", "accumulator", "last_step", "frequency"):
        given = [row[name] for row in sorted(rows, key=lambda row: row["id"])]
        assert [found[name][i] for i in order] == given
    assert main(*export, bare, "--no-optimizer-slots") == 0
    assert sorted(read_file(bare)) == ["embedding", "frequency", "id", "last_step"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [bare.name, "m", file.name]
    command = ["import", directory.path, "--table", "C2", "--input", file, "--present", "replace"]
    assert main(*command) == 0
    assert "7 rows of C2" in (out := capsys.readouterr().out)
    assert "with accumulator; 1 ids had a row" in out
    assert main(*command, "--no-optimizer-slots") == 0
    assert "without optimizer slots; 7 ids had a row" in capsys.readouterr().out
    assert {tuple(row["accumulator"]) for row in rows_by_id(directory, "C2").values()} == {(0.0,)}
    assert main(*command) == 0
    kept = ("embedding", "accumulator")
    first, second = (rows_by_id(directory, name) for name in ("C1", "C2"))
    assert {i: [row[k] for k in kept] for i, row in first.items()} == {
        i: [row[k] for k in kept] for i, row in second.items()
    }


def test_wrong_export_is_one_line(tmp_path, capsys):
    directory = make_directory(tmp_path / "m")
    for arguments, said in (
        (["--table=C9", "--output=x.npz"], "--table must be one of ['C1', 'C2'] but is 'C9'"),
        (["--table=C1", "--output=x.txt"], "--output must be a file of .parquet, .npz, .safet"),
        (["--table=C1", "--output="], "output must not "),
        (["--table=C1"], "--output is required"),
    ):
        assert main("export", directory.path, *arguments) == 2
        assert said in (error := capsys.readouterr().err)
        assert error.count("\n") == 1


def test_texts_become_their_fingerprints(tmp_path, capsys):
    directory = make_directory(tmp_path / "m")
    pq.write_table(columns(["u1", "42"], FLOATS[:2]), tmp_path / "a.parquet")
    command = ["import", directory.path, "--table", "C1", "--input", tmp_path / "a.parquet"]
    assert main(*command) == 2
    assert "column 'id' must have integers, or --text-ids" in capsys.readouterr().err
    assert main(*command, "--text-ids") == 0
    capsys.readouterr()
    ask = ["get", directory.path, "--table", "C1", "--text-ids", "--id"]
    assert main(*ask, "42", "u1") == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["id"], first["text"]) == (fingerprint("42"), "42")
    assert first["embedding"] == FLOATS[1].tolist()
    assert second["embedding"] == FLOATS[0].tolist()


def test_get_says_what_the_last_record_of_an_id_is(tmp_path, capsys):
    directory = make_directory(tmp_path / "m")
    assert main("get", directory.path, "--table", "C1", "--id", 4, 3) == 1
    there, absent = map(json.loads, capsys.readouterr().out.splitlines())
    assert there | {"table": "C1"} == rows_by_id(directory)[4] | {"table": "C1"}
    assert absent == {"id": 3, "absent": True}
    assert main("get", directory.path, "--table", "C1", "--id", 4, "--number", 1) == 0
    assert json.loads(capsys.readouterr().out)["embedding"] == [4.0, -4.0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda: columns(np.array([9, 9]), FLOATS[:2]), "each id must be there once"),
        (lambda: columns(np.array([9]), FLOATS[:1, :1]), "must have 2 floats per row but has 1"),
        (lambda: columns(np.array([9]), FLOATS[:1] * np.nan), "must have finite numbers only"),
        (lambda: pa.table({"id": [9]}), "must have the column 'embedding' but has id"),
        (lambda: pa.table({"id": [9], "embedding": [1.0]}), "must have lists but has double"),
        (lambda: pa.table({"id": [9, None], "embedding": [[1.0, 2.0]] * 2}), "must have no nulls"),
        (
            lambda: pa.table({"id": [9, 10], "embedding": [[1.0], [1.0, 2.0, 3.0]]}),
            "must have 2 floats per row but has 1",
        ),
    ],
)
def test_wrong_input_is_one_line_and_changes_nothing(tmp_path, capsys, given, said):
    directory = make_directory(tmp_path / "m")
    pq.write_table(given(), tmp_path / "a.parquet")
    command = ["import", directory.path, "--table", "C1", "--input", tmp_path / "a.parquet"]
    assert main(*command, "--present", "keep") == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert directory.numbers() == [1, 2]


def test_import_beside_a_run_is_refused(tmp_path, capsys):
    directory = make_directory(tmp_path / "m")
    given = write_parquet(tmp_path)
    lock = RunLock(directory.path)
    assert main("import", directory.path, "--table", "C1", "--input", *given) == 75
    lock.release()
    assert "is in use by a run" in capsys.readouterr().err
    assert main("import", directory.path, "--table", "C9", "--input", *given) == 2
    assert "--table must be one of ['C1', 'C2']" in capsys.readouterr().err


@pytest.mark.parametrize(("num_shards", "row_dtype"), [(2, "float32"), (3, "bfloat16")])
def test_a_stopped_run_goes_on_from_an_import(tmp_path, num_shards, row_dtype):
    """Each row is in the file of its shard, so a restore finds it on any number of shards."""
    spec = make_table(optimizer=RowwiseAdagrad(initial_accumulator_value=0.25), row_dtype=row_dtype)
    directory = CheckpointDirectory(tmp_path / "m")
    writer = CheckpointWriter(directory, make_collection([spec], num_shards=2), {})
    writer.save(step=1, ledger={}, partially_applied=dict, progress={}, final=False)
    given = np.arange(1000, dtype=np.int64) * 7919
    floats = np.arange(4000, dtype=np.float32).reshape(-1, 4) % 256  # exact in bfloat16
    pq.write_table(columns(given, floats), tmp_path / "a.parquet")
    command = ["import", directory.path, "--table", "t", "--input", tmp_path / "a.parquet"]
    assert main(*command) == 0
    assert verify(directory, directory.numbers()).problems == ()
    restored = make_collection([spec], num_shards=num_shards)
    CheckpointWriter(directory, restored, {}).restore(newest_of(directory))
    rows = rows_of(restored, tmp_path / "rows")
    assert sorted(i for _, i in rows) == given.tolist()
    for i, expected in zip(given.tolist(), floats.tolist(), strict=True):
        assert list(rows["t", i].embedding) == expected
        assert rows["t", i].slots == ((0.25,),)


def test_vectors_in_a_directory_of_their_own_verify_and_begin_a_run(tmp_path, capsys, clicks):
    """A run takes two tables by name: its steps read and update rows, and leave others alone."""
    directory = CheckpointDirectory(tmp_path / "vectors")
    seen = pq.read_table(clicks.directory / "train", columns=["C1"])["C1"].unique().to_pylist()
    ids = [*seen[:40], *range(2**50, 2**50 + 10)]
    (tmp_path / "ids.txt").write_text("".join(f"{i}\n" for i in ids))
    vectors = np.random.default_rng(0).normal(size=(50, TINY_DLRM.embedding_dim))
    np.save(tmp_path / "a.npy", vectors.astype(np.float32))
    command = ["import", directory.path, "--input", tmp_path / "a.npy"]
    command += ["--ids", tmp_path / "ids.txt", "--table"]
    assert main(*command, "C1") == 2
    assert "there is no directory" in capsys.readouterr().err
    for name in ("C1", "C2"):
        assert main(*command, name, "--embedding-dim", TINY_DLRM.embedding_dim) == 0
    assert "50 rows of C2 from" in capsys.readouterr().out
    assert main(*command, "C1", "--present", "replace") == 0
    assert main(*command, "C1", "--embedding-dim", 4096) == 2
    assert "--embedding-dim of table 'C1' must be" in capsys.readouterr().err
    assert verify(directory, directory.numbers()).problems == ()
    assert compact(directory) is not None
    assert verify(directory, directory.numbers()).problems == ()
    fields: dict[str, Any] = {"from": str(directory.path)}
    trainer = make_trainer(clicks, tmp_path / "m", **fields)
    assert trainer.fit().summary["finished"]
    _, batches = stream_table(CheckpointDirectory(tmp_path / "m"), latest(tmp_path / "m"), "C1")
    rows = {row["id"]: row for batch in batches for row in batch.to_pylist()}
    expected = dict(zip(ids, vectors.astype(np.float32).tolist(), strict=True))
    assert all(rows[i]["embedding"] == expected[i] for i in ids[40:])
    for i in seen[:40]:
        assert rows[i]["frequency"] > 0
        assert 0 < np.abs(np.subtract(rows[i]["embedding"], expected[i])).max() < 1
    command[1] = tmp_path / "m"
    assert main(*command, "C9", "--embedding-dim", 8) == 2
    assert "--embedding-dim adds tables where no run has trained" in capsys.readouterr().err
