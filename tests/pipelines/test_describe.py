"""What a dataset holds is told as NumPy counts it, as text and as a page."""

from __future__ import annotations

import pydoc
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from embedps.console.tables import FINGERPRINTS
from embedps.data.dataset import Dataset
from embedps.features.text_values import fingerprint
from embedps.pipelines.describe import main
from embedps.pipelines.report import profile as profile_module
from embedps.pipelines.report.profile import TopIds, make_profile
from tests.builders import read_split
from tests.pipelines.shop import load, make, make_records, write_csv


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    root = tmp_path_factory.mktemp("describe")
    write_csv(root / "a.csv", make_records(400))
    return make(load(root), root / "a.csv", root / "out", row_group_rows=50)


def test_profile_is_what_the_rows_say(dataset: Dataset):
    profile = make_profile(dataset)
    whole = pa.concat_tables([read_split(dataset, split) for split in dataset.splits])
    assert sum(s.rows * s.label_rate for s in profile.shards) == pytest.approx(
        whole["bought"].to_numpy().sum()
    )
    assert [s.split for s in profile.shards] == ["train"] * 3 + ["eval"] * 3
    for number in profile.numeric:
        values = whole[number.name].to_numpy().astype(np.float64)
        present = values[~np.isnan(values)]
        assert number.missing_rate == pytest.approx(np.isnan(values).mean())
        assert (number.low, number.high) == (present.min(), present.max())
        assert number.moments.mean == pytest.approx(present.mean())
        assert number.moments.std == pytest.approx(present.std())
        wanted = np.histogram(present, len(number.bins), (number.low, number.high))[0]
        np.testing.assert_array_equal(number.bins, wanted)
    for column in profile.ids:
        values = whole[column.name].to_pylist()
        ids = [i for v in values for i in v] if column.ragged else values
        counts = Counter(i for i in ids if i != -1)
        assert column.cardinality == len(counts)
        assert column.top.exact
        top = column.top.top(3)
        assert [count for _, count in top] == [count for _, count in counts.most_common(3)]
        assert all(counts[i] == count for i, count in top)
        most = sum(count for _, count in counts.most_common(10))
        assert column.top.share(10) == pytest.approx(most / sum(counts.values()))


def test_top_ids_stay_few_and_keep_the_frequent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(profile_module, "MAX_IDS", 50)
    rng = np.random.default_rng(0)
    top, counts = TopIds(), Counter[int]()
    for _ in range(40):
        ids = np.concatenate([rng.zipf(1.5, 200), rng.integers(1000, 1 << 40, 50)])
        top.add(ids)
        counts.update(ids.tolist())
    assert not top.exact
    assert len(top._ids) <= 100
    assert top.top(5) == counts.most_common(5)
    assert top.total == 10_000


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.links: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.links += [str(v) for k, v in attrs if k in ("href", "src")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_command_prints_tables_and_writes_a_page_of_its_own(
    dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch
):
    monkeypatch.setenv("COLUMNS", "20")  # a pipe has as much as it needs
    main([str(dataset.directory), "--html", str(tmp_path / "page.html")])
    text = capsys.readouterr().out
    for shown in ("train/shard-00000-of-00003.parquet", "clip, standardize", "tags (list)"):
        assert shown in text
    assert "…" not in text
    (by_name,) = (line for line in text.splitlines() if line.startswith("│ tags (list)"))
    ((top, _),) = next(c for c in make_profile(dataset).ids if c.name == "tags").top.top(1)
    assert f" {top} " in by_name
    assert FINGERPRINTS in text
    assert pydoc.locate(FINGERPRINTS.split()[-1].removesuffix("(text)")) is fingerprint
    page = Page()
    page.feed((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert page.open == []
    assert page.links == []
    assert page.tags["script"] == 0
    # A bar a shard, and plots of each column.
    assert page.tags["rect"] > 6 + 32 * len(dataset.numeric)
