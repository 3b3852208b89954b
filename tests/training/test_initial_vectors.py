"""Rows that begin with the vectors of a file, whenever they are made."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embedps
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.tools.evict import Selection, evict
from embedps.checkpoint.tools.forget import forget, traces
from embedps.checkpoint.tools.verify import verify
from embedps.data.dataset import Dataset
from embedps.errors import CorruptCheckpointError
from embedps.evaluation.restored_model import RestoredModel
from embedps.serving.cuckoo import find
from embedps.serving.row_arrays import stack_rows
from embedps.storage.object_store import as_path
from embedps.training.trainer import Trainer
from tests.builders import dataset_fixture, latest, make_dlrm, make_trainer, rows_of
from tests.tables.builders import look
from tests.training.test_warm_start import save, write_vectors

dataset = dataset_fixture()

IDS = np.arange(500) * 7 - 1000
VECTORS = np.random.default_rng(1).normal(size=[500, 4]).astype(np.float32)
OTHERS = np.array([-1001, 5000])


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vectors(tmp_path_factory.mktemp("vectors") / "v.parquet", IDS, VECTORS)


@pytest.fixture(scope="module")
def evicted(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset, file: Path) -> Path:
    """A run of three shards whose table C1 began with the file and has lost the rows."""
    model_dir = tmp_path_factory.mktemp("evicted") / "m"
    assert save(make_trainer(dataset, model_dir, **given(file), num_shards=3)) == model_dir
    assert rows_of(model_dir, "C1").keys() == set(IDS.tolist())
    evict(CheckpointDirectory(model_dir), "C1", Selection(max_frequency=1))
    assert not rows_of(model_dir, "C1")
    return model_dir


def given(file: Path) -> dict[str, Any]:
    return {"from_vectors": [f"C1={file}"]}


def begun(trainer: Trainer, table: str, ids: np.ndarray, *, insert: bool = True) -> np.ndarray:
    """Has a run's tables make rows; gives what they begin with."""
    batch = {"C1": ids[:0], "C2": ids[:0], "C3": ids[:0], table: ids}
    found = look(trainer._setup.collection, {k: tf.constant(v) for k, v in batch.items()},
                 insert=insert)  # fmt: skip
    return np.asarray(found[table])


@pytest.mark.parametrize("num_shards", [1, 2])
def test_an_id_that_returns_begins_with_its_vector(
    tmp_path: Path, dataset: Dataset, evicted: Path, num_shards: int
) -> None:
    fresh = make_trainer(dataset, tmp_path / "fresh")
    resumed = make_trainer(dataset, evicted, num_shards=num_shards)
    ids = np.concatenate([OTHERS, IDS[::-1]])
    found = begun(resumed, "C1", ids)
    np.testing.assert_array_equal(found[2:], VECTORS[::-1])
    np.testing.assert_array_equal(found[:2], begun(fresh, "C1", OTHERS))
    np.testing.assert_array_equal(begun(resumed, "C2", IDS), begun(fresh, "C2", IDS))
    resumed.close()
    fresh.close()


def test_rows_of_a_step_begin_with_it_and_each_manifest_lists_the_file(
    tmp_path: Path, dataset: Dataset
) -> None:
    """A limit displaces rows whose ids return."""
    ids, vectors = vectors_of(rows_of_run(dataset, tmp_path / "plain"))
    path = write_vectors(tmp_path / "all.parquet", ids, vectors)
    few = make_dlrm(dataset, max_table_rows=len(ids) // 2)
    trainer = make_trainer(
        dataset,
        tmp_path / "m",
        recommender=few,
        sparse_learning_rate=1e-30,
        from_vectors=[f"C3={path}"],
    )
    summary = trainer.fit().summary
    assert summary["evicted"]["C3"]["limit"] > len(ids)
    rows = rows_of(tmp_path / "m", "C3")
    assert len(rows) <= len(ids) // 2
    expected = dict(zip(ids.tolist(), vectors.tolist(), strict=True))
    assert {i: row["embedding"] for i, row in rows.items()} == {i: expected[i] for i in rows}
    directory = CheckpointDirectory(tmp_path / "m")
    for number in directory.numbers():
        (entry,) = directory.read(number).vectors
        assert entry.path.startswith("vectors-0/")
        assert entry.rows == len(ids)
    assert not verify(directory, directory.numbers()).problems


def rows_of_run(dataset: Dataset, model_dir: Path) -> dict[int, dict[str, Any]]:
    make_trainer(dataset, model_dir).fit()
    return rows_of(model_dir, "C3")


def vectors_of(rows: dict[int, Any]) -> tuple[np.ndarray, np.ndarray]:
    ids = np.array(sorted(rows), np.int64)
    return ids, 1 + np.stack([ids % n for n in (97, 89, 83, 79)], axis=1).astype(np.float32)


def test_a_warm_start_keeps_them_by_the_tables_name(
    tmp_path: Path, dataset: Dataset, evicted: Path
) -> None:
    mine = write_vectors(tmp_path / "mine.parquet", IDS[:1], np.full([1, 6], 3, np.float32))
    other = make_dlrm(dataset, embedding_dim=6)
    fields: dict[str, Any] = {"from": str(evicted), "from_map": ["C1=C2"], "from_dims": "pad"}
    trainer = make_trainer(
        dataset,
        tmp_path / "m",
        recommender=other,
        **fields,
        from_vectors=[f"C2={mine}"],
    )
    found = begun(trainer, "C2", IDS)
    np.testing.assert_array_equal(found[0], np.full(6, 3))
    np.testing.assert_array_equal(found[1:, :4], VECTORS[1:])
    assert not found[1:, 4:].any()
    assert len(latest(save(trainer)).vectors) == 2
    assert not list((tmp_path / "m").glob("warm-start-*"))


def test_a_file_that_is_gone_or_changed_is_named(tmp_path: Path, dataset: Dataset) -> None:
    path = write_vectors(tmp_path / "v.parquet", IDS[:9], VECTORS[:9])
    model_dir = save(make_trainer(dataset, tmp_path / "m", **given(path)))
    (entry,) = latest(model_dir).vectors
    kept = model_dir / entry.path
    content = kept.read_bytes()
    path.unlink()  # which nothing needs any more
    make_trainer(dataset, model_dir).close()
    kept.write_bytes(content[:-100] + bytes([content[-100] ^ 1]) + content[-99:])
    with pytest.raises(CorruptCheckpointError, match=f"{entry.path}.*'xxh3_64': expected"):
        make_trainer(dataset, model_dir)
    kept.unlink()
    with pytest.raises(CorruptCheckpointError, match=f"{entry.path}: manifest .* names it, but"):
        make_trainer(dataset, model_dir)


def test_what_is_forgotten_does_not_return(tmp_path: Path, dataset: Dataset, file: Path) -> None:
    model_dir = save(make_trainer(dataset, tmp_path / "m", **given(file), num_shards=2))
    directory, gone = CheckpointDirectory(model_dir), IDS[100:102]
    evict(directory, "C1", Selection(max_frequency=1))
    assert any("vectors-0" in line for line in traces(directory, "C1", gone))
    forget(directory, "C2", gone)  # of which no file has one
    (before,) = latest(model_dir).vectors
    assert forget(directory, "C1", gone).manifest is not None
    assert not list(traces(directory, "C1", gone))
    (entry,) = latest(model_dir).vectors
    assert entry.rows == before.rows - 2
    assert not (model_dir / "vectors-0").exists()
    assert not verify(directory, directory.numbers()).problems
    trainer, fresh = make_trainer(dataset, model_dir), make_trainer(dataset, tmp_path / "fresh")
    found = begun(trainer, "C1", IDS)
    np.testing.assert_array_equal(found[100:102], begun(fresh, "C1", gone))
    np.testing.assert_array_equal(found[:100], VECTORS[:100])


def test_a_bucket_has_them_too(tmp_path: Path, dataset: Dataset, file: Path, s3_dir: str) -> None:
    there = as_path(f"{s3_dir}/m")
    save(make_trainer(dataset, there, **given(file), num_shards=2))
    directory = CheckpointDirectory(there)
    resumed = make_trainer(dataset, there, num_shards=1)
    np.testing.assert_array_equal(begun(resumed, "C1", IDS), VECTORS)
    resumed._setup.collection.clear()
    resumed._setup.writer.restore(latest(there))
    np.testing.assert_array_equal(begun(resumed, "C1", IDS, insert=False), VECTORS)
    assert not verify(directory, directory.numbers()).problems
    assert not any(name.startswith("embedps-") for name in os.listdir(tmp_path))


def reads_initial(absent: Any = "initial") -> embedps.Recommender:
    """A model of C1 whose absent ids read as rows begin."""

    class Sums(embedps.ClickModel):
        def __init__(self) -> None:
            super().__init__(label="label")
            table = embedps.TableSpec(name="C1", embedding_dim=4, absent=absent)
            self.embeddings = embedps.Embeddings([embedps.FeatureSpec(name="C1", table=table)])
            self.out = tf.keras.layers.Dense(1)

        def logits(self, features: Any, *, training: bool) -> Any:
            return self.out(self.embeddings(features)["C1"])[:, 0]

    return embedps.Recommender(build=Sums)


def test_readers_read_them_where_a_table_reads_absent_ids_as_they_begin(
    tmp_path: Path, dataset: Dataset, file: Path
) -> None:
    for absent, expected in (("initial", VECTORS), ("zeros", np.zeros_like(VECTORS))):
        model = reads_initial(absent)
        trainer = make_trainer(dataset, tmp_path / absent, recommender=model, **given(file))
        directory = CheckpointDirectory(save(trainer))
        evict(directory, "C1", Selection(max_frequency=1))
        manifest = directory.latest()
        assert manifest is not None
        reader = RestoredModel(model, dataset, directory)
        reader.apply(manifest)
        found = look(reader.collection, {"C1": tf.constant(IDS)})["C1"]
        np.testing.assert_array_equal(found, expected)
        (stack,) = stack_rows(directory, manifest, reader.collection.tables)  # of an export
        if absent == "initial":
            places = find(stack.ids, IDS, stack.tables["C1"].id_hash)
            np.testing.assert_array_equal(stack.arrays["rows"][places], VECTORS)
        else:
            assert stack.num_rows == 0
