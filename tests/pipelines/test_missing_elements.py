"""Texts that mean a missing value are ids within a list of texts, which ingestion says."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from embedps.features.text_values import fingerprint
from tests.pipelines.shop import load, make

SCHEMA = """
format = "%s"
missing = ["", "NA"]
column = [
  { name = "label", as = "label" },
  { name = "user", as = "categorical", type = "string" },
  { name = "tags", as = "list", type = "string", separator = "|" },
  { name = "words", as = "list", type = "string" },
]
"""
ROWS = [
    (["a", "NA"], []),
    (["NA", "NA"], ["b"]),
    (["na", "NAN"], ["b", "c"]),
    ([], ["b"]),
]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_missing_texts_in_lists_are_told(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = []
    for number, (tags, words) in enumerate(ROWS * 20):
        user = "NA" if number % 3 else "ann"
        if kind == "csv":
            lines.append(f"{number % 2},{user},{'|'.join(tags) or 'NA'},{' '.join(words)}")
        else:
            row = {"label": number % 2, "user": user, "tags": tags or "NA", "words": words}
            lines.append(json.dumps(row))
    if kind == "csv":
        lines.insert(0, "label,user,tags,words")
    (tmp_path / "log").write_text("\n".join(lines) + "\n")
    dataset = make(load(tmp_path, SCHEMA % kind), tmp_path / "log", tmp_path / "set")
    said = capsys.readouterr().err
    assert (
        "60 elements of the lists tags are texts that mean a missing value elsewhere ('', 'NA'): "
        "within a list they are ids like others; leave them out if they mean none" in said
    )
    assert "words" not in said
    tables = [pq.read_table(path) for name in dataset.splits for path in dataset.paths(name)]
    ids = [each for table in tables for row in table["tags"].to_pylist() for each in row]
    assert ids.count(fingerprint("NA")) == 60
