"""`--keep-texts`: each text of the dataset's ids is kept once, on every runner."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedps.console import command_line
from embedps.data.dataset import Dataset
from embedps.errors import UsageError
from embedps.features import text_values
from embedps.features.text_values import fingerprint
from embedps.pipelines import ingest
from embedps.pipelines.ingestion import kept_texts
from embedps.pipelines.ingestion.make_dataset import make_dataset
from embedps.storage import id_texts
from embedps.storage.id_texts import TextFolder
from tests.builders import read_split
from tests.pipelines.builders import files_of
from tests.pipelines.shop import load, make, make_records, options_of, write_csv

SCHEMA = """
missing = ["", "NA"]
column = [
  { name = "bought", as = "label" },
  { name = "shop", as = "categorical", type = "string" },
  { name = "tags", as = "list", separator = "|", type = "string", transform = [{min_count = 20}] },
  { name = "user", as = "key", type = "string", keep = true },
  { name = "item", as = "categorical", type = "integer" },
]
"""
COLUMNS = ("shop", "tags", "user")


def texts_by_id(dataset: Dataset | Path) -> dict[int, list[str]]:
    """All rows of the files, which are checked to be in order and where readers look for them."""
    root = dataset if isinstance(dataset, Path) else dataset.directory
    found: dict[int, list[str]] = {}
    for path, low, high in TextFolder(root).parts:
        table = pq.read_table(path)
        ids = table["id"].to_numpy()
        assert (np.diff(ids) >= 0).all()
        assert all(low <= i < high for i in ids.tolist())
        for row in table.to_pylist():
            found.setdefault(row["id"], []).append(row["text"])
    return found


def ids_in(dataset: Dataset, column: str) -> set[int]:
    found: set[int] = set()
    for split in ("train", "eval"):
        ids = read_split(dataset, split)[column].combine_chunks()
        found |= set((ids.flatten() if pa.types.is_list(ids.type) else ids).to_pylist())
    return found - {-1, -2}


@pytest.mark.parametrize("form", ["csv", "parquet", "jsonl"])
def test_every_id_of_the_dataset_has_its_text_and_no_other_has(tmp_path: Path, form: str) -> None:
    records = make_records(600)
    table = load(tmp_path, SCHEMA + f'format = "{form}"')
    if form == "csv":
        names = ("bought", "shop", "tags", "user", "item")
        logs = write_csv(tmp_path / "logs" / "a.csv", records, names)
        with logs.open("a") as out:
            out.write("3,a bad line's shop,bad tag,x,1\n")
    else:
        rows: list[dict[str, Any]] = [
            {
                "bought": int(r["bought"]),
                "shop": r["shop"] or None,
                "tags": [t for t in r["tags"].split("|") if t],
                "user": r["user"].encode(),
                "item": int(r["item"]),
            }
            for r in records
        ]
        logs = tmp_path / "logs" / f"a.{form}"
        logs.parent.mkdir()
        if form == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), logs)
        else:
            lines = [json.dumps({**row, "user": row["user"].decode()}) + "\n" for row in rows]
            bad = '{"bought": 3, "shop": "bad shop", "tags": [], "user": "bad user", "item": 1}\n'
            logs.write_text("".join([*lines, bad]))
    dataset = make(table, logs.parent, tmp_path / "set", keep_texts=COLUMNS)
    found = texts_by_id(dataset)
    assert all([fingerprint(text)] == [i] for i, (text,) in found.items())
    assert set(found) == set.union(*(ids_in(dataset, name) for name in COLUMNS))
    texts = {text for (text,) in found.values()}
    assert {r["user"] for r in records} < texts
    assert {"é1", "shop, 1"} < texts
    assert dataset.texts.columns == COLUMNS
    assert (dataset.texts.kept, dataset.texts.left, dataset.texts.shared) == (len(found), 0, 0)
    assert Dataset.open(dataset.directory).texts == dataset.texts


def write_two(folder: Path) -> Path:
    for i in range(2):
        names = ("bought", "shop", "tags", "user", "item")
        write_csv(folder / "logs" / f"{i}.csv", make_records(300, seed=i), names)
    return folder / "logs"


def test_bytes_are_the_same_on_every_runner_and_with_many_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, table = write_two(tmp_path), load(tmp_path, SCHEMA)
    keep = {"keep_texts": COLUMNS, "max_texts": 40}
    one = files_of(make(table, logs, tmp_path / "one", **keep).directory)
    flags = (
        ("--runner=BundleBasedDirectRunner",),
        ("--direct_num_workers=2", "--direct_running_mode=multi_threading"),
    )
    for i, beam_flags in enumerate(flags):
        made = make(table, logs, tmp_path / f"{i}", beam_flags=beam_flags, **keep)
        assert files_of(made.directory) == one
    monkeypatch.setattr(kept_texts, "_PIECE_BYTES", 500)
    monkeypatch.setattr(kept_texts, "_MERGED_ROWS", 3)
    merged, held = kept_texts._merged, []

    def recorded(*arguments: Any) -> Iterator[pa.Table]:
        for some in merged(*arguments):
            held.append(some["id"].to_pylist())
            yield some

    monkeypatch.setattr(kept_texts, "_merged", recorded)
    assert files_of(make(table, logs, tmp_path / "pieces", **keep).directory) == one
    assert len(held) > 20
    assert all(len(ids) <= 3 for ids in held)  # so many are in memory at once


@pytest.mark.slow
@pytest.mark.multiprocess
def test_bytes_are_the_same_with_two_processes(tmp_path: Path) -> None:
    logs, table = write_two(tmp_path), load(tmp_path, SCHEMA)
    one = make(table, logs, tmp_path / "one", keep_texts=COLUMNS)
    flags = ("--direct_num_workers=2", "--direct_running_mode=multi_processing")
    two = make(table, logs, tmp_path / "two", keep_texts=COLUMNS, beam_flags=flags)
    assert files_of(two.directory) == files_of(one.directory)


def test_the_most_frequent_texts_are_kept_and_a_line_says_what_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = write_two(tmp_path)
    load(tmp_path, SCHEMA)
    flags = ["--schema", tmp_path / "shop.toml", "--input", logs, "--output", tmp_path / "set"]
    flags += ["--num-shards", 3, "--keep-texts", "shop", "--max-texts", 5]
    assert command_line.run(ingest.main, [str(flag) for flag in flags]) == 0
    counts = Counter(r["shop"] for i in range(2) for r in make_records(300, seed=i) if r["shop"])
    found = {text: counts[text] for (text,) in texts_by_id(tmp_path / "set").values()}
    assert len(found) == 5
    assert sorted(found.values()) == sorted(counts.values())[-5:]
    line = f"5 texts of shop kept, {len(counts) - 5} of less frequent ids left (--max-texts)\n"
    assert line in capsys.readouterr().out
    before = files_of(tmp_path / "set")
    assert command_line.run(ingest.main, [str(flag) for flag in flags]) == 0
    out = capsys.readouterr().out
    assert line in out
    assert "kept" in out.splitlines()[-1]
    assert files_of(tmp_path / "set") == before
    assert command_line.run(ingest.main, [str(flag) for flag in flags[:-4]]) == 2
    assert "another keep_texts, max_texts" in capsys.readouterr().err
    assert command_line.run(ingest.main, [str(flag) for flag in (*flags[:-4], "--force")]) == 0
    assert not (tmp_path / "set" / id_texts.FOLDER_NAME).exists()


def test_long_texts_are_cut_and_colliding_ones_are_few_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        text_values, "fingerprint", lambda text: 7 if "x" in text else fingerprint(text)
    )
    long = "é" * 5000
    lines = [f"{i % 2},x{i}" for i in range(20)] + [f"1,{long}", "0,fits " + "y" * 251]
    (tmp_path / "a.csv").write_text("bought,shop\n" + "".join(f"{line}\n" for line in lines))
    columns = (
        'name = "bought", as = "label"',
        'name = "shop", as = "categorical", type = "string"',
    )
    load(tmp_path, "".join(f"[[column]]\n{c.replace(', ', chr(10))}\n" for c in columns))
    flags = ["--schema", tmp_path / "shop.toml", "--input", tmp_path / "a.csv", "--output"]
    flags += [tmp_path / "set", "--keep-texts", "shop"]
    assert command_line.run(ingest.main, [str(flag) for flag in flags]) == 0
    found = texts_by_id(tmp_path / "set")
    assert found[7] == ["x0", "x1", "x10", "x11"]
    assert found[fingerprint(long)] == ["é" * 256 + "…"]
    assert found[fingerprint("fits " + "y" * 251)] == ["fits " + "y" * 251]
    assert "6 texts of shop kept; 1 ids are of several texts each" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("item", "ids of texts"),
        ("bought", "ids of texts"),
        ("hashed", "without a hash"),
        ("no", "no column 'no'"),
    ],
)
def test_other_columns_are_refused(tmp_path: Path, name: str, error: str) -> None:
    hashed = '{ name = "hashed", as = "categorical", type = "string", transform = [{ hash = 9 }] },'
    table = load(tmp_path, SCHEMA.replace("column = [", "column = [" + hashed))
    with pytest.raises(UsageError, match=error):
        make_dataset(options_of(table, tmp_path, tmp_path / "set", keep_texts=(name,)))
