"""A server's memory and disk, as they are asked for."""

from pathlib import Path

import pytest

from embedps.tables.tiered import Tiered


@pytest.mark.skipif(not Path("/dev/shm").is_mount(), reason="no file system in memory here")
def test_a_directory_in_memory_is_told(capsys):
    Tiered(max_memory_bytes=1, directory="/dev/shm/none yet")
    told = capsys.readouterr().out
    assert told.startswith("spill_dir /dev/shm/none yet lies in memory here (tmpfs), so rows")
    Tiered(max_memory_bytes=1, directory="/proc")
    assert capsys.readouterr().out == ""
