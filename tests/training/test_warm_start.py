"""A new run that begins with another run's rows and network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import embedps
from embedps.data.dataset import Dataset
from embedps.errors import DimMismatchError, UsageError
from embedps.storage.object_store import as_path
from embedps.training.trainer import Trainer
from tests.builders import (
    dataset_fixture,
    dense_of,
    latest,
    make_config,
    make_dlrm,
    make_trainer,
    rows_of,
)
from tests.commands import SMALL, finish, train

dataset = dataset_fixture()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> Path:
    """A run's directory, with a base and deltas of three shards."""
    model_dir = tmp_path_factory.mktemp("source") / "m"
    for epochs in (1, 2):
        make_trainer(dataset, model_dir, num_shards=3, epochs=epochs).fit()
    assert len(latest(model_dir).chain) == 2
    return model_dir


def start(dataset: Dataset, model_dir: Path, recommender: Any = None, **fields: Any) -> Trainer:
    """A trainer that has begun with another run's rows, and has not trained."""
    return make_trainer(dataset, model_dir, recommender=recommender, **fields)


def save(trainer: Trainer) -> Path:
    """Saves what a trainer has; returns its directory."""
    trainer._loop.save(final=False)
    trainer.close()
    return trainer._setup.directory.path


def said(trainer: Trainer) -> str:
    return "\n".join(trainer._setup.changes)


@pytest.mark.parametrize("num_shards", [1, 4])
def test_rows_and_network_are_those_of_the_other_run(
    tmp_path: Path, dataset: Dataset, source: Path, num_shards: int
) -> None:
    trainer = start(dataset, tmp_path / "m", num_shards=num_shards, **{"from": str(source)})
    manifest = latest(source)
    assert f"starts from {source}, checkpoint {manifest.number}, step" in said(trainer)
    model_dir = save(trainer)
    for table in ("C1", "C2", "C3"):
        expected = rows_of(source, table)
        assert f"{table}: {len(expected):,}" in said(trainer)
        found = rows_of(model_dir, table)
        assert found == {i: row | {"last_step": 0} for i, row in expected.items()}
    theirs, ours = dense_of(source), dense_of(model_dir)
    assert theirs.keys() == ours.keys()
    assert all(np.array_equal(theirs[name], ours[name]) for name in theirs)
    assert latest(model_dir).step == 0
    assert not list(model_dir.glob("warm-start-*"))
    resumed = start(dataset, tmp_path / "m", **{"from": str(tmp_path / "gone")})
    assert "starts from" not in said(resumed)
    assert f"--from {tmp_path / 'gone'} has no effect" in said(resumed)
    assert resumed.fit().summary["finished"]


def test_slots_stay_behind_if_asked(tmp_path: Path, dataset: Dataset, source: Path) -> None:
    number = latest(source).number
    fields = {"from": f"{source}@{number}", "from_optimizer_slots": False}
    trainer = start(dataset, tmp_path / "m", **fields)
    assert "without optimizer slots: C1" in said(trainer)
    assert "of its optimizer: 0" in said(trainer)
    model_dir = save(trainer)
    expected, found = rows_of(source, "C2"), rows_of(model_dir, "C2")
    assert {i: row["embedding"] for i, row in found.items()} == {
        i: row["embedding"] for i, row in expected.items()
    }
    assert {tuple(row["accumulator"]) for row in found.values()} == {(0.0,)}
    assert max(row["accumulator"][0] for row in expected.values()) > 0


def test_another_optimizer_begins_with_its_own_slots(
    tmp_path: Path, dataset: Dataset, source: Path
) -> None:
    other = make_dlrm(dataset, sparse_optimizer="adagrad")
    trainer = start(dataset, tmp_path / "m", other, **{"from": str(source)})
    assert "without optimizer slots: C1" in said(trainer)
    found = rows_of(save(trainer), "C1")
    assert found.keys() == rows_of(source, "C1").keys()
    assert {tuple(row["accumulator"]) for row in found.values()} == {(float(np.float32(0.1)),) * 4}


def test_another_network_optimizer_and_dtype_begin_with_the_rows(
    tmp_path: Path, dataset: Dataset, source: Path
) -> None:
    other = make_dlrm(dataset, row_dtype="bfloat16")
    fields = {"from": str(source), "dense_optimizer": "sgd"}
    trainer = start(dataset, tmp_path / "m", other, **fields)
    assert "of its optimizer: 0" in said(trainer)
    model_dir = save(trainer)
    theirs, ours = dense_of(source), dense_of(model_dir)
    names = [name for name in ours if not name.startswith("optimizer/")]
    assert names
    assert all(np.array_equal(theirs[name], ours[name]) for name in names)
    expected, found = rows_of(source, "C2"), rows_of(model_dir, "C2")
    assert found.keys() == expected.keys()
    for i, row in found.items():
        np.testing.assert_allclose(row["embedding"], expected[i]["embedding"], rtol=2**-8)


def test_other_dims_are_refused_cut_or_padded(
    tmp_path: Path, dataset: Dataset, source: Path
) -> None:
    expected = rows_of(source, "C3")
    for dim, way in ((2, "cut"), (6, "pad")):
        other = make_dlrm(dataset, embedding_dim=dim)
        with pytest.raises(DimMismatchError, match=f"{dim} floats per row, .* has 4: give --from-"):
            start(dataset, tmp_path / f"no-{dim}", other, **{"from": str(source)})
        wrong = {"from": str(source), "from_dims": {"cut": "pad", "pad": "cut"}[way]}
        with pytest.raises(DimMismatchError, match=f"give --from-dims {way}"):
            start(dataset, tmp_path / f"no-{dim}", other, **wrong)
        fields = {"from": str(source), "from_dims": way}
        found = rows_of(save(start(dataset, tmp_path / way, other, **fields)), "C3")
        assert {i: row["embedding"] for i, row in found.items()} == {
            i: (row["embedding"] + [0.0] * 6)[:dim] for i, row in expected.items()
        }


@pytest.mark.parametrize(
    ("row_dtype", "fields"),
    [
        ("bfloat16", {}),
        ("float32", {"checkpoint_row_encoding": "int8"}),
        ("float32", {"checkpoint_row_encoding": "int4", "checkpoint_slot_encoding": "bfloat16"}),
    ],
)
def test_rows_of_fewer_bits_come_as_they_are_read(
    tmp_path: Path, dataset: Dataset, row_dtype: str, fields: dict[str, Any]
) -> None:
    theirs = make_dlrm(dataset, row_dtype=row_dtype)
    make_trainer(dataset, tmp_path / "from", recommender=theirs, **fields).fit()
    trainer = start(dataset, tmp_path / "m", **{"from": str(tmp_path / "from")})
    assert "rows taken with optimizer slots: C1" in said(trainer)
    model_dir = save(trainer)
    for table in ("C1", "C2", "C3"):
        expected, found = rows_of(tmp_path / "from", table), rows_of(model_dir, table)
        assert found == {i: row | {"last_step": 0} for i, row in expected.items()}


def test_rows_come_from_a_bucket_and_go_into_one(
    tmp_path: Path, dataset: Dataset, source: Path, s3_dir: str
) -> None:
    there = as_path(f"{s3_dir}/m")
    trainer = start(dataset, there, num_shards=2, **{"from": str(source)})
    assert save(trainer) == there
    back = start(dataset, tmp_path / "m", **{"from": f"{there}@{latest(there).number}"})
    assert f"starts from {there}, checkpoint {latest(there).number}, step 0" in said(back)
    expected = rows_of(source, "C2")
    assert rows_of(save(back), "C2") == {i: row | {"last_step": 0} for i, row in expected.items()}
    assert not [each for each in there.iterdir() if each.name.startswith("warm-start-")]


@pytest.mark.multiprocess
@pytest.mark.slow
def test_a_cluster_begins_with_the_rows(tmp_path: Path, dataset: Dataset, source: Path) -> None:
    servers = ("--num-ps=2", "--num-workers=1", f"--from={source}", "--eval=none")
    out = finish(train(dataset, tmp_path / "m", *SMALL, *servers))
    assert f"starts from {source}, checkpoint {latest(source).number}, step" in out
    assert f"rows taken with optimizer slots: C1: {len(rows_of(source, 'C1')):,}" in out
    assert latest(tmp_path / "m").num_shards == 2
    expected, found = rows_of(source, "C2"), rows_of(tmp_path / "m", "C2")
    assert found.keys() == expected.keys()  # the same data once more
    assert all(found[i]["frequency"] > row["frequency"] for i, row in expected.items())
    assert not list((tmp_path / "m").glob("warm-start-*"))


def tables(*names: str) -> embedps.Recommender:
    """A model of its own tables over C1 and C2."""
    import tensorflow as tf

    class Sums(embedps.ClickModel):
        def __init__(self) -> None:
            super().__init__(label="label")
            features = zip(("C1", "C2"), names, strict=False)
            self.embeddings = embedps.Embeddings(
                [
                    embedps.FeatureSpec(
                        name=feature,
                        table=embedps.TableSpec(
                            name=name, embedding_dim=4, optimizer=embedps.RowwiseAdagrad()
                        ),
                    )
                    for feature, name in features
                ]
            )
            self.out = tf.keras.layers.Dense(1)

        def logits(self, features: Any, *, training: bool) -> Any:
            found = list(self.embeddings(features).values())
            return self.out(tf.concat(found, axis=1))[:, 0]

    return embedps.Recommender(build=Sums)


def test_what_one_model_lacks_is_left_and_what_it_adds_is_fresh(
    tmp_path: Path, dataset: Dataset, source: Path
) -> None:
    fields: dict[str, Any] = {"from": str(source), "from_map": ["C3=first"]}
    trainer = start(dataset, tmp_path / "m", tables("first", "second"), **fields)
    text = said(trainer)
    assert f"C3 as first: {len(rows_of(source, 'C3')):,}" in text
    assert "tables left, which this model lacks: C1, C2" in text
    assert "tables that begin fresh: second" in text
    assert "variables of the network taken: 0, of its optimizer: 0" in text
    assert "variables that begin fresh: out/kernel, out/bias" in text
    trainer.fit()
    found = rows_of(tmp_path / "m", "first")  # the ids of C1 are some of C3's
    assert found.keys() == rows_of(source, "C3").keys()
    assert max(row["last_step"] for row in found.values()) > 0


@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_table_begins_with_the_vectors_of_a_file(
    tmp_path: Path, dataset: Dataset, num_shards: int
) -> None:
    plain = rows_of(save(start(dataset, tmp_path / "plain", epochs=1)), "C1")
    assert not plain
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=[100_000, 4]).astype(np.float32)  # two batches
    ids = np.arange(len(vectors)) * 7 - 50_000
    path = write_vectors(tmp_path / "v.parquet", ids, vectors)
    fields = {"from_vectors": [f"C1={path}"], "num_shards": num_shards}
    trainer = start(dataset, tmp_path / "m", **fields)
    assert "rows made of files: C1: 100,000" in said(trainer)
    model_dir = save(trainer)
    found = rows_of(model_dir, "C1")
    assert found[-50_000] == {
        "embedding": vectors[0].tolist(), "accumulator": [0.0], "last_step": 0, "frequency": 0
    }  # fmt: skip
    assert [found[i]["embedding"] for i in ids.tolist()] == vectors.tolist()
    assert not rows_of(model_dir, "C2")
    assert not list(model_dir.glob("warm-start-*"))
    resumed = start(dataset, model_dir, **fields)
    assert f"--from-vectors C1={path} has no effect" in said(resumed)
    resumed.fit()
    trained = rows_of(model_dir, "C1")
    assert trained.keys() > found.keys()  # the dataset's, by the table's initializer
    assert found.items() <= {i: trained[i] for i in found}.items()


def write_vectors(path: Path, ids: Any, vectors: Any) -> Path:
    floats = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
    pq.write_table(pa.table({"id": pa.array(ids), "embedding": floats}), path)
    return path


def test_vectors_take_the_place_of_those_of_another_run(
    tmp_path: Path, dataset: Dataset, source: Path
) -> None:
    before = rows_of(source, "C1")
    first = min(before)
    path = write_vectors(tmp_path / "v.parquet", [first], np.full([1, 4], 2, np.float32))
    fields = {"from": str(source), "from_vectors": [f"C1={path}"]}
    found = rows_of(save(start(dataset, tmp_path / "m", **fields)), "C1")
    assert found[first]["embedding"] == [2.0] * 4
    assert found.keys() == before.keys()
    assert sum(found[i]["embedding"] != before[i]["embedding"] for i in before) == 1


def test_vectors_that_do_not_fit_are_refused(tmp_path: Path, dataset: Dataset) -> None:
    ones = np.ones([2, 4], np.float32)
    for name, ids, vectors, message in (
        ("dim", [1, 2], np.ones([2, 3], np.float32), "must have 4 floats per row but has 3"),
        ("twice", [5, 5], ones, "each id must be there once but 5 is not"),
        ("nan", [1, 2], ones * np.float32("nan"), "must have finite numbers only"),
    ):
        path = write_vectors(tmp_path / f"{name}.parquet", ids, vectors)
        with pytest.raises(UsageError, match=f"--from-vectors C1=.*{message}"):
            start(dataset, tmp_path / name, from_vectors=[f"C1={path}"])
    with pytest.raises(UsageError, match="no such table, the model has C1, C2, C3"):
        start(dataset, tmp_path / "m", from_vectors=[f"item={path}"])
    with pytest.raises(UsageError, match="cannot be read"):
        start(dataset, tmp_path / "n", from_vectors=["C1=none.parquet"])


def test_mistakes_are_named(tmp_path: Path, dataset: Dataset, source: Path) -> None:
    for fields, message in (
        ({"from": str(tmp_path / "none")}, "there is no such checkpoint"),
        ({"from": f"{source}@999"}, "999"),
        ({"from": str(source), "from_map": ["C9=C1"]}, "neither a table nor a variable"),
        ({"from": str(source), "from_map": ["C9"]}, "pairs OLD=NEW"),
        ({"from": str(source), "from_map": ["a=b", "c=b"]}, "each new name once"),
        ({"from_map": ["a=b"]}, "--from-map needs --from"),
    ):
        with pytest.raises(UsageError, match=message):
            start(dataset, tmp_path / "m", **fields)


def test_wide_deeps_tables_begin_a_dcn(tmp_path: Path, dataset: Dataset) -> None:
    fields: dict[str, Any] = {"delta_secs": 1e6}
    first = Trainer.from_config(make_config(dataset, tmp_path / "w", model="wide_deep", **fields))
    first.fit()
    names = {t["name"]: t["dim"] for t in latest(tmp_path / "w").tables}
    fields |= {"from": str(tmp_path / "w"), "from_dims": "cut", "model": "dcn_v2"}
    second = Trainer.from_config(make_config(dataset, tmp_path / "d", **fields))
    assert "C1: " in said(second)
    assert second.fit().summary["finished"]
    assert names.keys() >= {"C1", "C2", "C3"}
