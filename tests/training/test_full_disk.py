"""Saves on a nearly full disk: each commits where the least that it must write has room."""

import os
import shutil
from contextlib import suppress
from typing import ClassVar

import pytest

from embedps.checkpoint.policies import RebasePolicy
from embedps.errors import CheckpointError
from tests.disks import PAGE_BYTES, Disk, assert_nothing_is_left_over
from tests.training.test_checkpoint_writer import Model, stored

# Pages that are free; what changed takes about 12, a base 30.
LEVELS = (*range(0, 20, 2), 28, 40)


class Due(RebasePolicy):
    """A new base is due when the test says so."""

    kind: ClassVar[str] = "due"
    cumulative: ClassVar[bool] = False
    now = False

    def due(self, base_bytes, delta_bytes):
        return self.now


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    made = Disk(tmp_path_factory.mktemp("full") / "disk", 2 << 20)
    yield made
    made.close()


def pages(*paths):
    files = [file for path in paths for file in [path, *path.rglob("*")] if file.is_file()]
    return sum(-(-file.stat().st_size // PAGE_BYTES) for file in files)


def room(disk, directory):
    """The pages that no checkpoint and no filler takes: what a failed save must give back."""
    named = {
        directory.file(entry) for n in directory.numbers() for entry in directory.read(n).files
    }
    manifests = [directory.manifest_path(n) for n in directory.numbers()]
    taken = pages(disk.path / "filler", *named, *manifests)
    return os.statvfs(disk.path).f_blocks - taken


def least(directory, manifest):
    """The pages of what a save has to write, whatever it does besides."""
    save = manifest.chain[-1]
    files = [directory.file(entry) for entry in (*save.files, manifest.dense)]
    return pages(*files, directory.manifest_path(manifest.number))


def no_base(model):
    """The base becomes due by the save itself, if it is the last."""
    model.train(most=400)
    model.save()
    model.policy.now = True


def base_is_there(model):
    model.policy.now = True
    model.train(most=400)
    model.save()
    model.settle()
    model.policy.now = False


def base_is_under_way(model):
    model.policy.now = True
    model.train(most=400)
    model.save()
    model.policy.now = False


@pytest.mark.parametrize("final", [False, True], ids=["beside training", "final"])
@pytest.mark.parametrize("before", [no_base, base_is_there, base_is_under_way])
def test_save_commits_where_what_changed_fits_and_leaves_nothing_where_not(
    disk, tmp_path, before, final
):
    outcomes = set()
    for level in LEVELS:
        disk.free()
        model = Model(disk.path / f"{level}", Due())
        model.scratch = tmp_path / f"{level}"
        model.train(most=1400)
        model.save()
        before(model)
        model.train(most=400)
        disk.fill(but_pages=level)
        has = room(disk, model.directory)
        manifest = None
        with suppress(CheckpointError):
            manifest = model.save(final=final)
        model.settle()
        model.saver.close()
        assert_nothing_is_left_over(model.directory.path)
        if manifest is None:
            disk.free()
            model.policy.now = False
            needs = least(model.directory, model.save(final=final))
            assert needs > has
        else:
            assert stored(model.directory) == model.live()
        outcomes.add(manifest is not None)
        disk.free()
        model.train()
        model.save()
        model.settle()
        model.saver.close()
        assert stored(model.directory) == model.live()
        assert_nothing_is_left_over(model.directory.path)
        model.collection.drop()
        shutil.rmtree(model.directory.path)
    if before is no_base:
        assert outcomes == {False, True}
