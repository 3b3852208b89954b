"""The README is a door: it is short, it fits the project, and its program runs as printed."""

import re
import sys
from pathlib import Path

from tests.builders import ROOT, write_dataset
from tests.pages import blocks, run_page

README = ROOT / "README.md"


def test_it_is_a_door_and_no_report():
    lines = README.read_text().splitlines()
    assert len(lines) <= 120
    (hero,) = (block for block in blocks(README) if block.language == "python")
    assert len([line for line in hero.code.splitlines() if line.strip()]) <= 20


def test_a_cell_of_its_results_has_one_number():
    text = README.read_text()
    table = text[text.index("## Results") : text.index("## Install")]
    rows = [line for line in table.splitlines() if line.startswith("|")][2:]
    assert len(rows) == 5
    for row in rows:
        _, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        for cell in cells:
            assert len(re.findall(r"[\d,.]*\d", cell)) <= 1, row


def test_its_supported_versions_are_those_of_the_package():
    project = (ROOT / "pyproject.toml").read_text()
    assert 'requires-python = ">=3.11,<3.14"' in project
    assert "Python 3.11 to 3.13, TensorFlow 2.21, pyarrow 25" in README.read_text()
    assert '"tensorflow~=2.21.0"' in project
    assert '"pyarrow~=25.0"' in project
    assert (3, 11) <= sys.version_info[:2] < (3, 14)


def test_its_program_trains_and_resumes(tmp_path: Path):
    (tmp_path / "data/criteo-2000000").mkdir(parents=True)
    write_dataset(tmp_path / "data/criteo-2000000/dataset")
    out = run_page(README, tmp_path)
    assert "done: 2/2 units, 3,000 examples" in out
    assert (tmp_path / "WIDE/evaluation.jsonl").exists()  # by the evaluator beside it
    assert "done: 2/2 units, 3,000 examples" in run_page(README, tmp_path)
