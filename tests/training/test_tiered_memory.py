"""Runs whose coldest rows are on disk."""

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from embedps.engine.recommender import Recommender
from embedps.engine.unit_functions import explain
from embedps.errors import ServerLostError, UsageError
from embedps.evaluation.loaded_model import load_from
from embedps.run.opened_run import open_run
from embedps.run.summary import read_evaluations
from embedps.tables import FeatureSpec, TableSpec, Tiered
from embedps.tables.collection import EmbeddingCollection
from tests.builders import SumModel, make_trainer, read_split, write_dataset
from tests.training.same_bits import FIELDS, assert_same_checkpoint
from tests.training.tiered_model import BODY_BYTES, DIM, ROWS, WIDE, tiered


def fit(dataset: Any, model_dir: Path, epochs: int, **fields: Any) -> Any:
    trainer = make_trainer(
        dataset,
        model_dir,
        recommender=WIDE,
        epochs=epochs,
        delta_steps=20,
        num_shards=2,
        **(FIELDS | fields),
    )
    trainer.fit()
    return trainer


def test_a_run_with_a_disk_has_the_bits_of_one_without_and_resumes(tmp_path):
    dataset = write_dataset(tmp_path / "data", train=(ROWS,), whole=True)
    plain, with_disk = tmp_path / "plain", tmp_path / "with-disk"
    spill = tmp_path / "spill"
    for epochs in (1, 2):  # the second run restores shards that do not fit
        fit(dataset, plain, epochs)
        trainer = fit(dataset, with_disk, epochs, **tiered(spill))
    assert_same_checkpoint(plain, with_disk)
    stats = trainer.collection.tier_stats()
    options = tiered(spill)
    assert (ROWS - stats.rows_on_disk["row"]) * BODY_BYTES <= options["max_memory_bytes"]
    assert stats.read > ROWS / 5  # of an epoch
    assert (stats.evicted, stats.errors) == (0, ())
    shown = json.loads((with_disk / "statistics.json").read_text())
    assert shown["tier"]["rows_on_disk"]["row"] == stats.rows_on_disk["row"]
    assert list(spill.iterdir()) == []  # the files have no names: no crash leaves one


def rows_of(trainer: Any, dataset: Any) -> dict[str, Any]:
    """The rows of the training split's ids, by feature."""
    table = read_split(dataset, "train")
    ids = {each: tf.constant(table[each].to_numpy()) for each in ("row", "C3")}
    rows = trainer.collection.combine(trainer.collection.lookup(ids, insert=False))
    return {each: np.asarray(rows[each]) for each in ids}


def two_tables(**of_row: Any) -> Recommender:
    """A model of two tables, of which the first is declared as it is asked for."""
    tables = [
        TableSpec(name="row", embedding_dim=DIM, **of_row),
        TableSpec(name="C3", embedding_dim=DIM),
    ]
    features = [FeatureSpec(name=table.name, table=table.name) for table in tables]
    return Recommender(build=functools.partial(SumModel, features=features, tables=tables))


def assert_same(found: list[dict[str, Any]], model_dirs: list[Path]) -> None:
    """Two runs have the same rows, and the scores of two epochs, to the bit."""
    for each, values in found[0].items():
        np.testing.assert_array_equal(values, found[1][each])
        assert np.count_nonzero(values)
    scores = [[e["logloss"] for e in read_evaluations(each)] for each in model_dirs]
    assert scores[0] == scores[1]
    assert len(scores[0]) == 2


def test_a_table_that_stays_in_memory_has_no_row_on_disk_and_the_same_bits(tmp_path):
    dataset = write_dataset(tmp_path / "data", train=(ROWS,), whole=True)
    found = []
    for name, kept, options in (
        ("plain", (False, False), {}),
        ("on-disk", (False, True), tiered(tmp_path / "spill")),  # its group changes at the restore
    ):
        for epochs, in_memory in zip((1, 2), kept, strict=True):
            trainer = make_trainer(
                dataset,
                tmp_path / name,
                recommender=two_tables(in_memory=in_memory),
                **FIELDS | options | {"epochs": epochs},
            )
            trainer.fit()
            on_disk = trainer.collection.tier_stats().rows_on_disk
            assert (on_disk["row"] > ROWS / 4) == bool(options and not in_memory)
        assert on_disk["row"] == 0
        found.append(rows_of(trainer, dataset))
    assert_same(found, [tmp_path / "plain", tmp_path / "on-disk"])


def test_a_table_with_a_memory_of_its_own_has_the_same_bits(tmp_path):
    dataset = write_dataset(tmp_path / "data", train=(ROWS,), whole=True)
    options = tiered(tmp_path / "spill")
    memory = Tiered(
        max_memory_bytes=options["max_memory_bytes"], directory=str(tmp_path / "its-own")
    )
    of_run = options | {"max_memory_bytes": 1 << 30}
    found = []
    for name, own, given in (("plain", None, ({}, {})), ("own", memory, ({}, of_run))):
        # The second run restores a shard that does not fit, beside one that does.
        for epochs, more in enumerate(given, 1):
            trainer = make_trainer(
                dataset,
                tmp_path / name,
                recommender=two_tables(memory=own),
                **FIELDS | more | {"epochs": epochs},
            )
            trainer.fit()
            assert trainer.collection.has_disk == (own is not None)
            on_disk = trainer.collection.tier_stats().rows_on_disk
            assert (on_disk["row"] > ROWS / 4, on_disk["C3"]) == (own is not None, 0)
        found.append(rows_of(trainer, dataset))
    assert_same(found, [tmp_path / "plain", tmp_path / "own"])
    assert list((tmp_path / "its-own").iterdir()) == []
    run = open_run(tmp_path / "own", data=dataset.directory, recommender=two_tables(memory=memory))
    assert load_from(run).collection.tier_stats().rows_on_disk["row"] > ROWS / 4
    large = replace(memory, max_memory_bytes=1 << 30)  # what a reader is given comes first
    assert load_from(run, memory=large).collection.tier_stats().rows_on_disk["row"] == 0


def test_tables_with_an_equal_memory_share_it(tmp_path):
    memory = Tiered(max_memory_bytes=9_000_000, directory=str(tmp_path))
    tables = [
        TableSpec(name=n, embedding_dim=d, memory=memory) for n, d in (("a", DIM), ("b", 2 * DIM))
    ]
    collection = EmbeddingCollection(
        tables,
        [FeatureSpec(name=t.name, table=t) for t in tables],
        devices=["/device:CPU:0"],
        container="two-tables-one-memory",
    )
    try:
        assert len(collection.groups) == 2
        for first in range(0, ROWS, 1000):
            ids = tf.range(first, first + 1000, dtype=tf.int64)
            collection.lookup({"a": ids, "b": ids}, insert=True)
        on_disk = collection.tier_stats().rows_on_disk
        kept = {t.name: ROWS - on_disk[t.name] for t in tables}
        sizes = {t.name: 4 * (t.embedding_dim + 1) for t in tables}
        assert all(0 < kept[n] < ROWS for n in kept)
        assert sum(kept[n] * sizes[n] for n in kept) <= memory.max_memory_bytes
        # Either would keep more, if it had that for itself.
        assert sum(kept[n] * sizes[n] for n in kept) > memory.max_memory_bytes / 2
    finally:
        collection.drop()


def test_a_memory_of_a_table_is_refused_where_it_cannot_be(tmp_path):
    memory = Tiered(max_memory_bytes=9_000_000, directory=str(tmp_path))
    with pytest.raises(UsageError, match=r"table 't': memory must be None, or an embedps.Tiered"):
        TableSpec(name="t", embedding_dim=4, memory=memory, in_memory=True)
    for wrong in (1.5, "9", None):
        with pytest.raises(UsageError, match=r"Tiered.max_memory_bytes must be"):
            Tiered(max_memory_bytes=wrong, directory=str(tmp_path))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"Tiered.directory must be"):
        Tiered(max_memory_bytes=9, directory=None)  # type: ignore[arg-type]
    assert Tiered(max_memory_bytes=9_000_000, directory=tmp_path) == memory
    with pytest.raises(UsageError, match=r"'t': memory must be .* but got 7"):
        TableSpec(name="t", embedding_dim=4, memory=7)  # type: ignore[arg-type]
    dataset = write_dataset(tmp_path / "data", train=(100,), whole=True)
    with pytest.raises(UsageError, match="max_server_bytes must be 0 with table 'row'"):
        make_trainer(
            dataset,
            tmp_path / "model",
            recommender=two_tables(memory=memory),
            max_server_bytes=1 << 30,
        )
    little = Tiered(max_memory_bytes=1, directory=str(tmp_path))
    with pytest.raises(UsageError, match=r"max_memory_bytes must be at least \d+"):
        make_trainer(dataset, tmp_path / "model", recommender=two_tables(memory=little))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_memory_bytes": 1}, "max_memory_bytes and spill_dir must be given together"),
        ({"spill_dir": "/tmp"}, "max_memory_bytes and spill_dir must be given together"),
        (
            {"max_memory_bytes": 1, "spill_dir": "/tmp", "max_server_bytes": 1},
            "max_memory_bytes must be given without max_server_bytes",
        ),
        ({"max_memory_bytes": 1, "spill_dir": "/tmp"}, r"max_memory_bytes must be at least \d+"),
        ({"max_memory_bytes": 1, "spill_dir": __file__}, "spill_dir .* must be a directory"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, fields, message):
    dataset = write_dataset(tmp_path / "data", train=(100,), whole=True)
    with pytest.raises(UsageError, match=message):
        make_trainer(dataset, tmp_path / "model", recommender=WIDE, **fields)


def test_a_damaged_spill_file_is_a_lost_server():
    said = "group 'g': spill file /d/embedps-spill-1-g-0: the record at offset 96, of id 7, is"
    found = explain(tf.errors.DataLossError(None, None, f"{said} damaged"))
    assert isinstance(found, ServerLostError)
    assert said in str(found)
