"""Where a run in an object store keeps its logs: a folder that only its user can enter."""

import os
import stat

import pytest

from embedps.errors import UsageError
from embedps.storage.object_store import as_path, local_dir

RUN = as_path("s3://bucket/run")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / f"embedps-{os.geteuid()}"


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_directory_of_files_is_itself(tmp_path):
    assert local_dir(tmp_path) == tmp_path


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_folder_is_private_whatever_the_umask(folder, umask):
    before = os.umask(umask)
    try:
        assert local_dir(RUN) == local_dir(RUN) == folder / "bucket" / "run"
    finally:
        os.umask(before)
    assert mode_of(folder) == 0o700


def test_folder_that_others_can_read_is_closed_to_them(folder):
    folder.mkdir()
    folder.chmod(0o755)
    local_dir(RUN)
    assert mode_of(folder) == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_folder_that_others_can_write_is_refused(folder, mode):
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(UsageError, match=rf"by its owner alone but has mode {mode:o}: remove it"):
        local_dir(RUN)


def test_link_is_not_followed(folder, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="must be a directory and no link"):
        local_dir(RUN)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_what_is_no_directory_is_refused(folder):
    folder.write_bytes(b"")
    with pytest.raises(UsageError, match="must be a directory and no link"):
        local_dir(RUN)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_folder_of_another_user_is_refused(folder):
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    with pytest.raises(UsageError, match="must be of user 0 but is of user 12345: remove it"):
        local_dir(RUN)
