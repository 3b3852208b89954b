"""The trainer in this process: what is read, learnt and saved, how a run ends and resumes."""

import collections
import itertools
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.tools.verify import verify
from embedps.cluster.embedded import EmbeddedCluster
from embedps.errors import DatasetError, DimMismatchError
from embedps.run.config import TrainConfig
from embedps.storage.file_lock import RUN_LOCK_NAME
from embedps.training.trainer import Trainer
from tests.builders import (
    MIXED,
    ActingCluster,
    dataset_fixture,
    dense_of,
    latest,
    make_dlrm,
    make_trainer,
    write_dataset,
)
from tests.checkpoint.readers import read_chain, read_row_file
from tests.commands import until
from tests.engine.builders import Trained

# Uneven shards with odd row groups, that no unit size divides.
dataset = dataset_fixture(train=(2300, 911, 1), row_group_rows=330, whole=True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, dataset) -> Path:
    """The directory of a run that has ended, for tests that leave it as it is."""
    model_dir = tmp_path_factory.mktemp("finished") / "m"
    make_trainer(dataset, model_dir, seed=3).fit()
    return model_dir


@pytest.fixture(scope="module")
def of_three_epochs(tmp_path_factory, dataset) -> Path:
    """As `finished`, but longer, in one go."""
    model_dir = tmp_path_factory.mktemp("three") / "m"
    make_trainer(dataset, model_dir, seed=3, epochs=3).fit()
    return model_dir


@pytest.fixture
def first_epoch(tmp_path, finished) -> Path:
    """A copy of `finished`, to go on from."""
    return shutil.copytree(finished, tmp_path / "first")


def chain_rows(model_dir: Path, group: str, columns=None) -> pa.Table:
    directory = CheckpointDirectory(model_dir)
    rows = read_chain(directory, latest(directory.path), group)
    return sort(rows.select(columns) if columns else rows)


def sort(rows: pa.Table) -> pa.Table:
    index = rows.schema.get_field_index("table")
    rows = rows.set_column(index, "table", rows["table"].cast(pa.string()))
    return rows.sort_by([("table", "ascending"), ("id", "ascending")]).combine_chunks()


def sections_of(model_dir: Path) -> list[str]:
    return sorted({t["group"] for t in latest(model_dir).tables})


def assert_same_rows(first: Path, second: Path) -> None:
    assert sections_of(first) == sections_of(second)
    for group in sections_of(first):
        assert chain_rows(first, group).equals(chain_rows(second, group))


def visits(model_dir: Path) -> collections.Counter:
    """How often each example was trained on: its `row` is an id of its own."""
    group = {t["name"]: t["group"] for t in latest(model_dir).tables}["row"]
    rows = chain_rows(model_dir, group, ["table", "id", "frequency"])
    of_rows = rows.filter(pa.compute.equal(rows["table"], "row"))
    return collections.Counter(
        dict(zip(of_rows["id"].to_pylist(), of_rows["frequency"].to_pylist(), strict=True))
    )


def await_saves(model_dir: Path, every: int) -> Callable[[int], None]:
    """Has every so many-th unit wait for another checkpoint."""

    def saved() -> int:
        last = CheckpointDirectory(model_dir).latest()
        return 0 if last is None else last.number

    return lambda unit: until(lambda: saved() >= unit // every)


# ---- what is learnt, what is counted ----------------------------------------------------------


def test_loss_falls_below_the_base_rates_entropy_and_from_epoch_to_epoch(tmp_path, dataset):
    losses = []
    for epochs in (1, 3):
        summary = (
            make_trainer(
                dataset, tmp_path, epochs=epochs, sparse_learning_rate=0.2, dense_learning_rate=0.05
            )
            .fit()
            .summary
        )
        losses.append(summary["training"]["logloss"])  # of this run: the epochs added
    train = dataset.split("train")
    rate = train.positives / train.rows
    entropy = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.95 * entropy
    assert summary["training"]["auc"] > 0.7


@pytest.mark.slow
def test_bfloat16_learns_as_float32_does(tmp_path, dataset):
    fields: dict[str, Any] = {"sparse_learning_rate": 0.1, "dense_learning_rate": 0.01}
    losses: dict[str, list[float]] = {"float32": [], "bfloat16": []}
    for dtype, seed in itertools.product(losses, range(4)):
        recommender = make_dlrm(dataset, compute_dtype=dtype)
        model_dir = tmp_path / f"{dtype}-{seed}"
        trainer = make_trainer(dataset, model_dir, recommender=recommender, seed=seed, **fields)
        losses[dtype].append(trainer.fit().summary["training"]["logloss"])
    # A run of 51 steps goes its own way from any rounding: by up to 0.0021 of six seeds, either
    # way. What must not differ is where the runs go on average.
    assert losses["bfloat16"] != losses["float32"]
    assert np.mean(losses["bfloat16"]) == pytest.approx(np.mean(losses["float32"]), abs=1e-3)


def test_a_checkpoint_of_bfloat16_resumes_in_float32(tmp_path, dataset, finished):
    recommender = make_dlrm(dataset, compute_dtype="bfloat16")
    first = make_trainer(dataset, tmp_path, recommender=recommender).fit().summary
    dtypes = [[a.dtype for a in dense_of(folder).values()] for folder in (tmp_path, finished)]
    assert dtypes[0] == dtypes[1]
    resumed = make_trainer(dataset, tmp_path, epochs=2).fit().summary
    assert resumed["training"]["logloss"] < first["training"]["logloss"]


def test_summary_has_what_the_run_did(tmp_path, dataset):
    trainer = make_trainer(dataset, tmp_path, epochs=2)
    summary = trainer.fit().summary
    rows = dataset.split("train").rows
    assert summary["examples"] == 2 * rows
    assert summary["units"] == {
        "done": trainer.ledger.num_units,
        "repeated": 0,
        "attempts": trainer.ledger.num_units,
        "set_aside": 0,
        "total": trainer.ledger.num_units,
    }
    assert summary["finished"]
    assert summary["examples_per_sec"] == pytest.approx(
        summary["examples"] / summary["wall_secs"], rel=0.01
    )
    files = [dataset.absolute_path(f) for f in dataset.split("train").files]
    table = pa.concat_tables([pa.parquet.read_table(f) for f in files])
    assert summary["tables"] == {
        name: len(table[name].unique()) for name in ("C1", "C2", "C3")
    }  # a row of its own for the missing id too
    bases = summary["checkpoint"]["bases"]
    saved = latest(tmp_path)
    assert summary["checkpoint"]["deltas"]["count"] == 0
    assert (bases["count"], bases["bytes"]) == (1, saved.chain[0].bytes)
    assert bases["rows"] == sum(summary["tables"].values())
    assert saved.final
    assert saved.step == 2 * trainer.ledger.steps_per_epoch
    assert saved.progress["examples"] == 2 * rows


@pytest.mark.parametrize(("num_workers", "num_shards"), [(1, 1), (3, 2)])
def test_each_example_is_trained_on_once_an_epoch(tmp_path, dataset, num_workers, num_shards):
    trainer = make_trainer(
        dataset,
        tmp_path,
        recommender=MIXED,
        epochs=2,
        num_workers=num_workers,
        num_shards=num_shards,
        unit_rows=100,
        batch_size=33,
    )
    trainer.fit()
    assert visits(tmp_path) == dict.fromkeys(range(dataset.split("train").rows), 2)


def test_same_seed_gives_the_same_bits_with_one_worker(tmp_path, dataset, finished):
    make_trainer(dataset, tmp_path, seed=3).fit()
    assert_same_rows(tmp_path, finished)
    a, b = dense_of(tmp_path), dense_of(finished)
    assert a.keys() == b.keys()
    assert all(np.array_equal(a[k], b[k]) for k in a)


def test_other_seed_gives_other_rows(tmp_path, dataset, finished):
    make_trainer(dataset, tmp_path, seed=4).fit()
    (group,) = sections_of(finished)
    assert not chain_rows(tmp_path, group).equals(chain_rows(finished, group))


def test_library_user_trains_a_model_of_their_own(tmp_path, dataset):
    """Two dims, a multi-hot feature, a table of two features: by the public API alone."""
    summary = (
        Trainer(
            MIXED,
            dataset,
            TrainConfig.from_options(
                data=str(dataset.directory),
                model_dir=str(tmp_path),
                batch_size=64,
                unit_rows=512,
                epochs=3,
                sparse_learning_rate=0.3,
                eval="none",
            ),
            EmbeddedCluster(num_workers=2, num_shards=3),
        )
        .fit()
        .summary
    )
    assert summary["finished"]
    assert summary["training"]["auc"] > 0.6
    tables = [pa.parquet.read_table(p) for p in dataset.paths("train")]
    table = pa.concat_tables(tables)
    shared = set(table["C1"].to_pylist()) | set(table["C2"].to_pylist())
    wide = set(table["C3"].to_pylist()) | set(pa.compute.list_flatten(table["tags"]).to_pylist())
    assert summary["tables"] == {"small": len(shared), "wide": len(wide), "row": table.num_rows}


# ---- the graph ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "num_groups", "num_shards"),
    [(make_dlrm, 1, 2), (lambda _: MIXED, 2, 1), (lambda _: MIXED, 2, 5)],
)
def test_train_unit_issues_one_lookup_and_one_update_a_group_and_shard(
    dataset, make, num_groups, num_shards
):
    cluster = EmbeddedCluster(num_shards=num_shards)
    trained = Trained(make(dataset), dataset, cluster, kind="adagrad")
    unit = trained.make_unit(64, overlap=True)
    graph = unit.get_concrete_function(*trained.arguments()).graph.as_graph_def()
    outside = collections.Counter(node.op for node in graph.node)
    assert outside["EmbedpsLookup"] == outside["EmbedpsUpdate"] == 0
    assert outside["While"] + outside["StatelessWhile"] == 1
    (loop,) = [n for n in graph.node if n.op in ("While", "StatelessWhile")]
    library = {f.signature.name: f for f in graph.library.function}
    body = collections.Counter(n.op for n in library[loop.attr["body"].func.name].node_def)
    everywhere = collections.Counter(n.op for f in library.values() for n in f.node_def)
    for op in ("EmbedpsLookup", "EmbedpsUpdate"):
        assert body[op] == everywhere[op] == num_groups * num_shards, op


# ---- the end, and on from there ----------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_run_in_good_order_and_a_rerun_finishes(tmp_path, dataset, number, capfd):
    before = signal.getsignal(number)  # ignored, where a shell's "&" began the tests
    assert before in (signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler)

    def send():
        os.kill(os.getpid(), number)
        assert trainer._notices.stop.wait(60)

    cluster = ActingCluster(lambda unit: unit == 3 and send())
    fields: dict[str, Any] = {"recommender": MIXED, "epochs": 2, "unit_rows": 128}
    trainer = make_trainer(dataset, tmp_path, cluster=cluster, **fields)
    first = trainer.fit().summary
    assert not first["finished"]
    assert 3 <= first["units"]["done"] < first["units"]["total"]
    manifest = latest(tmp_path)
    assert not manifest.final
    assert manifest.ledger["doing"] == []  # what was begun was finished
    assert sum(visits(tmp_path).values()) == first["examples"]
    said = capfd.readouterr().out
    assert said.count("told to end: finishing and saving what was begun") == 1
    assert "resumes" not in said

    second = make_trainer(dataset, tmp_path, **fields).fit().summary
    assert second["finished"]
    assert second["units"]["done"] == second["units"]["total"]
    assert second["units"]["repeated"] == 0
    units = first["units"]
    assert (
        f"resumes from checkpoint {manifest.number}, step {manifest.step}: "
        f"{units['done']}/{units['total']} units are done\n"
    ) in capfd.readouterr().out
    assert second["examples"] == 2 * dataset.split("train").rows  # of both runs
    assert visits(tmp_path) == dict.fromkeys(range(dataset.split("train").rows), 2)
    assert signal.getsignal(number) == before


def test_crash_repeats_what_was_in_progress_at_the_last_checkpoint_and_counts_it(tmp_path, dataset):
    """A checkpoint is cut while two units run; the run dies; the next one starts from it."""
    fields: dict[str, Any] = {
        "recommender": MIXED,
        "epochs": 2,
        "unit_rows": 128,
        "num_workers": 2,
    }
    trainer: Any = None

    def die():
        # The other thread has its unit's counts, and is to say so.
        until(lambda: trainer.ledger.num_done >= 4)
        trainer._loop.save(final=False)  # what the clock would have done
        raise RuntimeError("killed")

    cluster = ActingCluster(lambda unit: unit == 5 and die(), num_workers=2)
    trainer = make_trainer(dataset, tmp_path, cluster=cluster, **fields)
    with pytest.raises(RuntimeError, match="killed"):
        trainer.fit()
    ledger = latest(tmp_path).ledger
    done = ledger["prefix"] + len(ledger["beyond"])
    assert done >= 4
    assert ledger["doing"]
    total = trainer.ledger.num_units

    second = make_trainer(dataset, tmp_path, **fields).fit().summary
    assert second["units"]["done"] == second["units"]["total"] == total
    assert second["units"]["repeated"] == len(ledger["doing"])
    assert ledger["attempts"] == [1] * len(ledger["doing"])
    assert second["units"]["attempts"] == ledger["num_attempts"] + total - done
    assert second["examples"] == 2 * dataset.split("train").rows  # a repeated unit's count once
    seen = visits(tmp_path)
    num_rows = dataset.split("train").rows
    assert set(seen) == set(range(num_rows))
    assert min(seen.values()) == 2  # at least once an epoch
    repeated = sum(seen.values()) - 2 * num_rows
    assert 0 <= repeated <= 128 * len(ledger["doing"])


def test_last_unit_is_shown_though_its_counts_were_shown_before_it_was_done(
    tmp_path, dataset, monkeypatch, capfd
):
    trainer = make_trainer(dataset, tmp_path, log_secs=1e-3, delta_secs=0.05)
    log, ledger = trainer._loop.log, trainer.ledger
    add, show, done = log.add, log.show, ledger.done
    rows = dataset.split("train").rows
    all_shown = threading.Event()

    def add_after_the_others(counts: Any, **more: int) -> None:
        if log.result()[0] + more["rows"] == rows:
            until(lambda: ledger.num_done >= ledger.num_units - 1)
        add(counts, **more)

    def show_and_tell(**state: Any) -> str | None:
        recorded = log.result()[0]
        text = show(**state)
        if recorded == rows:
            all_shown.set()
        return text

    def done_late(unit: Any) -> None:
        if log.result()[0] == rows:
            assert all_shown.wait(60)
        done(unit)

    monkeypatch.setattr(log, "add", add_after_the_others)
    monkeypatch.setattr(log, "show", show_and_tell)
    monkeypatch.setattr(ledger, "done", done_late)
    trainer.fit()
    lines = [x for x in capfd.readouterr().out.splitlines() if x.startswith("units ")]
    total = ledger.num_units
    assert lines[-2].startswith(f"units {total - 1}/{total} ")
    assert lines[-1].startswith(f"units {total}/{total} (100%) {rows:,} examples, ")


def test_rerun_of_a_finished_run_changes_nothing(dataset, finished):
    def files():
        written_anew = ("config.json", "summary.json")  # with the same content
        return {
            path: (path.read_bytes(), path.name in written_anew or path.stat().st_mtime_ns)
            for path in finished.rglob("*")
            if path.is_file() and path.name != RUN_LOCK_NAME
        }

    before = files()
    summary = make_trainer(dataset, finished, seed=3).fit().summary
    assert summary["finished"]
    assert summary["examples"] == dataset.split("train").rows
    assert files() == before


def test_resumed_run_has_the_rows_and_the_network_of_the_last_checkpoint(
    dataset, first_epoch, of_three_epochs
):
    make_trainer(dataset, first_epoch, seed=3, epochs=3).fit()
    # One worker visits units in the ledger's order: stopping between them leaves no trace.
    assert_same_rows(first_epoch, of_three_epochs)
    a, b = dense_of(first_epoch), dense_of(of_three_epochs)
    assert all(np.array_equal(a[k], b[k]) for k in b)


def test_run_resumes_on_another_number_of_shards(dataset, first_epoch, of_three_epochs):
    """1, then 3, then 2 shards: the same bits as 1 shard all along."""
    for epochs, num_shards in ((2, 3), (3, 2)):
        make_trainer(dataset, first_epoch, seed=3, epochs=epochs, num_shards=num_shards).fit()
        assert latest(first_epoch).num_shards == num_shards
    assert_same_rows(first_epoch, of_three_epochs)


# ---- checkpoints -------------------------------------------------------------------------------


def test_base_and_deltas_equal_a_full_save_after_a_quiet_point(tmp_path, dataset):
    fields: dict[str, Any] = {"recommender": MIXED, "num_shards": 2, "num_workers": 2}
    model_dir = tmp_path / "model"
    make_trainer(dataset, model_dir, epochs=1, **fields).fit()
    trainer = make_trainer(dataset, model_dir, epochs=2, **fields)
    trainer.fit()
    # Rows of ids seen in few batches go, and some of them come back with the next epoch.
    assert trainer.collection.evict("wide", before_step=2**31, max_frequency=3) > 0
    save: dict[str, Any] = {
        "step": 1,
        "ledger": trainer.ledger.state(),
        "partially_applied": dict,
        "progress": {},
    }
    trainer.saver.save(**save, final=False)

    trainer = make_trainer(dataset, model_dir, epochs=3, **fields)
    assert trainer.collection.stats().rows["wide"] > 0
    cluster_done = trainer.fit().summary
    assert cluster_done["finished"]
    manifest = latest(model_dir)
    assert len(manifest.chain) >= 2
    assert [save.kind for save in manifest.chain] == ["base"] + ["delta"] * (
        len(manifest.chain) - 1
    )
    trainer.collection.evict("wide", before_step=2**31, max_frequency=2)
    trainer.saver.save(**save, final=True)

    full = trainer.collection.files.write("base", str(tmp_path / "full"), since={})
    for group in sections_of(model_dir):
        tables = [read_row_file(Path(f.path)) for f in full if f.group == group]
        names = {f.schema.field("table").type for f in tables}
        assert len(names) == 1
        whole = pa.concat_tables([t.replace_schema_metadata(None) for t in tables])
        whole = sort(whole.drop_columns(["removed"]))
        replayed = chain_rows(model_dir, group)
        assert replayed.num_rows == whole.num_rows > 0
        assert replayed.equals(whole.cast(replayed.schema))


def test_deltas_are_written_while_training_goes_on(tmp_path, dataset):
    cluster = ActingCluster(await_saves(tmp_path, every=5), num_shards=2)
    trainer = make_trainer(dataset, tmp_path, cluster=cluster, delta_secs=0.05, unit_rows=128)
    summary = trainer.fit().summary
    written = summary["checkpoint"]["bases"]["count"] + summary["checkpoint"]["deltas"]["count"]
    assert written >= 3
    directory = CheckpointDirectory(tmp_path)
    found = verify(directory, directory.numbers())
    assert not found.problems
    assert latest(directory.path).final
    assert [p for p in tmp_path.glob("tensorboard/train/*") if p.stat().st_size]


def test_checkpoints_are_due_by_steps_too(tmp_path, dataset):
    # 11 units of 2 steps are done when the twelfth waits.
    fields: dict[str, Any] = {"epochs": 2, "unit_rows": 128, "rebase": "one-shot"}
    fields["cluster"] = ActingCluster(await_saves(tmp_path, every=12))
    summary = make_trainer(dataset, tmp_path, delta_steps=20, **fields).fit().summary["checkpoint"]
    assert summary["bases"]["count"] == 1
    assert summary["deltas"]["count"] >= 2
    assert len(latest(tmp_path).chain) == 2  # one delta that holds all since the base


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embedding_dim": 8}, "table 'C1' has embedding_dim 8, the checkpoint has 4"),
        (
            {"sparse_optimizer": "adagrad"},
            "has optimizer adagrad, the checkpoint has rowwise_adagrad",
        ),
        ({"top_mlp": (9,)}, "dense variable .* has shape"),
        ({"top_mlp": (8, 8)}, "dense variable"),
    ],
)
def test_checkpoint_of_another_model_is_refused(dataset, finished, change, message):
    other = make_dlrm(dataset, **change)
    with pytest.raises(DimMismatchError, match=message):
        make_trainer(dataset, finished, recommender=other, seed=3)


def test_file_that_cannot_be_read_is_named(tmp_path):
    dataset = write_dataset(tmp_path / "set")
    path = dataset.paths("train")[1]
    data = bytearray(path.read_bytes())
    data[200 : len(data) // 2] = bytes(len(data) // 2 - 200)
    path.write_bytes(data)
    with pytest.raises(DatasetError, match=path.name):
        make_trainer(dataset, tmp_path / "m").fit()


def test_run_in_another_thread_leaves_signals_alone(tmp_path, dataset):
    trainer = make_trainer(dataset, tmp_path)
    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    summaries = []
    thread = threading.Thread(target=lambda: summaries.append(trainer.fit().summary))
    thread.start()
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == handlers
    thread.join()
    assert summaries[0]["finished"]
