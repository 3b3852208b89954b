"""The files that patterns and folders stand for."""

from __future__ import annotations

from pathlib import Path

import pytest

from embedps.errors import UsageError
from embedps.pipelines.ingestion.input_files import find_inputs

FILES = (
    "_SUCCESS",
    "day=2024-05-01/part-0.snappy.parquet",
    "day=2024-05-01/.part-0.snappy.parquet.crc",
    "day=2024-05-01/_SUCCESS",
    "day=2024-05-02/part-0.snappy.parquet",
    "_temporary/0/part-1.snappy.parquet",
    ".staging/part-2.snappy.parquet",
)
SHOWN = ["day=2024-05-01/part-0.snappy.parquet", "day=2024-05-02/part-0.snappy.parquet"]


def write(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return folder


@pytest.mark.parametrize("pattern", ["", "/", "/**", "/*/*", "/*/*.parquet", "/day=*/*"])
def test_hidden_files_of_a_folder_and_of_a_pattern_are_left_out(tmp_path: Path, pattern: str):
    folder = write(tmp_path / "in", *FILES)
    assert [task.name for task in find_inputs([f"{folder}{pattern}"])] == SHOWN


def test_name_keeps_the_folders_of_columns(tmp_path: Path):
    folder = write(tmp_path / "in", *FILES)
    for pattern in (folder / "day=2024-05-01", folder / SHOWN[0]):
        (task,) = find_inputs([str(pattern)])
        assert task.name == SHOWN[0]


def test_hidden_file_is_read_if_it_is_named(tmp_path: Path):
    folder = write(tmp_path / "_in", "_a.csv", "_b.csv", "c.csv")
    names = [[t.name for t in find_inputs([f"{folder}/{p}"])] for p in ("_a.csv", "_*", "*", "")]
    assert names == [["_a.csv"], ["_a.csv", "_b.csv"], ["c.csv"], ["c.csv"]]


def test_folder_without_a_file_to_read_is_one_error(tmp_path: Path):
    folder = write(tmp_path / "in", "_SUCCESS", "a/.b")
    with pytest.raises(UsageError, match=r"^--input .*/in: must have a file, there is none that"):
        find_inputs([str(folder)])
    with pytest.raises(UsageError, match=r"only hidden ones, such as .*/_SUCCESS: a folder, given"):
        find_inputs([f"{folder}/*"])


def test_folder_of_files_of_several_kinds_is_named(tmp_path: Path):
    folder = write(tmp_path / "in", "a.tsv.gz", "b.tsv", "day_0.2", "README.md")
    with pytest.raises(UsageError, match=r"one kind, it has 2 of \.tsv such as .*/a\.tsv\.gz, 1 o"):
        find_inputs([str(folder)])
    assert [task.name for task in find_inputs([f"{folder}/**.tsv*"])] == ["a.tsv.gz", "b.tsv"]
    plain = write(tmp_path / "plain", "part-00000", "part-00001.gz", "log.2024-05-01")
    assert len(find_inputs([str(plain)])) == 3


@pytest.mark.parametrize("mark", ["_delta_log/0.json", "metadata/v1.metadata.json"])
def test_bare_files_of_a_table_are_refused_without_its_library(tmp_path: Path, mark: str):
    folder = write(tmp_path / "in", "data/part-0.parquet", mark)
    for given in ("data/part-0.parquet", "**.parquet", "data", "data/*"):
        with pytest.raises(UsageError, match=f"{folder} is an? .* rows too that were deleted"):
            find_inputs([f"{folder}/{given}"])
    with pytest.raises(UsageError, match=r"table that cannot be read|pip install"):
        find_inputs([str(folder)])


def test_folder_that_links_to_itself_is_read_once(tmp_path: Path):
    folder = write(tmp_path / "in", "a/x.csv")
    (folder / "a/loop").symlink_to(folder / "a")
    (folder / "up").symlink_to(folder)
    (tmp_path / "link").symlink_to(folder)
    assert len(find_inputs([str(folder)])) == 1
    assert len(find_inputs([str(tmp_path / "link")])) == 1
