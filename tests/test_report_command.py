"""`embedps report`: what a page of a run shows, that hostile texts stay texts, and in a browser."""

from __future__ import annotations

import html.parser
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from embedps import calibrate, evaluate, report
from embedps.console import command_line
from embedps.run.summary import append_evaluation, read_evaluations, read_json

VOID = {"meta"}
SCRIPT = "<script>alert('x')</script>"


class Page(html.parser.HTMLParser):
    """Checks that tags close in order, and collects what a person reads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data + "\n"

    def check_alone(self) -> None:
        """Checks that the page runs nothing and asks for nothing."""
        for tag, attributes in self.tags:
            assert tag not in {"script", "link", "img", "iframe", "object", "embed", "base"}
            for name, value in attributes.items():
                assert not name.startswith("on")
                assert name not in {"src", "href"}
                assert "url(" not in (value or "")


@pytest.fixture
def reported(copied: Path) -> Path:
    """A run with a calibration, and scores by slice of each checkpoint."""
    flags = ["--model-dir", str(copied), "--slices", "C1", "known:C3", "--max-slices", "4"]
    for _ in range(2):
        assert evaluate.main([*flags, "--once", "--gauc", "C2"]) == 0
    assert calibrate.main([str(copied)]) == 0
    return copied


def write(model_dir: Path, *flags: str) -> str:
    assert command_line.run(report.main, [str(model_dir), *flags]) == 0
    path = Path(flags[1]) if flags else model_dir / "report.html"
    return path.read_text()


def test_page_shows_what_the_run_has(reported: Path, tmp_path: Path) -> None:
    page = Page(write(reported))
    page.check_alone()
    line, summary = read_evaluations(reported)[-1], read_json(reported / "summary.json")
    for shown in (f"{line['auc']:.5f}", f"{line['gauc']:.5f}", f"{summary['examples']:,}"):
        assert shown in page.text
    for heading in ("Scores over steps", "By C1", "By known:C3", "Calibration and lift", "Tables",
                    "Failures", "Options", "Speed and size"):  # fmt: skip
        assert heading in page.text
    assert f"{line['logloss@known:C3=new']:.5f}" in page.text
    assert "calibrated (platt, fitted on checkpoint" in page.text
    dots = [attributes for tag, attributes in page.tags if tag == "circle"]
    assert len(dots) >= len(line["deciles"]) + 8
    assert write(reported, "--output", str(tmp_path / "r.html")) == write(reported)


def test_hostile_texts_stay_texts(reported: Path, tmp_path: Path) -> None:
    hostile = tmp_path / "<img src=x onerror=alert(1)>"
    shutil.copytree(reported, hostile)
    line = read_evaluations(hostile)[-1]
    named = {f"auc@{SCRIPT}={SCRIPT}": 0.5, f"auc@C1={SCRIPT}": 0.6, f"{SCRIPT}_x": 0.7}
    append_evaluation(hostile, {**line, **named, "deciles": [{"predicted": SCRIPT}, 3, None]})
    summary = read_json(hostile / "summary.json")
    summary |= {"stopped_early": SCRIPT, "units": [], "recoveries": [{"why": SCRIPT}], "tables": 1}
    summary["config"]["train"]["model"] = SCRIPT
    summary["config"]["model"] = {SCRIPT: SCRIPT}
    (hostile / "summary.json").write_text(json.dumps(summary))
    text = write(hostile)
    page = Page(text)
    page.check_alone()
    assert "<script" not in text
    assert "<img" not in text
    assert page.text.count("<script>") >= 6


def test_damaged_files_cost_their_part_only(reported: Path) -> None:
    (reported / "calibration.json").write_text("[")
    (reported / "statistics.json").write_text("{")
    (reported / "summary.json").write_text('{"finished": 1, "config": [], "checkpoint": {"a": 1}}')
    line = {**read_evaluations(reported)[-1], "auc": float("inf"), "rmse": float("nan")}
    append_evaluation(reported, line)
    page = Page(write(reported))
    assert "calibration.json is no calibration" in page.text
    assert "Scores over steps" in page.text


def test_what_is_no_run_is_one_line(tmp_path: Path, capsys: Any) -> None:
    assert command_line.run(report.main, [str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "must have scores or a summary of a run but has neither" in line


def test_browser_shows_the_page(reported: Path, tmp_path: Path) -> None:
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        pytest.skip(f"no browser here: none of {', '.join(names)}; the page is parsed instead")
    write(reported)
    shot = tmp_path / "shot.png"
    shown = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--screenshot={shot}",
         "--window-size=1200,3000", "--dump-dom", (reported / "report.html").as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "Scores over steps" in shown.stdout
    assert shot.stat().st_size > 10_000
