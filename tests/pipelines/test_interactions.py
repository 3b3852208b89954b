"""Users and their items in LightGCN's format become a dataset, or one clear error."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedps.data.corpus import Corpus
from embedps.data.dataset import RARE_ID, Dataset
from embedps.errors import DatasetError, UsageError
from embedps.features.text_values import fingerprint
from embedps.pipelines.ingestion.interactions import Options, make_dataset, read_items
from embedps.pipelines.interactions import main
from tests import commands
from tests.builders import read_split

TRAIN = "0 5 3 9\n1 3\n\n2\n7 9 5 5\n"
TEST = "0 4\n1 5 11\n8 3\n2\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.txt").write_text(TRAIN)
    (tmp_path / "test.txt").write_text(TEST)
    return tmp_path


def options(folder: Path, **changes: object) -> Options:
    fields = {
        "train": (str(folder / "train.txt"),),
        "test": str(folder / "test.txt"),
        "output": str(folder / "set"),
    }
    return Options(**fields | changes)  # type: ignore[arg-type]


def rows(dataset: Dataset, split: str) -> list[dict[str, object]]:
    return read_split(dataset, split).to_pylist()


def test_rows_are_the_pairs_and_the_users_to_score(folder: Path) -> None:
    dataset, was_there = make_dataset(options(folder, max_history=2, num_shards=3))
    assert not was_there
    train = rows(dataset, "train")
    pairs = sorted((row["user"], row["item"]) for row in train)
    assert pairs == [(0, 3), (0, 5), (0, 9), (1, 3), (7, 5), (7, 9)]
    assert all(row["seen"] == row["held_out"] == [] and row["label"] == 1 for row in train)
    histories = {(row["user"], row["item"]): row["history"] for row in train}
    assert histories == {
        (0, 5): [3, 9],
        (0, 3): [5, 9],
        (0, 9): [5, 3],
        (1, 3): [],
        (7, 9): [5],
        (7, 5): [9],
    }
    held_out = {row["user"]: row for row in rows(dataset, "eval")}
    assert {user: row["held_out"] for user, row in held_out.items()} == {0: [4], 1: [5, 11], 8: [3]}
    assert {user: row["seen"] for user, row in held_out.items()} == {0: [5, 3, 9], 1: [3], 8: []}
    sizes = {column.name: column.cardinality for column in dataset.categorical}
    assert sizes == {"user": 4, "item": 5, "history": 5, "held_out": 5, "seen": 5}
    dataset.verify()


def test_a_finished_dataset_is_kept_and_another_is_refused(folder: Path) -> None:
    make_dataset(options(folder))
    before = (folder / "set" / "_dataset.json").stat().st_mtime_ns
    assert make_dataset(options(folder))[1]
    assert (folder / "set" / "_dataset.json").stat().st_mtime_ns == before
    with pytest.raises(UsageError, match="has another dataset"):
        make_dataset(options(folder, seed=1))
    (folder / "test.txt").write_text("0 5\n")
    with pytest.raises(UsageError, match="has another dataset"):
        make_dataset(options(folder))


def test_files_may_be_several_and_gzipped(folder: Path) -> None:
    with gzip.open(folder / "more.txt.gz", "wt") as file:
        file.write("0 3 44\n9 1\n")
    both = (str(folder / "train.txt"), str(folder / "more.txt.gz"))
    dataset, _ = make_dataset(options(folder, train=both))
    pairs = {(row["user"], row["item"]) for row in rows(dataset, "train")}
    assert {(0, 44), (9, 1), (0, 3)} <= pairs
    assert len(rows(dataset, "train")) == 8


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0 1 x2", "train.txt:2: .* but has 'x2'"),
        ("0 1 -2", "train.txt:2: numbers must be at least 0"),
        ("0 99999999999999999999", "but has '99999999999999999999'"),
        ("0 1.5", "but has '1.5'"),
        ("0 é", "must be a text of numbers"),
    ],
)
def test_a_malformed_line_is_named(folder: Path, line: str, message: str) -> None:
    (folder / "train.txt").write_text(f"3 4\n{line}\n")
    with pytest.raises(DatasetError, match=message):
        make_dataset(options(folder))
    assert not (folder / "set" / "_dataset.json").exists()


def test_absent_and_damaged_files_are_named(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"absent.txt cannot be read"):
        make_dataset(options(folder, test=str(folder / "absent.txt")))
    damaged = folder / "damaged.txt.gz"
    damaged.write_bytes(gzip.compress(TRAIN.encode())[:-9])
    with pytest.raises(UsageError, match=r"damaged.txt.gz cannot be read"):
        read_items(damaged)
    (folder / "test.txt").write_text("0\n")
    with pytest.raises(DatasetError, match="there are none"):
        make_dataset(options(folder))


def test_the_command_says_what_it_wrote(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--train", f"{folder}/train.txt", "--test", f"{folder}/test.txt"]
    main([*arguments, "--output", f"{folder}/set"])
    assert "6 pairs to train on, 3 users to score; 4 users, 5 items" in capsys.readouterr().out
    main([*arguments, "--output", f"{folder}/set"])
    assert capsys.readouterr().out.startswith("kept")


def test_a_mistake_is_one_line(folder: Path) -> None:
    files = (f"--train={folder}/no", "--test=x", f"--output={folder}/o")
    process = commands.start("embedps.pipelines.interactions", *files)
    _, error = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "cannot be read" in error
    assert "Traceback" not in error


def test_corpus_has_every_item_once(folder: Path) -> None:
    dataset, _ = make_dataset(options(folder))
    corpus = Corpus.of(dataset, "item", lists=["held_out", "seen"])
    assert corpus.ids.tolist() == [3, 4, 5, 9, 11]
    assert Corpus.of(dataset, "item").ids.tolist() == [3, 4, 5, 9]
    twice = Corpus.of(dataset, "item", lists=["held_out", "seen", "held_out"])
    assert twice.ids.tolist() == corpus.ids.tolist()
    batches = list(corpus.batches(2))
    assert [b["item"].numpy().tolist() for b in batches] == [[3, 4], [5, 9], [11]]
    with pytest.raises(UsageError, match=r"item 11 .* is in a list, but no row has it"):
        Corpus.of(dataset, "item", features=["user"], lists=["held_out"])
    assert Corpus.of(dataset, "item", features=["user"]).columns.column_names == ["item", "user"]
    for column, lists, message in [
        ("history", [], "must be a column of ids"),
        ("nope", [], "must be a column of ids"),
        ("item", ["user"], "must be a column of lists of ids"),
    ]:
        with pytest.raises(UsageError, match=message):
            Corpus.of(dataset, column, lists=lists)
    with pytest.raises(UsageError, match="no column 'nope' of items"):
        Corpus.of(dataset, "item", features=["nope"])


def test_what_rare_items_became_is_no_item_of_a_corpus(tmp_path: Path) -> None:
    rows = [f"{user},{item}" for user, item in enumerate("ab" * 5 + "cd")]
    (tmp_path / "a.csv").write_text("\n".join(["user,item", *rows]) + "\n")
    (tmp_path / "schema.toml").write_text(
        'format = "csv"\ndelimiter = ","\nheader = true\n'
        '[[column]]\nname = "user"\nas = "categorical"\ntype = "integer"\n'
        '[[column]]\nname = "item"\nas = "categorical"\ntype = "string"\n'
        "transform = [{ min_count = 3 }]\n"
    )
    files = (f"--input={tmp_path}/a.csv", f"--schema={tmp_path}/schema.toml")
    process = commands.start("embedps.pipelines.ingest", *files, f"--output={tmp_path}/set")
    out, error = process.communicate(timeout=200)
    assert process.returncode == 0, out + error
    dataset = Dataset.open(tmp_path / "set")
    paths = [path for split in dataset.splits for path in dataset.paths(split)]
    items = pa.concat_tables(pq.read_table(path) for path in paths)["item"].to_pylist()
    assert items.count(RARE_ID) == 2
    assert Corpus.of(dataset, "item").ids.tolist() == sorted(map(fingerprint, "ab"))


@pytest.mark.skipif("EMBEDPS_SAMPLES" not in os.environ, reason="EMBEDPS_SAMPLES is not set")
def test_real_samples_are_read_as_they_are_described(tmp_path: Path) -> None:
    samples = Path(os.environ["EMBEDPS_SAMPLES"])
    parts = {
        part: sum(map(len, read_items(samples / f"lightgcn_lastfm_{part}.txt.gz").values()))
        for part in ("train", "valid", "test")
    }
    assert parts == {"train": 64_315, "valid": 9_143, "test": 18_321}
    dataset, _ = make_dataset(
        Options(
            train=tuple(str(samples / f"lightgcn_lastfm_{p}.txt.gz") for p in ("train", "valid")),
            test=str(samples / "lightgcn_lastfm_test.txt.gz"),
            output=str(tmp_path / "set"),
        )
    )
    assert dataset.split("train").rows == 64_315 + 9_143
    sizes = {column.name: column.cardinality for column in dataset.categorical}
    assert (sizes["user"], sizes["item"]) == (1885, 17_388)
