"""Texts of ids: commands show them beside ids of all the datasets of a run, safely, and forget."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.tools import run_texts
from embedps.checkpoint.tools.stats import read_statistics
from embedps.features.text_values import fingerprint
from embedps.storage import id_texts
from embedps.storage.id_texts import SCHEMA, TextFolder, least_id, part_name, write_texts
from embedps.storage.object_store import as_path
from tests.builders import latest, make_trainer
from tests.checkpoint.builders import CheckpointRun, Record
from tests.commands import checkpoint_command
from tests.commands import table_command as main
from tests.pipelines.shop import load, make

TABLE = """
column = [
  { name = "bought", as = "label" },
  { name = "price", as = "numeric" },
  { name = "user", as = "categorical", type = "string" },
  { name = "item", as = "list", separator = "|", type = "string" },
]
"""
HOSTILE = "\x1b[31m<b>\u202e\x9b\x07é"  # the most frequent of all
DAYS = (["ann", "bob", "gone"], ["bob", "cat", "gone too"])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two days; the second day's texts are in another dataset."""
    root = tmp_path_factory.mktemp("texts")
    table = load(root, TABLE)
    for day, users in enumerate(DAYS):
        with open(root / f"{day}.csv", "w", encoding="utf-8", newline="") as out:
            lines = csv.writer(out, lineterminator="\n")
            lines.writerow(["bought", "price", "user", "item"])
            for i in range(240):
                user = HOSTILE if i % 2 else users[i // 2 % 3]
                lines.writerow([i // 2 % 2, i % 7, user, f"i{i % 5}|i{i % 3}"])
        dataset = make(table, root / f"{day}.csv", root / f"day{day}", keep_texts=("user", "item"))
        make_trainer(dataset, root / "m", batch_size=16, unit_rows=64).fit()
    return root / "m"


def got(
    capsys: pytest.CaptureFixture[str], model: Path, *more: object, code: int = 0
) -> list[dict]:
    capsys.readouterr()
    assert main("get", model, "--table", "user", *more) == code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_get_shows_texts_of_both_days_and_no_control_characters(model, capsys):
    wanted = ["ann", "cat", HOSTILE]
    ids = [fingerprint(text) for text in wanted]
    rows = got(capsys, model, "--id", *ids)
    assert [(row["id"], row["text"]) for row in rows] == list(zip(ids, wanted, strict=True))
    assert got(capsys, model, "--text-ids", "--id", *wanted) == rows
    assert main("get", model, "--table", "user", "--id", ids[-1]) == 0
    out = capsys.readouterr().out
    assert out[:-1].isprintable()
    assert "<b>" in out
    assert "é" in out
    (row,) = got(capsys, model, "--id", 5, code=1)
    assert row == {"id": 5, "absent": True}


def test_stats_and_its_page_show_the_hottest_ids_as_texts(model, capsys, tmp_path):
    page = tmp_path / "page.html"
    assert checkpoint_command(["stats", str(model), "--html", str(page)]) == 0
    out = capsys.readouterr().out
    shown = f"{fingerprint(HOSTILE)} \\x1b[31m<b>\\u202e\\x9b\\x07é"
    assert shown in out
    assert all(line.isprintable() for line in out.splitlines())
    html = page.read_text()
    assert "<td>\\x1b[31m&lt;b&gt;\\u202e\\x9b\\x07é</td>" in html
    assert f"<td>ann</td><td class=n>{fingerprint('ann')}</td>" in html
    assert "<td>i1</td>" in html


def test_export_has_a_column_of_texts(model, tmp_path, monkeypatch):
    output = tmp_path / "rows.parquet"
    assert main("export", model, "--table", "item", "--output", output) == 0
    monkeypatch.setattr(run_texts, "_LOOKED_UP_ROWS", 1)
    apart = tmp_path / "apart.parquet"
    assert main("export", model, "--table", "item", "--output", apart) == 0
    assert pq.read_table(apart).equals(pq.read_table(output))
    rows = pq.read_table(output).to_pylist()
    assert {row["text"]: row["id"] for row in rows} == {
        f"i{i}": fingerprint(f"i{i}") for i in range(5)
    }
    assert main("export", model, "--table", "item", "--output", tmp_path / "rows.npz") == 0
    with np.load(tmp_path / "rows.npz") as arrays:
        assert "text" not in arrays
    # The export is imported as any other.
    assert main(
        *("import", shutil.copytree(model, tmp_path / "m"), "--table", "item"),
        *("--input", output, "--present", "replace"),
    ) == 0  # fmt: skip


def test_a_few_ids_read_a_small_part(tmp_path, monkeypatch):
    ids = np.sort(np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 40_000))
    texts = pa.array([f"t{i}" for i in ids.tolist()])
    folder = tmp_path / id_texts.FOLDER_NAME
    folder.mkdir()
    for part in range(2):
        mine = (ids >= least_id(part, 2)) & (ids <= least_id(part + 1, 2) - 1)
        batch = pa.record_batch([ids[mine], texts.filter(pa.array(mine))], schema=SCHEMA)
        write_texts(
            folder / part_name(part, 2), [batch.slice(i, 999) for i in range(0, len(ids), 999)]
        )
    read: list[int] = []
    iter_batches = pq.ParquetFile.iter_batches

    def counting(self, size, row_groups, **more):
        read.extend(row_groups)
        return iter_batches(self, size, row_groups=row_groups, **more)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counting)
    for several in (ids[[0]], ids[[-1]], ids[[8191, 8192]], ids[[20_000]]):
        read.clear()
        assert TextFolder(tmp_path).find(several) == {i: [f"t{i}"] for i in several.tolist()}
        assert len(read) <= len(several)
    assert TextFolder(tmp_path).find(ids + 1) == {}
    assert len(TextFolder(tmp_path).find(ids)) == len(ids)


def test_texts_of_bytes_and_damaged_files_do_no_harm(model, tmp_path, capsys):
    folder = tmp_path / "set" / id_texts.FOLDER_NAME
    folder.mkdir(parents=True)
    one = fingerprint("ann")
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("text", pa.binary())])
    batch = pa.record_batch([[one], [b"\xff\x1b" + b"x" * 10_000]], schema=schema)
    write_texts(folder / part_name(0, 1), [batch], schema)
    (row,) = got(capsys, model, "--id", one, "--texts", tmp_path / "set")
    assert row["text"].startswith("\\xff\x1bxx")
    assert len(row["text"]) < 2000
    for damage in (b"PAR1", (folder / part_name(0, 1)).read_bytes()[:-9]):
        (folder / part_name(0, 1)).write_bytes(damage)
        (row,) = got(capsys, model, "--id", one, "--texts", tmp_path / "set")
        assert row["text"] == "ann"
    (folder / part_name(0, 1)).unlink()
    os.mkfifo(folder / part_name(0, 1))  # which a reader would wait at
    assert main("get", model, "--table", "user", "--id", one, "--texts", tmp_path / "set") == 0
    said = capsys.readouterr().err
    assert "texts of ids cannot be read" in said
    assert said.count("\n") == 1
    assert main("get", model, "--table", "user", "--id", one, "--texts", tmp_path) == 2
    assert "--keep-texts writes them" in capsys.readouterr().err


@pytest.mark.parametrize("stage", [5, {"history": 5}, {"history": [5, {"data": 5}]}])
def test_a_manifest_may_name_anything(tmp_path, capsys, stage):
    run = CheckpointRun(tmp_path / "m", num_shards=1)
    run.base([Record("C1", 1, 1.0)])
    newest = latest(run.directory.path)
    for number, data in enumerate([None, "http://x/\x1b", "x" * 5000, "/dev/null", "a\0b"], 2):
        ledger = {"stage": stage, "data": data}
        run.directory.commit(dataclasses.replace(newest, number=number, ledger=ledger))
        assert main("get", run.directory.path, "--table", "C1", "--id", 1) == 0
        said = capsys.readouterr()
        assert "text" not in json.loads(said.out)
        assert all(line.isprintable() for line in said.err.splitlines())
        assert said.err.count("\n") <= 1


def test_texts_are_found_in_an_object_store(model, capsys, s3_dir):
    ids = [fingerprint("ann")]
    there = as_path(f"{s3_dir}/set")
    for path, _, _ in TextFolder(model.parent / "day0").parts:
        (there / id_texts.FOLDER_NAME / path.name).write_bytes(path.read_bytes())
    assert len(TextFolder(there).parts) == 3
    assert TextFolder(there).find(np.array(ids)) == {ids[0]: ["ann"]}
    assert got(capsys, model, "--id", *ids, "--texts", there)[0]["text"] == "ann"
    ((path, _, _),) = [
        p for p in TextFolder(there).parts if id_texts.has_texts(p[0], np.array(ids))
    ]
    assert id_texts.remove_texts(path, np.array(ids)) == 1
    assert TextFolder(there).find(np.array(ids)) == {}


def test_forgotten_ids_leave_the_texts_of_all_datasets(model, tmp_path, capsys):
    own = CheckpointDirectory(shutil.copytree(model, tmp_path / "m"))
    (tmp_path / "ids").write_text("gone\ngone too\n")
    gone = np.array([fingerprint("gone"), fingerprint("gone too")])
    ask = [own.path, "--table", "user", "--ids", tmp_path / "ids", "--text-ids"]
    days = [model.parent / f"day{day}" for day in range(2)]
    before = [TextFolder(day).find(np.array([fingerprint("bob")])) for day in days]
    assert main("prove-absent", *ask) == 1
    said = capsys.readouterr().out
    assert [f"{day}/_texts/" in said for day in days] == [True, True]
    assert "has texts of ids" in said
    assert main("forget", *ask) == 0
    assert "0 evicted rows, 2 texts" in capsys.readouterr().out
    assert [TextFolder(day).find(gone) for day in days] == [{}, {}]
    assert [TextFolder(day).find(np.array([fingerprint("bob")])) for day in days] == before
    assert before[0] == before[1] == {fingerprint("bob"): ["bob"]}
    assert all(b"gone" not in p.read_bytes() for d in days for p, _, _ in TextFolder(d).parts)
    (own.path / "summary.json").unlink()  # which names hottest ids, as prove-absent says
    (own.path / "statistics.json").unlink(missing_ok=True)
    assert [line for line in proven(capsys, ask) if "_texts" in line] == []
    # What is left of a write that was cut short may have texts.
    left = days[1] / id_texts.FOLDER_NAME / (part_name(0, 3) + ".tmp")
    left.write_bytes(b"")
    assert [f"{left}: is no file of texts" in line for line in proven(capsys, ask)].count(True) == 1
    assert main("forget", *ask) == 1
    left.unlink()
    assert latest(own.path).ledger["data"] == str(days[1])


def proven(capsys: pytest.CaptureFixture[str], ask: list) -> list[str]:
    capsys.readouterr()
    main("prove-absent", *ask)
    return capsys.readouterr().out.splitlines()


def test_what_cannot_be_forgotten_or_read_is_named(model, tmp_path, capsys):
    own = CheckpointDirectory(shutil.copytree(model, tmp_path / "m"))
    shutil.copytree(model.parent / "day0", tmp_path / "set")
    ids = np.array([fingerprint("i1")])
    (tmp_path / "ids").write_text(f"{ids[0]}\n")
    (path,) = [p for p, _, _ in TextFolder(tmp_path / "set").parts if id_texts.has_texts(p, ids)]
    path.write_bytes(path.read_bytes()[:-9])
    ask = [own.path, "--table", "item", "--ids", tmp_path / "ids", "--texts", tmp_path / "set"]
    assert any(
        line.startswith(f"{path}: texts of ids cannot be read") for line in proven(capsys, ask)
    )
    aside = model.parent / "day0"
    aside.rename(tmp_path / "away")
    try:
        assert main("forget", *ask) == 1
        said = capsys.readouterr().out
        assert f"{path} may still have texts of them" in said
        assert f"the dataset {aside} is not here: if it lies elsewhere, --texts" in said
        assert f"the dataset {aside} is not here" in "\n".join(proven(capsys, ask))
    finally:
        (tmp_path / "away").rename(aside)
    assert len(read_statistics(own, latest(own.path)).tables) == 2
