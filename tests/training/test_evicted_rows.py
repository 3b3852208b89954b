"""Files of the rows that a run evicts, and what holds for them after kills."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.evicted_directory import FIRST_FIELDS, EvictedDirectory
from embedps.errors import UsageError
from embedps.tables.byte_limits import evicted_bytes, limited_bytes
from embedps.tables.groups import group_tables
from tests.builders import FEATURES, MIXED, ROOT, TABLES, latest, make_trainer, write_dataset
from tests.checkpoint.readers import read_chain
from tests.forks import arm, is_killed
from tests.tables.builders import constant, ids, make_collection, make_table, train

GROUPS = group_tables(TABLES, FEATURES)
LEAST = sum(limited_bytes(table, 0) for table in TABLES)
LEAST += sum(evicted_bytes(GROUPS, keeps_evicted=True).values())


def read(directory: Path, group: str = "dim3-rowwise_adagrad"):
    return pq.read_table(directory / group)


def test_each_row_that_goes_is_in_a_file_as_it_was(tmp_path):
    spec = make_table("t", 2, initializer=constant(1.0))
    collection = make_collection([spec, make_table("u", 2)], keeps_evicted=True)
    files = collection.evicted_files
    assert files is not None
    directory = EvictedDirectory(tmp_path / "evicted")

    def next_files(number: int):
        return files.next_files(lambda *where: str(directory.shard_path(number, *where)))

    assert next_files(1).rows == 0
    everything = {"t": ids(*range(30_000)), "u": ids(1)}
    upstream = {name: np.ones((len(ids_), 2), np.float32) for name, ids_ in everything.items()}
    train(collection, everything, upstream, step=7)
    before = collection.evict("t", before_step=8, max_frequency=2)
    assert before == 30_000
    made = next_files(2)
    assert (made.rows, made.lost, made.errors) == (30_000, 0, ())
    collection.evict("u", before_step=8, max_frequency=2)
    assert next_files(3).rows == 1

    (group,) = collection.groups
    (path,) = (tmp_path / "evicted" / group.name / "save=1").iterdir()
    assert path.stat().st_size == made.bytes
    table = pq.read_table(path, partitioning=None)
    assert [f.name for f in table.schema] == [
        *(f.name for f in FIRST_FIELDS),
        "embedding",
        "accumulator",
    ]
    for field in FIRST_FIELDS:
        assert table.schema.field(field.name).type == field.type
    assert sorted(table["id"].to_pylist()) == list(range(30_000))
    row = table.slice(5, 1).to_pylist()[0]
    # Row-wise Adagrad of a gradient of ones: the accumulator is 1, the step the learning rate, 0.5.
    assert row.pop("evicted_time").year >= 2024
    assert row.pop("id") in range(30_000)
    assert row == {
        "table": "t",
        "reason": "hand",
        "evicted_step": 7,
        "last_step": 7,
        "frequency": 1,
        "embedding": pytest.approx([0.5, 0.5]),
        "accumulator": [1.0],
    }
    whole = pq.read_table(tmp_path / "evicted" / group.name)
    assert whole.num_rows == 30_001
    assert set(whole["save"].to_pylist()) == {1, 2}


def test_a_file_that_cannot_be_written_loses_its_rows_and_the_next_one_is_tried(tmp_path):
    collection = make_collection([make_table("t", 2)], keeps_evicted=True)
    files = collection.evicted_files
    assert files is not None
    (tmp_path / "file").write_text("not a directory")
    files.next_files(lambda group, *_: str(tmp_path / "file" / "a.parquet"))
    for path in (tmp_path / "b.parquet", tmp_path / "c.parquet"):
        batch = {"t": ids(1, 2, 3)}
        train(collection, batch, {"t": np.ones((3, 2), np.float32)}, step=1)
        collection.evict("t", before_step=2, max_frequency=9)
        made = files.next_files(lambda group, *_, path=path: str(path))
        if path.name == "b.parquet":
            assert (made.rows, made.lost) == (0, 3)
            assert str(tmp_path / "file") in made.errors[0]
    assert (made.rows, made.lost, made.errors) == (3, 0, ())
    assert set(pq.read_table(tmp_path / "b.parquet")["id"].to_pylist()) == {1, 2, 3}


def fit(dataset, tmp_path, epochs, **fields):
    trainer = make_trainer(
        dataset,
        tmp_path / "model",
        recommender=MIXED,
        epochs=epochs,
        evicted_rows=str(tmp_path / "evicted"),
        **fields,
    )
    return trainer.fit().summary


def test_a_run_keeps_what_it_evicts_and_a_resume_removes_what_it_restores(tmp_path):
    dataset = write_dataset(tmp_path / "data", train=(6000,), whole=True)
    first = fit(dataset, tmp_path, 1, max_server_bytes=LEAST)
    evicted = tmp_path / "evicted"
    counts = first["evicted_rows"]
    assert counts["rows"] == sum(sum(causes.values()) for causes in first["evicted"].values()) > 0
    assert counts["lost"] == 0
    rows = read(evicted)
    assert rows.num_rows == first["evicted"]["row"]["limit"] + first["evicted"]["small"]["limit"]
    assert set(rows["reason"].to_pylist()) == {"limit"}
    # A row is in memory or in a file: `row` has an id per example.
    assert first["tables"]["row"] + first["evicted"]["row"]["limit"] >= 6000
    number = latest(tmp_path / "model").save_number
    assert set(rows["save"].to_pylist()) <= set(range(1, number + 1))
    # A later save that no manifest has, as a killed run leaves it.
    left = EvictedDirectory(evicted).shard_path(number + 1, "dim3-rowwise_adagrad", 0, 1)
    left.parent.mkdir()
    left.write_bytes(b"torn")
    fit(dataset, tmp_path, 1, max_server_bytes=LEAST)
    assert not left.parent.exists()
    assert read(evicted).num_rows == rows.num_rows


def test_a_directory_is_of_one_model_directory(tmp_path):
    evicted = EvictedDirectory(tmp_path / "evicted")
    evicted.claim(tmp_path / "a")
    evicted.claim(tmp_path / "a")
    with pytest.raises(
        UsageError, match=r"has the evicted rows of .*/a: give those of .*/b another"
    ):
        evicted.claim(tmp_path / "b")
    assert json.loads((evicted.path / "_model_dir.json").read_text())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x").touch()
    with pytest.raises(UsageError, match=r"other must be empty or have evicted rows of .*/a but"):
        EvictedDirectory(tmp_path / "other").claim(tmp_path / "a")


def test_a_claim_that_was_killed_is_taken_up(tmp_path):
    evicted = EvictedDirectory(tmp_path / "evicted")

    def claim():
        arm("io.rename:1")
        evicted.claim(tmp_path / "a")

    assert is_killed("a claim", claim)
    assert list(evicted.path.iterdir())
    evicted.claim(tmp_path / "a")
    assert [path.name for path in evicted.path.iterdir()] == ["_model_dir.json"]


PROGRAM = """
import sys
from tests.builders import MIXED, make_trainer
from embedps.data.dataset import Dataset
root, limit = sys.argv[1:]
make_trainer(
    Dataset.open(f"{root}/data"), f"{root}/model", recommender=MIXED, delta_steps=20,
    evicted_rows=f"{root}/evicted", max_server_bytes=int(limit),
).fit()
"""


@pytest.mark.slow
def test_after_kills_each_row_that_the_checkpoint_lacks_is_in_a_committed_file(tmp_path):
    write_dataset(tmp_path / "data", train=(6000,), whole=True)
    program = [sys.executable, "-c", PROGRAM, str(tmp_path), str(LEAST)]
    # Where it dies: a shard's file of rows or of evicted rows is about to get its name.
    for fault in ("row_file.rename:4", "row_file.rename:2", ""):
        environment = {**os.environ, "EMBEDPS_FAULT": fault}
        killed = subprocess.run(program, cwd=ROOT, env=environment, check=False).returncode
        assert killed == (-signal.SIGKILL if fault else 0)
        manifest = CheckpointDirectory(tmp_path / "model").latest()
        if manifest is None:
            continue
        (group,) = {t["group"] for t in manifest.tables if t["name"] == "row"}
        # The training data has an id of `row` per example; what a unit made, stays or is in a file.
        left = read_chain(CheckpointDirectory(tmp_path / "model"), manifest, group, table="row")
        kept = pq.read_table(
            tmp_path / "evicted" / group, filters=[("save", "<=", manifest.save_number)]
        )
        kept = kept.filter(pc.equal(kept["table"].cast(pa.string()), "row"))
        seen = set(left["id"].to_pylist()) | set(kept["id"].to_pylist())
        assert len(seen) >= (6000 if not fault else 64 * (manifest.step - 1))  # 64 examples a step
